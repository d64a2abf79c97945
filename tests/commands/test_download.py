"""--download, of the commands that run jobs."""
import json
from types import SimpleNamespace

import pytest
from latentsync_rtx import commands
from latentsync_rtx.lipsync import download, weights
from latentsync_rtx.tests.hub import serving
from latentsync_rtx.tests.small_jobs import film, speech

FILES = ["latentsync/LatentSync-1.6/latentsync_unet.pt", "latentsync/whisper/tiny.pt", "vae/sd-vae-ft-mse.safetensors"]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with serving() as server:
        server.serve_models(tmp_path)
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.setenv("COMFYUI_PATH", str(tmp_path / "comfyui"))
        monkeypatch.setattr(download, "PAUSE", 0.0)
        yield server


@pytest.fixture(params=["run", "batch"])
def started(request, tmp_path, monkeypatch):
    """command(*options): its exit status on a small job. there: the model files that were there when its work began. keys: whether those of the
    jobs were still the right ones then."""
    names = {"video": film(tmp_path / "a.mp4", 3), "audio": speech(tmp_path / "a.wav", 0.2), "out": tmp_path / "b.mp4"}
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text("".join(json.dumps({**{name: str(path) for name, path in names.items()}, "out": f"{k}.mp4"}) + "\n" for k in range(2)))
    seen = SimpleNamespace(there=None, keys=None)

    def work(*given, **_):
        models = tmp_path / "comfyui" / "models"
        seen.there = sorted(path.relative_to(models).as_posix() for path in models.rglob("*") if path.suffix != ".json" and path.is_file())
        if request.param == "batch":
            seen.keys = [key == entry.key() for entry, key in given[0]]
            return 0
        return SimpleNamespace(summary="", path="")

    monkeypatch.setattr(f"latentsync_rtx.commands.{request.param}.{'run_batch' if request.param == 'batch' else 'run'}", work)
    line = [str(jobs)] if request.param == "batch" else [part for name, path in names.items() for part in (f"--{name}", str(path))]
    seen.command = lambda *options: commands.main([request.param, *line, *options])
    return seen


def test_missing_models_are_there_before_the_first_job(started, hub):
    assert started.command("--download") == 0
    assert started.there == FILES and len(hub.requests) == 3
    assert weights.find_model().release == "1.6"
    assert started.keys is None or all(started.keys), "results are filed under the model that was fetched"


def test_without_it_nobody_is_asked(started, hub):
    assert started.command() == 0 and started.there == [] and hub.requests == []


def test_a_download_that_fails_ends_it_before_any_job(started, hub, capsys):
    hub.files.clear()
    assert started.command("--download") == 1 and started.there is None
    assert "cannot download latentsync_unet.pt: the server answers 404" in capsys.readouterr().err
