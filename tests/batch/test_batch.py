"""`batch` as a user runs it. Every stage is real; the networks are stubs."""
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from latentsync_rtx import commands
from latentsync_rtx.lipsync import pipeline
from latentsync_rtx.lipsync.batch import Results, open_jobs, read_jobs, results_path, run_batch
from latentsync_rtx.lipsync.batch.line import Line, Stages
from latentsync_rtx.lipsync.batch.worker import Worker
from latentsync_rtx.tests.small_jobs import StubRunner, frames_of, parts

from .conftest import told

ROOT = Path(__file__).resolve().parents[2]


def batch(jobs: Path, runner=None, **options) -> int:
    results = Results(results_path(jobs))
    return run_batch(open_jobs(read_jobs(jobs), results), results, parts=parts(runner), **options)


def same(a: Path, b: Path) -> bool:
    return all(np.array_equal(*pair) for pair in zip(frames_of(a), frames_of(b), strict=True))


def test_each_job_is_what_it_would_be_alone_and_has_a_line(media, jobs_file, tmp_path):
    jobs = jobs_file(media("a", 20), media("b", 30, seed=3, silence="keep"))
    assert batch(jobs) == 0
    for entry in read_jobs(jobs):
        alone = pipeline.run(entry.job.__class__(**{**vars(entry.job), "out": tmp_path / "alone.mp4"}), parts=parts())
        assert same(entry.job.out, alone.path)
    first, second = told(tmp_path / "jobs.results.jsonl")
    assert (first["line"], first["status"], first["frames"], first["redrawn"], second["frames"]) == (1, "done", 20, 20, 30)
    assert first["out"] == str(tmp_path / "a.out.mp4") and "Face found in 20 of 20 frames" in first["summary"]
    assert set(first["stages"]) == {"check", "audio", "align", "load", "denoise", "decode", "restore"}
    assert abs(first["seconds"] - sum(first["stages"].values())) < 0.01
    assert first["idle_seconds"] is None and second["idle_seconds"] >= 0
    assert not list((tmp_path / "temp").glob("*")) and not list((tmp_path / "blocks").glob("*")) and not list(tmp_path.glob("*.part"))


def test_folders_for_results_are_made(media, jobs_file, tmp_path):
    (tmp_path / "taken").write_text("a file")
    jobs = jobs_file({**media("a", 3), "out": "new/deep/a.mp4"}, {**media("b", 3), "out": "taken/b.mp4"})
    assert batch(jobs) == 1
    assert len(list(frames_of(tmp_path / "new" / "deep" / "a.mp4"))) == 3
    told_of = {line["line"]: line for line in told(tmp_path / "jobs.results.jsonl")}
    assert told_of[2]["error"]["type"] == "MediaError" and "cannot make the folder" in told_of[2]["error"]["message"]


@pytest.mark.parametrize("options, why", [
    (["--workers", "2"], "add --ray"), (["--ray", "--workers", "0"], "--workers is 0"), (["--ray", "--cpus", "-1"], "--cpus is -1"),
    (["--ray", "--split-seconds", "nan"], "--split-seconds is nan"),
])  # fmt: skip
def test_options_of_ray_that_cannot_be_are_refused(options, why, media, jobs_file, tmp_path, capsys):
    assert commands.main(["batch", str(jobs_file(media("a", 3))), *options]) == 1
    assert why in capsys.readouterr().err and not (tmp_path / "jobs.results.jsonl").exists()


def test_a_failed_job_stops_no_other(media, jobs_file, tmp_path, capsys, monkeypatch):
    class Odd(StubRunner):
        def predict(self, sample, timestep, audio, check=lambda: None):
            if sample.shape[-1] == 72 // 8:
                raise RuntimeError("the network fell over")
            return super().predict(sample, timestep, audio)

    (tmp_path / "text.mp4").write_text("not a film")
    lines = media("a", 5), {**media("b", 5), "video": "text.mp4"}, media("c", 5, resolution=72), {**media("d", 5), "audio": "absent.wav"}, media("e", 5)
    jobs = jobs_file(*lines)
    monkeypatch.setattr("latentsync_rtx.commands.batch.run_batch", lambda *given, **options: run_batch(*given, **options, parts=parts(Odd())))
    assert commands.main(["batch", str(jobs)]) == 1
    lines = {line["line"]: line for line in told(tmp_path / "jobs.results.jsonl")}
    assert [lines[number]["status"] for number in range(1, 6)] == ["done", "failed", "failed", "failed", "done"]
    assert lines[2]["error"]["type"] == "MediaError" and "text.mp4" in lines[2]["error"]["message"]
    assert lines[3]["error"] == {"type": "RuntimeError", "message": "the network fell over"}
    assert "absent.wav" in lines[4]["error"]["message"]
    out = capsys.readouterr().out
    assert "line 2 failed: MediaError: cannot open" in out and "2 of 5 jobs are done, 3 failed" in out


def test_a_batch_started_again_does_what_is_not_done(media, jobs_file, tmp_path):
    given = [media(name, 5) for name in "abcd"]
    jobs = jobs_file(*given)
    assert batch(jobs) == 0
    results = tmp_path / "jobs.results.jsonl"

    def redone() -> list[int]:
        before = len(told(results))
        assert batch(jobs) == 0
        return [line["line"] for line in told(results)[before:]]

    assert redone() == []
    jobs_file(given[0], {**given[1], "seed": 1}, *given[2:])  # another line
    assert redone() == [2]
    media("c", 6)  # another clip under the same name
    (tmp_path / "d.out.mp4").unlink()
    assert redone() == [3, 4]
    with results.open("a") as file:  # killed while it wrote
        file.write('{"line": 9, "sta')
    (tmp_path / "a.out.mp4").unlink()
    assert batch(jobs) == 0
    assert json.loads(results.read_text().splitlines()[-1])["line"] == 1
    assert batch(jobs) == 0


