"""The stages around the networks, and a whole job: a drawn clip of 242 frames (9.6 s, as the published measurements), its faces given."""
import contextlib
import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import torch

from ..lipsync import audio, batched, denoise, restore, timeline, vae
from ..lipsync.clip import ClipWriter, open_clip
from ..lipsync.face.align import align_matrices, warp_crop
from ..lipsync.face.detector import Face
from ..lipsync.face.track import align_clip
from ..lipsync.face.warp import Warper
from ..lipsync.overlay import Overlay
from ..lipsync.runners import TorchRunner
from ..lipsync.whisper import WhisperEncoder
from . import networks
from .measure import Row, milliseconds, peak
from .plain_vae import BenchVAE

log = logging.getLogger(__name__)

RATE = Fraction(25)
FRAMES, SHORT = 242, 50  # of a job, and of one in little memory
SIZES = {"1080p": (1920, 1080), "4K": (3840, 2160)}
ALIGN, RESTORE, RESTORE_ON_ONE_CORE = {"1080p": 1, "4K": 2}, {"1080p": 2, "4K": 3}, {"1080p": 12}  # ms to reach
DRIVER_SHARE = 0.8  # GB: a CUDA context with the libraries' kernels, and what a desktop holds
CPU = torch.device("cpu")  # where the clock is read


def landmarks(width: int, height: int) -> np.ndarray:
    """Brows and nose of a face a third as wide as the picture is high: float32 [3,2]."""
    centre, unit = np.array([width / 2, height * 0.45]), height / 3
    return (centre + np.array([[-0.25, -0.1], [0.25, -0.1], [0.0, 0.12]]) * unit).astype(np.float32)


def picture(width: int, height: int, index: int = 0) -> np.ndarray:
    """A soft moving pattern: uint8 [height,width,3]."""
    small = np.stack(np.meshgrid(np.arange(64), np.arange(36)), -1).sum(-1) * 3 + index
    colours = np.stack([128 + 100 * np.sin(small / period) for period in (7, 11, 17)], -1).astype(np.uint8)
    return cv2.resize(colours, (width, height), interpolation=cv2.INTER_CUBIC)


class GivenFaces:
    """A detector that knows where the face is."""

    name, device, note = "given", "nowhere", ""

    def __init__(self, points: np.ndarray):
        low, high = points.min(0), points.max(0)
        self.face = Face(np.concatenate([low - (high - low), high + (high - low)]).astype(np.float32), 1.0, points)

    def detect(self, frames: Sequence[np.ndarray], **_) -> list[list[Face]]:
        return [[self.face] for _ in frames]


def face_rows(device: torch.device, resolution: int) -> Iterator[Row]:
    for name in SIZES:
        yield from _face_rows(name, device, resolution)


def _face_rows(name: str, device: torch.device, resolution: int) -> Iterator[Row]:
    width, height = SIZES[name]
    frames = [picture(width, height, i) for i in range(batched.frames_at_once(width * height * 3))]
    matrices = np.repeat(align_matrices(landmarks(width, height)[None], resolution), len(frames), 0)
    crops = [warp_crop(frame, matrix, resolution) for frame, matrix in zip(frames, matrices, strict=True)]

    def cut():
        return warp_crop(frames[0], matrices[0], resolution)

    def put_back():
        return restore.paste_uint8(frames[0], crops[0], matrices[0])

    with one_core():
        yield Row(f"align a {name} frame, one core", milliseconds(cut, CPU), "ms")
        yield Row(f"restore a {name} frame, one core", milliseconds(put_back, CPU), "ms", RESTORE_ON_ONE_CORE.get(name))
    if batched.picture_device(device) is None:
        return
    warper, overlay = Warper(resolution, device), Overlay(resolution, device)
    note = f"{len(frames)} at a time, copies included"

    def cut_all():
        return warper.begin(frames, matrices)()

    def put_all_back():
        return overlay.begin(frames, crops, matrices)()

    yield Row(f"align a {name} frame, GPU", milliseconds(cut_all, CPU) / len(frames), "ms", ALIGN[name], note=note)
    yield Row(f"restore a {name} frame, GPU", milliseconds(put_all_back, CPU) / len(frames), "ms", RESTORE[name], note=note)


