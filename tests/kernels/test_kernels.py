"""The Triton kernels against the plain operations, in Triton's interpreter where there is no GPU."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def distances():
    done = subprocess.run([sys.executable, Path(__file__).with_name("compare.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["group norm", "layer norm", "attention", "geglu", "gelu", "add", "join", "enlarge"])
def test_kernels_compute_what_the_plain_operations_do(distances, kind):
    measured = {case: distance for case, distance in distances.items() if case.startswith(kind)}
    assert measured
    assert max(measured.values()) < 1e-3, measured  # half precision rounds each number to within 5e-4