def test_waiting_for_the_network_is_not_counted(media, jobs_file):
    line, stages = Line(parts()), Stages(threading.Event())
    line.prepare(read_jobs(jobs_file(media("a", 5)))[0].job, stages).close()
    before = dict(stages.seconds)
    stages.pause()
    assert set(before) == {"check", "audio", "align"} and stages.seconds == before, "no stage goes on"
    line.close()


def test_the_next_job_is_ready_before_the_network_is_done_with_this_one(media, jobs_file, tmp_path):
    """The order of events, not their times: job 2 is prepared while job 1 is drawn, and drawn while job 1 is written; job 3 waits."""
    events, ready = [], threading.Event()

    class Waiting(StubRunner):
        def predict(self, *given):
            if self.calls == 1:
                assert ready.wait(60), "nobody prepares the next job"
            return super().predict(*given)

    def event(kind, job):
        events.append((kind, job.out.name[0]))
        if events[-1] == ("prepared", "b"):
            ready.set()

    assert batch(jobs_file(*(media(name, 20) for name in "abcd")), Waiting(), event=event) == 0
    at = {event: number for number, event in enumerate(events)}
    assert at["prepared", "b"] < at["drawn", "a"]
    for before, after in ("ab", "bc", "cd"):
        assert at["drawn", before] < at["network", after]
    for first, third in ("ac", "bd"):
        assert at["drawn", first] < at["prepared", third], "one job ahead, not two"
        assert at["written", first] < at["written", third]
    assert [line["idle_seconds"] is None for line in told(tmp_path / "jobs.results.jsonl")] == [True, False, False, False]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="reads /proc")
def test_memory_and_open_files_stay_over_fifty_jobs(media, jobs_file, tmp_path):  # F34
    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

    seen = []

    def look(line) -> None:
        gc.collect()
        seen.append((resident(), len(os.listdir("/proc/self/fd")), threading.active_count()))

    shared = media("a", 4)
    jobs = jobs_file(*({**shared, "seed": seed, "out": f"{seed}.mp4"} for seed in range(50)))
    assert batch(jobs, told=look) == 0
    memory, files, threads = zip(*seen, strict=True)
    assert len(memory) == 50 and len(list(tmp_path.glob("[0-9]*.mp4"))) == 50
    assert np.mean(memory[40:]) - np.mean(memory[10:20]) < 20, memory  # MB; the heap comes and goes by 10
    assert max(files[40:]) < max(files[5:15]) + 8 and max(threads[40:]) < max(threads[5:15]) + 8, "some are open just now, none per job"


STOPPED = """
import os, signal, sys, threading
sys.path.insert(0, {tests!r})
import conftest
from pathlib import Path
from latentsync_rtx import commands
from latentsync_rtx.commands import batch
from latentsync_rtx.lipsync import folders
from latentsync_rtx.lipsync.batch import run_batch
from latentsync_rtx.tests.small_jobs import StubRunner, parts

signal.signal(signal.SIGTERM, signal.default_int_handler)  # as __main__ does
folders.temp_dir = lambda: Path({temp!r})

class Told(StubRunner):
    def predict(self, *given):
        if self.calls == 10 + 7:  # the second job, in the middle of the fourth block
            os.kill(os.getpid(), signal.{signal})
            threading.Event().wait(1)
        return super().predict(*given)

batch.run_batch = lambda *given, **options: run_batch(*given, **options, parts=parts(Told()))
sys.exit(commands.main(["batch", {jobs!r}]))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_stopped_batch_leaves_nothing_partial_and_goes_on(media, jobs_file, tmp_path, name):
    jobs = jobs_file(*(media(letter, 80, seed=seed) for seed, letter in enumerate("abc")))
    code = STOPPED.format(tests=str(ROOT / "tests"), temp=str(tmp_path / "temp"), signal=name, jobs=str(jobs))
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == (130 if name == "SIGTERM" else -signal.SIGKILL), done.stderr
    assert not (tmp_path / "b.out.mp4").exists() and not list((tmp_path / "temp").glob("*"))
    if name == "SIGTERM":
        assert "the same command goes on" in done.stderr and "Traceback" not in done.stderr
        assert not list(tmp_path.glob("*.part"))
    finished = len(told(tmp_path / "jobs.results.jsonl"))
    assert finished <= 1
    runner = StubRunner()
    assert batch(jobs, runner) == 0
    assert runner.calls == 2 * (2 + 5), "the first is drawn, three blocks of the second are there"
    assert len(told(tmp_path / "jobs.results.jsonl")) == 3
    clean = pipeline.run(pipeline.Job(**{**vars(read_jobs(jobs)[1].job), "out": tmp_path / "clean.mp4", "resume": False}), parts=parts())
    assert same(tmp_path / "b.out.mp4", clean.path)


def test_a_clip_too_short_to_be_shared_out_is_done_whole(media, jobs_file):
    (entry,) = read_jobs(jobs_file(media("a", 20)))
    worker = Worker("latentsync_rtx.tests.small_jobs:parts", split_seconds=5)
    waiting = threading.Timer(60, worker.stop)  # a job that waits for itself
    waiting.start()
    report = worker.run(entry.given)
    waiting.cancel()
    worker.stop()
    assert (report["status"], report["frames"]) == ("done", 20) and entry.job.out.exists()
