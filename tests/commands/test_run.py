"""`run` as typed: what it says when it is stopped, and its model by a short name."""
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from latentsync_rtx import commands
from latentsync_rtx.commands import batch
from latentsync_rtx.commands import run as run_command
from latentsync_rtx.lipsync import folders, pipeline, weights
from latentsync_rtx.lipsync.batch import read_jobs
from latentsync_rtx.tests.small_jobs import job, parts

ROOT = Path(__file__).resolve().parents[2]


def typed(made, *options) -> list[str]:
    return ["run", "--video", str(made.video), "--audio", str(made.audio), "--out", str(made.out), "--steps", "2", *options]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no Ctrl-C for one process alone")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_stop_while_modules_are_imported_is_one_line(name):
    command = [sys.executable, "-X", "importtime", str(ROOT), "run", "--help"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it, and children then do
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        signal.signal(signal.SIGINT, before)
        next(line for line in process.stderr if " torch." in line)  # half of it is there
        process.send_signal(getattr(signal, name))
        said = [line for line in process.stderr.read().splitlines() if not line.startswith("import time:")]
    assert process.returncode == 130 and said == ["stopped; nothing was left behind"]


@pytest.mark.parametrize("reports, goes_on", [(1, False), (4, True)])  # of the network: two steps a block
def test_a_stop_speaks_of_finished_blocks_where_there_are_some(tmp_path, monkeypatch, capsys, reports, goes_on):
    monkeypatch.setenv("LATENTSYNC_JOBS", str(tmp_path / "jobs"))
    monkeypatch.setattr(folders, "temp_dir", lambda: tmp_path / "temp")
    made, seen = job(tmp_path, 40), []

    def listen(done, total, *, stage="", preview=None):
        seen.append(stage)
        if seen.count("denoise") > reports:
            raise KeyboardInterrupt

    monkeypatch.setattr(run_command, "run", lambda job, progress: pipeline.run(job, listen, parts()))
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "anothers.block").write_bytes(b"x")
    assert commands.main(typed(made, "--model", "demo")) == 130
    said = capsys.readouterr().err
    assert said.endswith("stopped; " + ("the same command goes on from the last finished block\n" if goes_on else "nothing was left behind\n"))
    assert len(list((tmp_path / "jobs").glob("*.block"))) == 1 + goes_on


def test_the_demo_model_has_a_short_name(tmp_path, monkeypatch):
    made, seen = job(tmp_path, 3), []
    monkeypatch.setattr(run_command, "run", lambda job, progress: seen.append(job.model) or pipeline.Result(job.out, ""))
    assert commands.main(typed(made, "--model", "demo")) == 0 and seen == [weights.DEMO]
    lines = tmp_path / "jobs.jsonl"
    lines.write_text(json.dumps({"video": "a.mp4", "audio": "a.wav", "out": "b.mp4", "model": "demo"}))
    (entry,) = map(batch.named, read_jobs(lines))
    assert entry.job.model == entry.given["model"] == weights.DEMO
