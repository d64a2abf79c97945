"""What is heard, frame by frame, and how far a mouth is behind it."""
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .. import sound
from ..audio import THRESHOLD_DB
from ..clip import Clip, VideoClip, read_audio

REACH = 0.6  # s: shifts that are tried, either way; 15 frames at 25 a second, as SyncNet's authors try
SHORTEST = 1.0  # s of mouth and speech below which nothing is said about their offset
FEWEST = 3  # frames from which there is a correlation at all
STILL = 0.005  # standard deviation of an opening below which a mouth does not move: the mesh trembles by 0.001 to 0.004 on a picture, speech is 0.02 a second
EVEN = 0.05  # that of a loudness, of its mean, below which a sound is even: steady noise has 0.025, each second of speech 0.6 and more
WEAK, STRONG = 0.3, 0.9  # correlations below and above which an offset is never and always to be relied on
MOMENTS = 4  # a second: about as often a speaking mouth does something new
METHOD = "correlation of mouth opening with the speech envelope"


@dataclass(frozen=True)
class Offset:
    """How far the pictures are behind the sound: positive, the mouth comes late; negative, the sound does.

    frames: of `rate` a second. score: of the best shift; at_zero: of none. What a score is depends on the method: Pearson's r for the
    correlation (more is better), a distance for SyncNet (less is better). confidence: SyncNet's, median distance less the smallest.
    """

    method: str
    frames: int
    rate: Fraction
    score: float
    at_zero: float
    confidence: float | None = None

    @property
    def seconds(self) -> float:
        return float(self.frames / self.rate)


def sound_of(clip: Clip) -> dict | None:
    """The sound of a clip as AUDIO, from its first picture on; None when it has none."""
    if not isinstance(clip, VideoClip) or not clip.has_audio:
        return None
    audio = read_audio(clip.media)
    if audio is None:
        return None
    start = round(clip.begin * audio["sample_rate"])
    waveform = audio["waveform"][..., start:]
    return {**audio, "waveform": waveform} if waveform.shape[-1] else None


def envelope(audio, rate: Fraction, count: int, check=lambda: None) -> np.ndarray:
    """Root mean square of the sound while each of `count` frames is shown: float32 [count], full scale 1; NaN after its end."""
    mono = sound.mono_16k(sound.check(audio), check).numpy()
    edges = np.array([k * sound.RATE * rate.denominator // rate.numerator for k in range(count + 1)])
    loud = np.full(count, np.nan, np.float32)
    for k in range(min(count, int(np.searchsorted(edges, len(mono))))):
        loud[k] = np.sqrt(np.mean(mono[edges[k] : edges[k + 1]].astype(np.float64) ** 2))
    return loud


def both_known(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two series in the frames in which both are known, from the first to the end of the shorter one: float64."""
    length = min(len(one), len(other))
    one, other = np.asarray(one[:length], float), np.asarray(other[:length], float)
    known = np.isfinite(one) & np.isfinite(other)
    return one[known], other[known]


def correlation(measured: np.ndarray, truth: np.ndarray, lag: int = 0) -> float:
    """Pearson's r over the frames in which both are known; NaN where there is none: fewer than FEWEST frames, or one of the two is constant.

    lag: frames by which `measured` is taken to come late.
    """
    measured, truth = both_known(measured[max(0, lag) :], truth[max(0, -lag) :])
    if len(measured) < FEWEST or measured.std() < 1e-9 or truth.std() < 1e-9:
        return math.nan
    return float(np.corrcoef(measured, truth)[0, 1])


def delay(measured: np.ndarray, truth: np.ndarray, most: int = 8) -> int:
    """The lag, in frames, at which the two agree best: 0 for a mouth in time, positive for one that comes late. For two that correlate."""
    return max(range(-most, most + 1), key=lambda lag: np.nan_to_num(correlation(measured, truth, lag), nan=-2.0))


def why_no_correlation(a: np.ndarray, b: np.ndarray) -> str | None:
    """Why it is unknown how the openings of the mouths of A and B correlate; None where it is known."""
    a, b = both_known(a, b)
    if len(a) < FEWEST:
        return f"{len(a)} frames with both mouths are too few: {FEWEST} are needed"
    still = [name for name, opening in (("A", a), ("B", b)) if opening.std() < STILL]
    return f"the mouth of {' and of '.join(still)} does not move" if still else None


def needed(seconds: float) -> float:
    """The correlation from which an offset can be relied on: three times what chance brings (1 / sqrt n) in so many seconds."""
    return float(np.clip(3 / np.sqrt(MOMENTS * seconds), WEAK, STRONG))


def offset(opening: np.ndarray, loud: np.ndarray, rate: Fraction) -> Offset | str:
    """From a mouth's opening and the speech's envelope, frame by frame; or one sentence why that cannot be told."""
    moved, heard = both_known(opening, loud)
    if len(moved) < SHORTEST * rate:
        return f"{len(moved)} frames with both a mouth and sound are too few: {SHORTEST:g} s are needed"
    if moved.std() < STILL:
        return "the mouth does not move"
    if heard.max() < 10 ** (THRESHOLD_DB / 20):
        return f"there is no speech: the sound stays below {THRESHOLD_DB:g} dB"
    if heard.std() < EVEN * heard.mean():
        return "there is no speech: the sound is even"
    most = min(round(REACH * rate), len(moved) // 2)
    frames = delay(opening, loud, most)
    return Offset(METHOD, frames, rate, correlation(opening, loud, frames), correlation(opening, loud))
