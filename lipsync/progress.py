"""How a long stage reports, and how it is told to stop.

A stage calls `progress(done, total, stage=...)` after every unit of work (a frame, a batch, a denoising step), at least once a
second. Whoever listens stops the stage by raising: ComfyUI's interrupt and Ctrl-C both travel through the call, so a stage cleans up in
`finally` or a context manager and never swallows what comes out of it.
"""
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np


class Progress(Protocol):
    def __call__(self, done: int, total: int, *, stage: str = "", preview: np.ndarray | None = None) -> None:
        """`done` of `total` units of `stage` are finished; `preview` is an optional uint8 RGB picture [H,W,3] of the work in hand."""


def silent(done: int, total: int, *, stage: str = "", preview: np.ndarray | None = None) -> None:
    """The listener that hears nothing."""


def unchecked() -> None:
    """The check that never stops anything: the default of inner loops, which are stopped between units of work by a check that raises."""


class Pace:
    """Tells how far a stage is and when it will be done, from its progress calls. clock: gives seconds."""

    LEAST = 1.0  # seconds of work before a time is promised

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._stage = clock, None

    def left(self, done: int, total: int, stage: str) -> float | None:
        """Seconds until `total`, at the pace since the stage's first call; None while nobody can tell."""
        now = self._clock()
        if stage != self._stage or done < self._from:
            self._stage, self._from, self._since, self._done, self._at = stage, done, now, done, now
        if done != self._done:
            self._done, self._at = done, now
        if done <= self._from or done >= total or now - self._since < self.LEAST:
            return None
        return max(0.0, (total - done) * (self._at - self._since) / (done - self._from) - (now - self._at))

    def tell(self, done: int, total: int, stage: str) -> str:
        """One line: "align: 120 of 500, 0:48 left"."""
        left = self.left(done, total, stage)
        text = f"{stage}: {done} of {total}" if stage else f"{done} of {total}"
        return text if left is None else f"{text}, {clock_time(left)} left"


def clock_time(seconds: float) -> str:
    """0:07, 12:30, 1:05:00."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
