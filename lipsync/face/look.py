"""A single frame of a clip and the faces in it that may be chosen: for people who pick one, and for the track that begins with their pick."""
from typing import TYPE_CHECKING

import numpy as np

from ..errors import FaceError
from .detector import MIN_SCORE, MIN_SIZE, Detector, Face
from .follower import Follower
from .identity import choose, patch

if TYPE_CHECKING:
    from ..clip import Clip


def frame_number(clip: "Clip", seconds: float) -> int:
    """Of the frame shown at `seconds`, held inside the clip."""
    return min(max(0, round(seconds * float(clip.rate))), clip.frame_count - 1)


def look(
    clip: "Clip", seconds: float, detector: Detector, *, min_size: float = MIN_SIZE, min_score: float = MIN_SCORE
) -> tuple[np.ndarray, list[Face]]:
    """The frame shown at `seconds`, uint8 [H,W,3], and the faces in it that count, from left to right: a face's place is its number."""
    frame = next(clip.frames_at([frame_number(clip, seconds)]))
    faces = Follower(detector, "largest", min_size, min_score, 1).countable(frame)
    return frame, sorted(faces, key=lambda face: float(face.centre[0]))


def pick(clip: "Clip", seconds: float, follower: Follower) -> None:
    """Have a new Follower make its choice at `seconds` of the clip. Raises FaceError when the face is not there."""
    number = frame_number(clip, seconds) if clip.frame_count else 0
    if number == 0:
        return
    frame = next(clip.frames_at([number]))
    seen = follower.countable(frame)
    face = choose(seen, follower.choice, frame.shape, number)
    if face is None:
        wanted = "a face under the mask" if isinstance(follower.choice, np.ndarray) else f"the face {follower.choice!r}"
        raise FaceError(
            f"{wanted} is not at second {seconds:g} (frame {number}) of {clip.name}, where {len(seen)} can be chosen: pick another time or face."
        )
    follower.choose_in(number, patch(frame, face))
