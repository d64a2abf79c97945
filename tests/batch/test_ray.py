"""A batch on Ray: several workers on the CPU, some of them killed in the middle."""
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from latentsync_rtx import commands
from latentsync_rtx.lipsync import pipeline
from latentsync_rtx.lipsync.batch import Results, driver, open_jobs, read_jobs, results_path, split
from latentsync_rtx.lipsync.batch.cluster import resources, run_on_ray
from latentsync_rtx.lipsync.denoise import clip_blocks
from latentsync_rtx.tests.small_jobs import StubRunner, parts

from .conftest import told
from .workers import DEADLY

SLOW = "latentsync_rtx.tests.batch.workers:slow"


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    """Ray on this machine, with room for four workers, and nothing that costs time."""
    import tempfile

    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    before = signal.getsignal(signal.SIGTERM)
    with tempfile.TemporaryDirectory(prefix="ls-ray-", ignore_cleanup_errors=True) as folder:
        ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=200 << 20, _temp_dir=folder, log_to_driver=False)
        signal.signal(signal.SIGTERM, before)
        yield ray
        ray.shutdown()


def on_ray(jobs: Path, **options) -> int:
    results = Results(results_path(jobs))
    return run_on_ray(open_jobs(read_jobs(jobs), results), results, cpus=1, **options)


def alone(jobs: Path, tmp_path: Path) -> list[bytes]:
    """The files that one process makes of the jobs."""
    made = []
    for entry in read_jobs(jobs):
        job = pipeline.Job(**{**vars(entry.job), "out": tmp_path / "alone.mp4", "resume": False})
        made.append(pipeline.run(job, parts=parts()).path.read_bytes())
    return made


def test_jobs_on_two_workers_one_that_fails_and_one_that_kills(ray, media, jobs_file, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "TRIES", 2)
    (tmp_path / "text.mp4").write_text("not a film")
    bad = {**media("d", 5), "video": "text.mp4"}, media("e", 5, resolution=DEADLY)
    jobs = jobs_file(*(media(name, 16 + 8 * seed, seed=seed) for seed, name in enumerate("abc")), *bad)
    good = jobs.with_name("good.jsonl")
    good.write_text("".join(jobs.read_text().splitlines(keepends=True)[:3]))
    expected = alone(good, tmp_path)
    assert on_ray(jobs, workers=2, parts=SLOW) == 2
    assert [(tmp_path / f"{name}.out.mp4").read_bytes() for name in "abc"] == expected
    lines = {line["line"]: line for line in told(tmp_path / "jobs.results.jsonl")}
    assert [lines[number]["status"] for number in (1, 2, 3, 4, 5)] == ["done", "done", "done", "failed", "failed"]
    assert lines[4]["error"]["type"] == "MediaError" and lines[3]["frames"] == 32
    assert lines[5]["error"]["type"] == "WorkerLost" and "2 workers were lost" in lines[5]["error"]["message"]
    assert len(set((tmp_path / "steps.txt").read_text().split())) >= 2, "both workers drew"
    assert not list((tmp_path / "blocks").glob("*")) and not list(tmp_path.glob("*.part"))


def test_a_clip_in_parts_is_the_same_though_workers_die(ray, media, jobs_file, tmp_path):
    """Twelve blocks in six parts. When the second part has come back, a worker dies that draws one; at the fourth, the one with the clip."""
    jobs = jobs_file(media("a", 192, silence="rest"))
    expected = alone(jobs, tmp_path)
    dead, owner, busy, ended = [], [], Counter(), []

    def event(what, kind, pid):
        busy[kind, pid] += 1 if what == "begun" else -1
        if what != "ended" or kind == "join":
            return
        (owner if kind == "job" else ended).append(pid)
        if len(ended) == 2 and not dead:
            dead.append(next(pid for (kind, pid), count in busy.items() if kind == "part" and count and pid != owner[0]))
            os.kill(dead[0], signal.SIGKILL)
        elif len(ended) == 4 and len(dead) == 1:
            dead.append(owner[0])
            os.kill(owner[0], signal.SIGKILL)

    assert on_ray(jobs, workers=3, split_seconds=1.3, parts=SLOW, event=event) == 0
    assert (tmp_path / "a.out.mp4").read_bytes() == expected[0]
    (line,) = told(tmp_path / "jobs.results.jsonl")
    assert line["status"] == "done" and line["parts"] == 6 and line["frames"] == 192
    assert len(dead) == 2 and len(owner) == 2 and owner[0] != owner[1], "the clip is held anew when it has to be, and not before"
    steps = Counter((tmp_path / "steps.txt").read_text().split())
    assert len(steps) >= 3, "the work was shared"
    assert 12 * 2 <= sum(steps.values()) <= 12 * 2 + 2 * 2, "only blocks in hand were done twice"
    assert not list((tmp_path / "blocks").glob("*")) and not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("batch_of", [None, 2])
def test_parts_are_the_whole_to_the_bit(media, jobs_file, tmp_path, batch_of):
    """Also for a runner that takes two blocks at once."""
    runner = StubRunner(frames=16, batch=batch_of)
    job = read_jobs(jobs_file(media("a", 90, guidance=1.0, silence="rest")))[0].job
    given = parts(runner)
    prepared = pipeline.prepare(pipeline.check(job), given)
    blocks = clip_blocks(runner, prepared.track, prepared.plan)
    ranges = split.ranges(blocks, prepared.plan.rate, 1.0)
    assert len(ranges) == 3 and [first for first, _ in ranges] == [0, 2, 4] and ranges[-1][1] == len(blocks)
    whole = pipeline.draw(prepared, given)
    pieces = []
    for first, last in ranges:
        part = split.prepared_of(job, split.arrays_of(prepared, blocks, first, last))
        pieces.append(pipeline.draw(part, given, blocks=range(first, last)))
    assert torch.equal(torch.cat(pieces), whole)
    assert np.prod(whole.shape) > 0


def test_who_gets_what():
    assert resources({"CPU": 32, "GPU": 4}) == (4, {"num_gpus": 1, "num_cpus": 8})
    assert resources({"CPU": 8, "GPU": 2}, workers=4) == (4, {"num_gpus": 0.5, "num_cpus": 2})
    assert resources({"CPU": 7}) == (3, {"num_gpus": 0, "num_cpus": 2})
    assert resources({"CPU": 2}, workers=3, cpus=1) == (3, {"num_gpus": 0, "num_cpus": 1})


def test_without_ray_the_message_names_the_command(media, jobs_file, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert commands.main(["batch", str(jobs_file(media("a", 5))), "--ray"]) == 1
    assert 'pip install "ray[default]"' in capsys.readouterr().err
