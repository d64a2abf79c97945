"""The denoising loop: latents of crops and audio tokens in, latents with the new mouth out, block by block.

All blocks start from one frame of noise, repeated over the frames, and a block's result depends on nothing but its own frames: the same
seed gives the same result however the work is cut between calls, back ends or nodes.
"""
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import mapped
from . import sampler as samplers
from .ahead import ahead
from .errors import EngineError, ShapeError
from .journal import Journal, name_of, runner_identity, vae_identity
from .mask import keep_mask, latent_keep_mask
from .profiles import EXACT, SAMPLER, STEPS, Evaluation, Plan, choose
from .progress import Progress, silent
from .runners import Runner, RunnerSpec
from .runners.manifest import CACHING
from .timeline import plan_blocks
from .vae import SCALE, encode

log = logging.getLogger(__name__)

BLOCK_FRAMES = 16  # the network was trained on runs of 16 frames
LATENT, MASK, MASKED, REFERENCE = slice(0, 4), slice(4, 5), slice(5, 9), slice(9, 13)  # channels of the network's sample
STAGE = "denoise"  # in progress reports
CHECK_SECONDS = 0.2  # how often a listener is asked in the middle of a step


class Block(NamedTuple):
    """n frames that the network sees at once: scaled latents [n,4,h,w] of masked crops and of crops, audio tokens [n,50,384]."""

    masked: Tensor
    reference: Tensor
    audio: Tensor


def base_noise(seed: int, height: int, width: int) -> Tensor:
    """The noise that every frame of a job starts from: float32 [4,height,width], the same on every machine."""
    return torch.randn(4, height, width, generator=torch.Generator().manual_seed(seed))


class Reporter:
    """Counts the steps of a job for a listener, and asks it in the middle of long ones whether to go on."""

    def __init__(self, progress: Progress = silent, total: int = 0):
        self.progress, self.done, self.total, self.last = progress, 0, total, 0.0
        self.report()

    def report(self) -> None:
        self.last = time.monotonic()
        self.progress(self.done, self.total, stage=STAGE)

    def step(self) -> None:
        self.done += 1
        self.report()

    def check(self) -> None:
        if time.monotonic() - self.last > CHECK_SECONDS:
            self.report()


