"""An assembly line: while the network draws one job, the next is prepared and the one before is written."""
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from .. import pipeline
from ..crops import Crops
from ..errors import EngineError, LatentSyncError, MediaError
from ..pipeline import Checked, Job, Parts, Prepared
from ..progress import Progress, silent
from .results import DONE, FAILED
from .shelf import Shelf

log = logging.getLogger(__name__)

WAIT_SECONDS = 0.2  # how soon a job that waits for a room notices a stop
DRAWN = ("load", "denoise", "decode")  # stages that a listener hears of: those of the job in the middle
Event = Callable[[str, Job], None]


class Stopped(BaseException):
    """The whole line was told to stop."""


class DeviceLost(EngineError):
    """The GPU does not answer this process any more: no job of it can go on."""


class Room:
    """A thread of its own, and room for one job; others wait at the door in the order in which they came."""

    def __init__(self, name: str, priority: int = 0):
        self._priority = priority  # on a GPU; less than 0 is before others
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"latentsync-{name}")
        self._door, self._queue = threading.Condition(), deque()
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def queue(self) -> object:
        """A place in the queue."""
        place = object()
        with self._door:
            self._queue.append(place)
        return place

    def enter(self, place: object, stop: threading.Event) -> None:
        with self._door:
            while self._queue[0] is not place and not stop.is_set():
                self._door.wait(WAIT_SECONDS)
        if stop.is_set():
            raise Stopped

    def leave(self, place: object) -> None:
        """Also from the queue. May be called twice."""
        with self._door:
            with contextlib.suppress(ValueError):
                self._queue.remove(place)
            self._door.notify_all()

    def work(self, function: Callable, *given):
        """`function(*given)`, in the room's thread."""
        return self._pool.submit(function, *given).result()

    def stream(self, device: torch.device) -> contextlib.AbstractContextManager:
        """For use in the room's thread: a queue of its own on a GPU, so that nobody waits for another room's work."""
        if device.type != "cuda":
            return contextlib.nullcontext()
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device, priority=self._priority)
        return torch.cuda.stream(self._streams[device])

    def close(self) -> None:
        self._pool.shutdown()


class Stages:
    """Hears a job's reports: adds up the seconds of each stage, tells a listener, and stops the job when the line is stopped."""

    def __init__(self, stop: threading.Event, progress: Progress = silent):
        self.seconds: dict[str, float] = {}
        self._stop, self._progress, self._stage, self._since = stop, progress, None, 0.0

    def __call__(self, done, total, *, stage="", preview=None) -> None:
        if self._stop.is_set():
            raise Stopped
        if stage != self._stage:
            self.pause()
            self._stage, self._since = stage, time.monotonic()
        if stage in DRAWN:
            self._progress(done, total, stage=stage, preview=preview)

    def pause(self) -> None:
        """No stage from here on."""
        if self._stage is not None:
            self.seconds[self._stage] = round(self.seconds.get(self._stage, 0.0) + time.monotonic() - self._since, 3)
        self._stage = None


class Passage:
    """One job on its way through the rooms; a context that leaves the one it is in."""

    def __init__(self, line: "Line", job: Job, place: object | None = None):
        """place: in `line.preparing`'s queue, if the job stands there already."""
        self.line, self.job, self.stages = line, job, Stages(line.stopping, line.progress)
        self.prepared: Prepared | None = None
        self.idle: float | None = None
        self._place, self._room, self._at = place, None, None

    def __enter__(self) -> "Passage":
        return self

    def __exit__(self, *_) -> None:
        self.leave()
        self.line.preparing.leave(self._place)
        if self.prepared is not None:
            self.prepared.close()

    def leave(self) -> None:
        """Out of the room, to come back later."""
        if self._room is not None:
            self._room.leave(self._at)
        self._room = self._at = None

    def into(self, room: Room, place: object | None = None) -> Room:
        """Out of the room that the job is in when the next is free, and not sooner: no more than one job waits with its files."""
        if room is self._room:  # as a worker that looked at the blocks and found too few to share
            return room
        place = place or room.queue()
        try:
            room.enter(place, self.line.stopping)
        except BaseException:
            room.leave(place)
            raise
        self.leave()
        self._room, self._at = room, place
        return room

    def prepare(self) -> Prepared:
        self.prepared = self.into(self.line.preparing, self._place).work(self.line.prepare, self.job, self.stages)
        self.line.event("prepared", self.job)
        return self.prepared

    def draw(self, latents: Callable[[], torch.Tensor] | None = None) -> Crops:
        """latents: those of a job that others have drawn, which is decoded only."""
        crops, self.idle = self.into(self.line.drawing).work(self.line.draw, self.prepared, self.stages, latents)
        return crops

    def write(self, crops: Crops) -> dict:
        """-> what a report tells of a finished job."""
        try:
            result = self.into(self.line.writing).work(self.line.write, self.prepared, crops, self.stages)
        finally:
            crops.images.close()
        plan = self.prepared.plan
        return {"status": DONE, "frames": len(plan), "redrawn": len(plan.redrawn(self.prepared.track.found)), "summary": result.summary}

    def report(self, work: Callable[[], dict]) -> dict:
        """What `work` tells of the job, or why it failed, with its times."""
        try:
            told = work()
        except DeviceLost:
            raise
        except Exception as error:  # whatever a job dies of, it dies alone
            if not isinstance(error, LatentSyncError):
                log.exception("%s: not an error that is known", self.job.out)
            told = {"status": FAILED, "error": {"type": type(error).__name__, "message": str(error)}}
        self.stages.pause()
        seconds = self.stages.seconds
        return {**told, "seconds": round(sum(seconds.values()), 3), "stages": dict(seconds), "idle_seconds": self.idle}


