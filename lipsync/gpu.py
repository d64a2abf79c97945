"""Which device a job runs on, and what is left of a GPU's memory."""
import functools
from contextlib import AbstractContextManager, nullcontext

import torch

from .errors import EngineError


def device_named(name: str | None) -> torch.device:
    """The device called `name`; None: the GPU if there is one. Raises EngineError for one that is not there, and for a kind that
    jobs were never run on (mps, xpu, meta). What ComfyUI hands over does not come through here."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise EngineError(f"{name!r} is no device: write cpu, cuda or cuda:1.") from error
    if device.type not in ("cpu", "cuda"):
        raise EngineError(f"the device {name!r} is of a kind that jobs are not run on: write cpu, cuda or cuda:1.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise EngineError(f"there is no device {name!r}: PyTorch sees {torch.cuda.device_count()} CUDA devices here. `cpu` is always there.")
    return device


def free_memory(device: torch.device) -> int:
    """Bytes that PyTorch could still hand out on a CUDA device, within what the process may use; what it holds without need is among them."""
    index = torch.cuda.current_device() if device.index is None else device.index
    held = torch.cuda.memory_reserved(index)
    free, total = torch.cuda.mem_get_info(index)
    share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda index: 1.0)(index)  # since PyTorch 2.8
    return held - torch.cuda.memory_allocated(index) + min(free, int(share * total) - held)


def on(device: torch.device) -> AbstractContextManager:
    """The thread's current device in the `with`, where it is a GPU: kernels of ours, and libraries beside PyTorch, work on that one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def stream(device: torch.device, priority: int = 0) -> torch.cuda.Stream:
    """A queue of its own on a GPU, the same for everybody who asks: libraries keep a workspace of tens of MB for each that was ever used, and
    what is freed in one is not used again in another. priority: less than 0 is before others."""
    return _stream(torch.cuda.current_device() if device.index is None else device.index, priority)


@functools.cache
def _stream(index: int, priority: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index, priority=priority)


def beside(device: torch.device) -> AbstractContextManager:
    """The thread's current queue in the `with`, for work that must not wait for the network's."""
    return torch.cuda.stream(stream(device, -1)) if device.type == "cuda" else nullcontext()
