"""`make bench-memory` in small: F32, memory does not grow with the clip."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_four_times_the_frames_take_no_more_memory(tmp_path):
    """450 frames more are 88 MB of crops, twice, and 104 MB of pictures."""
    told = tmp_path / "told.json"
    options = ["--frames", "150", "600", "--size", "320", "240", "--resolution", "256", "--folder", str(tmp_path), "--json", str(told)]
    done = subprocess.run([sys.executable, str(ROOT / "bench" / "memory.py"), *options], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    short, long = json.loads(told.read_text())["jobs"]
    assert (short["frames"], long["frames"]) == (150, 600) and long["peak"] > 0
    assert set(long["stages"]) == {"audio", "align", "denoise", "decode", "restore"}
    assert "slope" in done.stdout
    assert list(tmp_path.iterdir()) == [told]
    from latentsync_rtx.bench import results

    assert results.read(told)["rows"]["peak of 600 frames"]["value"] == long["peak"]


def test_a_file_that_is_no_measurement_is_left_alone(tmp_path):
    (tmp_path / "notes.json").write_text("[1]")
    command = [sys.executable, str(ROOT / "bench" / "memory.py"), "--json", str(tmp_path / "notes.json")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "holds no measurements" in done.stderr and not done.stdout
    assert (tmp_path / "notes.json").read_text() == "[1]"
