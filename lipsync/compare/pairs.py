"""Two clips side by side in time: for each moment of the first, what either shows then."""
import contextlib
from collections.abc import Iterator
from fractions import Fraction

import cv2
import numpy as np

from ..clip import Clip
from ..errors import ShapeError


class Pairs:
    """The frames of `a`, each with the frame that `b` shows at the same time: uint8 RGB [H,W,3] twice, of a's size. Streams both.

    resize: a `b` of another size is scaled to a's. Without it, that raises ShapeError with both sizes. max_frames: the first so many only.
    notes: what a reader must know about lengths, rates and sizes that differ.
    """

    def __init__(self, a: Clip, b: Clip, *, resize: bool = False, max_frames: int | None = None):
        sizes = [(clip.width, clip.height) for clip in (a, b)]
        self.resized = sizes[0] != sizes[1]
        if self.resized and not resize:
            shown = [f"{clip.name} is {width} x {height}" for clip, (width, height) in zip((a, b), sizes, strict=True)]
            raise ShapeError(
                f"{', '.join(shown)}: pictures of different sizes have no pixels to compare. Allow resizing, and the second is scaled to the first."
            )
        self.a, self.b, self.rate = a, b, a.rate
        shared = min(Fraction(a.frame_count) / a.rate, Fraction(b.frame_count) / b.rate)
        self.count = max(1, min(a.frame_count, int(shared * a.rate), max_frames or a.frame_count))
        self.notes = list(self._notes(sizes, shared, max_frames))

    @property
    def seconds(self) -> float:
        return float(self.count / self.rate)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        indices = frames_in_time(self.b, self.rate, self.count)
        with contextlib.closing(self.a.frames_at(range(self.count))) as first, contextlib.closing(self.b.frames_at(indices)) as second:
            for one, other in zip(first, second, strict=True):
                yield one, self.as_first(other)

    def as_first(self, frame: np.ndarray) -> np.ndarray:
        """A frame of b in the size of a's."""
        return scaled(frame, self.a.width, self.a.height) if self.resized else frame

    def _notes(self, sizes, shared, max_frames):
        a, b = self.a, self.b
        if self.resized:
            yield f"B was scaled from {sizes[1][0]} x {sizes[1][1]} to A's {sizes[0][0]} x {sizes[0][1]}: its pictures lose or gain sharpness by that."
        if a.rate != b.rate:
            yield f"A has {float(a.rate):g} frames a second, B {float(b.rate):g}: each frame of A is compared with what B shows at that time."
        for name, clip in (("A", a), ("B", b)):
            beyond = clip.duration - float(shared)
            if beyond > 0.5 / float(a.rate):
                yield f"{name} goes on for {beyond:.2f} s after the other has ended: not compared."
        if max_frames and max_frames < int(shared * a.rate):
            yield f"Only the first {max_frames} frames were compared, as asked for."


def frames_in_time(clip: Clip, rate: Fraction, count: int) -> np.ndarray:
    """Which frame `clip` shows at k/rate, k from 0 to count-1: int64 [count]. Frame n is shown from n/clip.rate on."""
    ratio = clip.rate / Fraction(rate)
    return np.minimum(np.arange(count) * ratio.numerator // ratio.denominator, clip.frame_count - 1)


def scaled(frame: np.ndarray, width: int, height: int) -> np.ndarray:
    """uint8 [H,W,3] -> [height,width,3]."""
    if frame.shape[:2] == (height, width):
        return frame
    smaller = width * height < frame.shape[0] * frame.shape[1]
    return cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA if smaller else cv2.INTER_CUBIC)
