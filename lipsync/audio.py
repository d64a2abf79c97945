"""Speech -> audio tokens: log-mel, Whisper's hidden states, and the window of them that each video frame reads."""
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from . import mapped, sound
from .errors import AudioError
from .progress import Progress, silent, unchecked
from .whisper import WhisperEncoder, load_encoder

__all__ = ["WINDOWS", "AudioFeatures", "WhisperEncoder", "extract", "load_encoder", "log_mel", "speech_gain", "window_indices"]

log = logging.getLogger(__name__)

WINDOWS = ("overlapped", "reference")
N_FFT, HOP, N_MELS = 400, 160, 80  # samples at 16 kHz; 100 mel frames a second
STEPS_PER_SECOND = 50  # the encoder halves the mel frames
WINDOW = np.arange(-4, 6)  # steps around a video frame's own that it reads
FADE = 100  # steps of cross-fade in the middle of what two windows share (10 s or more), so either has at least 4 s of context there
SILENCE_DB = -120.0  # level of digital zero
QUIETEST = 2.0  # log-mel lies within so much of its loudest value (Whisper's floor of 8 in log10, over 4)
NOTHING = -1.5  # log-mel of digital zero: log10 of the least power that Whisper knows, 1e-10, plus 4, over 4
THRESHOLD_DB, FADE_SECONDS = -50.0, 0.2  # what counts as silence, and how long the mouth takes to come to rest


def log_mel(waveform_16k: torch.Tensor, check: Callable[[], None] = unchecked) -> torch.Tensor:
    """16 kHz mono [samples], -1..1 -> Whisper's log-mel, float32 [80, samples // 160].

    Hann window of 400, hop 160, reflected ends; log10, floor at 8 below the loudest of the whole sound, `(x + 4) / 4`. Sounds below
    400 samples (25 ms) are padded with zeros to 400. `check` is called every 30 s of sound and may raise to stop. Raises AudioError
    when there is no sample. Formulas: OpenAI's Whisper (MIT).
    """
    if waveform_16k.ndim != 1 or not len(waveform_16k):
        raise AudioError(f"log-mel needs at least one sample of mono sound, not a waveform of shape {list(waveform_16k.shape)}.")
    samples = waveform_16k.float()
    samples = torch.nn.functional.pad(samples, (0, N_FFT - len(samples))) if len(samples) < N_FFT else samples
    count, half = len(samples) // HOP, N_FFT // 2
    filters, window = _mel_filters().to(samples.device), torch.hann_window(N_FFT, device=samples.device)
    mel = samples.new_empty(N_MELS, count)
    for start in range(0, count, 3000):  # the spectra of an hour at once would be a gigabyte
        check()
        end = min(count, start + 3000)
        first, last = start * HOP - half, (end - 1) * HOP + half
        piece = samples[max(0, first) : last]
        piece = torch.nn.functional.pad(piece[None], (max(0, -first), max(0, last - len(samples))), mode="reflect")[0]
        power = torch.fft.rfft(piece.unfold(0, N_FFT, HOP) * window).abs().square()
        mel[:, start:end] = (filters @ power.T).clamp(min=1e-10).log10()
    return mel.clamp_(min=mel.max() - 4 * QUIETEST).add_(4.0).div_(4.0)


