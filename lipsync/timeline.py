"""Which picture is shown when: the one place that decides how long the result is, and where the mouth moves.

Output frame k is shown at k/rate and hears the sound at k/rate, whatever frame of the face track it shows and whether that has a face:
the mouth is tied to time, never to a count of faces.
"""
import math
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational

import numpy as np

from .errors import AudioError, MediaError

LENGTHS = ("audio", "video", "shortest")
EXTENSIONS = ("ping-pong", "loop", "hold")
# Sound coders pad by a few hundredths of a second, so sound often outlasts its own picture by a frame or two. Those frames hold the last
# picture: two frames of running backwards (or of the first picture) at the very end are seen as a twitch.
OVERHANG_SECONDS = Fraction(1, 10)


@dataclass(frozen=True)
class Timeline:
    """The plan of the output."""
    rate: Fraction  # frames a second
    source: np.ndarray  # int64 [N]: the track frame that output frame k shows
    speaking: np.ndarray  # bool [N]: is there speech to draw at output frame k
    heard: np.ndarray | None = None  # float32 [N]: how much of the sound the mouth hears, 0 (silence) .. 1; None: all
    shown: np.ndarray | None = None  # float32 [N]: how much of the redrawn mouth is shown, 0 (the clip's own) .. 1; None: all

    def __len__(self) -> int:
        return len(self.source)

    @property
    def seconds(self) -> Fraction:
        return Fraction(len(self)) / self.rate

    def redrawn(self, found: np.ndarray) -> np.ndarray:
        """int64 [M], ascending: the output frames whose mouth is redrawn: they speak, and their track frame has a face (`found`, bool)."""
        return np.flatnonzero(self.speaking & np.asarray(found, bool)[self.source])


def frames_in(seconds: float | Fraction, rate: Fraction) -> int:
    """How many frames `seconds` are: rounded to the nearest (a half rounds up), at least one."""
    exact = seconds if isinstance(seconds, Rational) else Fraction(float(seconds))
    return max(1, math.floor(exact * rate + Fraction(1, 2)))


def build(track_frames: int, rate: Fraction, audio_seconds: float | Fraction, length: str = "audio", extend: str = "ping-pong") -> Timeline:
    """Plan the output for a track of `track_frames` frames at `rate` and a sound of `audio_seconds`.

    length  "audio": as long as the sound, round(audio_seconds * rate) frames; a longer picture is cut, a shorter one extended.
            "video": as long as the picture; frames after the end of the sound do not speak, sound after the end of the picture is cut.
            "shortest": as long as the shorter of the two.
    extend  "ping-pong": backwards, then forwards again; the frame where it turns is shown once (0 1 2 1 0 1 ...).
            "loop": again from the start. "hold": the last picture stays.
            Up to `OVERHANG_SECONDS` more than the picture always hold.

    Raises MediaError without frames, AudioError without sound, ValueError for an unknown policy.
    """
    rate = Fraction(rate)
    if length not in LENGTHS:
        raise ValueError(f"length is one of {', '.join(LENGTHS)}, not {length!r}")
    if extend not in EXTENSIONS:
        raise ValueError(f"extend is one of {', '.join(EXTENSIONS)}, not {extend!r}")
    if track_frames < 1:
        raise MediaError("the clip has no frames")
    if rate <= 0:
        raise MediaError(f"a frame rate of {rate} is not possible: give frames a second above 0")
    if not math.isfinite(audio_seconds) or audio_seconds <= 0:
        raise AudioError(f"the sound is {float(audio_seconds):g} s long: wire sound that has at least one sample")
    spoken = frames_in(audio_seconds, rate)
    count = {"audio": spoken, "video": track_frames, "shortest": min(spoken, track_frames)}[length]
    steps = np.arange(count, dtype=np.int64)
    return Timeline(rate, _extended(steps, track_frames, rate, extend), steps < spoken)


def _extended(steps: np.ndarray, frames: int, rate: Fraction, extend: str) -> np.ndarray:
    if extend == "hold" or frames == 1 or len(steps) - frames <= OVERHANG_SECONDS * rate:
        return np.minimum(steps, frames - 1)
    if extend == "loop":
        return steps % frames
    place = steps % (2 * frames - 2)
    return np.minimum(place, 2 * frames - 2 - place)


def plan_blocks(timeline: Timeline, found: np.ndarray, run_ids: np.ndarray, size: int = 16) -> list[np.ndarray]:
    """Cut the redrawn frames into blocks that the network sees at once: int64 arrays of 1..`size` positions into `timeline.redrawn(found)`.

    found, run_ids: per track frame; a run is a stretch of one face without gap or cut. A block stays within one stretch of output frames
    that follow each other, show one run, and move by at most one track frame a step (so it may turn around or hold, never jump): what
    the network's attention over time sees is one continuous movement, and a gap never touches its neighbours. Each stretch is filled
    from its start, the last block takes the rest, as in the reference.
    """
    if size < 1:
        raise ValueError(f"a block has at least one frame, not {size}")
    frames = timeline.redrawn(found)
    source = timeline.source[frames]
    runs = np.asarray(run_ids)[source]
    broken = (np.diff(frames) != 1) | (np.diff(runs) != 0) | (np.abs(np.diff(source)) > 1)
    stretches = np.split(np.arange(len(frames), dtype=np.int64), np.flatnonzero(broken) + 1)
    return [stretch[start:start + size] for stretch in stretches for start in range(0, len(stretch), size)]
