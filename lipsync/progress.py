"""How a long stage reports, and how it is told to stop.

A stage calls `progress(done, total, stage=...)` after every unit of work (a frame, a batch, a denoising step), at least once a
second. Whoever listens stops the stage by raising: ComfyUI's interrupt and Ctrl-C both travel through the call, so a stage cleans up in
`finally` or a context manager and never swallows what comes out of it.
"""
from typing import Protocol

import numpy as np


class Progress(Protocol):
    def __call__(self, done: int, total: int, *, stage: str = "", preview: np.ndarray | None = None) -> None:
        """`done` of `total` units of `stage` are finished; `preview` is an optional uint8 RGB picture [H,W,3] of the work in hand."""


def silent(done: int, total: int, *, stage: str = "", preview: np.ndarray | None = None) -> None:
    """The listener that hears nothing."""


def unchecked() -> None:
    """The check that never stops anything: the default of inner loops, which are stopped between units of work by a check that raises."""
