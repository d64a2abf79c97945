"""MediaPipe's BlazeFace (short range) and FaceMesh, run by OpenCV: Apache-2.0 models, no `mediapipe` import.

BlazeFace sees faces between a seventh and nine tenths of its 128 px view, so it looks at the frame through windows of several sizes,
largest first. FaceMesh then finds 468 points in a square around each face, turned so that the eyes are level, and says whether there is a
face at all.
"""
import importlib.util
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import cv2
import numpy as np

from .. import folders
from .detector import MIN_SIZE, Face, Nets, best_boxes, forward, need_file, read_net, square_crop

BLAZE_FILE, MESH_FILE = "face_detection_short_range.tflite", "face_landmark.tflite"
HINT = "Run `python tools/face_models.py FOLDER` with that folder, or `pip install mediapipe==0.10.21`, which brings the file."

VIEW = 128  # px, BlazeFace's input
ANCHORS = ((16, 2), (8, 6))  # (grid, anchors a cell): strides 8 and 3 x 16 of the 128 px input
CANDIDATE = 0.3  # BlazeFace score below which a place is not looked at again
OVERLAP = 0.3  # IoU above which two finds are one face, MediaPipe's value
SMALLEST = 0.12  # face width as a share of the view from which BlazeFace is sure, measured; up to nine tenths
ZOOM = 2.5  # most between two window sizes: with half overlap, a face that small windows cut in pieces fits a window one size up
NEAR_SIDE = 3.3  # side of a window that looks at one face again, in units of its size
AROUND = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))  # in half windows
FLAT = 3.0  # standard deviation in grey levels below which a view holds nothing
MOST_FACES, DOUBTFUL = 12, 2  # finds whose landmarks are looked for, above and below SURE
QUICK_WINDOWS = 12  # a quick search leaves window sizes that need more than this alone

MESH = 192  # px, FaceMesh's input
MESH_MARGIN = 1.5  # square around a face, in units of its longer side; MediaPipe's value, for BlazeFace's box and for the mesh's own
EYE_CORNERS = (33, 263)  # outer corners, picture left and right; their line is level in the crop
LEFT_BROW, RIGHT_BROW = (70, 63, 105, 66, 107), (336, 296, 334, 293, 300)
NOSE = (168, 197, 5, 4, 75, 97, 2, 326, 305)
SETTLED = 0.1  # a crop that is further off the face it shows (shift in sides + log of size + radians of turn) is taken again
CLEAR = 0.9  # a face less sure than this may stand on its head: BlazeFace looks at it the other way up as well
PASSES = 4
SURE = 0.5  # a score of BlazeFace or FaceMesh below this is doubtful; a followed face is lost there


