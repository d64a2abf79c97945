"""Follows one face from frame to frame: decides where it is, whether it is still the same one, and when to look again.

Cheap first: the mesh moves along with the face; every few frames, and whenever the picture under the mesh stops looking like the face, the
detector looks around it; only when that fails, or after a cut, is the whole frame searched.
"""
from dataclasses import dataclass, field

import cv2
import numpy as np

from .detector import Detector, Face, iou
from .identity import CONTINUES, RESEMBLES, alike, bent, choose, most_alike, nearest, patch

THUMB = (64, 36)  # px, what cuts are seen on
CUT_SURE, CUT_LIKELY = 60.0, 15.0  # mean change in grey levels: a cut; a cut if the colours changed too and the shot was calmer before
CUT_COLOURS = 0.2  # share of the pixels whose colour is new: cuts to other places have 0.6 and more, to another view of one 0.2, motion 0.1
CUT_FORMS = 0.9  # correlation from which two frames are one picture under another light: a flash, a strobe
CUT_JUMP = 3.0  # times the usual change of this shot
SAME_PLACE = 0.3  # IoU of the mesh and a fresh find
UNCONFIRMED = 2  # looks without a find after which a followed face is taken for lost
PATIENCE = 25  # frames without the face after which, in the same shot, another may be chosen
QUICK = 0.25  # sizes a frame from which following alone is not trusted: the mesh may stay behind and still be sure
BENT = 0.12  # change of the landmarks' shape that one frame may bring; n frames bring the root of n times that (see `bent`)
NOTEWORTHY = 0.1  # score below which a find is not worth a word
LEARN = 0.05  # share of the newest picture in the remembered one
# The nose's place, along and across the line of the brows, in units of their distance; beyond, the head is turned too far to align it.
NOSE_ASIDE, NOSE_BELOW = 0.9, (0.1, 1.8)


