"""InsightFace's pre- and post-processing, end to end, on stand-in networks with the published ones' inputs and outputs.

The weights are not free, so these networks are made here: the "detector" finds red squares (its score is the redness of an anchor's cell,
its distances are fixed), the "landmarks" are the centres of what is red, green and blue in the crop. Where they say a face is follows from
the painted picture, so letterbox, colour order, anchors, distances, crop and the way back into the frame are all seen.
"""
import cv2
import numpy as np
import pytest
from latentsync_rtx.lipsync.errors import FaceError
from latentsync_rtx.lipsync.face import insightface, load_detector
from latentsync_rtx.lipsync.face.insightface import DETECT_FILE, LANDMARK_FILE, LEFT_BROW, NOSE, RIGHT_BROW, InsightFaceDetector

onnx = pytest.importorskip("onnx")
helper, numpy_helper, FLOAT = onnx.helper, onnx.numpy_helper, onnx.TensorProto.FLOAT
DISTANCES = {8: (1.0, 1.0, 1.0, 1.0), 16: (1.0, 2.0, 3.0, 4.0), 32: (1.5, 1.5, 1.5, 2.5)}  # left, top, right, bottom in strides
GAIN = {8: 0.4, 16: 0.7, 32: 0.95}  # a cell that is red all over scores this: the largest cell in a red square is the best find


def save(path, nodes, constants, inputs, outputs):
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    values = [[helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in side] for side in (inputs, outputs)]
    graph = helper.make_graph(nodes, "stand-in", *values, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=7)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def save_detector(path, strides=(8, 16, 32)):
    """Score of the first anchor of a cell: its mean redness (1 for pure red, 0 for black, in -1..1 input) times GAIN; of the second: 0."""
    nodes = [
        helper.make_node("Conv", ["input.1", "redness", "offset"], ["red"]),
        helper.make_node("Relu", ["red"], ["cells"]),
    ]
    constants = {
        "redness": np.array([1.0, -0.5, -0.5], np.float32).reshape(1, 3, 1, 1) / 2,
        "offset": np.zeros(1, np.float32),
    }
    outputs = {1: [], 4: [], 10: []}
    for stride in strides:
        count = (640 // stride) ** 2 * 2
        nodes += [
            helper.make_node("AveragePool", ["cells"], [f"pool{stride}"], kernel_shape=[stride, stride], strides=[stride, stride]),
            helper.make_node("Conv", [f"pool{stride}", f"anchors{stride}"], [f"both{stride}"]),
            helper.make_node("Transpose", [f"both{stride}"], [f"last{stride}"], perm=[0, 2, 3, 1]),
            helper.make_node("Reshape", [f"last{stride}", "to_scores"], [f"score{stride}"]),
        ]
        constants[f"anchors{stride}"] = np.array([GAIN[stride], 0.0], np.float32).reshape(2, 1, 1, 1)
        constants["to_scores"] = np.array([-1, 1], np.int64)
        for width, values in ((4, DISTANCES[stride]), (10, (0.0,) * 10)):
            constants[f"none{stride}.{width}"] = np.zeros((1, width), np.float32)
            constants[f"side{stride}.{width}"] = np.array([values], np.float32)
            nodes += [
                helper.make_node("MatMul", [f"score{stride}", f"none{stride}.{width}"], [f"zero{stride}.{width}"]),
                helper.make_node("Add", [f"zero{stride}.{width}", f"side{stride}.{width}"], [f"out{stride}.{width}"]),
            ]
            outputs[width].append((f"out{stride}.{width}", [count, width]))
        outputs[1].append((f"score{stride}", [count, 1]))
    save(path, nodes, constants, [("input.1", [1, 3, 640, 640])], outputs[1] + outputs[4] + outputs[10])


def save_landmarks(path, normalises=True, points=106):
    """Points of a group: the centre of mass of one colour in the crop, in -1..1; all other points 0. Takes 0..255, or with normalises=False
    -1..1.
    """
    grid = (np.arange(192) + 0.5) / 96 - 1
    groups = np.zeros((6, points * 2), np.float32)
    for channel, group in enumerate((LEFT_BROW, RIGHT_BROW, NOSE)):
        for point in group:
            if point < points:
                groups[2 * channel, 2 * point] = groups[2 * channel + 1, 2 * point + 1] = 1
    constants = {
        "minus": np.array([0.0 if normalises else -127.5 / 128], np.float32),
        "times": np.array([1.0 if normalises else 128.0], np.float32),
        "rows": np.array([3, 192 * 192], np.int64),
        "places": np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2).astype(np.float32),
        "ones": np.ones((192 * 192, 1), np.float32),
        "one_row": np.array([1, 6], np.int64),
        "groups": groups,
        "little": np.array([1e-3], np.float32),
    }
    names = ("_minusscalar0", "_mulscalar0") if normalises else ("shift", "stretch")
    nodes = [
        helper.make_node("Sub" if normalises else "Add", ["data", "minus"], ["a"], name=names[0]),
        helper.make_node("Mul" if normalises else "Div", ["a", "times"], ["b"], name=names[1]),
        helper.make_node("Reshape", ["b", "rows"], ["c"]),
        helper.make_node("MatMul", ["c", "places"], ["sums"]),
        helper.make_node("MatMul", ["c", "ones"], ["mass"]),
        helper.make_node("Add", ["mass", "little"], ["weight"]),
        helper.make_node("Div", ["sums", "weight"], ["centres"]),
        helper.make_node("Reshape", ["centres", "one_row"], ["row"]),
        helper.make_node("MatMul", ["row", "groups"], ["fc1"]),
    ]
    if not normalises:  # x * 128 + 127.5 by nodes whose names do not give it away
        constants["minus"], constants["times"] = np.array([127.5 / 128], np.float32), np.array([1 / 128], np.float32)
    save(path, nodes, constants, [("data", [1, 3, 192, 192])], [("fc1", [1, points * 2])])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("buffalo_l")
    save_detector(folder / DETECT_FILE)
    save_landmarks(folder / LANDMARK_FILE)
    return folder


