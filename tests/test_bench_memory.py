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
