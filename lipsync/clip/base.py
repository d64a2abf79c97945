"""What every clip offers, whatever it is made of, and how its frame rate is told."""
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

from ..errors import MediaError
from .colour import Look

# Rates that cameras and files mean when they say 29.97 or 33 ms.
STANDARD_RATES = tuple(Fraction(n * 1000, 1001) for n in (24, 30, 48, 60, 120)) + tuple(
    Fraction(n) for n in (5, 8, 10, 12, 15, 16, 20, 24, 25, 30, 48, 50, 60, 90, 100, 120, 240)
)


def as_rate(rate: Fraction | float | str) -> Fraction:
    """Frames a second as an exact number: 29.97 becomes 30000/1001, 25.0 becomes 25. MediaError when it is not a rate."""
    try:
        if isinstance(rate, float):
            nearest = min(STANDARD_RATES, key=lambda known: abs(known - Fraction(rate)))
            rate = nearest if abs(nearest - Fraction(rate)) < nearest * Fraction(1, 5000) else Fraction(rate).limit_denominator(1001)
        exact = Fraction(rate)
    except (ValueError, TypeError, OverflowError, ZeroDivisionError) as error:
        raise MediaError(f"{rate!r} is not a frame rate: give frames a second, such as 25 or 30000/1001") from error
    if not 0 < exact <= 1000:
        raise MediaError(f"a frame rate of {float(exact):g} is not possible: give frames a second, above 0 and up to 1000")
    return exact


class Clip(ABC):
    """Moving pictures at a constant rate, read as a stream any number of times, by several readers at once.

    width, height   upright pixels (rotation metadata is already applied)
    rate            frames a second, as presented: frame k is shown from k/rate on
    frame_count     exactly what `frames()` gives
    has_audio       is there a sound track (see `read_audio`)
    name            for messages
    look            colour tags and pixel shape; give them to the ClipWriter of a result
    """
    width: int
    height: int
    rate: Fraction
    frame_count: int
    has_audio: bool = False
    name: str = "clip"
    look: Look = Look()

    @property
    def duration(self) -> float:
        """Seconds."""
        return float(self.frame_count / self.rate)

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Changes when the content, as far as that can be seen cheaply, or the rate changes."""

    @abstractmethod
    def frames_at(self, indices: Sequence[int], folder: str | Path | None = None) -> Iterator[np.ndarray]:
        """The frames of `indices`, in that order: uint8 RGB [height, width, 3], contiguous, the caller's to keep.

        Ascending stretches are decoded once; descending ones (ping-pong) group by group, with a bounded number of frames kept in
        memory and in a file in `folder` (ours for temporary files by default). IndexError outside 0..frame_count-1.
        """

    def frames(self, start: int = 0) -> Iterator[np.ndarray]:
        """All frames from `start` on, as `frames_at`."""
        return self.frames_at(range(start, self.frame_count))

    def _checked(self, indices: Sequence[int]) -> np.ndarray:
        array = np.asarray(indices, dtype=np.int64).reshape(-1)
        if len(array) and not 0 <= array.min() <= array.max() < self.frame_count:
            raise IndexError(f"frames {array.min()}..{array.max()} of {self.name}, which has {self.frame_count}")
        return array


def count_frames(seconds: Fraction | float, rate: Fraction) -> int:
    """Frames of a constant rate that cover `seconds`, to the nearest (a half is one more), at least one."""
    return max(1, math.floor(Fraction(seconds) * rate + Fraction(1, 2)))
