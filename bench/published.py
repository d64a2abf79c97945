"""The published table on this machine: one job, first as the reference does it, then with the runner that is there, then in fewer steps.

Every row is a whole job as `run` does it (sound, faces, network, decoding, the film written), with its models loaded beforehand. What a row
draws is compared with what the first row drew. Without a GPU, a tiny network on a short clip shows that it works; its times mean nothing.
"""
import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from ..lipsync import compare, face, pipeline, profiles, sound, weights
from ..lipsync.clip import ClipWriter, open_clip, read_audio
from ..lipsync.compare.pairs import scaled
from ..lipsync.denoise import BLOCK_FRAMES
from ..lipsync.errors import AudioError, DependencyError, FaceError, LatentSyncError, ModelFileError
from ..lipsync.face.mediapipe import BLAZE_FILE
from ..lipsync.progress import Progress, silent
from ..lipsync.runners import Runner, RunnerSpec, TorchRunner
from ..lipsync.runners.choice import RTX
from ..lipsync.whisper import TINY, WhisperEncoder
from . import networks, reference
from .job import RATE, limited, picture, tone, write_speech
from .measure import Row, peak
from .plain_vae import BenchVAE
from .stubs import StubDetector

ROOT = Path(__file__).resolve().parents[1]
SHARED = (ROOT.parent / "shared" / "media", ROOT / "shared" / "media")
FIXTURE = "demo1_video.mp4", "demo1_audio.wav"  # the clip and the speech of the published measurements
SECONDS, SHORT = 9.68, 0.4  # of film: as published; on a CPU
WEIGHTS = ("auto", "real", "random")
CRF = 8  # of the films: the encoder must not hide what differs
LARGEST, SMALL = 1920, 480  # px: longest side of the film; on a CPU
SOURCE, SHORT_SOURCE, SPEECH = "source.mp4", "short.mp4", "speech.wav"
SHORT_FRAMES = BLOCK_FRAMES + 2  # of the job before a runner's first: a block and a tail
EAGER = "exact20, eager"
# Not ours, and not of this machine: shared by another project for LatentSync 1.6 on its own card.
THEIRS = (
    "published elsewhere, on their card (RTX 5070 Ti, 16 GB): 9.68 s of video: reference 397.5 s (15.8 GB), TensorRT-RTX 268.2 s (12.55 GB); "
    "30 s of video: reference 1779 s; TensorRT-RTX, 20 steps 779.7 s, 12 steps 609.5 s, 8 steps 502.5 s, 4 steps 384.7 s"
)


class EagerRunner(Runner):
    """The network in the reference's order of operations: nothing fused, shared or captured, both halves of guidance in full."""

    def __init__(self, make: Callable[[], torch.nn.Module], device: torch.device, dtype: torch.dtype, model=None):
        self._make, self._network, self.model = make, None, model
        self.spec = RunnerSpec("the reference's order of operations", device, dtype)

    def load(self) -> None:
        self._network = self._network or self._make()

    def unload(self) -> None:
        self._network = None

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._network.state_dict().values()) if self._network else 0

    @torch.no_grad()
    def predict(self, sample, timestep, audio, check=lambda: None):
        self.load()
        check()
        return reference.unet(self._network, sample, timestep, audio)


@dataclass
class Measured:
    """A row. wall: seconds of the job; stages: of its parts. memory: GB that PyTorch held of the GPU, at most (with an engine: and it).
    quality: against the first row: mouth_ssim, mouth_psnr, ssim, psnr, drift, offset, correlation; empty for the first."""

    name: str
    exact: bool
    seconds: float
    wall: float
    stages: dict[str, float]
    memory: float | None
    quality: dict

    def row(self) -> Row:
        """As the other groups of `bench` have it."""
        note = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in self.stages.items())
        return Row(f"published: {self.name}", self.wall, "s", note=note)


@dataclass(frozen=True)
class Models:
    """Where the networks come from: functions, so that one is in memory at a time. model: a LatentSyncModel, None for random weights."""

    text: str
    network: Callable[[], torch.nn.Module]
    vae: Callable[[], object]
    encoder: Callable[[], WhisperEncoder]
    model: weights.LatentSyncModel | None = None


