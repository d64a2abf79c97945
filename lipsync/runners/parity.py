"""Does an engine compute what the network computes? The same seeded inputs through both; the answer is kept with the engine.

Wrong numbers happen: there are public reports of fused attention that is silently wrong on some cards, and of outputs of zeros on others.
"""
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from .base import Runner, RunnerSpec
from .manifest import MIN_COSINE

SEED = 20
LARGE = 1e30  # for JSON, which has no infinity
TIMESTEPS = (801, 201)  # a noisy and a nearly clean picture


def probes(spec: RunnerSpec) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Inputs of `predict` for a runner with fixed sizes, the same on every machine."""
    generator = torch.Generator().manual_seed(SEED)
    for timestep in TIMESTEPS:
        sample = torch.randn(spec.batch, 13, spec.frames, *spec.size, generator=generator)
        sample[:, 4] = (sample[:, 4] > 0).float()  # the mask
        audio = torch.randn(spec.batch, spec.frames, 50, 384, generator=generator)
        audio[: spec.batch - 1] = 0  # the half without audio
        tensors = (sample.to(spec.dtype), torch.tensor([timestep]), audio.to(spec.dtype))
        yield tuple(tensor.to(spec.device) for tensor in tensors)


@torch.inference_mode()
def answers(runner: Runner, spec: RunnerSpec) -> list[Tensor]:
    """What `runner` says to the probes of `spec`: float32 on the CPU."""
    return [runner.predict(*inputs).float().cpu().clone() for inputs in probes(spec)]


def compare(found: list[Tensor], expected: list[Tensor]) -> dict:
    """The verdict: {passed, cosine (the worst), largest_error}. Infinities, NaN and all zeros make the cosine 0."""
    cosine, largest = 1.0, 0.0
    for one, other in zip(found, expected, strict=True):
        error = (one - other).abs().max().item()
        flat, reference = one.flatten().double(), other.flatten().double()
        near = torch.dot(flat, reference) / (flat.norm() * reference.norm())
        cosine = min(cosine, near.item()) if torch.isfinite(near) else 0.0
        largest = max(largest, error) if math.isfinite(error) else LARGE
    return {"passed": cosine >= MIN_COSINE, "cosine": round(cosine, 8), "largest_error": largest}
