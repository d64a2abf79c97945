# ruff: noqa: E501, E731 -- kept line for line as it made the reference tensors
"""Seeded inputs and weights of the reference tensors: everything that need not be stored.

All tensors are float32 on the CPU, drawn from `torch.Generator` (or NumPy's PCG64 where said), so any machine rebuilds them bit for bit.
"""
import numpy as np
import torch

TINY = dict(block_out_channels=(32, 32, 64, 64))  # sample size 16; everything else as in the full model
UNET_CASES = {"cfg16": (2, 16, 16, 500), "single5": (1, 5, 16, 981), "wide24": (1, 24, 8, 1)}  # batch, frames, latent size, timestep
DENOISE_CASES = ((20, 1.5), (8, 1.5), (4, 1.0))  # DDIM steps, guidance
FRAMES = 37  # two blocks of 16 and a tail of 5


def seeded_parameters(named_parameters, seed):
    """Values for (name, parameter) pairs, in sorted name order: matrices ~ N(0, 0.7/sqrt(fan-in)), `*weight` vectors ~ 1 + 0.1 N, other vectors ~ 0.1 N. Buffers are left alone."""
    generator, values = torch.Generator().manual_seed(seed), {}
    for name, parameter in sorted(named_parameters):
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            values[name] = noise * (0.7 / parameter[0].numel() ** 0.5)
        else:
            values[name] = 1 + 0.1 * noise if name.endswith("weight") else 0.1 * noise
    return values


def unet_inputs(seed):
    """{case: (sample [B,13,F,h,h], timestep [1], audio [B,F,50,384])}; in a batch of two the first half's audio is zero."""
    generator, cases = torch.Generator().manual_seed(seed + 1), {}
    for case, (batch, frames, size, timestep) in UNET_CASES.items():
        sample = torch.randn(batch, 13, frames, size, size, generator=generator)
        audio = torch.randn(batch, frames, 50, 384, generator=generator)
        if batch == 2:
            audio[0] = 0
        cases[case] = sample, torch.tensor([timestep]), audio
    return cases


def picture(seed):
    """A smooth colour picture, uint8 [240, 320, 3]."""
    phase = np.random.default_rng(seed).uniform(0, 6, 3)
    y, x = np.mgrid[0:240, 0:320]
    return np.stack([127 + 100 * np.sin(x / 17 + p) * np.cos(y / 23 - p) for p in phase], -1).clip(0, 255).astype(np.uint8)


def landmarks(seed, count=12):
    """Three whole-pixel points a frame (left brow, right brow, nose), float64 [count, 3, 2] as (x, y)."""
    rng = np.random.default_rng(seed + 2)
    base = np.array([[130.0, 95.0], [192.0, 92.0], [163.0, 145.0]])
    return np.stack([np.round(base + rng.normal(0, 2.0, (3, 2)) + i * np.array([1.5, -0.7])) for i in range(count)])


def generated_crop(seed, resolution):
    """A smooth stand-in for a decoded crop, float32 [3, r, r] in [-1, 1]."""
    small = torch.rand(3, resolution // 16, resolution // 16, generator=torch.Generator().manual_seed(seed + 3)) * 2 - 1
    return torch.nn.functional.interpolate(small[None], size=(resolution, resolution), mode="bilinear", align_corners=False)[0]


def waveform(seed, seconds=3.37):
    """A warbling chirp with noise, float32, 16 kHz."""
    count = int(16000 * seconds)
    t = np.arange(count) / 16000
    noise = np.random.default_rng(seed + 4).normal(0, 0.01, count)
    return torch.from_numpy((0.4 * np.sin(2 * np.pi * (180 + 400 * t) * t) * (0.5 + 0.5 * np.sin(2 * np.pi * 3 * t)) + noise).astype(np.float32))


WHISPER = dict(n_mels=80, n_ctx=1500, n_state=64, n_head=4, n_layer=2)  # weights: seeded_parameters(..., seed + 5)


def denoise_inputs(seed):
    """Latents in place of VAE output: dict of base_noise [4,16,16], masked and reference latents [N,4,16,16], audio [N,50,384], keep [16,16]."""
    generator = torch.Generator().manual_seed(seed + 6)
    draw = lambda *shape: torch.randn(*shape, generator=generator)
    inputs = {"base_noise": draw(4, 16, 16), "masked_latents": draw(FRAMES, 4, 16, 16), "reference_latents": draw(FRAMES, 4, 16, 16), "audio": draw(FRAMES, 50, 384)}
    inputs["latent_keep"] = (torch.rand(16, 16, generator=generator) > 0.5).float()
    return inputs
