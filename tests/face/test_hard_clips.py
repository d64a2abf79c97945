"""Clips that broke the follower, or might: what is found lies on the face, and the rest passes through (F07)."""
import cv2
import numpy as np
import pytest
from latentsync_rtx.lipsync.clip import open_clip
from latentsync_rtx.lipsync.face import align_clip
from latentsync_rtx.lipsync.face.align import inverse
from latentsync_rtx.lipsync.face.detector import Face
from latentsync_rtx.lipsync.face.identity import bent
from skimage import data

WIDTH = 0.43  # of a face, in sides of the head picture (see `Stage`)


def followed(frames, detector, **options):
    return align_clip(open_clip(np.stack(frames)), detector, 256, **options)


def off(found, places, width):
    """How far the box is off each place in face widths, where found."""
    middles = (found.boxes[:, :2] + found.boxes[:, 2:]) / 2
    return (np.hypot(*(middles - np.array(places)).T) / width)[found.found]


@pytest.mark.parametrize("angle", [90, 135, 180, 250])
def test_a_head_that_lies_or_stands_on_its_head(detector, stage, angle):
    """Upside down, FaceMesh finds a face with its chin on the forehead, and is sure of it."""
    turn = cv2.getRotationMatrix2D((320, 180), angle, 1)
    frames = [cv2.warpAffine(stage.shot(320 + 3 * k), turn, (640, 360), borderMode=cv2.BORDER_REPLICATE) for k in range(6)]
    found = followed(frames, detector, min_size=50)
    assert found.found.all()
    upright = followed([stage.shot()], detector, min_size=50)
    expected = upright.matrices[0, :, :2] @ np.linalg.inv(turn[:, :2])
    assert np.abs(found.matrices[0, :, :2] - expected).max() < 0.1 * np.abs(expected).max()


@pytest.mark.parametrize("side, speed", [(80, 6), (80, 10), (200, 60), (200, 100)])
def test_quick_faces(detector, stage, side, speed):
    """From afar the mesh is pulled along only half the way, and is sure of it: small faces, and 0.2 to 1.2 widths a frame."""
    places = [(110 + abs((speed * k) % 840 - 420), 180) for k in range(16)]
    found = followed([stage.shot(x, y, side) for x, y in places], detector)
    assert found.found.mean() > 0.9
    assert off(found, [stage.face_at(x, y, side) for x, y in places], WIDTH * side).max() < 0.13


@pytest.mark.parametrize("start", [-130, -119])
def test_what_passes_before_a_face_does_not_squeeze_it(detector, stage, start):
    """A pole hides one half, then the other: the mesh gathers in the half that is left, and is sure of it."""
    x, _ = stage.face_at(320, 180, 200)
    lefts = [int(x + start + 8 * k) for k in range(34)]
    found = followed([cv2.rectangle(stage.shot(), (left, 0), (left + 30, 360), (90, 90, 95), -1) for left in lefts], detector, min_size=50)
    clean = followed([stage.shot()], detector, min_size=50)
    mouth = np.array([105.0, 230, 1])  # in the face picture
    places = np.stack([inverse(matrix) @ mouth for matrix in found.matrices[found.found]])
    assert np.hypot(*(places - inverse(clean.matrices[0]) @ mouth).T).max() < 0.15 * 86
    assert found.found.sum() >= 26
    assert found.found[-6:].all()


def test_a_hand_over_the_mouth(detector, stage):
    x, y = stage.face_at(320, 180, 200)
    frames = [stage.shot() for _ in range(20)]
    for frame in frames[5:15]:
        cv2.ellipse(frame, (int(x), int(y + 38)), (35, 25), 20, 0, 360, (190, 140, 115), -1)
    found = followed(frames, detector, min_size=50)
    assert off(found, [(x, y)] * 20, 86).max() < 0.15
    sizes = np.hypot(*found.matrices[found.found][:, 0, :2].T)
    assert np.abs(sizes / sizes[0] - 1).max() < 0.1


