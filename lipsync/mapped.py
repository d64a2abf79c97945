"""Tensors too large for memory: any tensor to whoever uses them, but their numbers are in a file.

Pages of a mapped file count as memory of this process from their first touch on. Whoever goes through such a tensor block by block calls
`release` now and then: the pages stay in the system's cache while there is room, and no longer count.
"""
import math
import mmap
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch

from .spool import MEMORY_LIMIT, require_space, scratch_file

_PAGES: weakref.WeakValueDictionary[int, mmap.mmap] = weakref.WeakValueDictionary()  # by the address of their storage


def zeros(
    shape: Sequence[int], dtype: torch.dtype = torch.float32, *, folder: str | Path | None = None, memory_limit_bytes: int = MEMORY_LIMIT
) -> torch.Tensor:
    """Zeros on the CPU; above `memory_limit_bytes` in a file in `folder` (the system's temporary folder by default), which goes away with
    the tensor and everything that shares its storage. Raises DiskSpaceError at once when the disk has no room for all of it."""
    size = math.prod(shape) * dtype.itemsize
    with torch.inference_mode(False):  # an ordinary tensor, whoever asks: it may be written to from anywhere
        if size <= memory_limit_bytes:
            return torch.zeros(tuple(shape), dtype=dtype)
        require_space(folder, size)
        with scratch_file(folder, size) as file:
            pages = mmap.mmap(file.fileno(), size)
        tensor = torch.frombuffer(pages, dtype=dtype).view(tuple(shape))
    _PAGES[tensor.untyped_storage().data_ptr()] = pages
    return tensor


def release(tensor: torch.Tensor) -> None:
    """Let go of the memory behind a tensor of `zeros`, or a part of one; its numbers stay. Does nothing to other tensors."""
    pages = _PAGES.get(tensor.untyped_storage().data_ptr()) if tensor.device.type == "cpu" else None
    if pages is not None and hasattr(pages, "madvise"):
        pages.madvise(mmap.MADV_DONTNEED)


def is_mapped(tensor: torch.Tensor) -> bool:
    """Whether the numbers are in a file."""
    return tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() in _PAGES
