"""Any AUDIO dict of ComfyUI as 16 kHz mono speech."""
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np
import torch

from . import mapped
from .errors import AudioError
from .progress import unchecked

RATE = 16000  # Hz, what Whisper hears
MAX_CHANNELS = 32  # more "channels" than this are samples in the wrong place of the shape
MAX_PEAK = 100.0  # float audio is -1..1; a peak this high is integer audio that nobody scaled
CHUNK_SECONDS = 10
INTEGER = {torch.int16: (0, 2**15), torch.int32: (0, 2**31), torch.uint8: (128, 2**7), torch.int8: (0, 2**7)}  # (zero, full scale)


@dataclass(frozen=True)
class Sound:
    """A checked AUDIO dict. waveform: [C,T], the caller's tensor (any device and dtype). rate: Hz."""

    waveform: torch.Tensor
    rate: int

    @property
    def seconds(self) -> float:
        return self.waveform.shape[1] / self.rate


def check(audio) -> Sound:
    """Look at `audio`, ComfyUI's `{"waveform": [1,C,T], "sample_rate": Hz}`; [C,T], [T] and NumPy arrays are taken too.

    Raises AudioError, without touching a sample, for None, a batch, an empty sound and anything that is not audio.
    """
    if audio is None:
        raise AudioError("there is no audio (None): the video may have no audio track. Load the speech and connect it as AUDIO.")
    if not isinstance(audio, Mapping) or "waveform" not in audio or "sample_rate" not in audio:
        raise AudioError(f"AUDIO is a dict with 'waveform' and 'sample_rate', but this is {_described(audio)}.")
    waveform = audio["waveform"]
    waveform = torch.from_numpy(waveform) if isinstance(waveform, np.ndarray) else waveform
    if not isinstance(waveform, torch.Tensor):
        raise AudioError(f"the waveform of an AUDIO is a tensor [1, channels, samples], but this is {type(waveform).__name__}.")
    return Sound(_two_dimensional(waveform.detach()), _sample_rate(audio["sample_rate"]))


def mono_16k(sound: Sound, check: Callable[[], None] = unchecked) -> torch.Tensor:
    """The mean of all channels at 16 kHz: float32 [ceil(T * 16000 / rate)] on the CPU, -1..1.

    Goes through the sound in pieces of ten seconds, so only the result grows with its length. libswresample resamples (in PyAV, which
    reads and writes the clips too): it keeps its state between pieces, so there are no seams, and adds no delay.
    `check` is called between pieces and may raise to stop. Raises AudioError for NaN, infinity or samples far outside -1..1.
    """
    total = math.ceil(Fraction(sound.waveform.shape[1] * RATE, sound.rate))
    pieces = _mono(sound) if sound.rate == RATE else _resampled(_mono(sound), sound.rate)
    mono, filled = torch.zeros(total), 0
    for piece in pieces:
        check()
        mono[filled : filled + len(piece)] = torch.from_numpy(piece[: max(0, total - filled)])
        filled += len(piece)
    return mono


def _two_dimensional(waveform: torch.Tensor) -> torch.Tensor:
    shape = tuple(waveform.shape)
    if waveform.is_complex() or not (waveform.is_floating_point() or waveform.dtype in INTEGER):
        raise AudioError(f"audio samples are floats or 8, 16 or 32 bit integers, but these are {waveform.dtype} (shape {shape}).")
    if waveform.ndim == 3 and shape[0] > 1:
        raise AudioError(f"the waveform has shape {shape}: a batch of {shape[0]} sounds. Choose one of them; a face can speak only one.")
    if waveform.ndim not in (1, 2, 3):
        raise AudioError(f"the waveform has shape {shape}, which is not [1, channels, samples].")
    if waveform.numel() == 0:
        raise AudioError(f"the audio is empty (shape {shape}): choose speech of at least one sample.")
    flat = waveform.reshape(1, -1) if waveform.ndim == 1 else waveform.reshape(shape[-2], shape[-1])
    if flat.shape[0] > MAX_CHANNELS:
        raise AudioError(f"the waveform has shape {shape}, that is {flat.shape[0]} channels: the order is [1, channels, samples].")
    return flat


def _sample_rate(value) -> int:
    try:
        rate = int(value)
    except (TypeError, ValueError, OverflowError):
        rate = 0
    if not 1000 <= rate <= 1_000_000:
        raise AudioError(f"the sample rate of the audio is {value!r}: between 1,000 and 1,000,000 Hz is possible.")
    return rate


def _mono(sound: Sound) -> Iterator[np.ndarray]:
    zero, scale = INTEGER.get(sound.waveform.dtype, (0, 1))
    step = sound.rate * CHUNK_SECONDS
    for start in range(0, sound.waveform.shape[1], step):
        piece = (sound.waveform[:, start : start + step].to("cpu", torch.float32) - zero) / scale
        mapped.release(sound.waveform)
        peak = piece.abs().max().item()
        if not math.isfinite(peak):
            raise AudioError(f"the audio holds NaN or infinity between {start / sound.rate:.0f} s and {(start + step) / sound.rate:.0f} s.")
        if peak > MAX_PEAK:
            raise AudioError(f"the audio reaches {peak:.0f}, but float samples are -1..1: divide integer audio by its full scale.")
        yield piece.mean(0).numpy()


def _resampled(pieces: Iterator[np.ndarray], rate: int) -> Iterator[np.ndarray]:
    resampler = av.AudioResampler(format="fltp", layout="mono", rate=RATE)
    position = 0
    for piece in pieces:
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(piece[None]), format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = rate, position, Fraction(1, rate)
        position += len(piece)
        yield from (out.to_ndarray()[0] for out in resampler.resample(frame))
    yield from (out.to_ndarray()[0] for out in resampler.resample(None))


def _described(audio) -> str:
    if isinstance(audio, Mapping):
        return f"one with {', '.join(map(repr, audio)) or 'nothing in it'}"
    return f"a tensor of shape {tuple(audio.shape)}" if isinstance(audio, (torch.Tensor, np.ndarray)) else f"of type {type(audio).__name__}"
