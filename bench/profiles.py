"""What each profile costs, and how far its results are from the exact ones: of one block in time, of a clip in pictures."""
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from ..lipsync import denoise
from ..lipsync.checkpoint import Uninitialised
from ..lipsync.mask import keep_mask
from ..lipsync.profiles import EXACT, PROFILES, Evaluation, Plan
from ..lipsync.progress import silent
from ..lipsync.runners import TorchRunner
from ..lipsync.unet import LatentSyncUNet, UNetConfig
from . import networks
from .measure import Row, apart, milliseconds

GUIDANCE = 1.5
PEAK = 255.0  # of a picture
CHUNK = 16  # crops compared at a time


def rows(setup) -> Iterator[Row]:
    """Each profile on one block, the network's weights random: their times are the real ones, their drift says only that something changed."""
    runner = TorchRunner(networks.unet(setup.device, setup.dtype, setup.config), setup.device, setup.dtype)
    side, frames = setup.size, setup.frames
    generator = torch.Generator().manual_seed(0)
    keep, noise = (torch.rand(side, side, generator=generator) > 0.5).float(), torch.randn(4, side, side, generator=generator)
    latents, audio = torch.randn(2, frames, 4, side, side, generator=generator), torch.randn(frames, 50, 384, generator=generator)
    block, exact = denoise.Block(*latents.to(setup.device), audio), None
    work = costs(setup.config, frames, side)
    for profile in PROFILES.values():
        plan = profile.plan(GUIDANCE)
        denoiser = denoise.BlockDenoiser(runner, plan, latent_keep=keep, noise=noise, frames=frames)
        result = denoiser.run([block])[0]
        exact = result if exact is None else exact
        taken = milliseconds(lambda denoiser=denoiser: denoiser.run([block]), setup.device, 0.1)
        denoiser.close()
        yield Row(f"block, {profile.name}", taken, "ms", note=profile.label)
        yield Row(f"block, {profile.name}: work in guided steps", cost(plan, work), "", note="computed")
        if profile.approximate:
            yield Row(f"block, {profile.name}: 1 - cosine to {EXACT}", apart(result, exact), "", note="approximate; random weights")
    runner.unload()


def costs(config: UNetConfig, frames: int = 16, side: int = 64) -> dict[Evaluation, float]:
    """Floating-point operations of each kind of step for latents of side x side, relative to those of a whole guided one."""
    with torch.device("meta"), Uninitialised():
        network = LatentSyncUNet(config).to("meta")
        sample, audio = torch.empty(1, config.in_channels, frames, side, side), torch.empty(1, frames, config.audio_tokens, config.audio_width)
        index = torch.zeros(1)
    counted = {}
    with torch.no_grad():
        for guided in (True, False):
            shifts, heard = network.embed(index), network.listen(audio, silent=int(guided))
            deep = network.deep_features(1 + guided, frames, (side, side), dtype=sample.dtype, device=sample.device)
            for reuse in (False, True):
                with FlopCounterMode(display=False) as counter:
                    network.evaluate(sample, shifts, heard, deep=deep, reuse=reuse)
                counted[Evaluation(guided, reuse)] = counter.get_total_flops()
    return {evaluation: flops / counted[Evaluation(True)] for evaluation, flops in counted.items()}


def cost(plan: Plan, work: dict[Evaluation, float]) -> float:
    """What a block costs under a plan, in guided steps. work: see `costs`."""
    return sum(work[evaluation] for evaluation in plan.evaluations)


def drift(job, progress=silent) -> Iterator[dict]:
    """Each profile on the clip of a `pipeline.Job`, by its model: a dict for each with name, label, cost (guided steps a block, computed),
    seconds (of denoising), and against the exact profile's result: apart (1 - cosine of the latents), latent_psnr and psnr (dB; of latents
    against their range, of the redrawn pixels of the crops; None for the exact one)."""
    from ..lipsync import pipeline  # PyAV: `rows` does without

    checked = pipeline.check(replace(job, resume=False, profile=EXACT, backend="torch"))
    parts = pipeline.load(checked)
    prepared = pipeline.prepare(checked, parts, progress)
    redrawn = keep_mask(checked.side) < 0.5
    work = costs(checked.model.config, side=checked.side // 8)
    exact_latents = exact = None
    for profile in PROFILES.values():
        this = replace(prepared, checked=replace(checked, job=replace(checked.job, profile=profile.name)))
        started = time.perf_counter()
        latents = pipeline.draw(this, parts, progress)
        seconds = time.perf_counter() - started
        crops = pipeline.decode(this, latents, parts, progress).images
        measured = {"apart": None, "latent_psnr": None, "psnr": None}
        if exact is None:
            exact_latents, exact = latents, crops
        else:
            spread = (exact_latents.max() - exact_latents.min()).item()
            error = (latents - exact_latents).square().mean().item()
            measured = {"apart": apart(latents, exact_latents), "latent_psnr": _decibels(error, spread), "psnr": _psnr(crops, exact, redrawn)}
        plan = profile.plan(job.guidance)
        yield {"name": profile.name, "label": profile.label, "cost": cost(plan, work), "seconds": seconds, **measured}
    parts.runner.unload()
    prepared.close()


def rows_of(one: dict) -> Iterator[Row]:
    """A profile of `drift` as the other groups of `bench` have theirs; what is infinite is left out."""
    yield Row(f"clip, {one['name']}", one["seconds"], "s", note=one["label"])
    yield Row(f"clip, {one['name']}: work of a block in guided steps", one["cost"], "", note="computed")
    if one["apart"] is not None:
        yield Row(f"clip, {one['name']}: 1 - cosine of latents to {EXACT}", one["apart"], "", note="approximate")
        for key, of in (("latent_psnr", "latents"), ("psnr", "redrawn pixels")):
            if np.isfinite(one[key]):
                yield Row(f"clip, {one['name']}: PSNR of {of} to {EXACT}", one[key], "dB", note="approximate")


def table(results: Iterable[dict]) -> Iterator[str]:
    """Lines of Markdown."""
    yield f"| profile | | guided steps a block | seconds | 1 - cosine of latents to {EXACT} | PSNR of latents | PSNR of redrawn pixels |"
    yield "|---|---|---|---|---|---|---|"
    for one in results:
        kind = "exact" if one["apart"] is None else "approximate"
        near = ["", "", ""] if one["apart"] is None else [f"{one['apart']:.1e}", f"{one['latent_psnr']:.1f} dB", f"{one['psnr']:.1f} dB"]
        yield f"| {one['name']} | {kind}: {one['label']} | {one['cost']:.1f} | {one['seconds']:.1f} | {' | '.join(near)} |"


def _psnr(crops, exact, where: np.ndarray) -> float:
    """dB between two spools of uint8 crops, over the pixels `where` [r,r] alone."""
    total = count = 0
    for start in range(0, len(exact), CHUNK):
        part = slice(start, min(start + CHUNK, len(exact)))
        difference = crops.read(part)[:, where].astype(np.float64) - exact.read(part)[:, where]
        total, count = total + (difference**2).sum(), count + difference.size
    return _decibels(total / count, PEAK)


def _decibels(error: float, peak: float) -> float:
    return float(10 * np.log10(peak**2 / error)) if error else float("inf")
