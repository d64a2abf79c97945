"""`bench` from the terminal."""
import json
import math
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from latentsync_rtx import commands
from latentsync_rtx.bench import cases, measure, profiles
from latentsync_rtx.bench.measure import Row
from latentsync_rtx.commands.terminal import TerminalProgress
from latentsync_rtx.lipsync import gpu
from latentsync_rtx.lipsync.errors import DependencyError, NumericError

ROOT = Path(__file__).resolve().parents[2]
FILM = b"\0\0\0\x20ftypisom"


def bench(*arguments):
    return commands.main(["bench", *map(str, arguments)])


def test_what_is_printed_is_in_the_json_and_two_runs_compare(tmp_path, capsys):
    path = tmp_path / "a.json"
    assert bench("--only", "faces", "--device", "cpu", "--json", path) == 0
    printed = capsys.readouterr().out
    rows = json.loads(path.read_text())["rows"]
    assert {row["name"] for row in rows} >= {"align a 1080p frame, one core", "restore a 4K frame, one core"}
    assert all(row["name"] in printed and row["value"] > 0 for row in rows)

    slower = json.loads(path.read_text())
    for row in slower["rows"]:
        row["value"] *= 2
    slower["rows"][0]["name"] = "only here"
    (tmp_path / "b.json").write_text(json.dumps(slower))
    assert bench("--compare", path, tmp_path / "b.json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("x 2.000" in line for line in lines) == len(rows) - 1
    assert any(line.startswith("only here") for line in lines)


def test_the_whole_job_runs_small(capsys):
    assert bench("--only", "clip", "--device", "cpu") == 0
    printed = capsys.readouterr().out
    assert "sound and faces" in printed and "denoise, decode and restore" in printed


def test_networks_are_measured_where_pyav_is_missing(tmp_path):
    """As on many a rented GPU."""
    program = "import sys, runpy; sys.modules['av'] = None; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", program, str(ROOT), "bench", "--only", "vae,clip", "--device", "cpu", "--json", str(tmp_path / "a.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "VAE of a block" in done.stdout and "clip: a whole job reads and writes films, which needs PyAV" in done.stdout
    assert json.loads((tmp_path / "a.json").read_text())["rows"]


@pytest.mark.parametrize("arguments, why", [
    ("--only unet,kitchen", "'kitchen'"),
    ("--only=", "nothing called ''"),
    ("--compare missing.json missing.json", "missing.json: No such file"),
    ("--compare folder folder", "folder: Is a directory"),
    ("--compare clip.mp4 clip.mp4", "it is no JSON"),
    ("--frames 0", "1 to 24"),
    ("--frames -3", "--frames is -3"),
    ("--frames 25", "1 to 24"),
    ("--resolution 0", "multiple of 64"),
    ("--resolution -8", "multiple of 64"),
    ("--resolution 333", "such as 320"),
    ("--only clip --device cpu --memory 8", "runs on cpu"),
    ("--published --device cpu --memory 8", "runs on cpu"),
    ("--only clip --memory 0", "--memory is 0"),
    ("--only clip --memory -1", "--memory is -1"),
    ("--only clip --memory nan", "--memory is nan"),
    ("--only vae --memory 8", "only vae would be measured"),
    ("--published --seconds nan", "--seconds is nan"),
    ("--published --seconds inf", "--seconds is inf"),
    ("--published --seconds 0", "--seconds is 0"),
    ("--published --seconds 1e300", "600 at most"),
    ("--only vae --compile", "only vae would be measured"),
    ("--published --only vae", "--only says nothing to --published"),
    ("--seconds 3", "only to --published"),
    ("--weights real", "only to --published"),
    ("--video clip.mp4", "only to --published"),
    ("--audio clip.mp4", "only to --published"),
    ("--compare clip.mp4 clip.mp4 --json a.json", "--json says nothing to --compare"),
    ("--device mps", "'mps' is of a kind"),
    ("--device meta", "'meta' is of a kind"),
])  # fmt: skip
def test_a_wrong_request_is_one_line(arguments, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "clip.mp4").write_bytes(FILM)
    assert bench(*arguments.split()) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1 and why in printed.err
    assert printed.out == "", "before anything is measured"


@pytest.mark.parametrize("way", ["--only vae", "--published", "--profiles clip.mp4 clip.mp4"])
@pytest.mark.parametrize("target, why", [
    ("clip.mp4", "holds no measurements"), ("other.json", "holds no measurements"), ("folder", "is a folder"), ("nowhere/a.json", "there is no folder"),
    ("/proc/a.json", "cannot write /proc/a.json"),
])  # fmt: skip
def test_what_is_no_place_for_numbers_is_left_alone(way, target, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "clip.mp4").write_bytes(FILM)
    (tmp_path / "other.json").write_text('{"rows": 3}')
    assert bench(*way.split(), "--json", target) == 1
    printed = capsys.readouterr()
    assert why in printed.err and printed.err.count("\n") == 1 and printed.out == ""
    assert (tmp_path / "clip.mp4").read_bytes() == FILM and (tmp_path / "other.json").read_text() == '{"rows": 3}'


def test_no_more_memory_is_played_than_the_card_has(monkeypatch, capsys):
    monkeypatch.setattr(gpu, "device_named", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=8e9))
    assert bench("--only", "clip", "--memory", "12") == 1
    assert "--memory is 12 GB, but this GPU has 8.0" in capsys.readouterr().err


def group(*rows, then=None):
    """A group of stages: what it measures, and how it ends."""

    def measure(setup):
        yield from rows
        if then is not None:
            raise then

    return measure


@pytest.mark.parametrize("end, status, said", [
    (KeyboardInterrupt(), 130, "stopped; what was measured before is in a.json"),
    (NumericError("it was flat"), 1, "not measured to its end: second"),
    (torch.OutOfMemoryError("CUDA out of memory"), 1, "not measured to its end: second"),
])  # fmt: skip
def test_what_was_measured_is_kept_whatever_comes_then(end, status, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cases, "CASES", {"first": group(Row("a", 1.0, "ms")), "second": group(then=end)})
    (tmp_path / "a.json").write_text('{"machine": {}, "rows": [], "from": "before"}')
    assert bench("--device", "cpu", "--json", "a.json") == status
    assert said in capsys.readouterr().err
    assert [row["name"] for row in json.loads((tmp_path / "a.json").read_text())["rows"]] == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("end", [None, DependencyError("it needs PyAV")], ids=["no rows", "a library is missing"])
def test_a_file_is_not_replaced_by_nothing(end, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cases, "CASES", {"clip": group(then=end)})
    Path("a.json").write_text('{"machine": {}, "rows": [1, 2]}')
    assert bench("--device", "cpu", "--json", "a.json") == 1
    assert "nothing was measured" in capsys.readouterr().err
    assert Path("a.json").read_text() == '{"machine": {}, "rows": [1, 2]}'


def test_rows_of_other_work_are_not_compared_in_silence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cases, "CASES", {"block": group(Row("block", 1.0, "ms"))})
    for frames in (1, 2):
        assert bench("--device", "cpu", "--frames", frames, "--json", f"{frames}.json") == 0
    capsys.readouterr()
    assert bench("--compare", "1.json", "2.json") == 0
    assert "NOT THE SAME WORK: frames 1 / 2\n" in capsys.readouterr().out
    assert bench("--compare", "1.json", "1.json") == 0
    assert "NOT THE SAME" not in capsys.readouterr().out


