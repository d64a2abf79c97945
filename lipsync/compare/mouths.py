"""Where a face and its mouth are and how far the mouth is open, in MediaPipe's face mesh of 468 points."""
import numpy as np

from ..face.detector import Detector, Face

UPPER, LOWER = 13, 14  # in the middle of the inner lips
EYE_CORNERS = (33, 263)  # outer corners: how large the face is
# The outer and the inner contour of the lips, from the mouth's left corner over the lower lip and back over the upper.
OUTER_LIPS = (61, 146, 91, 181, 84, 17, 314, 405, 321, 375, 291, 409, 270, 269, 267, 0, 37, 39, 40, 185)
INNER_LIPS = (78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308, 415, 310, 311, 312, 13, 82, 81, 80, 191)
LIPS = [*OUTER_LIPS, *INNER_LIPS]
MARGIN = 0.35  # of the lips' width, around them: what belongs to the mouth
LOOK_AGAIN = 25  # frames after which a followed face is looked for anew: a mesh can stay behind and still be sure
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

    The largest when it is first seen; with `near`, the one that is nearest to that face and no further off than its own size.
    """

    def __init__(self, detector: Detector):
        self._detector, self._face, self._age = detector, None, 0
        self._follow = getattr(detector, "follow", None)

    def __call__(self, frame: np.ndarray, near: Face | None = None) -> Face | None:
        face = None
        if self._face is not None and self._follow is not None and self._age < LOOK_AGAIN:
            face = self._follow(frame, self._face)
        self._age = self._age + 1 if face is not None else 0
        if face is None or (near is not None and _apart(face, near) > FARTHEST):
            face = self._chosen(self._detector.detect([frame], everywhere=self._face is None)[0], near)
        self._face = face
        return face

    def _chosen(self, faces, near):
        wanted = near or self._face
        if wanted is None:
            return max(faces, key=lambda face: face.size, default=None)
        face = min(faces, key=lambda face: _apart(face, wanted), default=None)
        if near is None:
            return face
        return face if face is not None and _apart(face, near) <= FARTHEST else None


def _apart(face, other):
    return float(np.hypot(*(face.centre - other.centre))) / max(1.0, other.size)