@pytest.fixture(scope="module")
def detector(folder):
    return InsightFaceDetector(folder)


def painted(width, height, cells):
    """Black, with red squares (x, y, side)."""
    frame = np.zeros((height, width, 3), np.uint8)
    for x, y, side in cells:
        frame[y:y + side, x:x + side] = 255, 0, 0
    return frame


def test_boxes_come_from_anchors_and_distances(detector):
    """A frame of the view's own size: a red 16 px cell at column 20, row 10 of stride 16 is a face around that anchor."""
    best = detector.detect([painted(640, 640, [(320, 160, 16)])])[0][0]
    assert np.abs(best.box - (320 - 16, 160 - 32, 320 + 48, 160 + 64)).max() < 0.01
    assert abs(best.score - 0.7) < 0.01
    assert not detector.detect([painted(640, 640, [])])[0]


def test_large_anchors_and_their_order(detector):
    faces = detector.detect([painted(640, 640, [(96, 512, 32), (320, 160, 16)])])[0]
    assert np.abs(faces[0].box - (96 - 48, 512 - 48, 96 + 48, 512 + 80)).max() < 0.01
    assert [face.score for face in faces] == sorted((face.score for face in faces), reverse=True)


@pytest.mark.parametrize("width, height", [(1280, 720), (720, 1280), (320, 320), (1920, 1080)])
def test_frames_of_any_shape_are_fitted_and_boxes_brought_back(detector, width, height):
    scale = max(width, height) / 640
    x, y, side = round(160 * scale), round(160 * scale), round(32 * scale)
    best = detector.detect([painted(width, height, [(x, y, side)])])[0][0]
    expected = np.array([160 - 48, 160 - 48, 160 + 48, 160 + 80]) * scale
    assert np.abs(best.box - expected).max() <= 2 * scale


def test_colours_reach_the_network_as_rgb(detector):
    blue = painted(640, 640, [(320, 160, 32)])[..., ::-1]
    assert detector.detect([np.ascontiguousarray(blue)])[0] == []


def landmark_frame():
    """Dots of the three colours at known places."""
    frame = np.zeros((640, 640, 3), np.uint8)
    places = np.array([[290.0, 300.0], [350.0, 296.0], [322.0, 340.0]])
    for (x, y), colour in zip(places, ((255, 0, 0), (0, 255, 0), (0, 0, 255)), strict=True):
        cv2.circle(frame, (int(x), int(y)), 6, colour, -1)
    return frame, places