def rows(setup) -> Iterator[Row]:
    """The whole job, by stage, with its peak of memory."""
    width, height = (640, 360) if setup.small else SIZES["1080p"]
    count = setup.frames + 1 if setup.small else FRAMES if setup.memory is None else SHORT
    with tempfile.TemporaryDirectory() as folder:
        source, sound = Path(folder) / "source.mp4", tone(count / RATE)
        with ClipWriter(source, width, height, RATE, audio=sound) as writer:
            for index in range(count):
                writer.write(picture(width, height, index))
        with limited(setup.memory) if setup.memory else contextlib.nullcontext(), peak() if setup.graphs else contextlib.nullcontext() as used:
            stages = run(setup, source, sound, Path(folder))
            label = f"job of {count} frames" + (f" within {setup.memory:g} GB" if setup.memory else "")
            note = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in stages.items())
            time_limits, memory_limits = ((40, 32), (7.5, 6)) if setup.memory is None else ((), ())
            yield Row(label, sum(stages.values()), "s", *time_limits, note=note)
            if used:
                yield Row(f"{label}: GPU memory held by PyTorch", used()[1], "GB", *memory_limits, note=f"{used()[0]:.2f} GB in tensors")


@torch.inference_mode()
def run(setup, source: Path, sound: dict, folder: Path) -> dict[str, float]:
    """Seconds of each stage, models made beforehand."""
    device, seconds, clock = setup.device, {}, time.perf_counter

    def timed(stage: str, work):
        started = clock()
        done = work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds[stage] = clock() - started
        return done

    encoder = networks.seeded(WhisperEncoder(n_mels=80, n_ctx=1500, n_state=384, n_head=6, n_layer=4), 3)
    runner = TorchRunner(networks.unet(device, setup.dtype, setup.config), device, setup.dtype)
    runner.load()
    coder = BenchVAE(networks.vae(device, setup.dtype, setup.widths).to(memory_format=torch.channels_last), 4)
    with contextlib.ExitStack() as stack:
        clip = open_clip(source)
        features = timed("audio", lambda: audio.extract(sound, encoder, device=device))
        detector = GivenFaces(landmarks(clip.width, clip.height))
        track = timed("align", lambda: align_clip(clip, detector, setup.size * 8, device=device, spool_folder=folder))
        stack.callback(track.crops.close)
        plan = timeline.build(len(track), clip.rate, features.seconds)
        latents = timed("denoise", lambda: denoise.denoise_clip(runner, coder, track, plan, features, steps=setup.steps))
        runner.unload()
        crops = timed("decode", lambda: vae.decode_crops(coder, latents, track, plan, spool_folder=folder))
        stack.callback(crops.images.close)
        timed("restore", lambda: restore.restore_clip(track, crops, sound, folder / "out.mp4", device=device))
    return seconds


def tone(seconds: Fraction) -> dict:
    """A wavering tone as ComfyUI's AUDIO."""
    rate = 16_000
    time_ = torch.arange(int(seconds * rate)) / rate
    return {"waveform": (torch.sin(2 * torch.pi * 220 * time_) * (0.5 + 0.4 * torch.sin(19 * time_)))[None, None], "sample_rate": rate}


@contextlib.contextmanager
def one_core():
    before = cv2.getNumThreads(), torch.get_num_threads()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before[0])
        torch.set_num_threads(before[1])


@contextlib.contextmanager
def limited(gigabytes: float):
    """As on a card of that size: PyTorch gets what is left beside the driver's own share, and no more."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(max(gigabytes - DRIVER_SHARE, 0.1) * 1e9 / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