class CutFinder:
    """Tells hard cuts from motion: call it with every frame, True for the first of a shot (not for the first of all)."""

    def __init__(self):
        self._thumb, self._usual = None, 2.0

    def __call__(self, frame: np.ndarray) -> bool:
        height, width = frame.shape[:2]
        step = max(1, min(height, width) // 270)
        coarse = cv2.resize(frame, (width // step, height // step), interpolation=cv2.INTER_NEAREST)  # every step-th pixel
        thumb = cv2.resize(coarse, THUMB, interpolation=cv2.INTER_AREA)
        last, self._thumb = self._thumb, thumb
        if last is None:
            return False
        change = float(cv2.absdiff(thumb, last).mean())
        cut = change > CUT_SURE or (change > max(CUT_LIKELY, CUT_JUMP * self._usual) and _new_colours(last, thumb) > CUT_COLOURS)
        cut = cut and _same_forms(last, thumb) < CUT_FORMS
        self._usual = 2.0 if cut else 0.9 * self._usual + 0.1 * change
        return cut


def _new_colours(first, second):
    counts = [cv2.calcHist([thumb], [0, 1, 2], None, [6, 6, 6], [0, 256] * 3) for thumb in (first, second)]
    return 1 - float(np.minimum(*counts).sum()) / (THUMB[0] * THUMB[1])


def _same_forms(first, second):
    """Correlation of two thumbs in grey, 0 where one of them is even."""
    first, second = (thumb.mean(2, dtype=np.float32) for thumb in (first, second))
    first, second = first - first.mean(), second - second.mean()
    return float((first * second).sum() / max(1.0, float(np.linalg.norm(first) * np.linalg.norm(second))))


@dataclass
class Refused:
    """The most likely face that was not taken, for the message when none was."""

    face: Face | None = None
    frame: int = 0
    reason: str = ""
    most: int = 0  # usable faces in one frame, chosen or not

    def note(self, face: Face, frame: int, reason: str) -> None:
        if face.score >= NOTEWORTHY and (self.face is None or face.score > self.face.score):
            self.face, self.frame, self.reason = face, frame, reason


@dataclass
class Follower:
    """Called with every frame in order, gives its face or None, and whether a new run begins (after a gap, a cut, or with another face).

    choice, min_size (px of width), min_score: which faces count. detect_every: frames between two looks around a followed face, and between
    two searches of the whole frame while the face is lost.
    pick: the frame in which `choice` is made, see `choose_in`; 0 is where a face is first seen.
    """

    detector: Detector
    choice: str | int | np.ndarray
    min_size: float
    min_score: float
    detect_every: int
    pick: int = 0
    refused: Refused = field(default_factory=Refused)
    cut: bool = False  # is this the first frame of a shot

    def __post_init__(self):
        self._cuts, self._frame = CutFinder(), -1
        self._last, self._seen, self._followed = None, 0, False  # the last face, the frame it was in, whether that was the previous one
        self._patch = self._known = None  # its picture then, and over time
        self._checked = self._searched = self._unconfirmed = 0

    def __call__(self, frame: np.ndarray, finds: list[Face] | None = None) -> tuple[Face | None, bool]:
        """`finds`: the detector's faces of this frame if they are known already (a detector that cannot follow)."""
        self._frame += 1
        self.cut = cut = self._cuts(frame)
        face, fresh = self._picked(frame, finds) if self._frame == self.pick > 0 else (None, True)
        if face is None and self._followed and not cut and finds is None:
            face, fresh = self._follow(frame)
        if face is None:
            face, fresh = self._search(frame, cut, finds)
        self._followed = face is not None
        if face is not None:
            self._remember(frame, face, fresh)
        return face, fresh

    def choose_in(self, number: int, likeness: np.ndarray) -> None:
        """Make the choice in frame `number`. Before it, only the likeness (`identity.patch`) of who will be chosen says which face it is."""
        self.pick, self._known = number, likeness

    def _picked(self, frame, finds):
        """The face that is chosen in this very frame, whichever was followed until now."""
        face = choose(self.countable(frame, finds), self.choice, frame.shape, self._frame)
        if face is None:
            return None, True
        same = self._followed and iou(self._last.box, face.box[None])[0] >= SAME_PLACE
        self._known = self._known if same else None
        return face, self.cut or not same

    def countable(self, frame: np.ndarray, finds: list[Face] | None = None) -> list[Face]:
        """The faces of one frame that may be chosen."""
        return self._usable(self.detector.detect([frame], min_size=self.min_size)[0] if finds is None else finds)

    def _follow(self, frame):
        face = self.detector.follow(frame, self._last)
        if face is None or self._refusal(face) or alike(patch(frame, face), self._patch) < CONTINUES:
            return None, True
        quick = np.hypot(*(face.centre - self._last.centre)) > QUICK * self._last.size
        if self._frame - self._checked < self.detect_every and not quick:
            return face, False
        self._checked = self._frame
        finds = self._usable(self.detector.detect_near(frame, face, around=False))
        others = [find for find in finds if iou(face.box, find.box[None])[0] < SAME_PLACE]
        if quick:  # the landmarks were pulled along from afar: those of a fresh look, or a search
            return next((find for find in finds if find not in others), None), False
        self._unconfirmed = 0 if len(others) < len(finds) else self._unconfirmed + 1
        if self._unconfirmed >= UNCONFIRMED:
            return None, True
        known = most_alike(frame, [face, *others], self._known) if others else None
        return (face, False) if known is None or known is face else (known, True)

    def _search(self, frame, cut, finds):
        gap = self._frame - self._seen
        returning = self._last is not None and not cut
        if finds is None and returning and gap <= PATIENCE:
            face = self._matched(frame, self._usable(self.detector.detect_near(frame, self._last)), gap)
            if face is not None:
                return face, gap > 1
        if finds is None:
            everywhere = cut or self._followed or self._frame == 0 or self._frame - self._searched >= self.detect_every
            if everywhere:
                self._searched = self._frame
            [finds] = self.detector.detect([frame], min_size=self.min_size, everywhere=everywhere)
        finds = self._usable(finds)
        face = self._matched(frame, finds, gap) if returning else None
        if face is not None:
            return face, gap > 1
        if self._known is not None:
            face = most_alike(frame, finds, self._known)
        if face is None and self._frame >= self.pick and (not returning or gap > PATIENCE):
            face = choose(finds, self.choice, frame.shape, self._frame)
            self._known = None if face is not None else self._known
        return face, True

    def _matched(self, frame, finds, gap):
        """The find that is the last face: by its place, and by its picture unless it was there a frame ago and has hardly moved."""
        likely = [find for find in finds if alike(patch(frame, find), self._known) >= CONTINUES]
        face = nearest(likely, self._last, gap)
        if face is None and gap == 1:
            face = nearest(finds, self._last)
            face = face if face is not None and iou(self._last.box, face.box[None])[0] >= SAME_PLACE else None
        return face

    def _remember(self, frame, face, fresh):
        self._patch = patch(frame, face)
        if self._known is None:
            self._known = self._patch
        elif alike(self._patch, self._known) >= RESEMBLES:  # nothing is learnt from a moment in which it might be somebody else
            self._known = (1 - LEARN) * self._known + LEARN * self._patch
            self._known /= float(np.linalg.norm(self._known))
        self._last, self._seen = face, self._frame
        if fresh:
            self._checked, self._unconfirmed = self._frame, 0

    def look_closely(self, frame: np.ndarray) -> None:
        """Search the clip's first frame for faces that are too small to count, so that the message can name them."""
        self._frame = 0
        self._usable(self.detector.detect([frame], min_size=self.min_size / 4)[0])

    def _usable(self, faces):
        usable = []
        for face in faces:
            reason = self._refusal(face)
            if reason:
                self.refused.note(face, self._frame, reason)
            else:
                usable.append(face)
        self.refused.most = max(self.refused.most, len(usable))
        return usable

    def _refusal(self, face):
        if face.score < self.min_score:
            return f"less sure than min_score {self.min_score:g}"
        if face.width < self.min_size:
            return f"narrower than min_size {self.min_size:g} px"
        if not facing(face.points):
            return "turned too far away"
        last = None if self.cut else self._last
        if last is None or iou(last.box, face.box[None])[0] < SAME_PLACE:
            return ""
        return "half hidden" if bent(face, last) > BENT * (self._frame - self._seen) ** 0.5 else ""


def facing(points: np.ndarray) -> bool:
    """Do the three points [3,2] look like brows and nose of a face that is seen well enough to align it?"""
    left, right, nose = np.asarray(points, dtype=np.float64)
    across = right - left
    square = float(across @ across)
    if not np.isfinite(square) or square < 1e-6:
        return False
    offset = nose - (left + right) / 2
    aside = float(offset @ across) / square
    below = float(across[0] * offset[1] - across[1] * offset[0]) / square
    return abs(aside) <= NOSE_ASIDE and NOSE_BELOW[0] <= below <= NOSE_BELOW[1]
