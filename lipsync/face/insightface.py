"""InsightFace's SCRFD detector and 106-point landmarks (`buffalo_l`), run from their ONNX files without the `insightface` package.

These are the models the reference uses. Their licence is non-commercial. OpenCV runs them, or onnxruntime where OpenCV cannot.
"""
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from .. import folders
from ..errors import FaceError
from .detector import MIN_SIZE, Face, Nets, best_boxes, need_file, read_net

DETECT_FILE, LANDMARK_FILE = "det_10g.onnx", "2d106det.onnx"
HINT = "These are the InsightFace models `buffalo_l` (non-commercial licence); the detector 'mediapipe' needs none of them."
LICENCE = "InsightFace's models may be used for non-commercial purposes only; choose the detector 'mediapipe' for anything else."

VIEW = 640  # px, the detector's input; frames are fitted into its top left corner
STRIDES = (8, 16, 32)
ANCHORS = 2  # at each place
CANDIDATE = 0.3  # score below which a place is not looked at again
OVERLAP = 0.4  # IoU above which two finds are one face, InsightFace's value
LANDMARK_VIEW = 192
LANDMARK_MARGIN = 1.5  # crop around a face, in units of its longer side
LEFT_BROW, RIGHT_BROW, NOSE = (43, 48, 49, 51, 50), (101, 102, 103, 104, 105), (74, 77, 83, 86)
MOST_FACES = 12


