"""Shares jobs out among workers and hears of their ends: all in one thread. What Ray does is asked of the `ray` that is given."""
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..errors import EngineError
from .jobs import Entry
from .queue import Told
from .results import DONE, FAILED, Results, line_of
from .worker import CUT

log = logging.getLogger(__name__)

DEPTH = 2  # tasks at a worker: one is drawn, one is prepared
TRIES = 3  # workers that a job may lose before it is taken for the reason
HELLO_SECONDS, STOP_SECONDS, WAIT_SECONDS = 30, 10, 0.5
HELLO, JOB, PART, JOIN = "hello", "job", "part", "join"
Event = Callable[[str, str, int], None]


@dataclass(eq=False)
class Remote:
    """A worker elsewhere. room: how many tasks it may get just now; none until it has said hello, which tells its pid."""

    handle: object
    room: int = 0
    pid: int = 0


@dataclass(eq=False)
class Shared:
    """A job that is done in parts. owner: the worker that holds it under `token`, None while it is lost. parts: ranges of blocks.

    drawn: part -> (its report, reference to the latents); these outlive both the owner and whoever drew them.
    """

    owner: Remote | None = None
    token: str = ""
    parts: list[tuple[int, int]] = field(default_factory=list)
    drawn: dict[int, tuple[dict, object]] = field(default_factory=dict)
    ended: bool = False


@dataclass(eq=False)
class Task:
    """shared: what a part or a join belongs to; of a job, what was known of it before its owner was lost. lost: workers that it had: the next
    one gets nothing else meanwhile, so that a job which kills takes no other with it."""

    kind: str
    entry: Entry | None = None
    key: str = ""
    shared: Shared | None = None
    part: int = 0
    lost: int = 0

    @property
    def room(self) -> int:
        return DEPTH if self.lost else 1