class MediaPipeDetector:
    """BlazeFace + FaceMesh. `folder` has the two .tflite files; None searches `models/latentsync/face`, then an installed `mediapipe`.

    Raises FaceError when a file is missing or broken. Landmarks are in fractions of a pixel.
    """

    name, device, note = "MediaPipe", "CPU", ""

    def __init__(self, folder: str | Path | None = None, threads: int | None = None):
        blaze = need_file(BLAZE_FILE, _places(folder, "face_detection"), HINT)
        mesh = need_file(MESH_FILE, _places(folder, "face_landmark"), HINT)
        self._blaze, self._mesh = Nets(partial(_read, blaze)), Nets(partial(_read, mesh))
        self._blaze.get(), self._mesh.get()  # a broken file is told now
        self._anchors = _anchors()
        self._pool = ThreadPoolExecutor(threads or min(4, os.cpu_count() or 1), thread_name_prefix="latentsync-face")

    def detect(self, frames: Sequence[np.ndarray], *, min_size: float = MIN_SIZE, everywhere: bool = True) -> list[list[Face]]:
        """See `Detector`. Score: the smaller of BlazeFace's and FaceMesh's."""
        return [self._detect(frame, min_size, everywhere) for frame in frames]

    def follow(self, frame: np.ndarray, face: Face) -> Face | None:
        """The face in the next frame, from where its mesh was: FaceMesh alone, 2 to 6 ms. None when it is not sure."""
        found = self._meshed(frame, *_mesh_square(face.mesh))
        return found if found is not None and found.score >= SURE else None

    def detect_near(self, frame: np.ndarray, face: Face, *, around: bool = True) -> list[Face]:
        """Faces of about the size of `face` where it is, or up to two sizes around it: one view or five instead of the whole frame."""
        side, (x, y) = NEAR_SIDE * face.size, face.centre
        return self._faces(frame, [(x + dx * side / 2, y + dy * side / 2, side) for dx, dy in (AROUND if around else AROUND[:1])])

    def _detect(self, frame, min_size, everywhere):
        sizes = window_sizes(frame.shape, min_size)
        found: list[Face] = []
        for level, side in enumerate(sizes):
            windows = _windows(frame.shape, side)
            if not everywhere and level and (len(windows) > QUICK_WINDOWS or any(face.score >= SURE for face in found)):
                break
            found = _distinct(found + self._faces(frame, windows))
        return found

    def _faces(self, frame, windows):
        """The distinct faces in square windows (centre x, centre y, side) of the frame, best first."""
        share = max(1, -(-len(windows) // 16))
        parts = [windows[start:start + share] for start in range(0, len(windows), share)]
        finds = np.concatenate(list(self._pool.map(partial(self._look, frame), parts)))
        if not len(finds):
            return []
        kept = finds[best_boxes(finds[:, :4], finds[:, 4], OVERLAP)]
        kept = np.concatenate([kept[kept[:, 4] >= SURE][:MOST_FACES], kept[kept[:, 4] < SURE][:DOUBTFUL]])
        return _distinct([face for face in self._pool.map(partial(self._landmarks, frame), kept) if face is not None])

    def _look(self, frame, windows, turn=0.0):
        """BlazeFace in each window, seen upright or, with a `turn` of pi, on its head -> [K,9]: box, score, both eyes; frame px."""
        found = [np.empty((0, 9))]
        for x, y, side in windows:
            view, back = square_crop(frame, (x, y), side, turn, VIEW)
            if view.std() < FLAT:
                continue
            blob = cv2.dnn.blobFromImage(view, 1 / 127.5, (VIEW, VIEW), (127.5,) * 3)
            scores, places = forward(self._blaze.get(), blob, ("classificators", "regressors"))
            scores = 1 / (1 + np.exp(-np.clip(scores.reshape(-1).astype(np.float64), -80, 80)))
            best = np.flatnonzero(scores >= CANDIDATE)
            if not len(best):
                continue
            places = places.reshape(-1, 16)[best].astype(np.float64)
            points = (places.reshape(-1, 8, 2)[:, [0, 2, 3]] + self._anchors[best, None] * VIEW)  # box centre, left eye, right eye
            half = places[:, None, 2:4] / 2
            # BlazeFace counts from the view's edge, `back` from the middle of its first pixel.
            corners = np.concatenate([points[:, :1] - half, points[:, :1] + half, points[:, 1:]], 1) - 0.5
            spread = corners @ back[:, :2].T + back[:, 2]
            boxes = np.sort(spread[:, :2], 1).reshape(-1, 4)
            rows = np.concatenate([boxes, scores[best, None], spread[:, 2:].reshape(-1, 4)], 1)
            found.append(rows[best_boxes(rows[:, :4], rows[:, 4], OVERLAP)])
        return np.concatenate(found)

    def _landmarks(self, frame, row):
        face = self._fitted(frame, row)
        if face is None or face.score < CLEAR:
            box = row[:4]
            side = NEAR_SIDE * math.sqrt(max(1.0, (box[2] - box[0]) * (box[3] - box[1])))
            turned = self._look(frame, [(*(box[:2] + box[2:]) / 2, side)], turn=math.pi)
            better = turned[turned[:, 4] > row[4]]
            other = self._fitted(frame, better[np.argmax(better[:, 4])]) if len(better) else None
            face = max((f for f in (face, other) if f is not None), key=lambda f: f.score, default=None)
        return face

    def _fitted(self, frame, row):
        """The face for a row of `_look`, or None."""
        box, score, (left, right) = row[:4], row[4], row[5:].reshape(2, 2)
        side = MESH_MARGIN * max(box[2] - box[0], box[3] - box[1])
        face = self._meshed(frame, (box[:2] + box[2:]) / 2, side, _angle(left, right))
        return None if face is None else Face(face.box, min(float(score), face.score), face.points, face.mesh)

    def _meshed(self, frame, centre, side, angle):
        """FaceMesh in a turned square, and again around what it found until that lies in the middle. None when it left the frame."""
        for remaining in reversed(range(PASSES)):
            view, back = square_crop(frame, centre, side, angle, MESH)
            places, presence = forward(self._mesh.get(), cv2.dnn.blobFromImage(view, 1 / 255), ("conv2d_21", "conv2d_31"))
            mesh = places.reshape(-1, 3)[:, :2].astype(np.float64) @ back[:, :2].T + back[:, 2]
            presence = 1 / (1 + math.exp(-min(80.0, max(-80.0, presence.item()))))
            before, (centre, side, angle) = (centre, side, angle), _mesh_square(mesh)
            if not side >= 1:  # collapsed, or NaN
                return None
            turned = abs(math.remainder(angle - before[2], math.tau))
            moved = np.hypot(*(centre - before[0])) / side + abs(math.log(side / before[1])) + turned
            if remaining == 0 or presence < 0.1 or moved < SETTLED:
                break
        height, width = frame.shape[:2]
        if not (0 <= centre[0] < width and 0 <= centre[1] < height):
            return None
        box = np.concatenate([mesh.min(0), mesh.max(0)]).astype(np.float32)
        points = np.stack([mesh[list(group)].mean(0) for group in (LEFT_BROW, RIGHT_BROW, NOSE)]).astype(np.float32)
        return Face(box, presence, points, mesh.astype(np.float32))


def window_sizes(shape: tuple[int, ...], min_size: float) -> list[float]:
    """Sides of the square windows, largest first: the first has room for a face that fills the frame, the last shows `min_size` well."""
    first, last = max(shape[:2]) * 1.2, max(min_size, 8) / SMALLEST
    steps = max(0, math.ceil(math.log(first / last) / math.log(ZOOM))) if first > last else 0
    return [first * (last / first) ** (step / steps) for step in range(steps + 1)] if steps else [first]


def _windows(shape, side):
    """Windows (centre x, centre y, side) over the frame, half overlapping; the middle alone for one that is larger than the frame."""
    centres = []
    for length in (shape[1], shape[0]):
        count = 1 if side >= length else math.ceil((length - side) / (side / 2)) + 1
        centres.append([length / 2 - 0.5] if count == 1 else np.linspace(side / 2, length - side / 2, count) - 0.5)
    return [(x, y, side) for y in centres[1] for x in centres[0]]


def _distinct(faces):
    """Faces, best score first, without those that overlap a better one: two views of one face end in the same mesh."""
    if not faces:
        return []
    boxes, scores = np.stack([face.box for face in faces]), np.array([face.score for face in faces])
    return [faces[i] for i in best_boxes(boxes, scores, OVERLAP)]


def _mesh_square(mesh):
    """(centre, side, angle) of the square in which FaceMesh looks for a face whose mesh is known."""
    left, right = mesh[EYE_CORNERS[0]], mesh[EYE_CORNERS[1]]
    angle = _angle(left, right)
    cos, sin = math.cos(angle), math.sin(angle)
    level = mesh @ np.array([[cos, -sin], [sin, cos]])  # the box is taken in the turned axes
    low, high = level.min(0), level.max(0)
    x, y = (low + high) / 2
    return np.array([x * cos - y * sin, x * sin + y * cos]), MESH_MARGIN * float((high - low).max()), angle


def _angle(left, right):
    return math.atan2(right[1] - left[1], right[0] - left[0])


def _anchors():
    """Centres of the 896 places BlazeFace scores, [896,2] as shares of the view: row by row, several at each place."""
    grids = []
    for grid, count in ANCHORS:
        y, x = np.mgrid[0:grid, 0:grid]
        grids.append(np.repeat(np.stack([(x + 0.5) / grid, (y + 0.5) / grid], -1).reshape(-1, 2), count, 0))
    return np.concatenate(grids)


def _places(folder, module):
    """Folders that may hold a file: the one given, or ours and the one inside an installed `mediapipe` (found without importing it)."""
    if folder is not None:
        return [Path(folder)]
    places = [place / "face" for place in folders.paths()]
    spec = importlib.util.find_spec("mediapipe")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        places.append(Path(root) / "modules" / module)
    return places


def _read(path):
    classic = {"engine": cv2.dnn.ENGINE_CLASSIC} if hasattr(cv2.dnn, "ENGINE_CLASSIC") else {}  # OpenCV 5: gives both outputs in one pass
    return read_net(path, lambda data: cv2.dnn.readNetFromTFLite(data, **classic))
