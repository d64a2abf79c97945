"""No network without being asked: not for importing anything, not for looking for models, not for a whole job."""
import importlib
import pkgutil
import socket

import pytest
from latentsync_rtx import commands, engine_builder, lipsync
from latentsync_rtx.lipsync import download, pipeline, weights
from latentsync_rtx.lipsync.errors import ModelFileError
from latentsync_rtx.tests import small_jobs


class Asked(BaseException):
    """Somebody used the network, and no handler of exceptions keeps that secret."""


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """A machine without a network, which tells when somebody wants one."""

    def refuse(*arguments, **_):
        raise Asked(arguments)

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_a_download_is_noticed(tmp_path, monkeypatch):
    """Else these tests would prove nothing."""
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    with pytest.raises(Asked):
        download.fetch(download.WHISPER)


def test_importing_asks_nobody():
    for package in (lipsync, engine_builder, commands):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith((".engine_builder.plan", ".engine_builder.child")):  # of the builder's own process
                importlib.import_module(found.name)


def test_looking_for_models_asks_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    for find in (weights.find_model, weights.find_whisper, weights.find_vae):
        with pytest.raises(ModelFileError):
            find()
    assert weights.list_models() and len(download.missing()) == 3
    weights.find_model(weights.DEMO).load_whisper()


def test_a_job_asks_nobody(tmp_path):
    job = small_jobs.job(tmp_path)
    assert pipeline.run(job, parts=small_jobs.parts()).path == job.out
    assert job.out.stat().st_size > 1000


def test_commands_ask_nobody(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    for name in commands.COMMANDS:
        with pytest.raises(SystemExit):
            commands.main([name, "--help"])
    assert commands.main(["run", "--video", "none.mp4", "--audio", "none.wav", "--out", str(tmp_path / "out.mp4")]) == 1
    assert "error: " in capsys.readouterr().err
