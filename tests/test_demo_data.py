"""The synthetic talking faces that the demo model learns from: what they show is what they say they show."""
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from latentsync_rtx.lipsync.face import align_matrices
from latentsync_rtx.lipsync.mask import keep_mask

TOOLS = Path(__file__).resolve().parent.parent / "tools"
if str(TOOLS) not in sys.path:
    sys.path.insert(0, str(TOOLS))

from demo_data import clips, talk  # noqa: E402
from demo_data.paint import paint  # noqa: E402


def test_alignment_is_the_pipelines():
    points = np.float32([[[100, 100], [160, 108], [131, 150]], [[20, 33], [64, 30], [43, 61]]])
    ours = clips.align(torch.from_numpy(points), 256).numpy()
    square = np.array([256 / 210, 256 / 280])  # the card, 210 x 280, is stretched to a square
    for mine, one in zip(ours, points, strict=True):
        theirs = align_matrices(one[None], 256)[0] * square[:, None]
        theirs[:, 2] += square / 2 - 0.5
        np.testing.assert_allclose(mine, theirs, atol=1e-3)


def test_the_mouth_moves_inside_the_redrawn_region_only():
    generator = torch.Generator().manual_seed(5)
    face = paint(2, generator)
    opening = torch.tensor([0.0, 0.6])[:, None, None].expand(2, 2, 1)
    closed, wide = clips.crops(face, opening, torch.ones(2, 2, 1), generator)
    apart = (closed - wide).abs().amax(2)[:, 0]  # [faces,256,256]
    keep = torch.from_numpy(keep_mask(256)) == 1
    assert apart[:, ~keep].max() > 0.3
    assert apart[:, keep].mean() < 0.03 * apart[:, ~keep].mean(), "what is kept must look right beside any mouth"


def test_same_seed_same_faces():
    one, same, other = (paint(1, torch.Generator().manual_seed(seed)).sheet for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert (one - other).abs().mean() > 0.01


def test_lips_close_for_p_and_part_for_a():
    opening, spread = talk.mouth_track([("p", 0.0), ("ɑː", 0.15), ("p", 0.45), ("uː", 0.6), ("", 0.9)], 1.4)
    assert len(opening) == len(spread) == 140
    assert opening[28] > 0.8 * talk.FULL and opening[52] < 0.45 * talk.FULL
    assert spread[72] < 0.85 < spread[28]
    assert opening[115:].max() < 0.01


def test_speech_and_track_are_as_long_and_in_time():
    pytest.importorskip("espeakng_loader")
    pytest.importorskip("soxr")
    sound, opening, spread = talk.monologue(talk.HELD_OUT_VOICES, 4, np.random.default_rng(1))
    assert len(sound) == 64000 and len(opening) == len(spread) == 400
    loud = np.sqrt((sound.reshape(400, 160) ** 2).mean(1))
    lags = {lag: np.corrcoef(np.roll(loud, -lag), opening)[0, 1] for lag in range(-30, 31, 2)}
    assert abs(max(lags, key=lags.get)) <= 6, "sound and mouth differ by more than 60 ms"
    assert opening[loud < 1e-4].mean() < 0.3 * opening[loud > 0.02].mean()
