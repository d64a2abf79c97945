"""Many jobs on one machine, one result line each."""
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from ..pipeline import Parts
from ..progress import Progress, silent
from .jobs import Entry
from .line import Event, Line
from .results import DONE, Results, line_of

log = logging.getLogger(__name__)

ROOMS = 3  # of a `Line`
WAIT_SECONDS = 0.5  # short waits let Ctrl-C through on Windows as well
Told = Callable[[dict], None]


def open_jobs(entries: Sequence[Entry], results: Results) -> list[tuple[Entry, str]]:
    """The jobs that are still to do, with their keys."""
    keyed = [(entry, entry.key()) for entry in entries]
    return [(entry, key) for entry, key in keyed if not results.is_done(entry, key)]


def run_batch(
    jobs: Sequence[tuple[Entry, str]],
    results: Results,
    *,
    parts: Parts | None = None,
    progress: Progress = silent,
    event: Event = lambda kind, job: None,
    told: Told = lambda line: None,
) -> int:
    """Do every job of `open_jobs`, append its line to `results` and give it to `told` -> how many failed.

    A job that fails does not stop the others. Whatever `progress` or Ctrl-C raises stops all within about a second: nothing partial is
    left, and the same batch started again does what is not done, from the last finished block on. Raises MediaError when the results
    cannot be written, DeviceLost when the GPU is lost.
    """
    failed, waiting, running = 0, iter(jobs), {}
    line = Line(parts, progress, event)
    with ThreadPoolExecutor(ROOMS, thread_name_prefix="latentsync-batch") as callers:
        try:
            while True:
                while len(running) < ROOMS and (following := next(waiting, None)):
                    running[callers.submit(line.run, following[0].job, line.preparing.queue())] = following
                if not running:
                    return failed
                for future in _finished(running):
                    entry, key = running.pop(future)
                    made = line_of(entry, key, future.result())
                    results.append(made)
                    failed += made["status"] != DONE
                    told(made)
        finally:
            line.stop()  # of no effect when all are done
            wait(running)
            line.close()
            for future, (entry, key) in running.items():  # those that were faster than the stop
                if future.exception() is None:
                    results.append(line_of(entry, key, future.result()))


def _finished(running: dict[Future, tuple]) -> list[Future]:
    """Those that have ended, at least one, in the order in which they were begun."""
    while True:
        done, _ = wait(running, timeout=WAIT_SECONDS, return_when=FIRST_COMPLETED)
        if done:
            return [future for future in running if future in done]