class BlockDenoiser:
    """Denoises `lanes` blocks of up to `frames` frames at once, in buffers that last as long as it does.

    A step evaluates the network as the plan says, joins the halves of guidance where it has both, moves the latents and puts them into the
    network's input: all in place, and a captured graph for each kind of step where the runner can do that and `capture` asks for it.
    """

    def __init__(
        self,
        runner: Runner,
        plan: Plan,
        *,
        latent_keep: Tensor,
        noise: Tensor,
        frames: int = BLOCK_FRAMES,
        lanes: int | None = None,
        capture: bool = True,
    ):
        """latent_keep [h,w] and noise [4,h,w] hold for every block. `frames` must be the runner's number where it has one. lanes: see
        `Session`."""
        device, size, schedule = runner.spec.device, tuple(noise.shape[-2:]), plan.schedule
        self.plan, self.frames, self._device = plan, frames, device
        self.session = runner.open(schedule.timesteps, frames=frames, size=size, guided=plan.guided, lanes=lanes, cached=plan.cached)
        self.session.sample[:, :, MASK] = latent_keep.to(self.session.sample)
        self._start = noise.to(device, torch.float32)[:, None]
        self._latents = torch.zeros_like(self.session.sample[0, :, LATENT], dtype=torch.float32)  # [lanes,4,F,h,w]
        self._noise = [torch.zeros_like(self._latents) for _ in range(2 if self.session.guided else 1)]
        self._memory = torch.zeros_like(self._latents) if schedule.remembers else None
        self._table = schedule.table.to(device)
        self._row = self._table[:1].clone()
        self._index = torch.zeros(1, dtype=torch.int64, device=device)  # of the step, kept on the device so that a graph holds it too
        self._reporter = Reporter()
        self._pace = _Pace(device)
        steps = {evaluation: partial(self._advance, evaluation) for evaluation in plan.evaluations}
        self._steps = {evaluation: self.session.capture(step) if capture else step for evaluation, step in steps.items()}

    @torch.no_grad()
    def run(self, blocks: Sequence[Block], reporter: Reporter | None = None) -> list[Tensor]:
        """1 to `lanes` blocks of 1 to `frames` frames -> the scaled latents of each, float32 [n,4,h,w] on the runner's device.

        A block with fewer frames than the buffers repeats its last frame, and is cropped after. What the reporter raises stops the block;
        the next `run` starts afresh.
        """
        self._reporter = reporter or Reporter()
        for lane in range(self.session.lanes):
            self._fill(lane, blocks[min(lane, len(blocks) - 1)])
        self.session.listen()
        self._latents.copy_(self._start)
        self.session.sample[:, :, LATENT] = self._latents
        if self._memory is not None:
            self._memory.zero_()
        self._index.zero_()
        for evaluation in self.plan.evaluations:
            self._steps[evaluation]()
            self._pace.wait()
            self._reporter.step()
        return [self._latents[lane, :, : len(block.audio)].transpose(0, 1).clone() for lane, block in enumerate(blocks)]

    def close(self) -> None:
        """Give back what captured steps hold of the device's memory; it cannot run again. Forgetting it would do so some time later: steps and
        denoiser refer to each other."""
        if self._device.type == "cuda":
            with suppress(RuntimeError):  # of a GPU that is gone; the job has its error already
                torch.cuda.current_stream(self._device).synchronize()  # a job that was stopped may have steps queued
        self._steps.clear()

    def _fill(self, lane: int, block: Block) -> None:
        sample, count = self.session.sample[:, lane].movedim(2, 1), len(block.audio)  # [halves,F,13,h,w], and how many frames there are
        pairs = (sample[:, :, MASKED], block.masked), (sample[:, :, REFERENCE], block.reference), (self.session.audio[lane][None], block.audio)
        for target, source in pairs:
            target[:, :count].copy_(source, non_blocking=True)
            target[:, count:].copy_(target[:, count - 1 : count])

    def _advance(self, evaluation: Evaluation) -> None:
        noise = self.session.noise(self._index, self._reporter.check, guided=evaluation.guided, reuse=evaluation.reuse)
        for mine, theirs in zip(self._noise, noise, strict=False):
            mine.copy_(theirs)
        if evaluation.guided:
            self._noise[0].lerp_(self._noise[1], self.plan.guidance)
        torch.index_select(self._table, 0, self._index, out=self._row)
        samplers.apply(self._latents, self._noise[0], self._memory, self._row[0])
        self.session.sample[:, :, LATENT] = self._latents
        self._index.add_(1).remainder_(len(self.plan))


class _Pace:
    """Keeps at most two steps queued on a GPU: it never runs dry, and reports stay true to within a step."""

    def __init__(self, device: torch.device):
        self._device = device
        self._events = [torch.cuda.Event(blocking=True) for _ in range(2)] if device.type == "cuda" else []

    def wait(self) -> None:
        if self._events:
            self._events.reverse()
            self._events[0].record(torch.cuda.current_stream(self._device))
            self._events[1].synchronize()


