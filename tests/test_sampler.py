"""The schedules against diffusers' schedulers, and what is refused."""
import dataclasses

import pytest
import torch
from latentsync_rtx.lipsync import sampler
from latentsync_rtx.lipsync.errors import LatentSyncError


def walk(schedule, latents, model):
    """Run a schedule as the denoising loop does."""
    latents = latents.clone()
    memory = torch.zeros_like(latents) if schedule.remembers else None
    for timestep, row in zip(schedule.timesteps, schedule.table, strict=True):
        sampler.apply(latents, model(latents, timestep), memory, row)
    return latents


def model(latents, timestep):
    """A stand-in network: smooth in both arguments, near the noise at high timesteps."""
    return torch.tanh(latents * (0.5 + timestep / 1000)) + 0.1 * torch.sin(timestep / 50.0)


@pytest.mark.parametrize("steps", [1, 3, 4, 8, 12, 20, 50, 999])
def test_ddim_equals_diffusers(steps):
    diffusers = pytest.importorskip("diffusers")
    reference = diffusers.DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False, steps_offset=1
    )
    reference.set_timesteps(steps)
    schedule = sampler.schedule("ddim", steps)
    assert schedule.timesteps.tolist() == reference.timesteps.tolist()

    start = torch.randn(2, 4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = start.clone()
    for timestep in reference.timesteps:
        expected = reference.step(model(expected, timestep), timestep, expected, eta=0.0).prev_sample
    torch.testing.assert_close(walk(schedule, start, model), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 14, 15, 20, 951])
def test_dpm_solver_equals_diffusers(steps):
    """As diffusers makes it from the scheduler that the reference has, from the timestep that the reference begins at."""
    diffusers = pytest.importorskip("diffusers")
    theirs = diffusers.DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False, steps_offset=1
    )
    reference = diffusers.DPMSolverMultistepScheduler.from_config(theirs.config, algorithm_type="dpmsolver++", final_sigmas_type="sigma_min")
    assert reference.config.solver_order == 2
    schedule = sampler.schedule("dpm++2m", steps)
    reference.set_timesteps(timesteps=schedule.timesteps.tolist())
    assert schedule.timesteps[0] == sampler.schedule("ddim", 20).timesteps[0]

    start = torch.randn(2, 4, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = start.clone()
    for timestep in reference.timesteps:
        expected = reference.step(model(expected, timestep), timestep, expected).prev_sample
    result = walk(dataclasses.replace(schedule, table=schedule.table.double()), start, model)
    assert ((result - expected).norm() / expected.norm()).item() < 1e-5


def test_ten_steps_of_dpm_solver_come_nearer_to_the_reference_than_twelve_of_ddim():
    """What it is for. Pictures spread around one of them, of which the best answer at every noise is known."""

    def answer(latents, timestep):
        left = alphas[timestep]
        return (latents - left.sqrt() * picture) * (1 - left).sqrt() / (1 - left * (1 - 0.5**2))

    alphas = torch.from_numpy(sampler.alphas()).float()
    picture, start = torch.randn(2, 500, generator=torch.Generator().manual_seed(1))
    exact = walk(sampler.schedule("ddim", 20), start, answer)
    ten, twelve = (walk(sampler.schedule(*which), start, answer) - exact for which in (("dpm++2m", 10), ("ddim", 12)))
    assert ten.norm() < twelve.norm()


def test_a_remembering_schedule_uses_the_state_before_the_update():
    row = torch.tensor([2.0, 3.0, 5.0, 7.0, 11.0])
    latents, memory = torch.tensor([1.0]), torch.tensor([10.0])
    sampler.apply(latents, torch.tensor([0.5]), memory, row)
    assert latents.item() == 2 * 1 + 3 * 0.5 + 5 * 10
    assert memory.item() == 7 * 1 + 11 * 0.5


@pytest.mark.parametrize(
    ("name", "steps", "says"),
    [("euler", 20, "ddim"), ("ddim", 0, "0 denoising steps"), ("ddim", 1000, "1 to 999"), ("dpm++2m", 952, "1 to 951")],
)
def test_unknown_samplers_and_impossible_step_counts_are_refused(name, steps, says):
    with pytest.raises(LatentSyncError, match=says):
        sampler.schedule(name, steps)