def rows(
    setup, *, seconds: float | None = None, which: str = "auto", video: Path | None = None, audio: Path | None = None,
    names: tuple[str, ...] | None = None, say: Callable[[str], None] = lambda text: None, failed: list[str] | None = None,
    progress: Progress = silent,
) -> Iterator[Measured]:
    """Measure row after row. setup: see `cases.Setup`. which: of WEIGHTS. video, audio: instead of the published fixture.

    names: all profiles by default. say: hears what the numbers were made of and what could not be measured. failed: the rows that
    could not be run are added. Raises what the stages raise before the first row.
    """
    seconds = seconds or (SHORT if setup.small else SECONDS)
    models = _models(setup, which)
    say(models.text)
    with TemporaryDirectory(prefix="latentsync-bench-") as name, limited(setup.memory, setup.device) if setup.memory and setup.graphs else nullcontext():
        folder = Path(name)
        detector, told = write_media(folder, seconds, video, audio, SMALL if setup.small else LARGEST)
        say(told)
        parts = pipeline.Parts(vae=models.vae(), encoder=models.encoder(), detector=detector)
        job = pipeline.Job(
            folder / SOURCE, folder / SPEECH, folder / "first.mp4", models.model.name if models.model else weights.DEMO, resolution=setup.size * 8,
            crf=CRF, device=str(setup.device), resume=False,
        )
        yield from _measured_all(setup, job, parts, models, names or tuple(profiles.PROFILES), say, [] if failed is None else failed, progress)


def _measured_all(setup, job, parts, models, names, say, failed, progress) -> Iterator[Measured]:
    """The first row that this machine can run, then the others, held against its film."""
    film, missing, last, why = None, {}, None, ""
    for label, one, runner, exact in _plan(setup, job, models, names):
        fresh = last is None or _key(last) != _key(runner)
        if last is not None and fresh:
            last.unload()
        last = runner
        try:
            measured = _measured(setup, label, one, replace(parts, runner=runner), progress, fresh)
        except (LatentSyncError, torch.cuda.OutOfMemoryError) as error:
            before, why = why, str(error).splitlines()[0].replace(str(job.video), "the film")
            say(f"{label} cannot be run here: {'for the same reason' if why == before else why}")
            failed.append(label)
            runner.unload()
            last = None
            continue
        measured.exact = exact
        if film is None:
            film = one.out
        else:
            measured.quality = _quality(setup, one, film, parts.detector, missing, progress)
            one.out.unlink()
        yield measured
    if last is not None:
        last.unload()
    for what, why in missing.items():
        say(f"not measured: {what}: {why}.")


def _plan(setup, job, models, names) -> Iterator[tuple[str, pipeline.Job, Runner, bool]]:
    """What each row is called, its job and its runner, and whether it is exact."""
    yield EAGER, job, EagerRunner(models.network, setup.device, setup.dtype, models.model), True
    own = TorchRunner(models.network, setup.device, setup.dtype) if models.model is None else None
    for profile in (profiles.PROFILES[name] for name in names):
        one = replace(job, out=job.out.with_name(f"{profile.name}.mp4"), profile=profile.name)
        runner = own or pipeline.find_runner(pipeline.check(one))
        yield f"{profile.name}, {profile.label if profile.approximate else _text(runner)}", one, runner, not profile.approximate


def _key(runner):
    return getattr(runner, "key", runner)


