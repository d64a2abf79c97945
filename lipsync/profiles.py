"""Profiles: how much of the reference's arithmetic a job does. One is exact; the others cost less, give other pictures, and say so.

A profile says what is asked of the network at each step (a `Plan`), and the denoising loop does that. docs/profiles.md has what each costs
and how far its results are from the exact ones.
"""
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from .errors import LatentSyncError
from .sampler import TRAIN_STEPS, Schedule, schedule

EXACT, STEPS, SAMPLER = "exact20", 20, "ddim"  # the reference's


class Evaluation(NamedTuple):
    """What one step asks of the network. guided: both halves of guidance, else only the one with audio. reuse: take the deep features that
    the last step without `reuse` left, see `LatentSyncUNet.evaluate`."""

    guided: bool
    reuse: bool = False


@dataclass(frozen=True)
class Plan:
    """A profile at one guidance. evaluations: one for each step of the schedule; the first never reuses, so nothing goes from block to block."""

    profile: "Profile"
    schedule: Schedule
    guidance: float
    evaluations: tuple[Evaluation, ...]

    def __len__(self) -> int:
        return len(self.schedule)

    @property
    def guided(self) -> bool:
        """Whether any step is."""
        return any(evaluation.guided for evaluation in self.evaluations)

    @property
    def always_guided(self) -> bool:
        return all(evaluation.guided for evaluation in self.evaluations)

    @property
    def cached(self) -> bool:
        """Whether any step reuses deep features."""
        return any(evaluation.reuse for evaluation in self.evaluations)

    @property
    def settings(self) -> tuple[float | str | Tensor, ...]:
        """All that a result depends on here: what a finished block is filed under (see `journal`)."""
        return self.schedule.timesteps, self.schedule.table, self.guidance, "".join(f"{2 * guided + reuse}" for guided, reuse in self.evaluations)


@dataclass(frozen=True)
class Profile:
    """name: as it is chosen; those that are not exact begin with "approx". label: what is different, for people.

    guided: the timesteps low <= t < high at which guidance is on, where the job has any. renew: the network's deep levels are evaluated at
    every `renew`-th step, and what they gave is reused at those between.
    """

    name: str
    label: str
    approximate: bool = True
    sampler: str = SAMPLER
    steps: int = STEPS
    guided: tuple[int, int] = (0, TRAIN_STEPS)
    renew: int = 1

    @property
    def text(self) -> str:
        """For logs and summaries: 'approx8 (approximate: 8 steps instead of 20)'."""
        return f"{self.name} ({'approximate: ' * self.approximate}{self.label})"

    def plan(self, guidance: float) -> Plan:
        """guidance: 1 or less is none. Raises LatentSyncError for steps that are not possible."""
        table, evaluations, age = schedule(self.sampler, self.steps), [], 0
        for timestep in table.timesteps.tolist():
            guided = guidance > 1 and self.guided[0] <= timestep < self.guided[1]
            reuse = bool(evaluations) and age + 1 < self.renew and evaluations[-1].guided == guided  # the other half's are not there
            age = age + 1 if reuse else 0
            evaluations.append(Evaluation(guided, reuse))
        return Plan(self, table, float(guidance), tuple(evaluations))


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(EXACT, "the reference's arithmetic", approximate=False),
        Profile("approx12", "12 steps instead of 20", steps=12),
        Profile("approx8", "8 steps instead of 20", steps=8),
        Profile("approx4", "4 steps instead of 20", steps=4),
        Profile("approx-dpm10", "10 steps of DPM-Solver++ 2M instead of 20 of DDIM", sampler="dpm++2m", steps=10),
        # What is asked with and without audio grows alike as the picture forms: late steps lose little (Castillo et al. 2023, "Adaptive guidance").
        Profile("approx-guidance", "guidance in the first half of the steps only", guided=(500, TRAIN_STEPS)),
        # DeepCache's authors found reuse over up to some 100 training timesteps harmless in Stable Diffusion; a step of 20 is 50.
        Profile("approx-cache2", "the deep levels at every second step only", renew=2),
        Profile("approx-cache3", "the deep levels at every third step only", renew=3),
    )
}


def choose(name: str = EXACT, steps: int = STEPS, sampler: str = SAMPLER) -> Profile:
    """The profile called `name`. Only `exact20` listens to `steps` and `sampler`, for the sake of jobs that were saved before there were
    profiles: with others than the reference's it is as approximate as they are, and is called so. Raises LatentSyncError for an unknown name.
    """
    if name not in PROFILES:
        raise LatentSyncError(f"there is no profile {name!r}: choose one of {', '.join(PROFILES)}.")
    profile = PROFILES[name]
    if name != EXACT or (steps, sampler) == (profile.steps, profile.sampler):
        return profile
    kind = "" if sampler == SAMPLER else f" of {sampler}"
    return Profile(f"approx{steps}{kind.replace(' of ', '-')}", f"{steps} steps{kind} instead of {STEPS}", sampler=sampler, steps=steps)