def denoise(
    runner: Runner,
    masked_latents: Tensor,
    reference_latents: Tensor,
    audio: Tensor,
    latent_keep: Tensor,
    base_noise: Tensor,
    steps: int = STEPS,
    guidance: float = 1.5,
    sampler: str = SAMPLER,
    *,
    profile: str = EXACT,
    blocks: Sequence[np.ndarray] | None = None,
    progress: Progress = silent,
) -> Tensor:
    """Denoise N frames: latents [N,4,h,w] in, latents [N,4,h,w] out, float32 on the device of `masked_latents`, all scaled by 0.18215.

    masked_latents, reference_latents: of the crops with the redrawn part grey, and of the crops. audio: tokens [N,50,384].
    latent_keep [h,w]: 1 keeps, 0 redraws. base_noise [4,h,w]: what every frame starts from. guidance above 1 doubles the work.
    blocks: index arrays that together hold every frame once, each a run that the network sees at once; by default runs of 16 and a rest.
    profile, steps, sampler: see `profiles.choose`. progress hears of every step. Raises ShapeError, EngineError (a profile that the runner
    cannot do) or LatentSyncError (profile, steps, sampler) before any work.
    """
    count, size = len(audio), tuple(base_noise.shape[-2:])
    plan = _consecutive(count, runner.spec.frames or BLOCK_FRAMES) if blocks is None else [np.asarray(block) for block in blocks]
    _expect("base_noise", base_noise, (4, *size))
    _expect("latent_keep", latent_keep, size)
    _expect("audio", audio, (count, 50, 384))
    _expect("masked_latents", masked_latents, (count, 4, *size))
    _expect("reference_latents", reference_latents, (count, 4, *size))
    if not np.array_equal(np.sort(np.concatenate([*plan, []])), np.arange(count)):
        raise ShapeError(f"the blocks must hold each of the {count} frames exactly once.")

    out = torch.empty((count, 4, *size), device=masked_latents.device)
    job = _Job(runner, plan, latent_keep, base_noise, choose(profile, steps, sampler).plan(guidance), progress)
    with closing(job):
        for group in job.groups:
            frames = [plan[index] for index in group]
            made = job.run(group, [Block(masked_latents[block], reference_latents[block], audio[block]) for block in frames])
            for block, latents in zip(frames, made, strict=True):
                out[block] = latents.to(out.device)
    return out


def clip_blocks(runner: Runner, track, timeline) -> list[np.ndarray]:
    """The blocks that `denoise_clip` cuts a job into: arrays of positions into `timeline.redrawn(track.found)`, which hold each once."""
    return plan_blocks(timeline, track.found, track.run_ids, size=runner.spec.frames or BLOCK_FRAMES)


def denoise_clip(
    runner: Runner,
    vae,
    track,
    timeline,
    features,
    *,
    blocks: Sequence[int] | None = None,
    spool_folder: str | Path | None = None,
    **options,
) -> Tensor:
    """Redraw a face track to speech: UNSCALED latents float32 [M,4,r/8,r/8] on the CPU, one for each of `timeline.redrawn(track.found)`, or of
    the positions of `blocks`. See `denoised`, which has the `options` and makes them.

    spool_folder: where latents of a long clip are (98 MB a minute at 512 px, see `mapped`). Raises DiskSpaceError beside what `denoised` raises.
    """
    plan, side, done = clip_blocks(runner, track, timeline), track.resolution // 8, 0
    count = sum(len(plan[index]) for index in (range(len(plan)) if blocks is None else set(blocks)))
    out = mapped.zeros((count, 4, side, side), folder=spool_folder)
    for latents in denoised(runner, vae, track, timeline, features, blocks=blocks, **options):
        out[done : done + len(latents)] = latents
        done += len(latents)
        mapped.release(out)
    return out


