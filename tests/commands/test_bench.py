"""`bench` from the terminal."""
import json
import subprocess
import sys
from pathlib import Path

import pytest
from latentsync_rtx import commands

ROOT = Path(__file__).resolve().parents[2]


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


@pytest.mark.parametrize("arguments", [("--only", "unet,kitchen"), ("--compare", "missing.json", "missing.json")])
def test_a_wrong_request_is_one_line(arguments, capsys):
    assert bench(*arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