class Driver:
    """`make` starts a worker. Every job gets its line in `results`, however many workers are lost on the way.

    Raises EngineError when no worker starts.
    """

    def __init__(self, ray, make: Callable[[], object], results: Results, told: Told, event: Event):
        self.ray, self.make, self.results, self.told, self.event = ray, make, results, told, event
        self.workers: list[Remote] = []
        self.waiting: deque[Task] = deque()
        self.held: list[Task] = []  # one task of each shared job that has not ended
        self.running: dict[object, tuple[Task, Remote, object]] = {}  # by the reference to wait for; the last is that of latents
        self.failed = self.stillborn = 0

    def run(self, jobs: Sequence[tuple[Entry, str]], count: int) -> int:
        """Do all jobs with `count` workers -> how many failed."""
        self.waiting.extend(Task(JOB, entry, key) for entry, key in jobs)
        for _ in range(count if jobs else 0):
            self._hire()
        while self.waiting or any(task.kind != HELLO for task, _, _ in self.running.values()):
            self._give()
            done, _ = self.ray.wait(list(self.running), timeout=WAIT_SECONDS)
            for reference in done:
                self._ended(reference)
        return self.failed

    def close(self) -> None:
        """Workers stop what they do, leave nothing, and are gone."""
        for worker in self.workers:
            worker.handle.call.remote("stop")
        if busy := [reference for reference, (task, _, _) in self.running.items() if task.kind != HELLO]:
            self.ray.wait(busy, num_returns=len(busy), timeout=STOP_SECONDS)
        for worker in self.workers:
            self.ray.kill(worker.handle)

    # --- giving ---

    def _hire(self) -> None:
        worker = Remote(self.make())
        self.workers.append(worker)
        self._call(Task(HELLO), worker, "hello")

    def _give(self) -> None:
        while self.waiting:
            task = self.waiting.popleft()
            shared = None if task.kind == JOB else task.shared
            if shared and (shared.ended or shared.owner is None):
                continue  # failed; or it will be cut again, which tells what is missing
            worker = shared.owner if task.kind == JOIN else max(self.workers, key=lambda one: one.room)
            if worker.room < task.room and task.kind != JOIN:
                self.waiting.appendleft(task)
                return
            self._begin(task, worker)

    def _begin(self, task: Task, worker: Remote) -> None:
        shared, given = task.shared, task.entry.given
        if task.kind == JOB:
            self._call(task, worker, "run", given)
        elif task.kind == PART:
            first, last = shared.parts[task.part]
            arrays = shared.owner.handle.call.remote("part", shared.token, first, last)  # goes from there to the worker, not through here
            self._call(task, worker, "draw", given, arrays, first, last, latents=True)
        else:
            drawn = [shared.drawn[index] for index in range(len(shared.parts))]
            names = [name for report, _ in drawn for name in report["names"]]
            self._call(task, worker, "join", shared.token, names, *(latents for _, latents in drawn))

    def _call(self, task: Task, worker: Remote, name: str, *given, latents: bool = False) -> None:
        made = worker.handle.call.options(num_returns=1 + latents).remote(name, *given)
        reference, second = made if latents else (made, None)
        worker.room -= task.room
        self.running[reference] = task, worker, second
        if task.kind != HELLO:
            self.event("begun", task.kind, worker.pid)

    # --- hearing ---

    def _ended(self, reference) -> None:
        task, worker, latents = self.running.pop(reference)
        worker.room += task.room
        try:
            made = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            self._lost(task, worker, error)
            return
        if task.kind == HELLO:
            worker.pid, worker.room, self.stillborn = made["pid"], DEPTH, 0
            log.info("worker %d on %s", made["pid"], made["device"])
            return
        if task.kind == PART:
            self._drawn(task, made, latents)
        elif made["status"] == CUT:
            self._share(task, worker, made)
        else:
            self._finish(task, made)
        self.event("ended", task.kind, worker.pid)

    def _share(self, task: Task, worker: Remote, made: dict) -> None:
        """A job was cut, or cut again: the parts that nobody has drawn come before all other work."""
        shared = task.shared or Shared()
        if task.shared is None:
            self.held.append(Task(JOB, task.entry, task.key, shared))
        shared.owner, shared.token, shared.parts = worker, made["token"], [tuple(part) for part in made["parts"]]
        known = {*shared.drawn, *(one.part for one, _, _ in self.running.values() if one.kind == PART and one.shared is shared)}
        following = [Task(PART, task.entry, task.key, shared, index, task.lost) for index in range(len(shared.parts)) if index not in known]
        if len(shared.drawn) == len(shared.parts):
            following = [Task(JOIN, task.entry, task.key, shared, lost=task.lost)]
        self.waiting.extendleft(reversed(following))

    def _drawn(self, task: Task, made: dict, latents) -> None:
        shared = task.shared
        if shared.ended:
            return
        if made["status"] == FAILED:
            self._finish(task, made)
            return
        shared.drawn[task.part] = made, latents
        if len(shared.drawn) == len(shared.parts):
            self.waiting.appendleft(Task(JOIN, task.entry, task.key, shared, lost=task.lost))

    def _finish(self, task: Task, made: dict) -> None:
        shared = task.shared
        if shared is not None:
            shared.ended = True
            self.held = [one for one in self.held if one.shared is not shared]
            if task.kind != JOIN and shared.owner is not None:
                shared.owner.handle.call.remote("drop", shared.token)
            stages = [made["stages"], *(report["stages"] for report, _ in shared.drawn.values())]
            names = dict.fromkeys(name for stage in stages for name in stage)
            made["stages"] = {name: round(sum(stage.get(name, 0.0) for stage in stages), 3) for name in names}
            made["seconds"], made["parts"] = round(sum(made["stages"].values()), 3), len(shared.parts)
        line = line_of(task.entry, task.key, made)
        self.results.append(line)
        self.failed += made["status"] != DONE
        self.told(line)

    # --- losing ---

    def _lost(self, task: Task, worker: Remote, error: Exception) -> None:
        """A worker ended in the middle of a task, or has to: one that lost its GPU answers, but is of no use. Or it had to wait for what
        another one took along."""
        errors = self.ray.exceptions
        if isinstance(error, errors.RayTaskError) and not isinstance(error.cause, errors.RayError):
            self.ray.kill(worker.handle)
        if task.kind == HELLO:
            self.stillborn += 1
            if self.stillborn >= TRIES and not any(one.pid for one in self.workers):
                raise EngineError(f"no worker starts: {str(error).strip().splitlines()[-1]}") from error
        self._replace(worker)
        if task.kind == HELLO or (task.kind != JOB and task.shared.ended):
            return
        if worker not in self.workers:
            log.warning("worker %d was lost in the middle of line %d: done again", worker.pid, task.entry.line)
            task.lost += 1
        if task.lost >= TRIES:
            self._give_up(task, error)
        elif task.kind == JOIN and task.shared.owner is not None:  # the latents of some part are gone with a machine
            task.shared.drawn.clear()
            self._cut_again(task)
        elif task.kind == JOB or task.shared.owner is not None:
            self.waiting.appendleft(task)

    def _replace(self, suspect: Remote) -> None:
        """New workers for all that do not answer. Jobs that these held are cut again, elsewhere."""
        asked = {one.handle.call.remote("hello"): one for one in self.workers if one.pid or one is suspect}
        done, _ = self.ray.wait(list(asked), num_returns=len(asked), timeout=HELLO_SECONDS) if asked else ([], [])
        for reference in done:
            try:
                self.ray.get(reference)
            except self.ray.exceptions.RayError as error:
                dead = asked[reference]
                self.workers.remove(dead)
                self._hire()
                for task in [one for one in self.held if one.shared.owner is dead]:
                    task.lost += 1
                    if task.lost >= TRIES:
                        self._give_up(task, error)
                    else:
                        self._cut_again(task)

    def _give_up(self, task: Task, error: Exception) -> None:
        message = f"{TRIES} workers were lost over this job, the last one to: {str(error).strip().splitlines()[0]}"
        self._finish(task, {"status": FAILED, "error": {"type": "WorkerLost", "message": message}, "seconds": 0.0, "stages": {}, "idle_seconds": None})

    def _cut_again(self, task: Task) -> None:
        task.shared.owner = None
        self.waiting = deque(one for one in self.waiting if one.shared is not task.shared)
        self.waiting.appendleft(Task(JOB, task.entry, task.key, task.shared, lost=task.lost))
