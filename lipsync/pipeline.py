"""All stages in a row, for use without ComfyUI. In a graph, the nodes call the same stages one by one."""
import logging
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from . import audio as audio_stage
from . import budget, denoise, face, folders, gpu, profiles, restore, sound, timeline, vae, weights
from .ahead import ahead
from .clip import Clip, check_format, check_target, copies_sound, open_clip, read_audio
from .crops import ComingCrops, Crops
from .errors import AudioError, LatentSyncError
from .face import MIN_SCORE, MIN_SIZE, SMOOTHINGS
from .face.identity import check_choice
from .journal import Journal
from .progress import Progress, silent
from .runners.base import Runner
from .runners.choice import AUTO, BACKENDS
from .runners.pool import runner_for
from .silence import check_silence, with_silence

log = logging.getLogger(__name__)

ROOM = 7_000_000_000  # bytes of a GPU for the network, a graph of its step and the VAE at a time (measured at 512 px: docs/performance.md)
CHOICES = {
    "length": timeline.LENGTHS,
    "extend": timeline.EXTENSIONS,
    "windows": audio_stage.WINDOWS,
    "detector": face.DETECTORS,
    "smooth": SMOOTHINGS,
    "backend": BACKENDS,
}


@dataclass(frozen=True)
class Job:
    """What to do; the fields are the inputs of the nodes.

    video, audio: media files; `audio` may be a video with sound.
    out: the MP4 to write; its folder must exist.
    model: name of a checkpoint; None takes the first one found.
    face, face_time: which one, chosen at which second of the clip, see `face.align_clip`. face_preview: a PNG to write that shows where it was found.
    work_rate: frames a second of the work and of the result; None keeps the clip's own.
    backend: see `runners.choice`. device: torch device name; None takes the GPU if there is one.
    silence, silence_db: what the mouth does in silence, and what that is, see `silence.with_silence`.
    encoder: of the pictures, see `ClipWriter`. lossless: write sound that cannot be copied from its file as FLAC instead of AAC.
    resume: keep finished blocks in `folders.jobs_dir()` until the job is done, and go on from those that are there.
    profile, steps: how much of the reference's arithmetic is done, see `profiles.choose`.
    """

    video: Path
    audio: Path
    out: Path
    model: str | None = None
    vae: str | None = None
    steps: int = profiles.STEPS
    guidance: float = 1.5
    seed: int = 0
    resolution: int | None = None
    work_rate: int | Fraction | None = 25
    length: str = "audio"
    extend: str = "ping-pong"
    face: str | int | np.ndarray = "largest"
    face_time: float = 0.0
    detector: str = "auto"
    min_score: float = MIN_SCORE
    min_size: int = MIN_SIZE
    smooth: str = SMOOTHINGS[0]
    face_preview: Path | None = None
    windows: str = "overlapped"
    device: str | None = None
    crf: int = 18
    backend: str = AUTO
    silence: str = "off"
    silence_db: float = audio_stage.THRESHOLD_DB
    encoder: str = "auto"
    lossless: bool = False
    resume: bool = True
    profile: str = profiles.EXACT

    @property
    def recipe(self) -> profiles.Plan:
        """What is asked of the network at each step. Raises LatentSyncError for an unknown profile or impossible steps."""
        return profiles.choose(self.profile, self.steps).plan(self.guidance)


@dataclass(frozen=True)
class Result:
    """path: the clip written. summary: one line about faces, model and profile, for people."""

    path: Path
    summary: str


@dataclass(frozen=True)
class Parts:
    """What to use instead of what the job would load for itself: a caller with many jobs loads it once. A runner given stays loaded."""

    runner: Runner | None = None
    vae: object | None = None
    encoder: audio_stage.WhisperEncoder | None = None
    detector: face.Detector | None = None


@dataclass(frozen=True)
class Checked:
    """A job that nothing was found against: its files are what they should be, its disks have the room.

    model: found, not loaded. clip: opened; the result shows its first `shown` frames. speech: AUDIO. side: of the crops in px.
    """

    job: Job
    model: weights.LatentSyncModel
    device: torch.device
    side: int
    clip: Clip
    shown: int
    speech: dict


@dataclass(frozen=True)
class Prepared:
    """A job that only waits for the network. What grows with the clip is on disk."""

    checked: Checked
    track: face.FaceTrack
    features: audio_stage.AudioFeatures
    plan: timeline.Timeline
    journal: Journal | None

    @property
    def job(self) -> Job:
        return self.checked.job

    def close(self) -> None:
        """Give back the disk that it takes, sooner than the interpreter would."""
        self.track.crops.close()


