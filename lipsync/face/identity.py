"""Which of several faces: the user's choice, and whether two finds are one person.

Geometry decides from frame to frame; where it cannot (after a cut, a long gap, a jump) a small picture of the face does: normalised, so
that exposure and contrast do not matter, but skin, hair and beard do.
"""
import math

import cv2
import numpy as np

from ..errors import FaceError
from .detector import Face, iou, square_crop

CHOICES = ("largest", "left", "right")  # by name; an index from the left and a mask choose as well

PATCH = 32  # px
PATCH_SIDE = 1.2  # of the face's size: some hair and beard with it
CONTINUES = 0.5  # correlation of one face's pictures in successive frames; a frame's motion seldom brings it under 0.8
RESEMBLES = 0.6  # correlation from which a face elsewhere may be the same person: talking and nodding it is 0.9, with strangers 0.4
CLEARLY = 0.1  # and by this much more than the runner-up
NEAR, GROWTH = 1.0, 1.7  # sizes a face may move, and times it may grow, from one frame to the next


def check_choice(choice) -> str | int | np.ndarray:
    """`choice` in one form: "largest", "left", "right", an index from the left (0 first), or masks [K,H,W] (where not 0). Else FaceError.

    A mask is [H,W] or, as ComfyUI's MASK, [K,H,W]: one for each of the first K frames, the last one also for all after.
    """
    if hasattr(choice, "ndim"):
        mask = np.asarray(choice, dtype=np.float32)
        mask = mask[None] if mask.ndim == 2 else mask
        if mask.ndim != 3 or not mask.any():
            marked = np.count_nonzero(mask)
            raise FaceError(f"the mask that chooses the face must be [H,W] and mark something; got {list(mask.shape)}, {marked} px marked")
        return mask
    text = str(choice).strip().lower()
    if text.isdecimal():
        return int(text)
    if text not in CHOICES:
        raise FaceError(f"unknown choice of face {choice!r}: use {', '.join(CHOICES)}, a number from the left (0 first), or a mask")
    return text


def choose(faces: list[Face], choice: str | int | np.ndarray, shape: tuple[int, ...], frame: int = 0) -> Face | None:
    """The face that `choice` (see `check_choice`) means among those of frame number `frame`, of `shape`; None when it is not there."""
    if not faces:
        return None
    if isinstance(choice, np.ndarray):
        mask = cv2.resize(choice[min(frame, len(choice) - 1)], (shape[1], shape[0]), interpolation=cv2.INTER_NEAREST)
        shares = [_covered(mask, face.box) for face in faces]
        return faces[int(np.argmax(shares))] if max(shares) > 0 else None
    if choice == "largest":
        return max(faces, key=lambda face: face.size)
    across = sorted(faces, key=lambda face: float(face.centre[0]))
    index = {"left": 0, "right": len(across) - 1}.get(choice, choice)
    return across[index] if index < len(across) else None


def patch(frame: np.ndarray, face: Face) -> np.ndarray:
    """A face's picture to compare: float32 [PATCH*PATCH*3], upright, mean 0, length 1."""
    left, right = face.points[:2]
    angle = math.atan2(right[1] - left[1], right[0] - left[0])
    view = square_crop(frame, face.centre, max(PATCH_SIDE * face.size, 1.0), angle, PATCH)[0].astype(np.float32).ravel()
    view -= view.mean()
    return view / max(float(np.linalg.norm(view)), 1e-6)


def alike(first: np.ndarray, second: np.ndarray) -> float:
    """Correlation of two face pictures, -1..1."""
    return float(first @ second)


def nearest(faces: list[Face], last: Face, frames: int = 1) -> Face | None:
    """The face that by overlap, distance and size is `last`, `frames` frames later; None when none is near enough."""
    if not faces:
        return None
    overlaps = iou(last.box, np.stack([face.box for face in faces]))
    reach = NEAR * min(2.0, 1 + 0.1 * (frames - 1)) * last.size

    def cost(index):
        face = faces[index]
        growth = max(face.size, last.size) / max(min(face.size, last.size), 1e-6)
        moved = float(np.hypot(*(face.centre - last.centre)))
        return math.inf if moved > reach or growth > GROWTH else moved / last.size + math.log(growth) - float(overlaps[index])

    best = min(range(len(faces)), key=cost)
    return faces[best] if cost(best) < math.inf else None


def bent(face: Face, last: Face) -> float:
    """How much the landmarks of `face` differ in shape from those of `last`: 0 is none, 1 nothing in common. Place, size and turn are free.

    A talking, turning head gives 0.05 from one frame to the next; landmarks pushed aside by what hides half the face give 0.2 and more.
    """
    if face.mesh is None or last.mesh is None:
        return 0.0
    now, before = (points - points.mean(0) for points in (face.mesh.astype(np.float64), last.mesh.astype(np.float64)))
    now, before = now[:, 0] + 1j * now[:, 1], before[:, 0] + 1j * before[:, 1]
    fitted = np.vdot(before, now) / max(np.vdot(before, before).real, 1e-12) * before
    return float(np.linalg.norm(now - fitted) / max(float(np.linalg.norm(now)), 1e-12))


def most_alike(frame: np.ndarray, faces: list[Face], known: np.ndarray) -> Face | None:
    """The one face that resembles the `known` picture, and clearly more than every other; else None."""
    ranked = sorted(((alike(patch(frame, face), known), i) for i, face in enumerate(faces)), reverse=True)
    if not ranked or ranked[0][0] < RESEMBLES or (len(ranked) > 1 and ranked[0][0] - ranked[1][0] < CLEARLY):
        return None
    return faces[ranked[0][1]]


def _covered(mask, box):
    x0, y0, x1, y1 = (max(0, round(float(v))) for v in box)
    region = mask[y0:y1 + 1, x0:x1 + 1]
    return float(np.count_nonzero(region)) / region.size if region.size else 0.0