class InsightFaceDetector:
    """SCRFD + 2d106det. `folder`: where the two .onnx files are; None searches `models/insightface/models/buffalo_l`.

    Raises FaceError when a file is missing, broken or another model. Landmarks are whole pixels, as in the reference.
    """

    name, note = "InsightFace", LICENCE

    def __init__(self, folder: str | Path | None = None):
        detect, landmark = (need_file(name, _places(folder), HINT) for name in (DETECT_FILE, LANDMARK_FILE))
        self._detect_net, self._landmark_net = Nets(lambda: _Network(detect)), Nets(lambda: _Network(landmark))
        first, second = self._detect_net.get(), self._landmark_net.get()
        self.device = f"CPU ({first.runtime})" if first.runtime == second.runtime else f"CPU ({first.runtime}, {second.runtime})"
        # The published landmark network subtracts and scales by itself; an export without these first nodes wants -1..1.
        self._landmark_scale = (1.0, 0.0) if _normalises(landmark) else (1 / 128, 127.5)

    def detect(self, frames: Sequence[np.ndarray], *, min_size: float = MIN_SIZE, everywhere: bool = True) -> list[list[Face]]:
        """See `Detector`. Faces much below 1/40 of the frame's longer side are missed, whatever `min_size`."""
        return [self._faces(frame) for frame in frames]

    def _faces(self, frame):
        height, width = frame.shape[:2]
        scale = VIEW / max(height, width)
        size = max(1, round(width * scale)), max(1, round(height * scale))
        view = np.zeros((VIEW, VIEW, 3), np.uint8)
        view[:size[1], :size[0]] = cv2.resize(frame, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
        rows = decode(self._detect_net.get()(cv2.dnn.blobFromImage(view, 1 / 128, (VIEW, VIEW), (127.5,) * 3)))
        boxes = rows[:, :4] * ((width / size[0], height / size[1]) * 2)
        kept = best_boxes(boxes, rows[:, 4], OVERLAP)[:MOST_FACES]
        return [self._landmarks(frame, boxes[i], float(rows[i, 4])) for i in kept]

    def _landmarks(self, frame, box, score):
        side = LANDMARK_MARGIN * max(box[2] - box[0], box[3] - box[1])
        scale = LANDMARK_VIEW / max(side, 1e-3)
        centre = (box[:2] + box[2:]) / 2
        matrix = np.array([[scale, 0, LANDMARK_VIEW / 2 - scale * centre[0]], [0, scale, LANDMARK_VIEW / 2 - scale * centre[1]]])
        view = cv2.warpAffine(frame, matrix, (LANDMARK_VIEW, LANDMARK_VIEW), flags=cv2.INTER_LINEAR)
        factor, mean = self._landmark_scale
        [places] = self._landmark_net.get()(cv2.dnn.blobFromImage(view, factor, (LANDMARK_VIEW, LANDMARK_VIEW), (mean,) * 3))
        if places.size != 212:
            raise FaceError(f"{LANDMARK_FILE} gave {places.size} numbers instead of 106 points: it is another model; fetch buffalo_l's.")
        mesh = (places.reshape(106, 2).astype(np.float64) + 1) * (LANDMARK_VIEW / 2)
        mesh = (mesh - matrix[:, 2]) / scale
        points = np.round(np.stack([mesh[list(group)].mean(0) for group in (LEFT_BROW, RIGHT_BROW, NOSE)]))
        return Face(box.astype(np.float32), score, points.astype(np.float32), mesh.astype(np.float32))


def decode(outputs: Sequence[np.ndarray]) -> np.ndarray:
    """SCRFD's nine outputs (in any order) -> [K,5]: box x0 y0 x1 y1 in px of the view, score; candidates only.

    For each stride: scores [n,1], distances [n,4] from the anchor to the box's sides in strides, and points [n,10] that are not needed.
    """
    by_kind = {1: {}, 4: {}}
    for output in outputs:
        if output.shape[-1] in by_kind:
            flat = output.reshape(-1, output.shape[-1])
            by_kind[output.shape[-1]][len(flat)] = flat
    found = [np.empty((0, 5))]
    for stride in STRIDES:
        grid = VIEW // stride
        count = grid * grid * ANCHORS
        if count not in by_kind[1] or count not in by_kind[4]:
            shapes = ", ".join(str(list(output.shape)) for output in outputs)
            raise FaceError(f"{DETECT_FILE} gave outputs {shapes}, not SCRFD's for a {VIEW} px view: it is another model.")
        scores = by_kind[1][count][:, 0].astype(np.float64)
        best = np.flatnonzero(scores >= CANDIDATE)
        place = best // ANCHORS
        anchors = np.stack([place % grid, place // grid], 1) * float(stride)
        sides = by_kind[4][count][best].astype(np.float64) * stride
        found.append(np.concatenate([anchors - sides[:, :2], anchors + sides[:, 2:], scores[best, None]], 1))
    return np.concatenate(found)


def has_files(folder: str | Path | None = None) -> bool:
    """Are both model files in place?"""
    return all(any((place / name).is_file() for place in _places(folder)) for name in (DETECT_FILE, LANDMARK_FILE))


def _places(folder):
    return [Path(folder)] if folder is not None else [place / "models" / "buffalo_l" for place in folders.paths("insightface")]


class _Network:
    """An ONNX file in OpenCV, or in onnxruntime where OpenCV cannot read it: blob -> list of all outputs."""

    def __init__(self, path: Path):
        self._path, self._session = path, None
        self.runtime = "OpenCV"
        try:
            self._net = read_net(path, cv2.dnn.readNetFromONNX)
            self._names = self._net.getUnconnectedOutLayersNames()
        except FaceError:
            if importlib.util.find_spec("onnxruntime") is None:
                raise
            self._session, self.runtime = _session(path), "onnxruntime"

    def __call__(self, blob):
        if self._session is not None:
            return self._session.run(None, {self._session.get_inputs()[0].name: blob})
        self._net.setInput(blob)
        return list(self._net.forward(self._names))


def _session(path):
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes, one for each kind of broken file
        size = path.stat().st_size
        raise FaceError(f"cannot load the face detector's file {path} ({size} bytes, cut short?): {error}. Fetch it again.") from error


def _normalises(path):
    """Does the network begin with a subtraction and a multiplication of its own? The names of the first nodes stand at the file's start."""
    with path.open("rb") as file:
        head = file.read(4096)
    return any(name in head for name in (b"bn_data", b"_minus", b"Sub")) and any(name in head for name in (b"bn_data", b"_mul", b"Mul"))