def _mel_filters() -> torch.Tensor:
    """Slaney's filter bank, float32 [80, 201]: triangles over 0..8000 Hz, spaced by the mel scale, each of area 1 (per Hz).

    The scale is linear up to 1000 Hz (3 mels in 200 Hz) and logarithmic above (27 mels in a factor of 6.4). Source: M. Slaney,
    Auditory Toolbox (1998).
    """
    knee, step = 15.0, np.log(6.4) / 27  # 1000 Hz is 15 mels
    top = knee + np.log(8000 / 1000) / step
    mels = np.linspace(0, top, N_MELS + 2)
    edges = np.where(mels < knee, mels * 200 / 3, 1000 * np.exp(step * (mels - knee)))
    bins = np.linspace(0, sound.RATE / 2, N_FFT // 2 + 1)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling)) * (2 / (edges[2:] - edges[:-2]))[:, None]
    return torch.from_numpy(triangles.astype(np.float32))


def window_indices(frame: int, fps: Fraction | float, length: int) -> list[int]:
    """The ten 20 ms steps that video frame `frame` reads: 4 before `int(frame * 50 / fps)`, itself and 5 after, clamped to 0..length-1."""
    return _windows([frame], fps, length)[0].tolist()


def _windows(frames: Sequence[int], fps: Fraction | float, length: int) -> np.ndarray:
    return np.clip(_steps(frames, fps)[:, None] + WINDOW, 0, length - 1)


def _steps(frames: Sequence[int], fps: Fraction | float) -> np.ndarray:
    """int64 [n]: the step at which each frame is shown, in whole numbers: a float quotient of 29.97 would slip now and then."""
    rate = Fraction(fps).limit_denominator(1_000_000)
    return np.asarray(frames, np.int64) * (STEPS_PER_SECOND * rate.denominator) // rate.numerator


@dataclass(frozen=True)
class AudioFeatures:
    """What the socket LATENTSYNC_AUDIO carries.

    states: float32 [S,5,384] on the CPU, Whisper's hidden states, 50 a second; in a file when large (see `mapped`).
    levels: float32 [S], loudness of each step in dB below full scale, -120 for digital zero.
    seconds: length of the sound.
    audio: the AUDIO dict as it came in, untouched, for the finished clip.
    silence: float32 [n_ctx,5,384], the hidden states of one window with nothing in it, as quiet as this sound's mel can be.
    """

    states: torch.Tensor
    levels: torch.Tensor
    seconds: float
    audio: dict
    silence: torch.Tensor | None = None

    def tokens(self, frames: Sequence[int], fps: Fraction | float) -> torch.Tensor:
        """What video frames `frames` (counted from 0 at `fps`) hear: float32 [n, 50, 384], step by step, the 5 states of each in order.

        Frames after the end of the sound hear its last step.
        """
        indices = torch.from_numpy(_windows(frames, fps, len(self.states)))
        tokens = self.states[indices].flatten(1, 2)
        mapped.release(self.states)
        return tokens

    def silent_tokens(self, frames: Sequence[int], fps: Fraction | float) -> torch.Tensor:
        """What `frames` would hear if there were no sound at all: float32 [n, 50, 384]."""
        indices = torch.from_numpy(_windows(frames, fps, len(self.states)) % len(self.silence))
        return self.silence[indices].flatten(1, 2)


def extract(
    audio,
    encoder: WhisperEncoder,
    *,
    windows: str = "overlapped",
    device="cpu",
    spool_folder: str | Path | None = None,
    progress: Progress = silent,
) -> AudioFeatures:
    """Run the encoder over a whole AUDIO dict (any rate, channels, dtype, device; see `sound.check`), 30 seconds at a time.

    windows "overlapped": windows start every 20 s, the last one ends with the sound; where two meet, in the middle of what they share,
    one fades into the other over 2 s. So every step has 4 s or more of context on both sides, and no break. "reference": windows of
    30 s side by side, the last one padded. For 30 s or less, both are one window. The encoder works on `device`, and is put back. States
    of a long sound (23 MB a minute) are kept in a file in `spool_folder`.
    Raises AudioError (nothing to hear, not audio) and DiskSpaceError before the encoder runs.
    """
    if windows not in WINDOWS:
        raise ValueError(f"windows is one of {', '.join(WINDOWS)}, not {windows!r}")
    checked, size = sound.check(audio), encoder.n_ctx

    def check() -> None:
        progress(0, 1 + int(checked.seconds) // 30, stage="audio")  # the number of windows is not known yet

    mono = sound.mono_16k(checked, check)
    mel = log_mel(mono, check)
    length = mel.shape[1] // 2
    starts = _overlapped(length, size) if windows == "overlapped" else list(range(0, length, size))
    states = mapped.zeros((length, encoder.n_layer + 1, encoder.n_state), folder=spool_folder)
    home = encoder.conv1.weight.device
    encoder.to(device)

    def hear(piece: torch.Tensor) -> torch.Tensor:
        piece = torch.nn.functional.pad(piece, (0, 2 * size - piece.shape[1]))  # zeros in mel, as the reference pads
        with torch.no_grad():
            return encoder.hidden_states(piece[None].to(device))[0].float().cpu()

    try:
        progress(0, len(starts), stage="audio")
        quiet = hear((mel.max() - QUIETEST).clamp(min=NOTHING).expand(N_MELS, 2 * size))
        for done, start in enumerate(starts):
            new = hear(mel[:, 2 * start : 2 * (start + size)])[: length - start]
            shared = starts[done - 1] + size - start if done else 0
            states[start : start + size].lerp_(new, _fade_in(len(new), shared)[:, None, None])
            mapped.release(states)
            progress(done + 1, len(starts), stage="audio")
    finally:
        encoder.to(home)
    log.info("audio: %.2f s, %d windows (%s)", checked.seconds, len(starts), windows)
    return AudioFeatures(states, _levels(mono, length), checked.seconds, audio, quiet)


def _overlapped(length: int, size: int) -> list[int]:
    starts = [0]
    while starts[-1] + size < length:
        starts.append(min(starts[-1] + size * 2 // 3, length - size))
    return starts


def _fade_in(length: int, shared: int) -> torch.Tensor:
    """Weight of a window's steps [length] over what stands there already: 0, a ramp in the middle of the first `shared` steps, then 1."""
    fade = min(FADE, shared)
    if not fade:
        return torch.ones(length)
    return ((torch.arange(length) + 0.5 - (shared - fade) / 2) / fade).clamp(0, 1)


def _levels(mono: torch.Tensor, length: int) -> torch.Tensor:
    step, levels = sound.RATE // STEPS_PER_SECOND, torch.empty(length)
    for start in range(0, length, 3000):
        end = min(length, start + 3000)
        samples = mono[start * step : end * step]
        samples = torch.nn.functional.pad(samples, (0, (end - start) * step - len(samples)))
        levels[start:end] = 10 * samples.view(-1, step).square().mean(1).log10()
    return levels.clamp_(min=SILENCE_DB)


def speech_gain(
    features: AudioFeatures, frames: Sequence[int], fps: Fraction | float, *, threshold_db: float = THRESHOLD_DB, fade_seconds: float = FADE_SECONDS
) -> np.ndarray:
    """How much the mouth should move at each of `frames`: float32 [n], 1 while there is sound, 0 in silence.

    Silence is quieter than `threshold_db` (full scale is 0 dB). The gain falls linearly over `fade_seconds` after the sound and rises
    over the same time before it, so gaps between words (below two fades) never close the mouth altogether.
    """
    steps = np.arange(len(features.levels))
    loud = np.flatnonzero(features.levels.numpy() > threshold_db)
    if not len(loud):
        return np.zeros(len(frames), np.float32)
    after = np.searchsorted(loud, steps)
    distance = np.minimum(
        np.abs(steps - loud[np.maximum(after - 1, 0)]), np.abs(loud[np.minimum(after, len(loud) - 1)] - steps)
    )
    gain = np.clip(1 - distance / max(1.0, fade_seconds * STEPS_PER_SECOND), 0, 1).astype(np.float32)
    return gain[np.clip(_steps(frames, fps), 0, len(gain) - 1)]
