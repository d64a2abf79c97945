"""Landmarks without jitter and without lag."""
import numpy as np
import pytest
from latentsync_rtx.lipsync.clip import open_clip
from latentsync_rtx.lipsync.errors import FaceError
from latentsync_rtx.lipsync.face import align_clip
from latentsync_rtx.lipsync.face.align import inverse
from latentsync_rtx.lipsync.face.detector import Face
from latentsync_rtx.lipsync.face.sights import Sight, steadied
from latentsync_rtx.lipsync.face.steady import REACH

FACE = np.array([[0.0, 0.0], [100.0, 0.0], [50.0, 60.0]])
JITTER = 0.6  # px, as measured on MediaPipe's landmarks of a face this large
TIMES = np.arange(250) / 25
MOTIONS = {
    "still": np.zeros((250, 2)),
    "steady": np.stack([150 * TIMES, 30 * TIMES], 1),
    "swaying": np.stack([40 * np.sin(np.pi * TIMES), 10 * np.sin(4 * TIMES)], 1),
    "nodding": np.stack([0 * TIMES, 12 * np.sin(4 * np.pi * TIMES)], 1),
}


def sights_of(points, runs=None):
    """Sights with those points; run -1: no face."""
    runs = [0] * len(points) if runs is None else runs
    faces = [Face(np.zeros(4, np.float32), 1.0, np.asarray(p, np.float32)) for p in points]
    return [Sight(None, face, run) if run >= 0 else Sight(None) for face, run in zip(faces, runs, strict=True)]


def filtered(points, runs=None):
    return np.stack([sight.points for sight in steadied(sights_of(points, runs)) if sight.face is not None])


def moving(motion, jitter=JITTER):
    true = FACE + MOTIONS[motion][:, None]
    return true, true + np.random.default_rng(0).normal(0, jitter, true.shape)


@pytest.mark.parametrize("motion, calmer, nearer", [("still", 40, 4), ("steady", 40, 4), ("swaying", 10, 1.5), ("nodding", 3, 1.5)])
def test_jitter_becomes_less(motion, calmer, nearer):
    """Times by which the variance of the tremble (the error's change from frame to frame) and of the error fall."""
    true, seen = moving(motion)
    steady = filtered(seen)
    before, after = seen - true, steady - true
    assert np.diff(before, axis=0).var() / np.diff(after, axis=0).var() > calmer
    assert before.var() / after.var() > nearer


@pytest.mark.parametrize("motion", ["swaying", "nodding"])
def test_a_moving_face_is_not_lagged_behind(motion):
    true, seen = moving(motion)
    axis = int(np.argmax(np.ptp(true, axis=0)[2]))

    def lag(points):
        speed, wanted = (np.diff(p[:, 2, axis]) for p in (points, true))
        return max(range(-4, 5), key=lambda shift: float(np.roll(speed, -shift) @ wanted))

    causal = seen.copy()
    for k in range(1, len(causal)):  # smoothing of the same kind that knows the past only
        causal[k] = 0.7 * causal[k - 1] + 0.3 * seen[k]
    assert lag(filtered(seen)) == 0
    assert lag(causal) > 0


def test_a_face_in_steady_motion_stays_where_it_is():
    true, _ = moving("steady", 0)
    assert np.abs(filtered(true) - true).max() < 1e-3


def test_one_wild_frame_does_not_count():
    true, seen = moving("swaying")
    seen[100] += (25, -18)
    assert np.abs(filtered(seen) - true)[98:103].max() < 2.5


def test_nothing_is_carried_over_a_gap_or_into_another_run():
    points = np.concatenate([FACE + np.zeros((6, 1, 1)), FACE + np.full((6, 1, 1), 300.0), FACE + np.full((9, 1, 1), 50.0)])
    steady = filtered(points, [0] * 6 + [1] * 6 + [-1] * 3 + [2] * 6)
    assert np.allclose(steady, np.delete(points, range(12, 15), 0), atol=1e-3)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_short_runs(count):
    true, seen = moving("swaying")
    assert np.abs(filtered(seen[:count]) - true[:count]).max() < 3


def test_it_waits_for_a_few_frames_only_and_keeps_the_order():
    taken = []

    def source():
        for k, sight in enumerate(sights_of(moving("still")[1][:40], [0] * 15 + [-1] * 5 + [1] * 20)):
            taken.append(k)
            yield sight

    given = 0
    for sight in steadied(source()):
        given += 1
        assert len(taken) - given <= REACH
        assert (sight.face is None) == (15 < given <= 20)
    assert given == 40


def test_a_clip_is_steadied(detector, stage):
    """The whole way: a moving face under film grain; how it trembles in the crop, with and without."""
    dice = np.random.default_rng(0)
    middles = [(200 + 6 * k, 180) for k in range(30)]  # whole pixels: what it is painted at
    frames = np.stack([(stage.shot(x, y) + dice.normal(0, 12, (360, 640, 3))).clip(0, 255) for x, y in middles]).astype(np.uint8)
    places = np.array([stage.face_at(x, y, 200) for x, y in middles])
    trembles = {}
    for smooth in ("off", "reference", "steady"):
        found = align_clip(open_clip(frames), detector, 256, min_size=50, smooth=smooth)
        assert found.found.all()
        in_frame = np.stack([inverse(matrix) @ (105, 140, 1) for matrix in found.matrices])
        trembles[smooth] = np.diff(in_frame - places, axis=0)[2:-2].std()
    assert trembles["steady"] < 0.5 * trembles["reference"]
    with pytest.raises(FaceError, match="reference, steady, off"):
        align_clip(open_clip(frames), detector, 256, smooth="very")
