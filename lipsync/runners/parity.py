"""Does an engine compute what the network computes? The same seeded inputs through both; the answer is kept with the engine.

Wrong numbers happen: there are public reports of fused attention that is silently wrong on some cards, and of outputs of zeros on others.
"""
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from .base import Runner, RunnerSpec
from .manifest import DEEP, MIN_COSINE, SHALLOW, WHOLE

SEED = 20
LARGE = 1e30  # for JSON, which has no infinity
TIMESTEPS = (801, 201)  # a noisy and a nearly clean picture


def probes(spec: RunnerSpec, deep: tuple[int, ...] | None = None) -> Iterator[tuple[Tensor, ...]]:
    """Inputs of `predict` for a runner with fixed sizes, the same on every machine; with deep features of the shape `deep`, if given."""
    generator = torch.Generator().manual_seed(SEED)
    for timestep in TIMESTEPS:
        sample = torch.randn(spec.batch, 13, spec.frames, *spec.size, generator=generator)
        sample[:, 4] = (sample[:, 4] > 0).float()  # the mask
        audio = torch.randn(spec.batch, spec.frames, 50, 384, generator=generator)
        audio[: spec.batch - 1] = 0  # the half without audio
        tensors = [sample.to(spec.dtype), torch.tensor([timestep]), audio.to(spec.dtype)]
        if deep:
            tensors.append(torch.randn(deep, generator=generator).to(spec.dtype))
        yield tuple(tensor.to(spec.device) for tensor in tensors)


@torch.inference_mode()
def answers(runner: Runner, spec: RunnerSpec, role: str = WHOLE, deep: tuple[int, ...] | None = None) -> list[Tensor]:
    """What `runner` says to the probes of `spec`, float32 on the CPU: as an engine of this role would, with deep features of the shape `deep`."""
    if role == WHOLE:
        return [_kept(runner.predict(*inputs)) for inputs in probes(spec)]
    found = []
    for *inputs, given in probes(spec, deep):
        features = given.to(runner.spec.dtype)
        found.append(_kept(runner.predict(*inputs, deep=features, reuse=role == SHALLOW)))
        if role == DEEP:
            found.append(_kept(features))  # what was left there
    return found


def _kept(tensor: Tensor) -> Tensor:
    return tensor.float().cpu().clone()


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
