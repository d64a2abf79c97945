"""What is heard, frame by frame, and how far a mouth is behind it."""
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .. import sound
from ..clip import Clip, VideoClip, read_audio

REACH = 0.6  # s: shifts that are tried, either way; 15 frames at 25 a second, as SyncNet's authors try
SHORTEST = 1.0  # s of mouth and speech below which nothing is said about their offset
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


def correlation(measured: np.ndarray, truth: np.ndarray, lag: int = 0) -> float:
    """Pearson's r over the frames in which both are known. lag: frames by which `measured` is taken to come late."""
    length = min(len(measured), len(truth))
    measured, truth = np.asarray(measured[:length], float), np.asarray(truth[:length], float)
    if lag:
        measured, truth = (measured[lag:], truth[:-lag]) if lag > 0 else (measured[:lag], truth[-lag:])
    known = np.isfinite(measured) & np.isfinite(truth)
    if known.sum() < 3 or measured[known].std() < 1e-9 or truth[known].std() < 1e-9:
        return 0.0
    return float(np.corrcoef(measured[known], truth[known])[0, 1])


def delay(measured: np.ndarray, truth: np.ndarray, most: int = 8) -> int:
    """The lag, in frames, at which the two agree best: 0 for a mouth in time, positive for one that comes late."""
    return max(range(-most, most + 1), key=lambda lag: correlation(measured, truth, lag))


def needed(seconds: float) -> float:
    """The correlation from which an offset can be relied on: three times what chance brings (1 / sqrt n) in so many seconds."""
    return float(np.clip(3 / np.sqrt(MOMENTS * seconds), WEAK, STRONG))


def offset(opening: np.ndarray, loud: np.ndarray, rate: Fraction) -> Offset | str:
    """From a mouth's opening and the speech's envelope, frame by frame; or one sentence why that cannot be told."""
    known = int((np.isfinite(opening) & np.isfinite(loud)).sum())
    if known < SHORTEST * rate:
        return f"{known} frames with both a mouth and sound are too few: {SHORTEST:g} s are needed"
    for name, values in (("mouth does not move", opening), ("sound is even", loud)):
        if np.nanstd(values) < 1e-6:
            return f"the {name}"
    most = min(round(REACH * rate), known // 2)
    frames = delay(opening, loud, most)
    return Offset(METHOD, frames, rate, correlation(opening, loud, frames), correlation(opening, loud))
