"""Where a face and its mouth are and how far the mouth is open, in MediaPipe's face mesh of 468 points."""
import numpy as np

from ..face.detector import MIN_SCORE, Detector, Face

UPPER, LOWER = 13, 14  # in the middle of the inner lips
EYE_CORNERS = (33, 263)  # outer corners: how large the face is
# The outer and the inner contour of the lips, from the mouth's left corner over the lower lip and back over the upper.
OUTER_LIPS = (61, 146, 91, 181, 84, 17, 314, 405, 321, 375, 291, 409, 270, 269, 267, 0, 37, 39, 40, 185)
INNER_LIPS = (78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308, 415, 310, 311, 312, 13, 82, 81, 80, 191)
LIPS = [*OUTER_LIPS, *INNER_LIPS]
MARGIN = 0.35  # of the lips' width, around them: what belongs to the mouth
LOOK_AGAIN, SAME = 25, 0.5  # frames after which is looked whether there is a face (sizes off) where one is followed: a mesh can be sure without
FARTHEST = 1.0  # in sizes of the first clip's face: a face further away than this in the second is another one


def opening(mesh: np.ndarray) -> float:
    """Distance between the inner lips over the distance between the outer eye corners, of one mesh [468,2] in px."""
    left, right = mesh[EYE_CORNERS[0]], mesh[EYE_CORNERS[1]]
    return float(np.hypot(*(mesh[LOWER] - mesh[UPPER])) / np.hypot(*(right - left)))


def mouth_box(meshes: list[np.ndarray], shape: tuple[int, ...]) -> tuple[slice, slice]:
    """(rows, columns) of a frame of `shape` that hold the lips of all `meshes` and MARGIN around them."""
    lips = np.concatenate([mesh[LIPS] for mesh in meshes])
    low, high = lips.min(0), lips.max(0)
    margin = MARGIN * (high[0] - low[0])
    ends = np.clip(np.stack([np.floor(low - margin), np.ceil(high + margin) + 1]), 0, [shape[1], shape[0]]).astype(int)
    return slice(ends[0, 1], ends[1, 1]), slice(ends[0, 0], ends[1, 0])


def drift(a: Face, b: Face) -> tuple[float, float]:
    """(of all landmarks, of the lips): mean distance between the landmarks of two faces, px; NaN for the lips without a mesh.

    All landmarks are the mesh's 468, or the three that align a face (brows and nose) where a detector gives no more.
    """
    if a.mesh is None or b.mesh is None or len(a.mesh) != len(b.mesh):
        return float(np.hypot(*(a.points - b.points).T).mean()), np.nan
    apart = np.hypot(*(a.mesh - b.mesh).T)
    return float(apart.mean()), float(apart[LIPS].mean())


class Finder:
    """One face through one clip: called with every frame, gives the face or None.

    Of those that the detector is sure of, the largest when it is first seen; with `near`, the one that is nearest to that face and no
    further off than its own size.
    """

    def __init__(self, detector: Detector):
        self._detector, self._face, self._age = detector, None, 0
        self._follow = getattr(detector, "follow", None)

    def __call__(self, frame: np.ndarray, near: Face | None = None) -> Face | None:
        face = self._followed(frame)
        if face is None or (near is not None and _apart(face, near) > FARTHEST):
            face, self._age = self._found(frame, near), 0
        self._face = face
        return face

    def _followed(self, frame):
        if self._face is None or self._follow is None:
            return None
        face = self._follow(frame, self._face)
        self._age += 1
        if face is None or self._age < LOOK_AGAIN:
            return face
        self._age = 0
        seen = self._detector.detect_near(frame, face, around=False)
        return face if any(_apart(one, face) < SAME for one in seen) else None

    def _found(self, frame, near):
        faces = [face for face in self._detector.detect([frame], everywhere=self._face is None)[0] if face.score >= MIN_SCORE]
        wanted = near or self._face
        face = min(faces, key=lambda one: _apart(one, wanted) if wanted else -one.size, default=None)
        if face is None or (near is not None and _apart(face, near) > FARTHEST):
            return None
        return (self._follow and self._follow(frame, face)) or face  # a mesh settles in a second look: else it jumps in the next frame


def _apart(face, other):
    return float(np.hypot(*(face.centre - other.centre))) / max(1.0, other.size)
