"""What a process on a cluster does: whole jobs on an assembly line of its own, and blocks of jobs that others hold. Knows nothing of Ray."""
import importlib
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from .. import denoise, folders, mapped, pipeline
from ..clip import partials
from ..pipeline import Job
from . import split
from .jobs import job_of
from .line import Line, Passage

log = logging.getLogger(__name__)

CUT = "cut"  # status of a job that is shared out


class Worker:
    """Calls may come from several threads; heavy work waits for its room. What is given and returned is plain data and arrays.

    parts: "module:function" that makes `Parts` to use for every job, for tests. split_seconds: share out what is longer; None: nothing.
    """

    def __init__(self, parts: str | None = None, split_seconds: float | None = None):
        made = None
        if parts is not None:
            module, _, function = parts.partition(":")
            made = getattr(importlib.import_module(module), function)()
        self.line, self.split_seconds = Line(made), split_seconds
        self._held: dict[str, tuple[Passage, list[np.ndarray]]] = {}

    def hello(self) -> dict:
        return {"pid": os.getpid(), "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}

    def run(self, given: dict) -> dict:
        """A whole job -> its report; or status "cut", the token under which it is held here, and `parts`, ranges of its blocks."""
        job = here(job_of(given))
        for path in partials(job.out):  # of a worker that died over it: no two work on one
            path.unlink(missing_ok=True)
        passage, token = Passage(self.line, job), secrets.token_hex(8)

        def work() -> dict:
            passage.prepare()
            if self.split_seconds is not None:
                blocks = passage.into(self.line.drawing).work(self._blocks, passage)
                parts = split.ranges(blocks, passage.prepared.plan.rate, self.split_seconds)
                if len(parts) > 1:
                    self._held[token] = passage, blocks
                    return {"status": CUT, "token": token, "parts": parts}
            return passage.write(passage.draw())

        try:
            return passage.report(work)
        finally:
            if token in self._held:
                passage.leave()
            else:
                passage.__exit__()

    def part(self, token: str, first: int, last: int) -> dict:
        """The arrays that blocks [first, last) of a held job need."""
        passage, blocks = self._held[token]
        return split.arrays_of(passage.prepared, blocks, first, last)

    def draw(self, given: dict, arrays: dict, first: int, last: int) -> tuple[dict, np.ndarray | None]:
        """Blocks [first, last) of somebody's job -> its report with the names of the blocks in the journal, and the latents [m,4,h,w]."""
        job, latents = here(job_of(given)), None
        with Passage(self.line, job) as passage:

            def work() -> dict:
                nonlocal latents
                passage.prepared = split.prepared_of(job, arrays)
                latents = passage.into(self.line.drawing).work(self._draw, passage, range(first, last))
                journal = passage.prepared.journal
                return {"status": "drawn", "names": journal.names if journal else []}

            return passage.report(work), latents

    def join(self, token: str, names: list[str], *latents: np.ndarray) -> dict:
        """The held job with the latents of all its parts -> its report."""
        passage, _ = self._held.pop(token)
        with passage:
            if passage.prepared.journal:
                passage.prepared.journal.adopt(names)
            return passage.report(lambda: passage.write(passage.draw(lambda: _joined(latents))))

    def drop(self, token: str) -> None:
        """A held job will not be joined."""
        passage, _ = self._held.pop(token, (None, None))
        if passage is not None:
            passage.__exit__()

    def stop(self) -> None:
        """All work ends within about a second, and leaves nothing."""
        self.line.stop()
        for token in list(self._held):
            self.drop(token)

    # --- in the middle room's thread ---

    def _blocks(self, passage: Passage) -> list[np.ndarray]:
        with self.line.network(passage.prepared.checked, passage.stages) as (parts, _):
            return denoise.clip_blocks(parts.runner, passage.prepared.track, passage.prepared.plan)

    def _draw(self, passage: Passage, blocks: range) -> np.ndarray:
        with self.line.network(passage.prepared.checked, passage.stages) as (parts, passage.idle):
            return pipeline.draw(passage.prepared, parts, passage.stages, blocks).numpy()


def here(job: Job, gpu: Callable[[], bool] = torch.cuda.is_available) -> Job:
    """The job for a process that was given one GPU, whatever number it has on its machine, or none."""
    return job if job.device == "cpu" else replace(job, device="cuda" if gpu() else "cpu")


def _joined(parts: tuple[np.ndarray, ...]) -> torch.Tensor:
    """[M,4,h,w]; in a file when large."""
    whole = mapped.zeros((sum(map(len, parts)), *parts[0].shape[1:]), folder=folders.temp_dir())
    first = 0
    for part in parts:
        whole[first : first + len(part)] = torch.from_numpy(part.copy())
        first += len(part)
        mapped.release(whole)
    return whole
