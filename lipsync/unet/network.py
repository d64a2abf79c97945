"""The denoising network of LatentSync 1.5 and 1.6: the UNet of Stable Diffusion 1.5 on every frame, and attention over frames between."""
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..errors import ShapeError
from ..progress import unchecked
from .attention import Attention, SpatialTransformer
from .blocks import DownLevel, Enlarge, Level, Middle, Resnet, UpLevel
from .config import UNetConfig
from .flow import Flow, Heard


class TimeEmbedding(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.linear_1 = nn.Linear(width, 4 * width)
        self.linear_2 = nn.Linear(4 * width, 4 * width)

    def forward(self, timesteps: Tensor) -> Tensor:
        """Timesteps [T] -> [T, 4*width]: their waves through two linear layers."""
        return self.linear_2(F.silu(self.linear_1(self.waves(timesteps))))

    def waves(self, timesteps: Tensor) -> Tensor:
        """Timesteps [T] -> [T, width]: cosines, then sines, of geometrically falling frequencies."""
        half = self.linear_1.in_features // 2
        frequencies = torch.exp(torch.arange(half, device=timesteps.device, dtype=torch.float32) * (-math.log(10000.0) / half))
        angles = timesteps.float()[:, None] * frequencies
        return torch.cat([angles.cos(), angles.sin()], dim=-1).to(self.linear_1.weight.dtype)


SHALLOW = 2  # how many of the last level's stages are always evaluated, with the stages that lead to their skip connections


def deep_shape(config: UNetConfig, rows: int, frames: int, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Of what comes into the SHALLOW last stages: (rows*frames, C, h, w)."""
    width, inner = config.block_out_channels[:2]
    return rows * frames, width if config.layers_per_block >= SHALLOW else inner, *size


class LatentSyncUNet(nn.Module):
    """Predicts the noise in the latents of a run of frames. Parameters and `pe` buffers are named as in the public checkpoint.

    `forward` does everything. A denoising loop calls its three parts instead: `embed` once a job, `listen` once a block, `evaluate`
    at every step. Of a step, everything but the outermost stages may be kept and taken again at the next ones (DeepCache, Ma et
    al. 2023): what they give, the deep features, changes little between neighbouring steps.
    """


    def __init__(self, config: UNetConfig | None = None):
        super().__init__()
        self.config = config = config or UNetConfig()
        widths, depth = config.block_out_channels, config.layers_per_block
        last = len(widths) - 1
        self.conv_in = nn.Conv2d(config.in_channels, widths[0], 3, padding=1)
        self.time_embedding = TimeEmbedding(widths[0])

        skips, channels = [widths[0]], widths[0]
        self.down_blocks = nn.ModuleList()
        for i, width in enumerate(widths):
            inputs = [channels] + [width] * (depth - 1)
            self.down_blocks.append(DownLevel(config, inputs, width, spatial=i < last, last=i == last))
            skips += [width] * (depth + (i < last))
            channels = width

        self.mid_block = Middle(config, channels)

        self.up_blocks = nn.ModuleList()
        for i, width in enumerate(reversed(widths)):
            inputs = [(channels if j == 0 else width) + skips.pop() for j in range(depth + 1)]
            self.up_blocks.append(UpLevel(config, inputs, width, spatial=i > 0, last=i == last))
            channels = width

        self.conv_norm_out = nn.GroupNorm(config.norm_groups, channels, eps=1e-5)
        self.conv_out = nn.Conv2d(channels, config.out_channels, 3, padding=1)

        start = 0
        for resnet in self._all(Resnet):
            resnet.slot = slice(start, start := start + resnet.conv1.out_channels)
        for slot, transformer in enumerate(self._all(SpatialTransformer)):
            transformer.slot = slot

    def _all(self, kind: type | tuple[type, ...]) -> list:
        return [module for module in self.modules() if isinstance(module, kind)]

    def fuse(self) -> None:
        """Lay weights out for fewer products and passes over memory (see the modules that are `Prepared`). Call it after the last move to a
        device or dtype; loading other weights into the whole network undoes it, and is the only change of weights that does."""
        for module in self._all((Attention, Enlarge, Level, Middle)):
            module.prepare()

    def embed(self, timesteps: Tensor, reuse: bool = False) -> Tensor:
        """Timesteps [T] (0..999) -> [T, S]: what each resnet adds to its pictures, side by side. `reuse`: zeros for those of the deep levels."""
        embedding = F.silu(self.time_embedding(timesteps))
        outer = [*self.down_blocks[0].resnets[: SHALLOW - 1], *self.up_blocks[-1].resnets[-SHALLOW:]]
        left_out = [resnet for resnet in self._all(Resnet) if reuse and resnet not in outer]
        shifts = [embedding.new_zeros(len(embedding), len(r.conv1.bias)) if r in left_out else r.shift(embedding) for r in self._all(Resnet)]
        return torch.cat(shifts, dim=-1)

    def listen(self, audio: Tensor, silent: int = 0) -> Heard:
        """Audio tokens [A,F,50,384] -> the keys and values of `silent` rows that hear nothing, followed by these A rows."""
        pairs = [transformer.listen(audio.flatten(0, 1)) for transformer in self._all(SpatialTransformer)]
        keys, values = zip(*pairs, strict=True)
        return Heard(keys, values, rows=silent + audio.shape[0], silent=silent)

    def evaluate(
        self,
        sample: Tensor,
        shifts: Tensor,
        heard: Heard,
        check: Callable[[], None] = unchecked,
        deep: Tensor | None = None,
        reuse: bool = False,
    ) -> Tensor:
        """The noise in `sample` [B,13,F,h,w] -> [R,4,F,h,w], R = heard.rows: B, or a multiple of it where all rows share the same sample.

        `shifts` [1 or R, S] from `embed`. `check` is called between layers and may raise. A sample that is channels-last in memory
        ([B,F,h,w,13] permuted) is read as it is. `deep`: a tensor like `deep_features` that the deep features are left in; with `reuse`,
        that they are taken from instead of being computed.
        """
        frames = sample.shape[2]
        flow = Flow(frames, shifts, heard, check)
        x = self.conv_in(sample.transpose(1, 2).flatten(0, 1).contiguous(memory_format=torch.channels_last))
        skips = [x]
        if reuse:
            self.down_blocks[0].descend(x, skips, flow, SHALLOW - 1)
            x = deep
        else:
            x = self._deep(x, skips, flow)
            if deep is not None:
                deep.copy_(x)
        x = self.up_blocks[-1].climb(x, skips, flow, slice(-SHALLOW, None))
        x = self.conv_out(ops.group_norm(x, self.conv_norm_out, frames=frames, silu=True))
        return x.unflatten(0, (-1, frames)).transpose(1, 2)

    def _deep(self, x: Tensor, skips: list[Tensor], flow: Flow) -> Tensor:
        """The deep features; what the outermost stages need stays on `skips`."""
        for level in self.down_blocks:
            x = level(x, skips, flow)
        x = self.mid_block(x, flow)
        for level in self.up_blocks[:-1]:
            x = level(x, skips, flow)
        return self.up_blocks[-1].climb(x, skips, flow, slice(None, -SHALLOW))

    def deep_features(self, rows: int, frames: int, size: tuple[int, int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for the deep features of `evaluate`: zeros [rows*frames, C, h, w], channels-last."""
        count, channels, height, width = deep_shape(self.config, rows, frames, size)
        return torch.zeros(count, height, width, channels, dtype=dtype, device=device).permute(0, 3, 1, 2)

    def forward(
        self,
        sample: Tensor,
        timestep: Tensor | int,
        audio: Tensor,
        guided: bool = False,
        check: Callable[[], None] = unchecked,
        deep: Tensor | None = None,
        reuse: bool = False,
    ) -> Tensor:
        """sample [B,13,F,h,w], timestep (one, or one for each of B), audio [B,F,50,384] -> predicted noise [B,4,F,h,w].

        `guided`: [2B,4,F,h,w] instead, the first half as if the audio were all zero. `deep`, `reuse`: see `evaluate`. Raises ShapeError
        before any work for more than 24 frames or a shape that the network cannot take.
        """
        self.expect(sample, audio)
        timesteps = torch.as_tensor(timestep, device=sample.device).reshape(-1)
        shifts = self.embed(timesteps, reuse)
        if guided and len(timesteps) > 1:
            shifts = torch.cat([shifts, shifts])
        heard = self.listen(audio, silent=len(audio) if guided else 0)
        return self.evaluate(sample, shifts, heard, check, deep, reuse)

    def expect(self, sample: Tensor, audio: Tensor) -> None:
        """Raises ShapeError unless sample is [B,13,F,h,w] and audio [B,F,50,384], at most 24 frames, h and w multiples of 8."""
        config = self.config
        if sample.ndim != 5 or sample.shape[1] != config.in_channels:
            raise ShapeError(
                f"the network's sample must be [B,{config.in_channels},F,h,w] (4 noisy latent, 1 mask, 4 masked-crop latent, "
                f"4 crop latent), got {list(sample.shape)}"
            )
        rows, _, frames, height, width = sample.shape
        if not 1 <= frames <= config.max_frames:
            raise ShapeError(
                f"the network takes 1 to {config.max_frames} frames at once (its position table is no longer), got {frames}: cut the blocks"
            )
        if height % config.multiple or width % config.multiple or not height or not width:
            raise ShapeError(f"latent height and width must be multiples of {config.multiple}, got {height}x{width}")
        expected = (rows, frames, config.audio_tokens, config.audio_width)
        if tuple(audio.shape) != expected:
            raise ShapeError(f"the network's audio must be {list(expected)} for a sample of {list(sample.shape)}, got {list(audio.shape)}")
