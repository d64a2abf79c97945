"""Who gets what and what is done again, on a make-believe Ray whose workers answer at once: deaths at moments that a real one seldom has."""
import itertools
from types import SimpleNamespace

import pytest
from latentsync_rtx.lipsync.batch import Results, read_jobs
from latentsync_rtx.lipsync.batch import driver as driver_module
from latentsync_rtx.lipsync.batch.driver import Driver

from .conftest import told


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class Ray:
    """References are calls that are made when they are waited for, one at a time; a dead actor's, and what needs them, raise."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self):
        self.actors = []

    def make(self):
        self.actors.append(Actor(len(self.actors)))
        return self.actors[-1]

    def wait(self, references, num_returns=1, timeout=None):
        assert references, "nobody works, and something is left to do"
        return references[:num_returns], references[num_returns:]

    def get(self, reference):
        return reference.value()

    def kill(self, actor):
        actor.dead = True


class Reference:
    def __init__(self, actor, name, given):
        self.actor, self.name, self.given, self.made = actor, name, given, None

    def value(self):
        if self.made is None:
            for one in self.given:
                if isinstance(one, Reference):
                    try:
                        one.value()
                    except RayError as error:
                        raise RayTaskError(error) from error
            if self.actor.dead:
                raise RayError("the actor died")
            self.made = getattr(self.actor, self.name)(*self.given)
        return self.made


class Actor:
    """Cuts every job into four parts. A clip called "deadly" takes its worker with it."""

    def __init__(self, number):
        self.number, self.dead, self.tokens = number, False, itertools.count()
        self.call = SimpleNamespace(remote=lambda name, *given: Reference(self, name, given), options=self._options)

    def _options(self, num_returns):
        if num_returns == 1:
            return self.call
        return SimpleNamespace(remote=lambda name, *given: (Reference(self, name, given), ("latents", given[2:])))

    def hello(self):
        return {"pid": self.number + 1, "device": "none"}

    def run(self, given):
        if given["video"].endswith("deadly.mp4"):
            self.dead = True
            raise RayError("the actor died")
        return {"status": "cut", "token": str(next(self.tokens)), "parts": [(0, 2), (2, 4), (4, 6), (6, 7)], "stages": {"align": 1.0}}

    def part(self, token, first, last):
        return {"arrays": (first, last)}

    def draw(self, given, arrays, first, last):
        return {"status": "drawn", "names": [f"{first}"], "stages": {"denoise": 2.0}}

    def join(self, token, names, *latents):
        assert list(latents) == [("latents", part) for part in [(0, 2), (2, 4), (4, 6), (6, 7)]] and names == ["0", "2", "4", "6"]
        return {"status": "done", "frames": 100, "redrawn": 100, "summary": "", "stages": {"restore": 1.0}, "idle_seconds": None}

    def drop(self, token):
        pass


MOMENTS = [(kind, count) for kind, most in (("job", 2), ("part", 4), ("join", 1)) for count in range(1, most + 1)]


@pytest.mark.parametrize("when", [(what, *moment) for what in ("begun", "ended") for moment in MOMENTS])
@pytest.mark.parametrize("who", ["that one", "owner", "all"])
def test_whoever_dies_whenever_every_job_gets_its_line(media, jobs_file, tmp_path, when, who):
    ray, seen, entries = Ray(), [], read_jobs(jobs_file(media("a", 2), media("b", 2)))
    owners = []

    def event(what, kind, pid):
        seen.append((what, kind))
        if (what, kind) == ("ended", "job"):
            owners.append(pid)
        if (what, kind) == when[:2] and seen.count(when[:2]) == when[2]:
            for actor in ray.actors:
                actor.dead |= who == "all" or actor.number + 1 == (pid if who == "that one" or not owners else owners[0])

    driver = Driver(ray, ray.make, Results(tmp_path / "results.jsonl"), lambda line: None, event)
    assert driver.run([(entry, entry.key()) for entry in entries], 3) == 0
    lines = told(tmp_path / "results.jsonl")
    assert sorted(line["line"] for line in lines) == [1, 2] and {line["status"] for line in lines} == {"done"}
    assert {line["stages"]["denoise"] for line in lines} == {8.0}, "each part counts once"
    assert len([actor for actor in ray.actors if not actor.dead]) >= 1
    assert not driver.held and not driver.waiting


def test_a_deadly_job_dies_alone(media, jobs_file, tmp_path):
    ray, entries = Ray(), read_jobs(jobs_file(media("a", 2), media("deadly", 2), media("c", 2)))
    driver = Driver(ray, ray.make, Results(tmp_path / "results.jsonl"), lambda line: None, lambda *told: None)
    assert driver.run([(entry, entry.key()) for entry in entries], 1) == 1
    lines = {line["line"]: line for line in told(tmp_path / "results.jsonl")}
    assert [lines[number]["status"] for number in (1, 2, 3)] == ["done", "failed", "done"]
    assert lines[2]["error"]["type"] == "WorkerLost" and sum(actor.dead for actor in ray.actors) == driver_module.TRIES
