"""Jobs files on small media, in folders of their own."""
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from latentsync_rtx.lipsync import folders, weights
from latentsync_rtx.tests.small_jobs import SIDE, film, speech

SMALL = {"model": weights.DEMO, "resolution": SIDE, "steps": 2, "device": "cpu", "crf": 8}


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """Temporary files and finished blocks, beside the media."""
    monkeypatch.setenv("LATENTSYNC_JOBS", str(tmp_path / "blocks"))
    monkeypatch.setattr(folders, "temp_dir", lambda: tmp_path / "temp")


@pytest.fixture
def media(tmp_path) -> Callable[[str, int], dict]:
    """`media("a", 20)` -> the fields of a job on a new clip and speech of 20 frames, a.mp4 and a.wav, written to a.out.mp4."""

    def make(name: str, frames: int, **changes) -> dict:
        film(tmp_path / f"{name}.mp4", frames)
        speech(tmp_path / f"{name}.wav", frames / 25)
        return {"video": f"{name}.mp4", "audio": f"{name}.wav", "out": f"{name}.out.mp4", **SMALL, **changes}

    return make


@pytest.fixture
def jobs_file(tmp_path) -> Callable[..., Path]:
    """`jobs_file(fields, "text of a line", ...)` -> the jobs file with these lines."""

    def write(*lines) -> Path:
        path = tmp_path / "jobs.jsonl"
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), encoding="utf-8")
        return path

    return write


def told(path: Path) -> list[dict]:
    """The lines of a results file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
