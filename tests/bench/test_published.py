"""The published table, on the smallest job."""
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from latentsync_rtx import commands
from latentsync_rtx.bench import networks, published
from latentsync_rtx.bench.stubs import StubDetector
from latentsync_rtx.lipsync import profiles
from latentsync_rtx.lipsync.clip import open_clip
from latentsync_rtx.lipsync.errors import ModelFileError
from latentsync_rtx.lipsync.runners import TorchRunner
from latentsync_rtx.lipsync.unet import UNetConfig
from latentsync_rtx.tests.small_jobs import film

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "tools") not in sys.path:
    sys.path.insert(0, str(ROOT / "tools"))


def test_table_of_a_job_with_a_face(tmp_path, monkeypatch, capsys, face_files):
    """As typed: every row is there, the exact ones agree, what is approximate says so and differs."""
    import demo_media

    monkeypatch.setattr(profiles, "PROFILES", {name: profiles.PROFILES[name] for name in ("exact20", "approx12", "approx4")})
    clip = demo_media.write_clip(tmp_path / "face.mp4", demo_media.face_frames(0.08, size=(320, 256)))
    path = tmp_path / "table.json"
    assert commands.main(["bench", "--published", "--device", "cpu", "--seconds", "0.12", "--video", str(clip), "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "NO GPU" in printed and "a tiny network with random weights" in printed and "face.mp4, 320 x 256, 3 frames" in printed
    assert "published elsewhere, on their card (RTX 5070 Ti" in printed and "PyTorch" in printed.splitlines()[0]
    rows = {row["name"]: row for row in json.loads(path.read_text())["published"]}
    assert list(rows) == ["exact20, eager", "exact20, PyTorch", "approx12, 12 steps instead of 20", "approx4, 4 steps instead of 20"]
    exact, twelve, four = list(rows.values())[1:]
    assert [row["exact"] for row in rows.values()] == [True, True, False, False]
    for row in rows.values():
        assert row["wall"] >= sum(row["stages"].values()) > 0 and row["seconds"] == pytest.approx(0.12)
    assert exact["quality"]["mouth_ssim"] > 0.999 > twelve["quality"]["mouth_ssim"] > four["quality"]["mouth_ssim"]
    assert exact["quality"]["drift"] < four["quality"]["drift"]
    marks = [line.split()[0] for line in printed.splitlines() if line.startswith(("exact ", "APPROXIMATE "))]
    assert marks == ["exact", "exact", "APPROXIMATE", "APPROXIMATE"]


def test_real_weights_are_asked_for_by_name_or_missing(monkeypatch, tmp_path):
    from latentsync_rtx.bench.cases import Setup

    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    setup = Setup(torch.device("cpu"), torch.float32, 8, 2, small=False)
    assert "seeded random weights of the full sizes" in published._models(setup, "auto").text
    with pytest.raises(ModelFileError, match="latentsync_unet"):
        published._models(setup, "real")


def test_row_that_cannot_be_run_is_told_and_the_others_go_on(tmp_path, monkeypatch):
    from latentsync_rtx.bench.cases import Setup
    from latentsync_rtx.lipsync.errors import EngineError

    def fail(self):
        raise EngineError("no memory for that")

    monkeypatch.setattr(published, "SHARED", (tmp_path / "nowhere",))
    monkeypatch.setattr(published, "SMALL", 160)
    monkeypatch.setattr(published.EagerRunner, "load", fail)
    said, failed = [], []
    setup = Setup(torch.device("cpu"), torch.float32, 8, 2, small=True)
    rows = list(published.rows(setup, seconds=0.08, names=("exact20", "approx4"), say=said.append, failed=failed))
    assert failed == ["exact20, eager"]
    assert [row.name.split(",")[0] for row in rows] == ["exact20", "approx4"], said
    assert any("exact20, eager cannot be run here: no memory for that" in text for text in said)
    assert not rows[0].quality and rows[1].quality["ssim"] < 1  # against the first that ran


def test_a_table_without_a_row_replaces_no_file(tmp_path, monkeypatch, capsys):
    from latentsync_rtx import commands
    from latentsync_rtx.lipsync.errors import FaceError

    def none(job, **_):
        raise FaceError(f"no face in {job.video}")

    monkeypatch.setattr(published, "SHARED", (tmp_path / "nowhere",))
    monkeypatch.setattr(published, "SMALL", 160)
    monkeypatch.setattr(published, "_measured", lambda setup, label, job, *_: none(job))
    path = tmp_path / "a.json"
    path.write_text('{"machine": {}, "rows": [1]}')
    assert commands.main(["bench", "--published", "--device", "cpu", "--seconds", "0.08", "--json", str(path)]) == 1
    printed = capsys.readouterr()
    assert "not measured: exact20, eager; " in printed.err
    assert "no face in the film" in printed.out and printed.out.count("no face") == 1 and printed.out.count("for the same reason") == 8
    assert path.read_text() == '{"machine": {}, "rows": [1]}'


@torch.no_grad()
def test_eager_runner_computes_what_ours_does():
    def make():
        return networks.unet(torch.device("cpu"), torch.float32, UNetConfig(block_out_channels=(32, 32, 64, 64)))

    inputs = torch.randn(2, 13, 2, 8, 8), torch.tensor([500]), torch.randn(2, 2, 50, 384)
    ours = TorchRunner(make, "cpu").predict(*inputs)
    eager = published.EagerRunner(make, torch.device("cpu"), torch.float32).predict(*inputs)
    np.testing.assert_allclose(eager, ours, atol=1e-4)


def test_short_clip_runs_back_and_forth_and_speech_fills_it(tmp_path, monkeypatch):
    assert published.back_and_forth(4, 9).tolist() == [0, 1, 2, 3, 2, 1, 0, 1, 2]
    assert published.back_and_forth(1, 3).tolist() == [0, 0, 0]
    monkeypatch.setattr(published, "SHARED", (tmp_path / "nowhere",))
    detector, told = published.write_media(tmp_path, 0.2, None, None, 320)
    assert isinstance(detector, StubDetector) and "a drawn clip without a face" in told
    clip = open_clip(tmp_path / "source.mp4")
    assert (clip.width, clip.height, clip.frame_count) == (320, 180, 5)
    assert (tmp_path / "speech.wav").stat().st_size == 44 + 2 * 3200


@pytest.mark.parametrize("option, why", [("--video", "nope: No such file"), ("--audio", "nope: No such file"), ("--audio", "has no sound")])
def test_media_that_are_asked_for_are_needed_without_face_files_too(option, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(published, "_detector", lambda: None)
    silent = film(tmp_path / "silent.mp4", 3)
    assert commands.main(["bench", "--published", "--device", "cpu", option, "nope" if "nope" in why else str(silent)]) == 1
    error = capsys.readouterr().err
    assert why in error and error.count("\n") == 1


def test_approximate_row_says_so():
    first, row = (published.Measured(name, name == "a", 10.0, wall, {}, None, {}) for name, wall in (("a", 200.0), ("b", 50.0)))
    assert published.line(first, first).split()[:4] == ["exact", "a", "200.0", "20.00"]
    assert published.line(row, first).split()[:6] == ["APPROXIMATE", "b", "50.0", "5.00", "-75.0", "%"]