class Line:
    """Three rooms, each with one job in it at most: `preparing` (sound and face), `drawing` (network and VAE) and `writing`.

    parts: models to use for every job instead of loading what each says. progress hears of the job that is drawn; event(kind, job) of
    "prepared", "network" (begins), "drawn" and "written".
    """

    def __init__(self, parts: Parts | None = None, progress: Progress = silent, event: Event = lambda kind, job: None):
        self.shelf, self.progress, self.event = Shelf(parts), progress, event
        self.preparing, self.drawing, self.writing = Room("prepare", -1), Room("draw"), Room("write", -1)
        self.stopping = threading.Event()
        self._drawn_at: float | None = None

    def run(self, job: Job, place: object | None = None) -> dict:
        """All of one job -> its report; blocks. Up to three threads at once keep the line full.

        place: in `preparing.queue()`, for whoever minds the order. The report: status "done" with frames, redrawn (how many of them) and
        summary, or "failed" with error {type, message}; the seconds of each stage and their sum, and idle_seconds, which the network
        stood idle before this job. Raises Stopped, and DeviceLost, after which no job can be done in this process.
        """
        with Passage(self, job, place) as passage:

            def work() -> dict:
                passage.prepare()
                return passage.write(passage.draw())

            return passage.report(work)

    # --- in the rooms' threads ---

    def prepare(self, job: Job, stages: Stages) -> Prepared:
        try:
            stages(0, 1, stage="check")
            _make_folder(job.out.parent)
            checked = pipeline.check(job)
            with self.preparing.stream(checked.device):
                return pipeline.prepare(checked, self.shelf.before(checked), stages)
        finally:
            stages.pause()  # waiting for the network is no work

    def draw(self, prepared: Prepared, stages: Stages, latents: Callable[[], torch.Tensor] | None = None) -> tuple[Crops, float | None]:
        """-> the crops, and how long the network was idle before."""
        with self.network(prepared.checked, stages) as (parts, idle):
            drawn = pipeline.draw(prepared, parts, stages) if latents is None else latents()
            crops = pipeline.decode(prepared, drawn, parts, stages)
        self.event("drawn", prepared.job)
        return crops, idle

    @contextlib.contextmanager
    def network(self, checked: Checked, stages: Stages) -> Iterator[tuple[Parts, float | None]]:
        """The network and the VAE, for work in the middle room; and how long nobody used them before."""
        try:
            stages(0, 1, stage="load")
            with self.drawing.stream(checked.device):
                parts = self.shelf.network(checked)
                idle = None if self._drawn_at is None else round(time.monotonic() - self._drawn_at, 3)
                self.event("network", checked.job)
                yield parts, idle
        except Exception as error:
            require_device(checked.device, error)
            raise
        finally:
            stages.pause()
            self._drawn_at = time.monotonic()

    def write(self, prepared: Prepared, crops: Crops, stages: Stages) -> pipeline.Result:
        with self.writing.stream(prepared.checked.device):
            result = pipeline.write(prepared, crops, stages)
        self.event("written", prepared.job)
        return result

    def stop(self) -> None:
        """Every job ends with Stopped at its next report, within about a second."""
        self.stopping.set()

    def close(self) -> None:
        """After the last `run` has ended."""
        for room in (self.preparing, self.drawing, self.writing):
            room.close()
        self.shelf.close()


def _make_folder(folder: Path) -> None:
    """For results. Raises MediaError when it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MediaError(f"cannot make the folder {folder}: {error.strerror or error}") from error


def require_device(device: torch.device, error: Exception) -> None:
    """Raises DeviceLost when `error` has left the GPU unusable for this process, as an illegal access does."""
    if device.type != "cuda" or isinstance(error, LatentSyncError):
        return
    try:
        torch.cuda.synchronize(device)
        torch.zeros(1, device=device)
    except torch.cuda.OutOfMemoryError:
        return
    except RuntimeError as lost:
        raise DeviceLost(f"{device} does not answer any more ({str(error).splitlines()[0]}): start the batch again, it goes on") from lost
