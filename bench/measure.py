"""Timing, memory, agreement, and whether a piece of work leaves the allocator and the GPU's queue alone."""
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from ..lipsync import gpu

# Calls of the driver that a block must not make.
DISTURBING = (
    "cudaMalloc", "cudaMallocAsync", "cuMemCreate", "cuMemMap", "cudaFree", "cudaFreeAsync", "cuMemUnmap", "cudaStreamSynchronize",
    "cudaDeviceSynchronize", "cudaMemcpy",
)
PACING = "cudaEventSynchronize"  # waits for the step before the last one, on purpose: the GPU has the last one to do meanwhile

Work = Callable[[], object]


@dataclass
class Row:
    """One measurement. reach, stretch: what it should be at most, on an H200; they mean nothing on another machine."""

    name: str
    value: float
    unit: str
    reach: float | None = None
    stretch: float | None = None
    note: str = ""


def machine(device: torch.device) -> dict[str, str]:
    """What the numbers were measured on, for people."""
    facts = {"processor": f"{_processor()}, {os.cpu_count()} cores", "system": platform.platform(), "PyTorch": torch.__version__}
    if device.type == "cuda":
        facts["GPU"] = torch.cuda.get_device_name(device)
        facts["GPU memory"] = f"{torch.cuda.get_device_properties(device).total_memory / 1e9:.1f} GB"
        try:
            import triton

            facts["Triton"] = triton.__version__
        except ImportError:
            facts["Triton"] = "missing"
    return facts


def _processor() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        if name := next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), ""):
            return name
    return platform.processor() or platform.machine()


def milliseconds(work: Work, device: torch.device, seconds: float = 0.5) -> float:
    """The median time of `work`, once warm, over about `seconds` (three runs at least)."""
    work()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds * 1e3:
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(device)
            start.record()
            work()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            started = time.perf_counter()
            work()
            times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


def captured(work: Callable[[], Tensor]) -> tuple[Work, Tensor]:
    """`work` as a CUDA graph: its replay, and the tensor that it writes."""
    stream, graph = gpu.stream(torch.device("cuda")), torch.cuda.CUDAGraph()  # the one of the jobs, whose memory is measured too
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), tuned():
        for _ in range(2):
            work()
        with torch.cuda.graph(graph, stream=stream):
            out = work()
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay, out


def tuned():
    """cuDNN tries its kernels and takes the fastest; its settings are as they were afterwards."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=True)


@contextmanager
def exact() -> Iterator[None]:
    """float32 means float32: no TF32 in convolutions (matrix products have none by default)."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
        yield


def apart(a: Tensor, b: Tensor) -> float:
    """1 - cosine."""
    a, b = a.double().flatten(), b.double().flatten()
    return 1 - (a @ b / (a.norm() * b.norm())).item()


@contextmanager
def peak() -> Iterator[Callable[[], tuple[float, float]]]:
    """Gives a function: GB of GPU memory in tensors, and held by PyTorch, at most, since the start of the `with`."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield lambda: (torch.cuda.max_memory_allocated() / 1e9, torch.cuda.max_memory_reserved() / 1e9)


def disturbances(work: Work) -> dict[str, int]:
    """How often `work`, once warm, makes the driver allocate, free or wait for the GPU, and PyTorch's allocator hand memory out."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile, record_function

    work()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler, record_function("watched"):
        work()
    counts = {"tensors": torch.cuda.memory_stats()["allocation.all.allocated"] - before}
    events = profiler.events()
    span = next(event.time_range for event in events if event.name == "watched" and event.device_type == DeviceType.CPU)
    for name in (*DISTURBING, PACING):  # the profiler has some of its own before and after
        counts[name] = sum(event.name == name and span.start <= event.time_range.start <= span.end for event in events)
    return counts
