"""How long it takes to cut a face out of a frame and to put it back: `align_rows(device)` and `restore_rows(device)`.

Faces are given (a matrix a frame), so neither a detector's files nor PyAV are needed. A row is a dict:
    what      "align" or "restore"
    frame     "1080p" or "4K"
    device    "cpu" is one core and OpenCV, "cuda..." the batched way, transfers and the copies in memory included
    ms        milliseconds a frame, the median of several runs
    face      pixels of the frame region that the face covers
    psnr      dB of the result to OpenCV's, over that region (nothing to say on a CPU)
    reach     ms wanted, None where nothing is
The restore rows write into the frames, as `restore_clip` does; reading and encoding are not part of it.
"""
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import cv2
import numpy as np
import torch

from ..lipsync import batched, restore
from ..lipsync.face.align import common_regions, face_size, warp_crop
from ..lipsync.face.warp import Warper
from ..lipsync.overlay import Overlay

FRAMES = {"1080p": (1920, 1080), "4K": (3840, 2160)}
REACH = {("align", "1080p"): 1.0, ("align", "4K"): 2.0, ("restore", "1080p"): 2.0, ("restore", "4K"): 3.0}
REACH_ON_CPU = {("restore", "1080p"): 12.0}
RESOLUTION = 512
FACE_SHARE = 0.5  # of the frame's height that the cut-out face takes: a head and shoulders shot
TURN = 6  # degrees
COUNT, RUNS = 32, 5  # frames a run


def align_rows(device: torch.device | str = "cpu") -> list[dict]:
    """Frames to crops at 1080p and 4K."""
    return [_align(torch.device(device), name) for name in FRAMES]


def restore_rows(device: torch.device | str = "cpu") -> list[dict]:
    """Crops into frames at 1080p and 4K."""
    return [_restore(torch.device(device), name) for name in FRAMES]


def _align(device, name):
    frames, matrices, _ = _job(name)
    if device.type == "cpu":
        with _one_core():
            ms = _milliseconds(lambda k: warp_crop(frames[k], matrices[k], RESOLUTION), frames)
        return _row("align", name, device, ms, matrices, None)
    warper = Warper(RESOLUTION, device)
    ms = _milliseconds_in_batches(device, lambda group: warper.begin([frames[k] for k in group], [matrices[k] for k in group]), frames)
    [crop] = warper.begin(frames[:1], matrices[:1])()
    return _row("align", name, device, ms, matrices, _psnr(crop, warp_crop(frames[0], matrices[0], RESOLUTION)))


def _restore(device, name):
    frames, matrices, crops = _job(name)
    if device.type == "cpu":
        with _one_core():
            ms = _milliseconds(lambda k: restore.painted(frames[k], crops[k], matrices[k]), frames)
        return _row("restore", name, device, ms, matrices, None)
    overlay = Overlay(RESOLUTION, device)

    def begin(group):
        return overlay.begin(*([items[k] for k in group] for items in (frames, crops, matrices)))

    ms = _milliseconds_in_batches(device, begin, frames)
    frame = _job(name, count=1)[0][0]
    expected = restore.paste_uint8(frame, crops[0], matrices[0])
    overlay.begin([frame], crops[:1], matrices[:1])()
    [(x, y)], width, height = common_regions(matrices[:1], face_size(RESOLUTION), frame.shape)
    region = slice(y, y + height), slice(x, x + width)
    return _row("restore", name, device, ms, matrices, _psnr(frame[region], expected[region]))


def _job(name, count=8):
    """Frames, matrices of a face that sways a little, crops."""
    width, height = FRAMES[name]
    dice = np.random.default_rng(0)
    size = face_size(RESOLUTION)
    frames, matrices = [], []
    for k in range(count):
        coarse = dice.integers(0, 255, (27, 48, 3)).astype(np.uint8)
        frames.append(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC))
        to_frame = cv2.getRotationMatrix2D((size[0] / 2, size[1] / 2), TURN, FACE_SHARE * height / size[1])
        to_frame[:, 2] += (width * 0.5 + 9 * k - size[0] / 2, height * 0.45 + 4 * k - size[1] / 2)
        matrices.append(cv2.invertAffineTransform(to_frame).astype(np.float32))
    coarse = dice.integers(0, 255, (count, 32, 32, 3)).astype(np.uint8)
    crops = [cv2.resize(picture, (RESOLUTION, RESOLUTION), interpolation=cv2.INTER_CUBIC) for picture in coarse]
    return frames, matrices, crops


def _milliseconds(work: Callable[[int], object], frames: list) -> float:
    work(0)
    times = []
    for run in range(2 * RUNS):
        started = time.perf_counter()
        work(run % len(frames))
        times.append(time.perf_counter() - started)
    return float(np.median(times)) * 1e3


def _milliseconds_in_batches(device, begin, frames):
    size = batched.frames_at_once(frames[0].nbytes)

    def run():
        for _ in batched.overlapped(begin, batched.groups((k % len(frames) for k in range(COUNT)), size)):
            pass
        torch.cuda.synchronize(device)

    run()
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return float(np.median(times)) / COUNT * 1e3


def _row(what, name, device, ms, matrices, psnr):
    _, width, height = common_regions(matrices[:1], face_size(RESOLUTION), FRAMES[name][::-1])
    reach = (REACH_ON_CPU if device.type == "cpu" else REACH).get((what, name))
    return {"what": what, "frame": name, "device": str(device), "ms": ms, "face": f"{width}x{height}", "psnr": psnr, "reach": reach}


def _psnr(first, second):
    return float(10 * np.log10(255**2 / max(1e-9, np.mean((first.astype(np.float64) - second) ** 2))))


@contextmanager
def _one_core() -> Iterator[None]:
    """OpenCV and PyTorch on one thread each."""
    before = cv2.getNumThreads(), torch.get_num_threads()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before[0])
        torch.set_num_threads(before[1])