@pytest.mark.parametrize("normalises", [True, False])
def test_landmarks_go_into_the_crop_and_back(folder, tmp_path, normalises):
    """Both kinds of landmark file: the published one, that subtracts and scales by itself, and one that wants -1..1."""
    (tmp_path / DETECT_FILE).write_bytes((folder / DETECT_FILE).read_bytes())
    save_landmarks(tmp_path / LANDMARK_FILE, normalises)
    frame, places = landmark_frame()
    face = InsightFaceDetector(tmp_path)._landmarks(frame, np.array([250.0, 250, 390, 390]), 0.9)
    assert np.abs(face.points - places).max() <= 1
    assert np.array_equal(face.points, np.round(face.points))  # whole pixels, as in the reference
    assert face.mesh.shape == (106, 2)
    assert np.abs(face.mesh[0] - [320, 320]).max() < 1  # a point at 0 is the crop's middle


def test_overlapping_finds_are_one_face():
    from latentsync_rtx.lipsync.face.detector import best_boxes

    boxes = np.array([[0.0, 0, 10, 10], [1, 1, 11, 11], [20, 0, 30, 10], [0, 0, 10, 5]])
    assert best_boxes(boxes, np.array([0.8, 0.9, 0.7, 0.6]), 0.4) == [1, 2, 3]
    assert best_boxes(np.empty((0, 4)), np.empty(0), 0.4) == []


def test_onnxruntime_takes_over_where_opencv_cannot(folder, detector, monkeypatch):
    pytest.importorskip("onnxruntime")

    def refuse(*_):
        raise cv2.error("no such layer")

    monkeypatch.setattr(insightface.cv2.dnn, "readNetFromONNX", refuse)
    other = InsightFaceDetector(folder)
    assert "onnxruntime" in other.device  # F09: it says what ran
    assert "OpenCV" in detector.device
    frame = painted(640, 640, [(96, 512, 32)])
    first, second = detector.detect([frame])[0], other.detect([frame])[0]
    assert len(first) == len(second) > 0
    assert all(np.allclose(a.box, b.box, atol=0.5) for a, b in zip(first, second, strict=True))


def test_the_licence_is_told(detector):
    assert "non-commercial" in detector.note


def test_missing_and_broken_files_are_named(folder, tmp_path):
    """F10, F39"""
    with pytest.raises(FaceError, match=f"{DETECT_FILE}.*{tmp_path}"):
        InsightFaceDetector(tmp_path)
    (tmp_path / DETECT_FILE).write_bytes((folder / DETECT_FILE).read_bytes())
    (tmp_path / LANDMARK_FILE).write_text("not a network")
    with pytest.raises(FaceError, match=LANDMARK_FILE):
        InsightFaceDetector(tmp_path)


def test_another_model_under_the_name_is_refused(folder, tmp_path):
    save_detector(tmp_path / DETECT_FILE, strides=(8, 16))
    save_landmarks(tmp_path / LANDMARK_FILE)
    with pytest.raises(FaceError, match="another model"):
        InsightFaceDetector(tmp_path).detect([painted(640, 640, [])])
    with pytest.raises(FaceError, match="106"):
        save_landmarks(tmp_path / LANDMARK_FILE, points=68)
        save_detector(tmp_path / DETECT_FILE)
        InsightFaceDetector(tmp_path).detect([painted(640, 640, [(96, 512, 32)])])


def test_auto_prefers_insightface_where_its_files_are(folder, face_files):
    assert load_detector("auto", folder).name == "InsightFace"
    assert load_detector("auto", face_files).name == "MediaPipe"
    with pytest.raises(FaceError, match="retina"):
        load_detector("retina")


def test_files_are_found_where_comfyui_users_keep_them(folder, tmp_path, monkeypatch):
    import sys

    place = tmp_path / "models" / "insightface" / "models" / "buffalo_l"
    place.mkdir(parents=True)
    for name in (DETECT_FILE, LANDMARK_FILE):
        (place / name).write_bytes((folder / name).read_bytes())
    monkeypatch.delitem(sys.modules, "folder_paths", raising=False)
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    assert insightface.has_files()
    assert load_detector().name == "InsightFace"
