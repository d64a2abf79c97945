"""The redrawn region, against the reference's own mask."""
import json
from pathlib import Path

import numpy as np
import pytest
from latentsync_rtx.lipsync.errors import ShapeError
from latentsync_rtx.lipsync.mask import OUTLINE, keep_mask, latent_keep_mask
from safetensors.numpy import load_file

GOLDEN = Path(__file__).parent / "data" / "golden"


@pytest.mark.parametrize("resolution", [256, 512])
def test_mask_is_the_references_bit_for_bit(resolution):
    golden = load_file(GOLDEN / "mask.safetensors")
    mask = keep_mask(resolution)
    assert mask.dtype == np.float32
    assert np.array_equal(mask, golden[f"{resolution}.keep_times_255"].astype(np.float32) / 255)
    latent = latent_keep_mask(resolution)
    assert latent.dtype == np.float32
    assert np.array_equal(latent, golden[f"{resolution}.latent_keep"])


def test_outline_is_the_recorded_one():
    assert [list(corner) for corner in OUTLINE] == json.loads((GOLDEN / "mask_polygon.json").read_text())["vertices"]


def test_the_mouth_is_redrawn_and_the_eyes_are_kept():
    mask = keep_mask(384)  # a size nobody trained for still works
    assert mask.shape == (384, 384)
    assert mask[int(384 * 0.7), 192] == 0
    assert mask[int(384 * 0.2)].min() == 1
    assert set(np.unique(mask[[0, -1]])) == {1.0}


def test_a_caller_may_write_on_its_mask():
    keep_mask(256)[:] = 0.5
    latent_keep_mask(256)[:] = 0.5
    assert keep_mask(256).max() == 1
    assert latent_keep_mask(256).max() == 1


@pytest.mark.parametrize("resolution", [0, -8, 100])
def test_odd_sizes_are_refused_by_value(resolution):
    with pytest.raises(ShapeError, match=str(resolution)):
        keep_mask(resolution)
