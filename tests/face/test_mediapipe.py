"""BlazeFace and FaceMesh through OpenCV, on real files and pictures."""
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import cv2
import numpy as np
import pytest
from latentsync_rtx.lipsync.errors import FaceError
from latentsync_rtx.lipsync.face.mediapipe import BLAZE_FILE, MESH_FILE, MediaPipeDetector, window_sizes
from latentsync_rtx.lipsync.face.track import MIN_SCORE
from skimage import data


def sure(faces):
    return [face for face in faces if face.score >= MIN_SCORE]


def test_landmarks_of_a_portrait(detector):
    """Places read off the picture by eye; the detector is within a few pixels of a face 94 px wide."""
    [[face]] = [sure(faces) for faces in detector.detect([data.astronaut()])]
    assert np.abs(face.points - [[200, 88], [253, 90], [223, 125]]).max() < 4
    assert np.abs(face.box - [179, 70, 272, 177]).max() < 8
    assert face.mesh.shape == (468, 2)
    assert face.score > 0.9


@pytest.mark.parametrize("width, frame", [(45, (1080, 1920)), (400, (2160, 3840)), (32, (720, 1280)), (150, (1920, 1080))])
def test_small_and_large_faces_in_large_frames(detector, make_stage, width, frame):
    """F05: a clear 45x75 px face in 1080p, a 400 px face in 4K, and others."""
    stage, side = make_stage(frame[1], frame[0]), round(width / 0.43)
    x, y = frame[1] * 0.7, frame[0] * 0.4
    [face] = sure(detector.detect([stage.shot(x, y, side)])[0])
    assert np.hypot(*(face.centre - stage.face_at(x, y, side))) < 0.1 * width
    assert abs(face.width - width) < 0.15 * width


def test_face_that_fills_the_frame(detector):
    """F05: nothing but the face, brows to chin."""
    frame = cv2.resize(data.astronaut()[75:185, 172:278], (1060, 1100), interpolation=cv2.INTER_CUBIC)
    [face] = sure(detector.detect([frame])[0])
    assert face.width > 800


@pytest.mark.parametrize("angle", [-60, -30, 30, 60, 90])
def test_turned_heads(detector, angle):
    picture = data.astronaut()
    turn = cv2.getRotationMatrix2D((226, 125), angle, 1)
    [face] = sure(detector.detect([cv2.warpAffine(picture, turn, (512, 512))])[0])
    [[upright]] = [sure(faces) for faces in detector.detect([picture])]
    assert np.abs(face.points - (upright.points @ turn[:, :2].T + turn[:, 2])).max() < 8


def test_every_face_is_found_once(detector, stage):
    frame = stage.put(stage.put(stage.put(stage.empty(), 110, 180, 200), 320, 150, 120, stage.bea), 540, 190, 190, stage.bea)
    faces = sure(detector.detect([frame])[0])
    assert sorted(round(float(face.centre[0]), -2) for face in faces) == [100, 300, 500]


@pytest.mark.parametrize("picture", ["black", "noise", "cat", "coffee", "drawing"])
def test_what_is_no_face_is_not_sure(detector, picture):
    """F06: animals, drawings and nothing at all."""
    frame = {
        "black": lambda: np.zeros((360, 640, 3), np.uint8),
        "noise": lambda: np.random.default_rng(1).integers(0, 255, (360, 640, 3)).astype(np.uint8),
        "cat": data.chelsea,
        "coffee": data.coffee,
        "drawing": drawn_face,
    }[picture]()
    assert sure(detector.detect([frame])[0]) == []


def drawn_face():
    frame = np.full((360, 640, 3), 235, np.uint8)
    cv2.circle(frame, (320, 180), 120, (250, 220, 60), -1)
    cv2.circle(frame, (320, 180), 120, (30, 30, 30), 4)
    for x in (275, 365):
        cv2.circle(frame, (x, 145), 12, (30, 30, 30), -1)
    cv2.ellipse(frame, (320, 200), (60, 45), 0, 20, 160, (30, 30, 30), 5)
    return frame


def test_following_a_move_equals_detecting_it(detector, stage):
    [face] = sure(detector.detect([stage.shot(300, 180)])[0])
    moved = stage.shot(320, 188)
    followed, [fresh] = detector.follow(moved, face), sure(detector.detect([moved])[0])
    assert np.abs(followed.points - fresh.points).max() < 1.5
    assert np.abs(followed.points - face.points - (20, 8)).max() < 1.5


def test_a_face_that_is_gone_is_not_followed(detector, stage):
    [face] = sure(detector.detect([stage.shot()])[0])
    assert detector.follow(stage.empty(), face) is None
    assert detector.follow(np.zeros_like(stage.empty()), face) is None


def test_frames_are_not_altered_and_views_will_do(detector, stage):
    frame = stage.shot()[:, ::-1]
    before = frame.copy()
    assert sure(detector.detect([frame])[0])
    assert np.array_equal(frame, before)


def test_threads_do_not_mix_up_their_frames(detector, stage):
    """`cv2.dnn` networks are not thread-safe: one each."""
    frames = [stage.shot(150 + 60 * i, 180) for i in range(6)]
    alone = [sure(detector.detect([frame])[0])[0].points for frame in frames]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda frame: sure(detector.detect([frame])[0])[0].points, frames * 2))
    for first, second in zip(alone * 2, together, strict=True):
        assert np.array_equal(first, second)


def test_windows_reach_from_the_whole_frame_to_the_smallest_face():
    for shape, smallest in (((1080, 1920), 32), ((2160, 3840), 32), ((64, 64), 40), ((360, 640), 300)):
        sizes = window_sizes(shape, smallest)
        assert sizes[0] >= max(shape)
        assert min(sizes) * 0.12 <= max(smallest, sizes[0] * 0.12) + 1e-6
        assert all(first / second <= 2.5 + 1e-6 for first, second in pairwise(sizes))


def test_missing_files_are_named_with_folder_and_remedy(tmp_path):
    """F10"""
    with pytest.raises(FaceError) as caught:
        MediaPipeDetector(tmp_path)
    for part in (BLAZE_FILE, str(tmp_path), "pip install mediapipe==0.10.21", "face_models.py"):
        assert part in str(caught.value)


def test_files_inside_an_installed_mediapipe_are_found_without_importing_it(face_files, tmp_path, monkeypatch):
    package = tmp_path / "site" / "mediapipe"
    for module, name in (("face_detection", BLAZE_FILE), ("face_landmark", MESH_FILE)):
        (package / "modules" / module).mkdir(parents=True)
        (package / "modules" / module / name).write_bytes((face_files / name).read_bytes())
    (package / "__init__.py").write_text("raise RuntimeError('mediapipe was imported')")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path / "ComfyUI"))  # nothing in models/latentsync/face
    monkeypatch.delitem(sys.modules, "folder_paths", raising=False)
    assert sure(MediaPipeDetector().detect([data.astronaut()])[0])
    assert "mediapipe" not in sys.modules


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 229714\n", "half"])
def test_broken_files_are_named(face_files, tmp_path, content):
    """F39: empty, a Git LFS pointer, half a download."""
    original = (face_files / BLAZE_FILE).read_bytes()
    (tmp_path / BLAZE_FILE).write_bytes(original[:len(original) // 2] if content == "half" else content)
    (tmp_path / MESH_FILE).write_bytes((face_files / MESH_FILE).read_bytes())
    with pytest.raises(FaceError, match=BLAZE_FILE):
        MediaPipeDetector(tmp_path)
