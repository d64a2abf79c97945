"""Mel-frequency cepstra as SyncNet hears them: those of the package python_speech_features with its defaults."""
import numpy as np

RATE = 16000  # Hz
LENGTH, HOP, N_FFT = 400, 160, 512  # samples: 25 ms, 10 ms
FILTERS, KEPT = 26, 13
EMPHASIS, LIFTER = 0.97, 22
CHUNK = 6000  # frames at once: a minute
SMALLEST = np.finfo(float).eps


def mfcc(samples: np.ndarray) -> np.ndarray:
    """16 kHz mono at the scale of 16 bit integers [n] -> float32 [frames, 13], a hundred a second; the first is the log of the energy.

    Pre-emphasis of 0.97, rectangular windows (the last one filled up with zeros), power spectrum over 512, 26 triangles up to 8 kHz, log,
    DCT II (orthonormal), lifter of 22.
    """
    from scipy.fft import dct  # here: importing scipy changes the warning filters

    samples = np.asarray(samples, np.float64)
    emphasised = np.append(samples[:1], samples[1:] - EMPHASIS * samples[:-1])
    count = 1 + max(0, -(-(len(samples) - LENGTH) // HOP))
    padded = np.pad(emphasised, (0, max(0, (count - 1) * HOP + LENGTH - len(samples))))
    windows = np.lib.stride_tricks.sliding_window_view(padded, LENGTH)[::HOP]
    filters = triangles()
    lift = 1 + LIFTER / 2 * np.sin(np.pi * np.arange(KEPT) / LIFTER)
    out = np.empty((count, KEPT), np.float32)
    for start in range(0, count, CHUNK):
        power = np.abs(np.fft.rfft(windows[start : start + CHUNK], N_FFT)) ** 2 / N_FFT
        heard = np.log(np.maximum(power @ filters.T, SMALLEST))
        part = dct(heard, type=2, axis=1, norm="ortho")[:, :KEPT] * lift
        part[:, 0] = np.log(np.maximum(power.sum(1), SMALLEST))
        out[start : start + CHUNK] = part
    return out


def triangles() -> np.ndarray:
    """[26, 257]: evenly spaced on the mel scale (2595 log10(1 + f/700)), corners on whole bins of the spectrum."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, FILTERS + 2) / 2595) - 1)
    corners = np.floor((N_FFT + 1) * edges / RATE)
    bins = np.arange(N_FFT // 2 + 1)
    low, middle, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    rising, falling = (bins - low) / (middle - low), (high - bins) / (high - middle)
    return np.where((bins >= low) & (bins < middle), rising, np.where((bins >= middle) & (bins < high), falling, 0))
