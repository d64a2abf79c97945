"""examples/submit.py --jobs as a user runs it: many jobs on real servers, one of which dies."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import requests
from comfy_client import frames_of
from comfyui import free_port

ROOT = Path(__file__).resolve().parents[2]
SUBMIT = ROOT / "examples" / "submit.py"


@pytest.fixture
def jobs(media, tmp_path):
    """`jobs({...}, ...)` -> a jobs file with a line for each, on the same clip and speech, of one step each unless told otherwise."""
    shutil.copytree(media, tmp_path / "in")

    def write(*changes) -> Path:
        both = {"video": f"in/{next(media.glob('*.mp4')).name}", "audio": f"in/{next(media.glob('*.wav')).name}", "steps": 1, "guidance": 1.0}
        lines = [{**both, "out": f"out/{number}.mp4", **change} for number, change in enumerate(changes, 1)]
        path = tmp_path / "jobs.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return path

    return write


def submitted(jobs: Path, *servers: str, start=subprocess.run, further=(), **options):
    command = [sys.executable, str(SUBMIT), "--jobs", str(jobs), *further, *(part for server in servers for part in ("--server", server))]
    return start(command, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def told(jobs: Path) -> list[dict]:
    return [json.loads(line) for line in jobs.with_suffix(".results.jsonl").read_text(encoding="utf-8").splitlines()]


def test_many_jobs_though_one_server_is_away_and_one_job_fails(comfy, jobs, tmp_path):
    (tmp_path / "text.mp4").write_text("not a video")
    file = jobs({"seed": 1}, {"seed": 2, "crf": 30}, {"video": "text.mp4"}, {"steps": 1000}, {"video": "absent.mp4"}, {"set": {"LatentSyncRestore.crf": 40}})
    before = set((comfy.input / "latentsync").glob("*")) if (comfy.input / "latentsync").is_dir() else set()
    done = submitted(file, f"http://127.0.0.1:{free_port()}", comfy.url, timeout=300)
    assert done.returncode == 1, done.stderr
    lines = {line["line"]: line for line in told(file)}
    assert [lines[number]["status"] for number in range(1, 7)] == ["done", "done", "failed", "failed", "failed", "done"]
    assert "LatentSyncFaceAlign" in lines[3]["error"]["message"] and "text.mp4" in lines[3]["error"]["message"]
    assert "steps" in lines[4]["error"]["message"] and "absent.mp4: no such file" in lines[5]["error"]["message"]
    assert {line["server"] for line in lines.values() if line["status"] == "done"} == {comfy.url}
    assert "does not answer" in done.stderr and "3 of 6 jobs are done, 3 failed" in done.stdout and "Traceback" not in done.stderr
    sizes = [(tmp_path / "out" / f"{number}.mp4").stat().st_size for number in (1, 2, 6)]
    assert sizes[0] > sizes[1] > sizes[2], "each with its own crf"
    assert len(list((tmp_path / "out").iterdir())) == 3
    copies = [path for folder in set((comfy.input / "latentsync").glob("*")) - before for path in folder.iterdir()]
    assert len({path.name for path in copies}) == len(copies) <= 3, "each file once"
    # again: only what failed; nothing is copied twice
    stamps = {path: path.stat().st_mtime_ns for path in copies}
    (tmp_path / "out" / "1.mp4").unlink()
    file = jobs({"seed": 1}, {"seed": 2, "crf": 30}, {"seed": 3}, {"seed": 4})
    assert submitted(file, comfy.url, timeout=300).returncode == 0
    assert sorted(line["line"] for line in told(file)[6:]) == [1, 3, 4]
    assert {path: path.stat().st_mtime_ns for path in copies} == stamps


def test_wrong_lines_are_told_before_anything_is_sent(jobs, tmp_path):
    wrong = [({"sed": 1}, "line 2 is no job: unknown: sed"), ({"set": {"LatentSyncRestore.crff": 1}}, "no input 'crff'"), ({"out": "out/1.mp4"}, "too")]
    for change, says in wrong:
        done = submitted(jobs({}, change), "http://127.0.0.1:9", timeout=60)
        assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_profile_for_all_jobs_and_one_that_is_not_there(comfy, jobs):
    before = set(comfy.get("/history"))
    file = jobs({}, {"profile": "approx7"})
    done = submitted(file, comfy.url, further=["--profile", "approx4"], timeout=300)
    assert done.returncode == 1 and "1 of 2 jobs are done, 1 failed" in done.stdout, done.stderr
    lines = {line["line"]: line for line in told(file)}
    assert lines[1]["status"] == "done" and "has no profile 'approx7': choose one of exact20, " in lines[2]["error"]["message"]
    (new,) = set(comfy.get("/history")) - before
    sent = comfy.get(f"/history/{new}")[new]["prompt"][2].values()
    assert [node["inputs"]["profile"] for node in sent if node["class_type"] == "LatentSyncDenoise"] == ["approx4"]


def test_a_server_that_dies_has_its_jobs_done_by_another(comfy, start_server, face_files, jobs, tmp_path):
    other = start_server()
    shutil.copytree(face_files, other.server.base / "models" / "latentsync" / "face", dirs_exist_ok=True)
    file = jobs(*({"seed": seed, "steps": 2} for seed in range(4)))
    with submitted(file, comfy.url, other.url, start=subprocess.Popen) as process:
        deadline = time.monotonic() + 120
        while not requests.get(f"{other.url}/queue", timeout=60).json()["queue_running"]:
            assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
            time.sleep(0.05)
        os.killpg(other.server.process.pid, signal.SIGKILL)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "went away" in err and "Traceback" not in err
    lines = told(file)
    assert sorted(line["line"] for line in lines) == [1, 2, 3, 4] and {line["server"] for line in lines} == {comfy.url}
    assert max(line["attempts"] for line in lines) == 2
    films = [frames_of(tmp_path / "out" / f"{number}.mp4") for number in (1, 2, 3, 4)]
    assert all(film.shape == films[0].shape for film in films) and not any(np.array_equal(films[0], film) for film in films[1:])


def test_ctrl_c_cancels_what_is_on_the_server(comfy, jobs, tmp_path):
    file = jobs(*({"seed": seed, "steps": 100} for seed in range(3)))
    with submitted(file, comfy.url, start=subprocess.Popen) as process:
        while not comfy.get("/queue")["queue_running"]:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "cancelled" in err and "Traceback" not in err
    while any(comfy.get("/queue").values()):
        time.sleep(0.05)
    assert not (tmp_path / "out").exists()
