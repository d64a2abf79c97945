"""Models that come with the pack, for trying the graph without a download. Only their name gets them: they never stand in for a file."""
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from .checkpoint import Uninitialised
from .vae import CELL, SCALE
from .whisper import TINY, WhisperEncoder


@dataclass(frozen=True)
class Bundled:
    """name: as the user chooses it. description: one honest sentence. sizes: of its `UNetConfig`. resolution: of its crops in px.
    fingerprint: of its weights; change it with them, results are cached by it. The rest make its parts, float32 on the CPU."""

    name: str
    description: str
    sizes: dict
    resolution: int
    fingerprint: str
    load_unet: Callable
    load_whisper: Callable
    load_vae: Callable


SIZES = dict(block_out_channels=(32, 32, 64, 64))
SEED = 16


def random_unet():
    from .unet import LatentSyncUNet, UNetConfig

    with Uninitialised():
        return seeded(LatentSyncUNet(UNetConfig(**SIZES)), SEED)


def random_whisper() -> WhisperEncoder:
    with Uninitialised():
        return seeded(WhisperEncoder(**TINY), SEED)


def seeded(module: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Fill the parameters from `seed`, the same on every machine: matrices N(0, 0.7/sqrt(fan-in)), vectors at 1 (weights) or 0 (biases)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            if parameter.ndim > 1:
                parameter.normal_(0, 0.7 / parameter[0].numel() ** 0.5, generator=generator)
            else:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
    return module.eval().requires_grad_(False)


class LinearVAE:
    """A VAE of fixed arithmetic behind ComfyUI's `encode` and `decode`: a latent is the mean colour of its 8 x 8 pixels and how much
    brighter their upper half is than their lower. Pictures come back blurred. Works on the device of what it is given.
    """

    dtype = torch.float32
    identity = "LinearVAE 1"  # what its results depend on, see `journal.vae_identity`

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """[N,H,W,3] in 0..1 -> unscaled latents [N,4,H/8,W/8], of the size that SD 1.5's have."""
        halves = F.avg_pool2d(pixels.float().movedim(-1, 1) * 2 - 1, (CELL // 2, CELL))
        upper, lower = halves[:, :, 0::2], halves[:, :, 1::2]
        slope = (upper - lower).mean(1, keepdim=True)
        return torch.cat([(upper + lower) / 2, slope], 1) / SCALE

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Back to pixels [N,8h,8w,3] in 0..1: colours interpolated between cells, then each cell's slope added."""
        size = (latents.shape[2] * CELL, latents.shape[3] * CELL)
        smooth = F.interpolate(latents.float() * SCALE, size=size, mode="bilinear", align_corners=False)
        rows = (torch.arange(size[0], device=latents.device) % CELL + 0.5) / CELL
        detail = smooth[:, 3:] * (0.5 - rows)[:, None]
        return ((smooth[:, :3] + detail) / 2 + 0.5).clamp(0, 1).movedim(1, -1)


DEMO = "demo (tiny, random weights)"
BUNDLED = {
    model.name: model
    for model in (
        Bundled(
            name=DEMO,
            description="Demo: a tiny network with random weights, for trying the graph. It paints noise; it does not lip-sync.",
            sizes=SIZES,
            resolution=256,
            fingerprint="demo-random-1",
            load_unet=random_unet,
            load_whisper=random_whisper,
            load_vae=LinearVAE,
        ),
    )
}
