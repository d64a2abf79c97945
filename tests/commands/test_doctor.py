"""`doctor` on machines in different states: what is there, what is missing, and what to do about it."""
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from latentsync_rtx import commands
from latentsync_rtx.commands import checks
from latentsync_rtx.engine_builder import builder
from latentsync_rtx.lipsync.runners import choice, engines
from latentsync_rtx.lipsync.runners.manifest import Gpu
from latentsync_rtx.tests.model_files import save_unet, save_whisper, unet_state
from latentsync_rtx.tests.runners.doubles import VERSION, write_engine

ROOT = Path(__file__).resolve().parents[2]
FACE_FILES = Path(os.environ.get("LATENTSYNC_FACE_MODELS") or ROOT / ".cache" / "face")
H200, RTX = Gpu("NVIDIA H200", "9.0", "13.0"), Gpu("NVIDIA GeForce RTX 4090", "8.9", "13.0")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty ComfyUI folder, on a machine whose network raises."""

    def refuse(*_):
        raise AssertionError("doctor asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path / "comfy"))
    monkeypatch.setenv("LATENTSYNC_JOBS", str(tmp_path / "jobs"))
    (tmp_path / "comfy").mkdir()
    checks.gpu.cache_clear()
    yield tmp_path / "comfy"
    checks.gpu.cache_clear()


def doctor(capsys) -> tuple[int, list[dict]]:
    status = commands.main(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is (status == 0)
    assert all(finding["do"] for finding in told["findings"] if finding["state"] != "ok")
    return status, told["findings"]


def of(findings, name) -> dict:
    (found,) = (finding for finding in findings if finding["name"] == name)
    return found


def complete(root):
    save_unet(root / "models/latentsync/LatentSync-1.6/latentsync_unet.pt", unet_state())
    save_whisper(root / "models/latentsync/whisper/tiny.pt")
    vae = root / "models/vae/sd-vae-ft-mse.safetensors"
    vae.parent.mkdir(parents=True)
    vae.write_bytes((2).to_bytes(8, "little") + b"{}")
    shutil.copytree(FACE_FILES, root / "models/latentsync/face")
    (root / "folder_paths.py").write_text("")
    (root / "comfy_api" / "latest").mkdir(parents=True)
    (root / "comfyui_version.py").write_text('__version__ = "0.3.75"\n')


def test_an_empty_machine_is_told_what_to_get_from_where(root, capsys):
    before = sorted(root.parent.rglob("*"))
    status, findings = doctor(capsys)
    assert status == 1
    models = of(findings, "models")
    assert models["state"] == "missing" and "--download" in models["do"]
    for word in ("latentsync_unet.pt (5.0 GB)", "tiny.pt (76 MB)", "sd-vae-ft-mse.safetensors (335 MB)", "https://huggingface.co/ByteDance/LatentSync-1.6"):
        assert word in models["do"]
    assert str(root / "models/latentsync/whisper/tiny.pt") in models["do"]
    faces = of(findings, "MediaPipe's face files")
    assert faces["state"] == "missing" and f"face_models.py {root / 'models/latentsync/face'}" in faces["do"]
    comfyui = of(findings, "ComfyUI")
    assert comfyui["state"] == "note" and f"COMFYUI_PATH is {str(root)!r}" in comfyui["found"]
    assert sorted(root.parent.rglob("*")) == before  # nothing was written


def test_a_complete_machine_passes(root, capsys):
    complete(root)
    status, findings = doctor(capsys)
    assert status == 0, [finding for finding in findings if finding["state"] == "missing"]
    assert "LatentSync 1.6" in of(findings, "checkpoint")["found"]
    assert of(findings, "ComfyUI")["state"] == "ok" and "0.3.75" in of(findings, "ComfyUI")["found"]
    assert str(root / "models/latentsync/whisper/tiny.pt") in of(findings, "Whisper")["found"]
    assert "libx264" in of(findings, "encoders")["found"]
    assert commands.main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "everything that is needed is there" in printed and all(finding["name"] in printed for finding in findings)


def test_what_is_broken_is_named(root, capsys):
    complete(root)
    unet = root / "models/latentsync/LatentSync-1.6/latentsync_unet.pt"
    unet.write_bytes(unet.read_bytes()[:5000])
    (root / "models/vae/sd-vae-ft-mse.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\nsize 5\n")
    (root / "models/latentsync/face/face_landmark.tflite").write_bytes(b"cut")
    (root / "comfyui_version.py").write_text('__version__ = "0.3.40"\n')
    (root.parent / "jobs").mkdir()
    (root.parent / "jobs/some.block").write_bytes(b"x" * 1000)
    status, findings = doctor(capsys)
    assert status == 1
    assert "truncated" in of(findings, "checkpoint")["found"] and str(unet) in of(findings, "checkpoint")["found"]
    assert "Git LFS" in of(findings, "VAE")["found"]
    assert "face_landmark.tflite" in of(findings, "MediaPipe's face files")["found"]
    assert "0.3.75" in of(findings, "ComfyUI")["do"]
    assert "1 blocks" in of(findings, "unfinished jobs")["found"]


def test_a_card_that_tensorrt_rtx_refuses_is_no_fault(root, capsys, monkeypatch):
    monkeypatch.setattr(choice, "gpu_of", lambda device=None: H200)
    monkeypatch.setattr(engines, "installed_version", lambda: VERSION)
    found = of(doctor(capsys)[1], "TensorRT-RTX")
    assert found["state"] == "note" and "does not support this GPU (NVIDIA H200, compute capability 9.0)" in found["found"]


def test_engines_are_judged_for_this_card(root, capsys, monkeypatch):
    monkeypatch.setattr(choice, "gpu_of", lambda device=None: RTX)
    monkeypatch.setattr(engines, "installed_version", lambda: VERSION)
    monkeypatch.setattr(builder, "check", engines.check)  # the library itself knows that the plan is made up
    assert "build-engine" in of(doctor(capsys)[1], "engine")["do"]

    folder = root / "models/latentsync/engines"
    folder.mkdir(parents=True)
    engine = write_engine(folder, seconds={"total": 60})
    found = of(doctor(capsys)[1], "engine")
    assert found["state"] == "note" and "its checkpoint" in found["found"] and "f00d" in found["found"]

    monkeypatch.setattr(checks, "_fingerprints", lambda: {"f00d"})
    assert of(doctor(capsys)[1], "engine")["state"] == "ok"
    monkeypatch.setattr(engines, "installed_version", lambda: "9.9.9")
    found = of(doctor(capsys)[1], "engine")
    assert found["state"] == "note" and f"release is {VERSION}, needed is 9.9.9" in found["found"]
    engine.path.with_suffix(".json").unlink()
    assert "no manifest" in of(doctor(capsys)[1], "engine")["found"]
    assert engine.path.exists()


def test_it_runs_where_packages_are_missing(tmp_path):
    script = (
        "import runpy, sys\n"
        "for name in ('torch', 'cv2', 'av', 'tqdm', 'psutil', 'numpy'): sys.modules[name] = None\n"
        f"sys.argv[1:] = ['doctor', '--json']; runpy.run_path({str(ROOT)!r}, run_name='__main__')\n"
    )
    environment = {**os.environ, "COMFYUI_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    findings = json.loads(done.stdout)["findings"]
    assert done.returncode == 1 and done.stderr == ""
    packages = of(findings, "packages")
    assert packages["state"] == "missing" and "opencv-python" in packages["found"] and "requirements.txt" in packages["do"]
    assert of(findings, "Python")["state"] == "ok"
    assert "torch" in of(findings, "PyTorch")["found"]