@torch.no_grad()
def denoised(
    runner: Runner,
    vae,
    track,
    timeline,
    features,
    *,
    steps: int = STEPS,
    guidance: float = 1.5,
    seed: int = 0,
    sampler: str = SAMPLER,
    posterior: str = "mode",
    profile: str = EXACT,
    blocks: Sequence[int] | None = None,
    journal: Journal | None = None,
    progress: Progress = silent,
) -> Iterator[Tensor]:
    """The latents of a face track redrawn to speech, block by block in order: UNSCALED float32 [n,4,r/8,r/8] on the CPU.

    track: FaceTrack, timeline: Timeline, features: AudioFeatures, vae: see `vae.py`. A block never spans a gap, a cut or a jump in time;
    the crops and tokens of the next one are read while the network runs. posterior "sample" draws in the reference's order: the base
    noise, then for each block the masked crops' noise and the crops', all from `seed`.
    blocks: only those of `clip_blocks`, by number, in order. Parts put together are the whole, to the bit.
    journal: finished blocks are kept there, and those that are there already are not made again. Raises what `denoise` and `encode` raise.
    """
    redrawn, side = timeline.redrawn(track.found), track.resolution // 8
    device = runner.spec.device
    keep = torch.from_numpy(keep_mask(track.resolution)).to(device)[..., None]
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(4, side, side, generator=generator)  # = base_noise(seed, side, side)
    plan = clip_blocks(runner, track, timeline)
    wanted = sorted(set(range(len(plan)) if blocks is None else blocks))
    latent_keep = torch.from_numpy(latent_keep_mask(track.resolution))
    recipe = choose(profile, steps, sampler).plan(guidance)
    if steps not in (STEPS, len(recipe)):
        log.warning("%d steps are not taken: profile %s has %d of its own; %s takes as many as you say", steps, profile, len(recipe), EXACT)
    job = _Job(runner, plan, latent_keep, noise, recipe, progress, only=wanted)
    if runner.model is not None and (unfit := runner.model.resolution_warning(track.resolution)):
        log.warning("%s", unfit)
    settings = _settings(runner, vae, *recipe.settings, seed, posterior) if journal else None

    def gather(group: list[int]) -> tuple[list, list, str | None]:
        """Crops and tokens of a group's blocks, and the name that their result is filed under."""
        frames = [redrawn[plan[index]] for index in group]
        crops = [track.crops.read(track.crop_row[timeline.source[block]]) for block in frames]
        tokens = [_tokens(features, timeline, block) for block in frames]
        if settings is None:
            return crops, tokens, None
        drawn = sum(len(block) for block in plan[: group[0]]) if posterior == "sample" else 0
        return crops, tokens, name_of(*settings, job.frames(group), drawn, *crops, *tokens)

    drawn = 0  # blocks whose posterior noise was drawn

    def encoded(index: int, pixels: np.ndarray) -> Iterator[Tensor]:
        nonlocal drawn
        for block in plan[drawn:index] if posterior == "sample" else ():
            torch.randn(2 * len(block), 4, side, side, generator=generator)
        drawn = index + 1
        crops = torch.from_numpy(pixels).to(device).float() / 255
        images = torch.cat([(crops - 0.5) * keep + 0.5, crops])  # what is redrawn is mid-grey
        latents = []
        for piece in images.split(1 if device.type == "cpu" else len(images)):  # on a CPU one crop takes long enough
            job.reporter.check()
            latents.append(encode(vae, piece, posterior=posterior, generator=generator))
        return torch.cat(latents).chunk(2)

    resumed, chosen = 0, set(wanted)
    with closing(job), ahead(map(gather, job.groups), depth=1) as gathered:
        for group, (crops, tokens, name) in zip(job.groups, gathered, strict=True):
            made = journal.read(name, len(group)) if name else None
            if made is None:
                sources = zip(group, crops, tokens, strict=True)
                made = job.run(group, [Block(*encoded(index, pixels), heard) for index, pixels, heard in sources])
                made = [latents.cpu() for latents in made]
                if name:
                    journal.write(name, made)
            else:
                resumed += len(group)
                job.skip()
            yield from (latents / SCALE for index, latents in zip(group, made, strict=True) if index in chosen)
    if resumed:
        log.info("%d of %d blocks were there from an earlier run", resumed, len(wanted))


def _tokens(features, timeline, frames: np.ndarray) -> Tensor:
    tokens = features.tokens(frames, timeline.rate)
    if timeline.heard is None:
        return tokens
    heard = torch.from_numpy(timeline.heard[frames])[:, None, None]
    return features.silent_tokens(frames, timeline.rate).lerp(tokens, heard)


def _settings(runner: Runner, vae, *settings) -> tuple | None:
    """What a block's latents depend on beside its crops and tokens; None when that cannot be told."""
    identities = runner_identity(runner), vae_identity(vae)
    if None in identities:
        log.debug("the job is not journaled: the weights of the %s are unknown", "VAE" if identities[0] else "network")
        return None
    return (*identities, *settings)


