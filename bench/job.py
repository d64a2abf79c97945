"""A whole job: a drawn clip of 242 frames (9.6 s, as the published measurements), its faces given."""
import contextlib
import tempfile
import time
import wave
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import torch

from ..lipsync import pipeline, sound, weights
from ..lipsync.clip import ClipWriter
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
    with tempfile.TemporaryDirectory() as name, limited(setup.memory, setup.device) if setup.memory else contextlib.nullcontext():
        parts = random_parts(setup)
        first = setup.frames + count % setup.frames  # a block and the tail
        seconds = run(setup, parts, Path(name), size, first)
        yield Row(f"first job{within}, {first} frames", sum(seconds.values()), "s", note="with the kernels compiled that are not cached on disk")
        with peak() if setup.graphs else contextlib.nullcontext() as used:
            stages = run(setup, parts, Path(name), size, count)
            label = f"job of {count} frames{within}"
            note = ", ".join(f"{stage} {taken:.1f}" for stage, taken in stages.items())
            time_limits, memory_limits = ((40, 32), (7.5, 6)) if setup.memory is None else ((), ())
            yield Row(label, sum(stages.values()), "s", *time_limits, note=note)
            if used:
                yield Row(f"{label}: GPU memory held by PyTorch", used()[1], "GB", *memory_limits, note=f"{used()[0]:.2f} GB in tensors")
        parts.runner.unload()


def random_parts(setup) -> pipeline.Parts:
    """A job's networks, their weights random, and a detector to which every frame shows a face."""
    coder = networks.vae(setup.device, setup.dtype, setup.widths).to(memory_format=torch.channels_last)
    return pipeline.Parts(
        runner=TorchRunner(networks.unet(setup.device, setup.dtype, setup.config), setup.device, setup.dtype),
        vae=BenchVAE(coder, 4),
        encoder=networks.seeded(WhisperEncoder(**TINY), 3),
        detector=StubDetector(),
    )


def run(setup, parts: pipeline.Parts, folder: Path, size: tuple[int, int], count: int) -> dict[str, float]:
    """Seconds of a job of `count` drawn frames of `size` (w, h), as `run` does it: of what comes before the network, and of the rest."""
    job = pipeline.Job(
        folder / "source.mp4", folder / "speech.wav", folder / "out.mp4", weights.DEMO, steps=setup.steps, resolution=setup.size * 8,
        device=str(setup.device), resume=False,
    )  # fmt: skip
    with ClipWriter(job.video, *size, RATE) as writer:
        for index in range(count):
            writer.write(picture(*size, index))
    write_speech(job.audio, tone(count / RATE)["waveform"][0, 0], count)
    parts.runner.load()
    started = time.perf_counter()
    prepared = pipeline.prepare(pipeline.check(job), parts)
    ready = time.perf_counter()
    pipeline.complete(prepared, parts, keep=False)
    done = time.perf_counter()
    prepared.close()
    return {"sound and faces": ready - started, "denoise, decode and restore": done - ready}


def write_speech(path: Path, samples: torch.Tensor, count: int) -> None:
    """A WAV of mono samples [T] at 16 kHz in -1..1, cut or filled up with silence to `count` frames of film."""
    wanted = int(count * sound.RATE / RATE)
    samples = torch.nn.functional.pad(samples[:wanted], (0, max(0, wanted - len(samples))))
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, sound.RATE, 0, "NONE", ""))
        file.writeframes((samples.clamp(-1, 1) * 32767).short().numpy().tobytes())


def tone(seconds: Fraction) -> dict:
    """A wavering tone as ComfyUI's AUDIO."""
    rate = 16_000
    time_ = torch.arange(int(seconds * rate)) / rate
    return {"waveform": (torch.sin(2 * torch.pi * 220 * time_) * (0.5 + 0.4 * torch.sin(19 * time_)))[None, None], "sample_rate": rate}


@contextlib.contextmanager
def limited(gigabytes: float, device: torch.device):
    """As on a card of that size: PyTorch gets what is left beside the driver's own share, and no more."""
    index = torch.cuda.current_device() if device.index is None else device.index
    total = torch.cuda.get_device_properties(index).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(max(gigabytes - DRIVER_SHARE, 0.1) * 1e9 / total, index)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, index)
