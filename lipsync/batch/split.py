"""A prepared job in parts, each as arrays that another process can draw from without the clip.

Blocks are planned on the whole job and know nothing of their neighbours, so parts that are put together are the whole, to the bit.
"""
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import torch

from .. import folders, weights
from ..audio import window_indices
from ..journal import Journal
from ..pipeline import Checked, Job, Prepared
from ..timeline import Timeline

EVEN = 2  # blocks that a runner may take together: parts end where pairs do


def ranges(blocks: Sequence[np.ndarray], rate: Fraction, seconds: float) -> list[tuple[int, int]]:
    """[first, last) of the blocks of each part: about `seconds` of frames, in pairs of blocks."""
    found, first, frames = [], 0, 0
    for index, block in enumerate(blocks):
        if index > first and (index - first) % EVEN == 0 and (frames + len(block)) / rate > seconds:
            found.append((first, index))
            first, frames = index, 0
        frames += len(block)
    return [*found, (first, len(blocks))] if len(blocks) > first else found


def arrays_of(prepared: Prepared, blocks: Sequence[np.ndarray], first: int, last: int) -> dict:
    """All that the blocks [first, last) need: their crops (20 MB a second at 512 px), what they hear, and the whole job's plan."""
    track, plan, features = prepared.track, prepared.plan, prepared.features
    positions = np.concatenate(blocks[max(0, first - 1) : last + 1])  # with the neighbours, which a runner may take along
    frames = plan.redrawn(track.found)[positions]
    shown = np.unique(plan.source[frames])
    steps = _windows(frames, plan.rate, len(features.states))
    return {
        "found": track.found,
        "run_ids": track.run_ids,
        "shown": shown,
        "crops": track.crops.read(track.crop_row[shown]),
        "rate": str(plan.rate),
        "plan": {name: getattr(plan, name) for name in ("source", "speaking", "heard", "shown")},
        "states": features.states[steps.min() : steps.max() + 1].numpy(),
        "first_step": int(steps.min()),
        "steps": len(features.states),
        "silence": features.silence.numpy() if plan.heard is not None else None,
    }


def prepared_of(job: Job, arrays: dict) -> Prepared:
    """Enough of the job for `pipeline.draw` of the blocks that the arrays are of."""
    device = torch.device(job.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    crop_row = np.full(len(arrays["found"]), -1, np.int64)
    crop_row[arrays["shown"]] = np.arange(len(arrays["shown"]))
    rows = arrays["crops"]
    side = rows.shape[1]
    crops = SimpleNamespace(read=lambda indices: rows[indices], close=lambda: None)
    track = SimpleNamespace(resolution=side, found=arrays["found"], run_ids=arrays["run_ids"], crops=crops, crop_row=crop_row)
    plan = Timeline(Fraction(arrays["rate"]), **arrays["plan"])
    silence = None if arrays["silence"] is None else torch.from_numpy(arrays["silence"].copy())
    features = Heard(torch.from_numpy(arrays["states"].copy()), arrays["first_step"], arrays["steps"], silence)
    checked = Checked(job, weights.find_model(job.model), device, side, clip=None, shown=0, speech=None)
    return Prepared(checked, track, features, plan, Journal(folders.jobs_dir()) if job.resume else None)


@dataclass(frozen=True)
class Heard:
    """`AudioFeatures` of a part: `states` begin at step `first` of `steps`."""

    states: torch.Tensor
    first: int
    steps: int
    silence: torch.Tensor | None

    def tokens(self, frames: Sequence[int], fps: Fraction) -> torch.Tensor:
        return self.states[torch.from_numpy(_windows(frames, fps, self.steps) - self.first)].flatten(1, 2)

    def silent_tokens(self, frames: Sequence[int], fps: Fraction) -> torch.Tensor:
        return self.silence[torch.from_numpy(_windows(frames, fps, self.steps) % len(self.silence))].flatten(1, 2)


def _windows(frames: Sequence[int], rate: Fraction, steps: int) -> np.ndarray:
    return np.array([window_indices(int(frame), rate, steps) for frame in frames])