def test_a_group_is_measured_once(monkeypatch, capsys):
    monkeypatch.setattr(cases, "CASES", {name: group(Row(f"of {name}", 1.0, "ms")) for name in ("first", "second")})
    assert bench("--device", "cpu", "--only", " second, first,second") == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("of ")] == ["second", "first"]


def test_what_must_be_0_fails_on_every_card_and_slow_is_only_marked(monkeypatch, capsys):
    rows = Row("waits for the GPU", 3, "", 0, note="cudaFree 3"), Row("step", 99.0, "ms", 90, 78)
    monkeypatch.setattr(cases, "CASES", {"block": group(*rows)})
    assert bench("--device", "cpu") == 1
    printed = capsys.readouterr()
    assert printed.err == "error: waits for the GPU: 3 instead of 0 (cudaFree 3).\n"
    assert "(OVER 0)" in printed.out and "OVER 90" not in printed.out, "whose limits are an H200's"
    monkeypatch.setattr(measure, "machine", lambda device: {"GPU": "NVIDIA H200"})
    monkeypatch.setattr(cases, "CASES", {"unet": group(rows[1])})
    assert bench("--device", "cpu") == 0
    assert "(OVER 90, 78)" in capsys.readouterr().out


@pytest.mark.parametrize("content, why", [
    ({"machine": "H200", "rows": []}, "holds no measurements"),
    ({"machine": {}, "rows": {}}, "holds no measurements"),
    ([], "holds no measurements"),
    ({"machine": {}, "rows": [{"name": "a", "unit": "ms"}]}, "the value of 'a' is null, no number, in row 1"),
    ({"machine": {}, "rows": [{"name": "a", "unit": "ms", "value": "fast"}]}, "the value of 'a' is \"fast\""),
    ({"machine": {}, "rows": [{"name": "a", "value": 1}]}, "no unit in row 1"),
    ({"machine": {}, "rows": [None]}, "in row 1"),
])  # fmt: skip
def test_what_cannot_be_compared_is_named(content, why, tmp_path, capsys):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    assert bench("--compare", path, path) == 1
    error = capsys.readouterr().err
    assert why in error and error.count("\n") == 1


