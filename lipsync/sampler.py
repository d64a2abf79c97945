"""Samplers as tables: which timesteps the network is asked at, and what its answer does to the latents.

Every step of the samplers here is linear in the latents x, the predicted noise e and one remembered tensor m, with factors known
beforehand:

    remembered = keep_x * x + keep_e * e        (before the update; only where the sampler remembers)
    x          = from_x * x + from_e * e + from_m * m

so a sampler has no state of its own: the caller holds x and m, and starts every block afresh.
"""
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .errors import LatentSyncError

TRAIN_STEPS = 1000
BETA_START, BETA_END = 0.00085, 0.012  # scaled linear: the square root of beta grows linearly (Stable Diffusion 1.5, LatentSync)
STEPS_OFFSET = 1
FIRST = 951  # timestep of the reference's 20 steps


@dataclass(frozen=True)
class Schedule:
    """One sampler at one number of steps.

    timesteps: int64 [S] on the CPU, falling, 0..999: what the network is told at each step.
    table: float32 [S,5] on the CPU: from_x, from_e, from_m, keep_x, keep_e of each step.
    remembers: whether from_m and the keep factors are used at all.
    """

    timesteps: Tensor
    table: Tensor
    remembers: bool = False

    def __len__(self) -> int:
        return len(self.timesteps)


def apply(latents: Tensor, noise: Tensor, memory: Tensor | None, row: Tensor) -> None:
    """One step, in place: float32 `latents`, and `memory` (None for a schedule that does not remember). `row` [5] is of `Schedule.table`,
    on the latents' device, and stays there: nothing waits for the device."""
    from_x, from_e, from_m, keep_x, keep_e = row.unbind()
    if memory is None:
        latents.mul_(from_x).addcmul_(noise, from_e)
        return
    remembered = torch.addcmul(latents * keep_x, noise, keep_e)
    latents.mul_(from_x).addcmul_(noise, from_e).addcmul_(memory, from_m)
    memory.copy_(remembered)


def alphas() -> np.ndarray:
    """float64 [1000]: how much of the clean signal's variance is left at each training timestep (the running product of 1 - beta)."""
    return np.cumprod(1 - np.linspace(BETA_START**0.5, BETA_END**0.5, TRAIN_STEPS) ** 2)


def ddim(steps: int) -> Schedule:
    """Song et al. 2020 with eta 0, "leading" spacing, as the reference runs it. The last step ends at timestep 0, not at a clean picture
    (`set_alpha_to_one=False`)."""
    stride = TRAIN_STEPS // steps
    timesteps = np.arange(steps)[::-1] * stride + STEPS_OFFSET
    kept = alphas()
    now, after = kept[timesteps], kept[np.maximum(timesteps - stride, 0)]
    table = np.zeros((steps, 5))
    table[:, 0] = np.sqrt(after / now)
    table[:, 1] = np.sqrt(1 - after) - np.sqrt(after * (1 - now) / now)
    return Schedule(torch.from_numpy(timesteps.copy()), torch.from_numpy(table).float())


def dpm_solver(steps: int) -> Schedule:
    """DPM-Solver++ 2M (Lu et al. 2022, algorithm 2): what is remembered is the last step's clean picture, (x - sigma e) / alpha.

    As diffusers' `DPMSolverMultistepScheduler.from_config` of the reference's scheduler, with `final_sigmas_type="sigma_min"`, at timesteps
    spread from the reference's first one to 0, where it ends too: the same noise is then the same beginning, and ten steps come thirteen
    times nearer to the reference's twenty than from diffusers' own first timestep, 999 (docs/profiles.md). The first step has nothing to
    remember, and the last of fewer than 15 is of first order too, for stability.
    """
    if steps > FIRST:
        raise LatentSyncError(f"{steps} steps of DPM-Solver++ are not possible: choose 1 to {FIRST}, 10 is usual.")
    timesteps = np.linspace(0, FIRST, steps + 1).round().astype(np.int64)[:0:-1]
    kept = alphas()[np.append(timesteps, 0)]
    alpha, sigma = np.sqrt(kept), np.sqrt(1 - kept)
    width = np.diff(np.log(alpha / sigma))  # of the steps, in half the logarithm of signal to noise: h
    table = np.zeros((steps, 5))
    for i in range(steps):
        gain = -alpha[i + 1] * np.expm1(-width[i])  # of the clean picture
        first_order = i == 0 or (i == steps - 1 and steps < 15)
        back = 0.0 if first_order else gain * width[i] / width[i - 1] / 2  # of how much it differs from the one before
        table[i] = _from_clean(sigma[i + 1] / sigma[i], gain + back, -back, alpha[i], sigma[i])
    return Schedule(torch.from_numpy(timesteps.copy()), torch.from_numpy(table).float(), remembers=True)


def _from_clean(from_x: float, from_clean: float, from_memory: float, alpha: float, sigma: float) -> tuple[float, ...]:
    """A row for x' = from_x x + from_clean c + from_memory m, where c = (x - sigma e) / alpha is what is remembered."""
    return from_x + from_clean / alpha, -from_clean * sigma / alpha, from_memory, 1 / alpha, -sigma / alpha


SAMPLERS: dict[str, Callable[[int], Schedule]] = {"ddim": ddim, "dpm++2m": dpm_solver}


def schedule(sampler: str, steps: int) -> Schedule:
    """The schedule of a sampler of `SAMPLERS`. Raises LatentSyncError for another name, or steps outside 1..999."""
    if sampler not in SAMPLERS:
        raise LatentSyncError(f"there is no sampler {sampler!r}: choose one of {', '.join(SAMPLERS)}.")
    if not 1 <= steps < TRAIN_STEPS:
        raise LatentSyncError(f"{steps} denoising steps are not possible: choose 1 to {TRAIN_STEPS - 1}, 20 is usual.")
    return SAMPLERS[sampler](int(steps))