def _measured(setup, name, job, parts, progress, fresh) -> Measured:
    """The job, its models loaded. fresh: this runner has not run yet. On a GPU the first row is one stage after the other, as the reference does
    it, and the others draw and write at once, as `run` does."""
    stages, clock = {}, time.perf_counter
    parts.runner.load()
    if fresh and setup.graphs:  # so that no row pays for the compiling of kernels and the loading of libraries
        pipeline.run(replace(job, video=job.video.with_name(SHORT_SOURCE), out=job.out.with_name("warm.mp4"), length="shortest"), parts=parts)

    def timed(stage, work, *arguments):
        started = clock()
        done = work(*arguments, progress=progress)
        if setup.graphs:
            torch.cuda.synchronize(setup.device)
        stages[stage] = clock() - started
        return done

    with peak() if setup.graphs else nullcontext() as used:
        started = clock()
        prepared = timed("sound and faces", pipeline.prepare, pipeline.check(job), parts)
        if setup.graphs and not isinstance(parts.runner, EagerRunner):
            timed("denoise, decode and restore", pipeline.complete, prepared, parts)
        else:
            latents = timed("denoise", pipeline.draw, prepared, parts)
            crops = timed("decode", pipeline.decode, prepared, latents, parts)
            timed("restore", pipeline.write, prepared, crops)
            crops.images.close()
        wall = clock() - started
        memory = used()[1] + (parts.runner.size_bytes / 1e9 if parts.runner.spec.backend == RTX else 0) if used else None
    prepared.close()
    return Measured(name, False, float(prepared.plan.seconds), wall, stages, memory, {})


def _text(runner) -> str:
    backend = runner.spec.backend
    return "TensorRT-RTX engine" if backend == RTX else "PyTorch, CUDA graph" if getattr(runner, "graph", runner.spec.device.type == "cuda") else "PyTorch"


def _quality(setup, job, film, detector, missing, progress) -> dict:
    """How far the job's film is from the first row's, `film`. missing: what could not be measured -> why, to be added to."""
    speech = read_audio(job.audio)
    drawn = isinstance(detector, StubDetector)
    try:
        found = compare.compare_clips(
            open_clip(film), open_clip(job.out), detector=None if drawn else detector, speech_a=speech, speech_b=speech,
            guide=None if drawn else open_clip(job.video), device=setup.device, progress=progress,
        )
    except DependencyError as error:
        missing["likeness to the first row"] = str(error)
        return {}
    missing.update(found.missing)
    best = {name: found.offset(name) for name in "ab"}
    numbers = {"ssim": found.mean("ssim"), "psnr": found.psnr(), "mouth_ssim": found.mean("mouth_ssim"), "mouth_psnr": found.psnr("mouth_error")}
    numbers |= {"drift": found.mean("drift"), "lip_drift": found.mean("lip_drift"), "lpips": found.mean("mouth_lpips")}
    for name, prefix in (("b", ""), ("a", "first_")):
        if best[name]:
            numbers |= {f"{prefix}offset": best[name].frames, f"{prefix}sync": best[name].confidence or best[name].score}
            numbers[f"{prefix}method"] = best[name].method
    return {key: value for key, value in numbers.items() if isinstance(value, str) or not np.isnan(value)}


# --- what the rows are made of ---


def _models(setup, which: str) -> Models:
    """Raises ModelFileError where real weights are asked for and missing."""
    if setup.small and which == "real":
        raise LatentSyncError("the real weights take hours without a GPU: --weights auto runs a small network here.")
    if setup.small or which == "random":
        size = "a tiny network with random weights" if setup.small else "seeded random weights of the full sizes: times are real, mouths are noise"
        return _random(setup, f"models: {size}")
    try:
        model = weights.find_model(None)
        weights.find_whisper(model.path), weights.find_vae()
    except ModelFileError as error:
        if which == "real":
            raise
        return _random(setup, f"models: seeded random weights of the full sizes, times are real, mouths are noise ({error})")
    return Models(
        f"models: {model.description}",
        lambda: model.load_unet(setup.dtype, setup.device),
        lambda: model.load_vae(device=setup.device),
        model.load_whisper,
        model,
    )


def _random(setup, text: str) -> Models:
    def vae():
        made = networks.vae(setup.device, setup.dtype, setup.widths)
        return BenchVAE(made.to(memory_format=torch.channels_last), 4)

    return Models(
        text, lambda: networks.unet(setup.device, setup.dtype, setup.config), vae, lambda: networks.seeded(WhisperEncoder(**TINY), 3)
    )


