"""A whole job: a drawn clip of 242 frames (9.6 s, as the published measurements), its faces given."""
import contextlib
import tempfile
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import torch

from ..lipsync import audio, denoise, restore, timeline, vae
from ..lipsync.clip import ClipWriter, open_clip
from ..lipsync.face.track import align_clip
from ..lipsync.runners import TorchRunner
from ..lipsync.whisper import TINY, WhisperEncoder
from . import networks
from .measure import Row, peak
from .plain_vae import BenchVAE
from .stubs import StubDetector

RATE = Fraction(25)
FRAMES, SHORT = 242, 50  # of a job, and of one in little memory
SIZE = 1920, 1080
DRIVER_SHARE = 0.8  # GB: a CUDA context with the libraries' kernels, and what a desktop holds


def picture(width: int, height: int, index: int = 0) -> np.ndarray:
    """A soft moving pattern: uint8 [height,width,3]."""
    small = np.stack(np.meshgrid(np.arange(64), np.arange(36)), -1).sum(-1) * 3 + index
    colours = np.stack([128 + 100 * np.sin(small / period) for period in (7, 11, 17)], -1).astype(np.uint8)
    return cv2.resize(colours, (width, height), interpolation=cv2.INTER_CUBIC)


def rows(setup) -> Iterator[Row]:
    """The whole job, by stage, with its peak of memory; before it a short one, in which kernels are compiled and libraries loaded."""
    size = (640, 360) if setup.small else SIZE
    count = setup.frames + 1 if setup.small else FRAMES if setup.memory is None else SHORT
    within = f" within {setup.memory:g} GB" if setup.memory else ""
    with tempfile.TemporaryDirectory() as name, limited(setup.memory) if setup.memory else contextlib.nullcontext():
        folder = Path(name)
        models = Models(setup)
        first = setup.frames + count % setup.frames  # a block and the tail
        seconds = run(setup, models, folder, size, first)
        yield Row(f"first job{within}, {first} frames", sum(seconds.values()), "s", note="with the kernels compiled that are not cached on disk")
        with peak() if setup.graphs else contextlib.nullcontext() as used:
            stages = run(setup, models, folder, size, count)
            label = f"job of {count} frames{within}"
            note = ", ".join(f"{stage} {taken:.1f}" for stage, taken in stages.items())
            time_limits, memory_limits = ((40, 32), (7.5, 6)) if setup.memory is None else ((), ())
            yield Row(label, sum(stages.values()), "s", *time_limits, note=note)
            if used:
                yield Row(f"{label}: GPU memory held by PyTorch", used()[1], "GB", *memory_limits, note=f"{used()[0]:.2f} GB in tensors")
        models.runner.unload()


class Models:
    """A job's networks, their weights random."""

    def __init__(self, setup):
        device = setup.device
        self.encoder = networks.seeded(WhisperEncoder(**TINY), 3)
        self.runner = TorchRunner(networks.unet(device, setup.dtype, setup.config), device, setup.dtype)
        self.vae = BenchVAE(networks.vae(device, setup.dtype, setup.widths).to(memory_format=torch.channels_last), 4)


@torch.inference_mode()
def run(setup, models: Models, folder: Path, size: tuple[int, int], count: int) -> dict[str, float]:
    """Seconds of each stage of a job of `count` frames of `size` (w, h), the network on its device beforehand and off it for decoding."""
    device, seconds, clock = setup.device, {}, time.perf_counter
    source, sound = folder / "source.mp4", tone(count / RATE)
    with ClipWriter(source, *size, RATE, audio=sound) as writer:
        for index in range(count):
            writer.write(picture(*size, index))

    def timed(stage: str, work):
        started = clock()
        done = work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds[stage] = clock() - started
        return done

    models.runner.load()
    with contextlib.ExitStack() as stack:
        clip = open_clip(source)
        features = timed("audio", lambda: audio.extract(sound, models.encoder, device=device))
        track = timed("align", lambda: align_clip(clip, StubDetector(), setup.size * 8, device=device, spool_folder=folder))
        stack.callback(track.crops.close)
        plan = timeline.build(len(track), clip.rate, features.seconds)
        latents = timed("denoise", lambda: denoise.denoise_clip(models.runner, models.vae, track, plan, features, steps=setup.steps))
        models.runner.unload()
        crops = timed("decode", lambda: vae.decode_crops(models.vae, latents, track, plan, spool_folder=folder))
        stack.callback(crops.images.close)
        timed("restore", lambda: restore.restore_clip(track, crops, sound, folder / "out.mp4", device=device))
    return seconds


def tone(seconds: Fraction) -> dict:
    """A wavering tone as ComfyUI's AUDIO."""
    rate = 16_000
    time_ = torch.arange(int(seconds * rate)) / rate
    return {"waveform": (torch.sin(2 * torch.pi * 220 * time_) * (0.5 + 0.4 * torch.sin(19 * time_)))[None, None], "sample_rate": rate}


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
