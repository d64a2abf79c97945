"""Pictures worked on by a GPU: several frames at once, only the part of them that matters, copies that overlap with the work.

The two users are `face.warp` (frames to crops) and `overlay` (crops back into frames). Both are plain torch and run on any device; OpenCV
is faster on a CPU, so they are used on a GPU only.
"""
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import cv2
import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")
R = TypeVar("R")

MOST_FRAMES = 8  # worked on at once: enough to hide the cost of launching kernels
MOST_BYTES = 128 << 20  # of frames held for that: eight of 1080p, five of 4K


def picture_device(device: torch.device | str | None) -> torch.device | None:
    """`device` if pictures are to be warped there (CUDA and ROCm), None where OpenCV does it."""
    device = None if device is None else torch.device(device)
    return device if device is not None and device.type == "cuda" else None


def frames_at_once(frame_bytes: int) -> int:
    """How many frames of that size to work on together."""
    return max(1, min(MOST_FRAMES, MOST_BYTES // max(1, frame_bytes)))


def groups(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """`items` in lists of `size`; the last may be shorter."""
    group: list[T] = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def overlapped(begin: Callable[[T], Callable[[], R]], items: Iterable[T]) -> Iterator[R]:
    """`begin(item)()` of every item, in order; the next is begun before the last is waited for."""
    finish = None
    for item in items:
        begun = begin(item)
        if finish is not None:
            yield finish()
        finish = begun
    if finish is not None:
        yield finish()


def to_device(rows: Sequence[np.ndarray], device: torch.device) -> Tensor:
    """Arrays of one shape and dtype, views too -> [N,*shape] on `device`, through pinned memory: nobody waits for the copy.

    PyTorch keeps the pinned memory until the copy is done and hands it out again, so that jobs in flight have a buffer each.
    """
    dtype = torch.from_numpy(np.empty(0, rows[0].dtype)).dtype
    staged = torch.empty((len(rows), *rows[0].shape), dtype=dtype, pin_memory=device.type == "cuda")
    for place, row in zip(staged.numpy(), rows, strict=True):
        place[:] = row
    return staged.to(device, non_blocking=True)


def from_device(tensor: Tensor) -> Callable[[], np.ndarray]:
    """Start the way back to memory; what is returned waits for it and gives the array."""
    if tensor.device.type != "cuda":
        return tensor.numpy
    staged = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    staged.copy_(tensor, non_blocking=True)
    arrived = torch.cuda.Event(blocking=True)  # waiting leaves the processor to the reader and the encoder
    arrived.record(torch.cuda.current_stream(tensor.device))

    def wait():
        arrived.synchronize()
        return staged.numpy()

    return wait


def sample(pictures: Tensor, back: np.ndarray, width: int, height: int, outside: str) -> Tensor:
    """Bilinear look-up of pictures [N,C,h,w] at the places that `back` [N,2,3] gives the pixels of a `width` x `height` grid.

    Coordinates count from the middle of the first pixel, as in OpenCV; outside: "zeros" or "border". Not by matrix product: that may be
    set to run in few bits.
    """
    lengths = np.array([pictures.shape[3], pictures.shape[2]], np.float64)
    to_unit = np.asarray(back, np.float64) * (2 / lengths)[:, None]
    to_unit[..., 2] += 1 / lengths - 1
    a = to_device(to_unit.astype(np.float32), pictures.device)[:, None, None]
    x = torch.arange(width, dtype=torch.float32, device=pictures.device)[:, None]
    y = torch.arange(height, dtype=torch.float32, device=pictures.device)[:, None, None]
    grid = x * a[..., 0] + (y * a[..., 1] + a[..., 2])
    return torch.nn.functional.grid_sample(pictures, grid, mode="bilinear", padding_mode=outside, align_corners=False)


def resize_weights(length: int, result: int, resize: Callable[[np.ndarray, int], np.ndarray], device: torch.device) -> Tensor:
    """One direction of a resize as a matrix [result,length]: what `resize(rows, result)` makes of the identity."""
    return torch.from_numpy(np.ascontiguousarray(resize(np.eye(length, dtype=np.float32), result))).to(device)


def lanczos(rows: np.ndarray, result: int) -> np.ndarray:
    """OpenCV's Lanczos-4 along the first axis, its weights in the 11 bits that it gives them for pictures in bytes."""
    return np.round(cv2.resize(rows, (rows.shape[1], result), interpolation=cv2.INTER_LANCZOS4) * 2048) / 2048


def bicubic(rows: np.ndarray, result: int) -> np.ndarray:
    """PyTorch's antialiased bicubic resize along the first axis."""
    size = (result, rows.shape[1])
    return torch.nn.functional.interpolate(torch.from_numpy(rows)[None, None], size, mode="bicubic", antialias=True)[0, 0].numpy()