def write_media(folder: Path, seconds: float, video: Path | None, audio: Path | None, largest: int = LARGEST) -> tuple[face.Detector, str]:
    """SOURCE, its first frames as SHORT_SOURCE, and SPEECH in `folder`, so many seconds at 25 frames a second: `video` and `audio`, or the
    published fixture, or drawn ones. A clip that is too short runs back and forth; one with a side of more than `largest` px is scaled down.
    -> who finds its face, and one line about it. Raises MediaError and AudioError for files that are not what they should be, before any work."""
    count = max(1, round(seconds * RATE))
    fixture = [next((folder / name for folder in SHARED if (folder / name).is_file()), None) for name in FIXTURE]
    video, audio = video or fixture[0], audio or fixture[1]
    clip = open_clip(video, rate=RATE) if video else None  # whether its face can be found or not
    spoken = read_audio(audio) if audio else None
    if audio and spoken is None:
        raise AudioError(f"{audio} has no sound: give a file with speech in it.")
    detector = _detector()
    if clip is None or detector is None:
        detector, size = StubDetector(), (largest, largest * 9 // 32 * 2)
        frames = (picture(*size, k) for k in range(count))
        told = "a drawn clip without a face (" + ("MediaPipe's files are missing" if video else "no clip was given") + ")"
    else:
        shrink = max(1.0, max(clip.width, clip.height) / largest)
        size = tuple(int(side / shrink) // 2 * 2 for side in (clip.width, clip.height))
        frames, told = (scaled(frame, *size) for frame in clip.frames_at(back_and_forth(clip.frame_count, count))), video.name
    film = partial(ClipWriter, width=size[0], height=size[1], rate=RATE, crf=CRF, preset="ultrafast")
    with film(folder / SOURCE) as whole, film(folder / SHORT_SOURCE) as short:
        for index, frame in enumerate(frames):
            whole.write(frame)
            if index < SHORT_FRAMES:
                short.write(frame)
    write_speech(folder / SPEECH, sound.mono_16k(sound.check(spoken or tone(count / RATE))), count)
    return detector, f"film: {told}, {size[0]} x {size[1]}, {count} frames ({float(count / RATE):.2f} s); speech: {audio.name if audio else 'a tone'}"


def back_and_forth(length: int, count: int) -> np.ndarray:
    """`count` frame numbers of a clip of `length`: to its end, back, and again."""
    places = np.arange(count) % max(1, 2 * length - 2)
    return np.where(places < length, places, 2 * length - 2 - places)


def _detector() -> face.Detector | None:
    folder = Path(os.environ.get("LATENTSYNC_FACE_MODELS") or ROOT / ".cache" / "face")
    try:
        return face.load_detector("mediapipe", folder if (folder / BLAZE_FILE).is_file() else None)
    except FaceError:
        return None


# --- as a table ---

COLUMNS = (
    ("wall, s", 9), ("s per s", 8), ("change", 8), ("VRAM, GB", 9), ("mouth SSIM", 11), ("PSNR, dB", 9), ("drift, px", 10), ("lips, px", 9),
    ("A/V offset", 11),
)
NAMES = 78


def heading() -> str:
    return " ".join([f"{'':{NAMES}}", *(f"{name:>{width}}" for name, width in COLUMNS)])


def line(measured: Measured, first: Measured) -> str:
    """One row for people; what is approximate says so. Where no mouth is known, its columns are the whole frame's."""
    quality = measured.quality
    change = "" if measured is first else f"{(measured.wall / first.wall - 1) * 100:+.1f} %"
    cells = [f"{measured.wall:.1f}", f"{measured.wall / measured.seconds:.2f}", change, _cell(measured.memory, "{:.2f}")]
    cells += [_cell(quality.get(f"mouth_{key}", quality.get(key)), text) for key, text in (("ssim", "{:.4f}"), ("psnr", "{:.2f}"))]
    cells += [_cell(quality.get(key), "{:.2f}") for key in ("drift", "lip_drift")]
    cells.append(f"{quality['offset']:+d} ({quality['sync']:.2f})" if "offset" in quality else "-")
    mark = "exact" if measured.exact else "APPROXIMATE"
    return " ".join([f"{mark:12}{measured.name:{NAMES - 12}}", *(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True))])


def _cell(value: float | None, text: str) -> str:
    return "-" if value is None else text.format(value)