def run(job: Job, progress: Progress = silent, parts: Parts | None = None) -> Result:
    """Run every stage of `job`. What can be refused without work is refused first. A caller with many jobs takes the steps below itself.

    Raises the errors of the stages, all `LatentSyncError`; `job.out` is written under a partial name and renamed at the end.
    """
    given, checked = parts or Parts(), check(job)
    parts = load(checked, given)
    return complete(prepare(checked, parts, progress), parts, progress, keep=given.runner is not None)


def check_settings(job: Job) -> None:
    """Raises what is wrong with the settings by themselves, no file looked at: LatentSyncError, ValueError."""
    profiles.choose(job.profile, job.steps).plan(job.guidance)
    check_format(job.out, job.crf, job.encoder)
    check_silence(job.silence)
    check_choice(job.face)
    if not -(2**63) <= job.seed < 2**64:
        raise LatentSyncError(f"the seed {job.seed} is too large: 64 bits are possible, -2**63 to 2**64 - 1")
    for name in ("guidance", "silence_db", "face_time", "min_score", "min_size"):
        if math.isnan(getattr(job, name)):
            raise LatentSyncError(f"{name} is no number")
    for name, choices in CHOICES.items():
        if getattr(job, name) not in choices:
            raise ValueError(f"{name} is one of {', '.join(choices)}, not {getattr(job, name)!r}")


def check(job: Job) -> Checked:
    """Refuse what can be refused before any model is loaded."""
    check_target(job.out, job.crf, job.encoder)
    check_settings(job)
    device = gpu.device_named(job.device)
    model = weights.find_model(job.model)
    speech = read_audio(job.audio)
    if speech is None:
        raise AudioError(f"{job.audio} has no sound: give a file with speech in it.")
    seconds = sound.check(speech).seconds
    clip = open_clip(job.video, rate=job.work_rate)
    side, plan = job.resolution or model.resolution, _plan(job, clip.frame_count, clip.rate, seconds)
    frames, shown = len(plan), int(plan.source.max()) + 1  # of the result; of the clip, as far as it is shown
    budget.require(
        temp=folders.temp_dir(),
        side=side,
        seconds=seconds,
        aligned=shown,
        redrawn=frames,
        jobs=folders.jobs_dir() if job.resume else None,
        out={job.out.absolute().parent: budget.film(frames, clip.width, clip.height, float(frames / clip.rate), job.crf)},
    )
    return Checked(job, model, device, side, clip, shown, speech)


def load(checked: Checked, parts: Parts | None = None) -> Parts:
    """`parts` with what is missing in it loaded."""
    parts = parts or Parts()
    return Parts(
        detector=parts.detector or face.load_detector(checked.job.detector),
        vae=parts.vae or load_vae(checked),
        runner=parts.runner or find_runner(checked),
        encoder=parts.encoder or checked.model.load_whisper(),
    )


def load_vae(checked: Checked):
    return checked.model.load_vae(path=checked.job.vae, device=checked.device)


def find_runner(checked: Checked) -> Runner:
    """It loads on its first use, or by `load`."""
    return runner_for(checked.model, checked.job.backend, device=checked.device, cached=checked.job.recipe.cached, resolution=checked.side)


@torch.inference_mode()
def prepare(checked: Checked, parts: Parts, progress: Progress = silent) -> Prepared:
    """Everything before the network, by `parts.encoder` and `parts.detector`."""
    job, temp = checked.job, folders.temp_dir()
    if parts.runner is not None:  # else whoever finds one will see
        denoise.expect_profile(parts.runner, job.recipe)
    features = audio_stage.extract(
        checked.speech, parts.encoder, windows=job.windows, device=checked.device, spool_folder=temp, progress=progress
    )
    track = face.align_clip(
        checked.clip,
        parts.detector,
        checked.side,
        choice=job.face,
        choice_time=job.face_time,
        min_score=job.min_score,
        min_size=job.min_size,
        smooth=job.smooth,
        most_frames=checked.shown,
        device=checked.device,
        spool_folder=temp,
        progress=progress,
    )
    if job.face_preview is not None:
        track.write_preview(job.face_preview)
    plan = _plan(job, len(track), checked.clip.rate, features.seconds)
    plan = with_silence(plan, features, job.silence, job.silence_db)
    return Prepared(checked, track, features, plan, Journal(folders.jobs_dir()) if job.resume else None)


