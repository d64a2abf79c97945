"""examples/submit.py as a user runs it, against a real server."""
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from comfy_client import frames_of
from latentsync_rtx.lipsync.profiles import PROFILES

ROOT = Path(__file__).resolve().parents[2]
SUBMIT = ROOT / "examples" / "submit.py"


def submit(comfy, folder, *options) -> subprocess.CompletedProcess:
    server = [] if "--server" in options else ["--server", comfy.url]
    command = [sys.executable, str(SUBMIT), *server, *map(str, options)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def clip(media):
    return next(media.glob("*.mp4"))


@pytest.fixture
def speech(media):
    return next(media.glob("*.wav"))


def test_submit_fetches_the_clip(comfy, clip, speech, tmp_path):
    done = submit(comfy, tmp_path, "--video", clip, "--audio", speech, "--steps", 1, "--seed", 3, "--output", "folder/out.mp4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == os.path.join("folder", "out.mp4")
    assert frames_of(tmp_path / "folder" / "out.mp4").shape == frames_of(clip).shape
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["out.mp4"]
    assert "LatentSyncDenoise" in done.stderr  # it shows where it is
    # the same again: nothing to do, and still a result
    again = submit(comfy, tmp_path, "--video", clip, "--audio", speech, "--steps", 1, "--seed", 3, "--output", tmp_path)
    assert again.returncode == 0, again.stderr
    assert Path(again.stdout.strip()).parent == tmp_path


def test_submit_says_what_the_server_refuses(comfy, clip, speech, tmp_path):
    done = submit(comfy, tmp_path, "--video", clip, "--audio", speech, "--set", "LatentSyncDenoise.steps=1000")
    assert done.returncode == 1
    assert "LatentSyncDenoise: " in done.stderr and "steps" in done.stderr and "Traceback" not in done.stderr
    # one output is wrong and another is right: ComfyUI would do the right one
    workflow = json.loads((ROOT / "examples" / "api" / "lipsync.json").read_text(encoding="utf-8"))
    workflow["image"] = {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0}}
    workflow["preview"] = {"class_type": "PreviewImage", "inputs": {"images": ["image", 0]}}
    (tmp_path / "both.json").write_text(json.dumps(workflow), encoding="utf-8")
    options = ["--workflow", "both.json", "--video", clip, "--audio", speech, "--set", "LatentSyncDenoise.steps=1000"]
    done = submit(comfy, tmp_path, *options)
    assert done.returncode == 1 and "steps" in done.stderr, done.stderr


def test_submit_sets_a_profile_that_the_server_has(comfy, clip, speech, tmp_path):
    help_text = submit(comfy, tmp_path, "--help").stdout
    assert "--profile NAME" in help_text
    (tmp_path / "unsent.mp4").write_text("never looked at")
    before = set(comfy.get("/history"))
    done = submit(comfy, tmp_path, "--video", "unsent.mp4", "--audio", speech, "--profile", "approx7")
    assert done.returncode == 1 and f"has no profile 'approx7': choose one of {', '.join(PROFILES)}" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not list(comfy.input.rglob("unsent.mp4")) and set(comfy.get("/history")) == before
    # also in a workflow that was saved before there were profiles
    workflow = json.loads((ROOT / "examples" / "api" / "lipsync.json").read_text(encoding="utf-8"))
    (denoise,) = (node for node in workflow.values() if node["class_type"] == "LatentSyncDenoise")
    del denoise["inputs"]["profile"]
    (tmp_path / "old.json").write_text(json.dumps(workflow), encoding="utf-8")
    options = ["--workflow", "old.json", "--video", clip, "--audio", speech, "--guidance", 1, "--profile", "approx4", "--output", "out.mp4"]
    done = submit(comfy, tmp_path, *options)
    assert done.returncode == 0 and (tmp_path / "out.mp4").is_file(), done.stderr
    (new,) = set(comfy.get("/history")) - before
    sent = comfy.get(f"/history/{new}")[new]["prompt"][2]
    assert [node["inputs"]["profile"] for node in sent.values() if node["class_type"] == "LatentSyncDenoise"] == ["approx4"]


def test_submit_says_what_a_node_reports(comfy, speech, tmp_path):
    text = tmp_path / "text.mp4"
    text.write_text("not a video")
    done = submit(comfy, tmp_path, "--video", text, "--audio", speech)
    assert done.returncode == 1
    assert "LatentSyncFaceAlign: " in done.stderr and "text.mp4" in done.stderr and "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.mp4"]


def test_submit_says_what_is_wrong_with_its_options(comfy, clip, tmp_path):
    (tmp_path / "graph.json").write_text('{"nodes": [], "links": []}')
    cases = {
        "no such file": ["--video", tmp_path / "absent.mp4"],
        "no node of class Absent": ["--set", "Absent.seed=1"],
        "has no input 'absent'": ["--set", "LatentSyncDenoise.absent=1"],
        "not in API form": ["--workflow", tmp_path / "graph.json"],
        "cannot talk to ComfyUI": ["--server", "http://127.0.0.1:9", "--video", clip],
    }
    for message, options in cases.items():
        done = submit(comfy, tmp_path, *options)
        assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr, (message, done.stderr)


def test_ctrl_c_cancels_the_job_on_the_server(comfy, clip, speech, tmp_path):
    command = [sys.executable, str(SUBMIT), "--server", comfy.url, "--video", str(clip), "--audio", str(speech), "--steps", "100"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "LatentSyncDenoise" in line:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
        assert process.wait(60) == 130
    assert "cancelled" in rest and "Traceback" not in rest
    while comfy.get("/queue")["queue_running"]:
        pass
    last = list(comfy.get("/history").values())[-1]
    assert "execution_interrupted" in dict(last["status"]["messages"])
    assert not list(tmp_path.iterdir())
