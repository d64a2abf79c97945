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
from ..lipsync.whisper import WhisperEncoder
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
    """The whole job, by stage, with its peak of memory."""
    width, height = (640, 360) if setup.small else SIZE
    count = setup.frames + 1 if setup.small else FRAMES if setup.memory is None else SHORT
    with tempfile.TemporaryDirectory() as folder:
        source, sound = Path(folder) / "source.mp4", tone(count / RATE)
        with ClipWriter(source, width, height, RATE, audio=sound) as writer:
            for index in range(count):
                writer.write(picture(width, height, index))
        with limited(setup.memory) if setup.memory else contextlib.nullcontext(), peak() if setup.graphs else contextlib.nullcontext() as used:
            stages = run(setup, source, sound, Path(folder))
            label = f"job of {count} frames" + (f" within {setup.memory:g} GB" if setup.memory else "")
            blocks = stages.pop("blocks")
            note = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in stages.items()) + f"; {blocks} blocks"
            time_limits, memory_limits = ((40, 32), (7.5, 6)) if setup.memory is None else ((), ())
            yield Row(label, sum(stages.values()), "s", *time_limits, note=note)
            if used:
                yield Row(f"{label}: GPU memory held by PyTorch", used()[1], "GB", *memory_limits, note=f"{used()[0]:.2f} GB in tensors")


@torch.inference_mode()
def run(setup, source: Path, sound: dict, folder: Path) -> dict[str, float]:
    """Seconds of each stage, models made beforehand, and the number of "blocks"."""
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
        track = timed("align", lambda: align_clip(clip, StubDetector(), setup.size * 8, device=device, spool_folder=folder))
        stack.callback(track.crops.close)
        plan = timeline.build(len(track), clip.rate, features.seconds)
        seconds["blocks"] = len(denoise.clip_blocks(runner, track, plan))
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
def limited(gigabytes: float):
    """As on a card of that size: PyTorch gets what is left beside the driver's own share, and no more."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(max(gigabytes - DRIVER_SHARE, 0.1) * 1e9 / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