def test_a_ratio_is_of_two_that_can_have_one(tmp_path, capsys):
    def write(name, *rows):
        (tmp_path / name).write_text(json.dumps({"machine": {}, "rows": [asdict(row) for row in rows]}))
        return tmp_path / name

    before = write("a.json", Row("time", 2.0, "s"), Row("other", 2.0, "s"), Row("VAE, 1 - cosine to float32", 1e-15, ""), Row("work", 4.0, ""))
    after = write("b.json", Row("time", 3.0, "s"), Row("other", 3.0, "ms"), Row("VAE, 1 - cosine to float32", 4e-15, ""), Row("work", 2.0, ""))
    assert bench("--compare", before, after) == 0
    time, other, noise, work = capsys.readouterr().out.splitlines()[2:]
    assert time.endswith("x 1.500") and work.endswith("x 0.500") and other.endswith("s / ms other units") and " x " not in noise
    assert bench("--compare", before, write("c.json", Row("elsewhere", 1.0, "s"))) == 0
    assert "no row in common" in capsys.readouterr().out


def test_profiles_write_their_numbers_and_no_bars_between_the_rows(tmp_path, monkeypatch, capsys):
    def drift(job, progress):
        for name, apart, psnr in (("exact20", None, None), ("approx4", 1e-7, math.inf)):
            for done in range(3):
                progress(done, 2, stage="denoise")
            yield {"name": name, "label": "as it is", "cost": 20.0, "seconds": 2.0, "apart": apart, "latent_psnr": psnr, "psnr": psnr}

    monkeypatch.setattr(profiles, "drift", drift)
    path = tmp_path / "a.json"
    assert bench("--profiles", "a.mp4", "a.wav", "--json", path, "--device", "cpu") == 0
    printed, written = capsys.readouterr(), json.loads(path.read_text())
    assert printed.err == "" and printed.out.count("\n| approx") == 1
    assert [one["name"] for one in written["profiles"]] == ["exact20", "approx4"]
    assert {row["name"]: row["value"] for row in written["rows"]}["clip, approx4: 1 - cosine of latents to exact20"] == 1e-7
    assert bench("--compare", path, path) == 0


def test_a_log_has_one_line_for_a_stage(capsys):
    with TerminalProgress() as progress:
        for stage in ("align", "denoise"):
            for done in range(5):
                progress(done, 4, stage=stage)
    assert capsys.readouterr().err == "align: 4 of 4\ndenoise: 4 of 4\n"
