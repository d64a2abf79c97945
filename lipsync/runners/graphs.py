"""A step as a CUDA graph: recorded without disturbance, replayed only over the weights that it was recorded with."""
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


def rehearse(step: Callable[[], None], stream: torch.cuda.Stream) -> None:
    """Run `step` twice on `stream` of the current device, outside of any recording: libraries choose their kernels, compile, and take their
    workspaces. It begins after what was queued before, and what is queued next waits for it."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)


def recorded(runner, step: Callable[[], None], stream: torch.cuda.Stream, pool=None) -> Callable[[], None]:
    """Record `step` on `stream` of the runner's device, the current one, and give its replay. `rehearse` it before.

    runner: one that says whether it is `loaded`, and counts its `loads`: once it was unloaded, to make room for something, the graph's
    addresses are no longer the weights', and the replay is `step` itself. pool: of memory, shared with graphs that never run at the same time.
    """
    graph = torch.cuda.CUDAGraph()
    # thread_local: other threads may prepare a job meanwhile
    with undisturbed(), torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    loads = runner.loads

    def replay() -> None:
        if runner.loaded and runner.loads == loads:
            graph.replay()
        else:
            step()

    return replay


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection in the `with`, but one before: freeing an older graph is an error while another is recorded, and spoils it."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