def complete(prepared: Prepared, parts: Parts, progress: Progress = silent, keep: bool = True) -> Result:
    """The rest of a prepared job: `draw`, `decode` and `write`, at once where there is room for it, else one after the other. keep: the runner
    stays loaded; else it is unloaded, one after the other before decoding."""
    try:
        if _has_room(prepared.checked.device, parts.runner):
            try:
                return at_once(prepared, parts, progress)
            except torch.cuda.OutOfMemoryError:
                log.warning("too little memory on %s to decode beside the network: one after the other", prepared.checked.device)
        latents = draw(prepared, parts, progress)
    finally:
        if not keep:
            parts.runner.unload()
    return write(prepared, decode(prepared, latents, parts, progress), progress)


def _has_room(device: torch.device, runner: Runner) -> bool:
    """Whether this is a GPU that can hold the network and decode pictures beside it. On a processor all at once would be in each other's way."""
    return device.type == "cuda" and gpu.free_memory(device) + runner.size_bytes > ROOM


def at_once(prepared: Prepared, parts: Parts, progress: Progress = silent) -> Result:
    """`draw`, `decode` and `write` at the same time: each block is decoded as soon as it is drawn, and restored and written while the network
    draws the next, so that the job takes hardly longer than its network. progress hears of the writing once all is drawn."""
    checked, track, plan = prepared.checked, prepared.track, prepared.plan
    count = len(plan.redrawn(track.found))
    if count == 0:
        return write(prepared, ComingCrops(iter(()), 0, plan, checked.side, folders.temp_dir()), progress)
    parts.runner.load()  # in this thread, which Ctrl-C reaches
    abandoned, drawn = threading.Event(), threading.Event()

    def drawing(done, total, **about) -> None:
        if abandoned.is_set():  # the writing has failed, or was stopped
            raise KeyboardInterrupt
        progress(done, total, **about)
        if done == total:
            drawn.set()

    def writing(done, total, **about) -> None:
        if drawn.is_set():
            progress(done, total, **about)

    def pieces() -> Iterator[np.ndarray]:
        latents = denoise.denoised(parts.runner, parts.vae, track, plan, prepared.features, **_drawing(prepared, drawing))
        with torch.inference_mode(), gpu.on(checked.device), closing(latents):
            yield from vae.decoded(parts.vae, vae.with_crops(latents, track, plan), track, plan)

    with ahead(pieces(), depth=2) as made, gpu.beside(checked.device):
        try:
            return write(prepared, ComingCrops(made, count, plan, checked.side, folders.temp_dir()), writing)
        finally:
            abandoned.set()


@torch.inference_mode()
def draw(prepared: Prepared, parts: Parts, progress: Progress = silent, blocks: Sequence[int] | None = None) -> torch.Tensor:
    """The latents of the new mouths by `parts.runner` and `parts.vae`, see `denoise.denoise_clip`; `blocks`: only those."""
    track, plan, temp = prepared.track, prepared.plan, folders.temp_dir()
    with gpu.on(prepared.checked.device):
        options = _drawing(prepared, progress)
        return denoise.denoise_clip(parts.runner, parts.vae, track, plan, prepared.features, blocks=blocks, spool_folder=temp, **options)


def _drawing(prepared: Prepared, progress: Progress) -> dict:
    """The options of `denoise.denoised` that the job says."""
    job, journal = prepared.job, prepared.journal
    return dict(steps=job.steps, guidance=job.guidance, seed=job.seed, profile=job.profile, journal=journal, progress=progress)


@torch.inference_mode()
def decode(prepared: Prepared, latents: torch.Tensor, parts: Parts, progress: Progress = silent) -> Crops:
    """The new mouths as pictures, by `parts.vae`."""
    with gpu.on(prepared.checked.device):
        return vae.decode_crops(parts.vae, latents, prepared.track, prepared.plan, spool_folder=folders.temp_dir(), progress=progress)


def write(prepared: Prepared, crops: Crops | ComingCrops, progress: Progress = silent) -> Result:
    """Put the new mouths into the clip and write it; needs no model. The job's finished blocks are forgotten."""
    job, checked, model = prepared.job, prepared.checked, prepared.checked.model
    voice = job.audio if copies_sound(job.audio, job.out) else prepared.features.audio
    encoding = {"crf": job.crf, "encoder": job.encoder, "lossless": job.lossless}
    path = restore.restore_clip(prepared.track, crops, voice, job.out, device=checked.device, progress=progress, **encoding)
    if prepared.journal:
        prepared.journal.discard()
    notes = [prepared.track.summary(), f"Model: {model.description}", model.resolution_warning(checked.side), f"Profile: {job.recipe.profile.text}."]
    return Result(path, " ".join(filter(None, notes)))


def _plan(job: Job, frames: int, rate: Fraction, seconds: float) -> timeline.Timeline:
    return timeline.build(frames, rate, seconds, length=job.length, extend=job.extend)