class _Job:
    """All blocks of a clip, with the denoisers they need. Refuses on construction what the runner cannot take."""

    def __init__(self, runner: Runner, plan: Sequence[np.ndarray], latent_keep: Tensor, noise: Tensor, recipe: Plan, progress: Progress, only=None):
        """plan: of the blocks. recipe: of the steps. only: the blocks of the plan to run. How blocks are grouped, and which steps are captured,
        is the same whatever is left out."""
        self.runner, self.recipe, self.plan = runner, recipe, plan
        self.constants = {"latent_keep": latent_keep, "noise": noise}
        expect_profile(runner, recipe)
        for frames in {len(block) for block in plan}:
            runner.spec.expect(frames, tuple(noise.shape[-2:]))
        log.info("profile %s", recipe.profile.text)
        groups = _groups(plan, runner.spec, guided=recipe.always_guided)
        self.uses = Counter(map(self._kind, groups))
        chosen = set(range(len(plan)) if only is None else only)
        self.groups = [group for group in groups if chosen & set(group)]
        self.reporter = Reporter(progress, len(self.groups) * len(recipe))
        self._lasting: dict[tuple[int, int | None], BlockDenoiser] = {}  # those whose step was captured: one long block is not worth it

    @torch.no_grad()
    def run(self, group: list[int], blocks: list[Block]) -> list[Tensor]:
        """The latents of each block of one of `groups`, scaled."""
        kind = frames, lanes = self._kind(group)
        denoiser = self._lasting.get(kind)
        if denoiser is None:
            capture = self.uses[kind] > 1 or frames <= BLOCK_FRAMES // 2  # so few keep a GPU waiting for the next kernel's launch
            denoiser = BlockDenoiser(self.runner, self.recipe, **self.constants, frames=frames, lanes=lanes, capture=capture)
            if capture:
                self._lasting[kind] = denoiser
        made = denoiser.run(blocks, self.reporter)
        if kind not in self._lasting:
            denoiser.close()
        return made

    def close(self) -> None:
        """Give back what the captured steps hold of the device's memory."""
        for denoiser in self._lasting.values():
            denoiser.close()

    def skip(self) -> None:
        """A group's latents are there already."""
        self.reporter.done += len(self.recipe)
        self.reporter.report()

    def frames(self, group: list[int]) -> int:
        return self.runner.spec.frames or len(self.plan[group[0]])

    def _kind(self, group: list[int]) -> tuple[int, int | None]:
        """Frames and lanes of a group's denoiser. Without guidance, lanes are what fills the runner's batch."""
        return self.frames(group), len(group) if self.recipe.guided else None


def expect_profile(runner: Runner, plan: Plan) -> None:
    """Raises EngineError for a plan that the runner cannot do. Loads nothing."""
    if plan.cached and not runner.caches:
        raise EngineError(
            f"the profile {plan.profile.name} reuses the network's deep features from step to step, which this engine keeps to itself. {CACHING} "
            "PyTorch can do it too (back end 'torch')."
        )


def _groups(plan: Sequence[np.ndarray], spec: RunnerSpec, guided: bool) -> list[list[int]]:
    """The plan's blocks by evaluation: as many as the runner takes at once, of one length where it does not pad them.

    guided: whether all steps are; else the batch holds two blocks, and steps with guidance take it in two evaluations.
    """
    groups, first = [], 0
    while first < len(plan):
        last = min(len(plan), first + spec.lanes(guided))
        if not spec.frames:
            last = next((index for index in range(first, last) if len(plan[index]) != len(plan[first])), last)
        groups.append(list(range(first, last)))
        first = last
    return groups


def _consecutive(count: int, size: int) -> list[np.ndarray]:
    return [np.arange(start, min(start + size, count)) for start in range(0, count, size)]


def _expect(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ShapeError(f"{name} must be {list(shape)} here, not {list(tensor.shape)}.")