@pytest.mark.parametrize("way", [(8, 0), (0, 8), (0, -8)])
def test_a_face_comes_in_at_an_edge(detector, stage, way):
    places = [(320 + way[0] * (k - 40), 180 + way[1] * (k - 30)) for k in range(36)]
    found = followed([stage.shot(x, y) for x, y in places], detector, min_size=50)
    assert not found.found[0]
    assert found.found[-3:].all()
    assert len(np.unique(found.run_ids[found.found])) == 1
    assert off(found, [stage.face_at(x, y, 200) for x, y in places], 86).max() < 0.15


def test_light_is_no_cut(detector, stage):
    """A strobe, a flash that leaves something to see: one run. A white frame: a gap of one frame."""
    frames = [stage.shot(300 + 3 * k) for k in range(12)]
    strobe = [(frame * (0.4 + 0.6 * (k % 2))).astype(np.uint8) for k, frame in enumerate(frames)]
    found = followed(strobe, detector, min_size=50)
    assert (found.run_ids == 0).all()
    assert not found.cuts.any()
    flash = list(frames)
    flash[6] = (flash[6] * 0.25 + 190).clip(0, 255).astype(np.uint8)
    assert (followed(flash, detector, min_size=50).run_ids == 0).all()
    flash[6] = np.full_like(flash[6], 255)
    assert followed(flash, detector, min_size=50).run_ids.tolist() == [0] * 6 + [-1] + [1] * 5


def test_fading_to_black_and_back(detector, stage):
    light = np.concatenate([np.ones(3), np.linspace(1, 0, 12), np.zeros(4), np.linspace(0, 1, 12), np.ones(3)])
    places = [(300 + 2 * k, 180) for k in range(len(light))]
    frames = [(stage.shot(x, y) * part).astype(np.uint8) for (x, y), part in zip(places, light, strict=True)]
    found = followed(frames, detector, min_size=50)
    assert not found.found[15:19].any()
    assert found.found[light > 0.4].all()
    assert sorted(set(found.run_ids)) == [-1, 0, 1]
    assert off(found, [stage.face_at(x, y, 200) for x, y in places], 86).max() < 0.15


def test_letterbox_grain_and_odd_shapes(detector, stage, make_stage):
    dice = np.random.default_rng(0)
    boxed = np.zeros((360, 640, 3), np.uint8)
    boxed[60:300, 106:533] = cv2.resize(stage.shot(), (427, 240))
    dark = (stage.shot() * 0.12 + dice.normal(6, 5, (360, 640, 3))).clip(0, 255).astype(np.uint8)
    grey = np.repeat(cv2.cvtColor(stage.shot(), cv2.COLOR_RGB2GRAY)[..., None], 3, 2)
    x, y = stage.face_at(320, 180, 200)
    for frame, place, width in ((boxed, (106 + x * 2 / 3, 60 + y * 2 / 3), 57), (dark, (x, y), 86), (grey, (x, y), 86)):
        found = followed([frame] * 2, detector)
        assert found.found.all()
        assert off(found, [place] * 2, width).max() < 0.15
    for width, height in ((1600, 200), (200, 1600)):
        odd = make_stage(width, height)
        found = followed([odd.shot(width * 0.5, height * 0.5, 170)], detector, min_size=40)
        assert off(found, [odd.face_at(width * 0.5, height * 0.5, 170)], 73).max() < 0.15


def test_bending_is_told_from_moving(detector):
    [face] = [face for face in detector.detect([data.astronaut()])[0] if face.score > 0.6]

    def changed(matrix):
        return Face(face.box, 1.0, face.points, face.mesh @ np.array(matrix, np.float32) + 40)

    assert bent(changed([[1.4, 0.5], [-0.5, 1.4]]), face) < 1e-3  # turned and nearer
    assert bent(changed([[0.5, 0], [0, 1]]), face) > 0.2  # squeezed
    assert bent(Face(face.box, 1.0, face.points), face) == 0  # a back end without a mesh
