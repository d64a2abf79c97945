"""Resnets and the levels of the network. Pictures are [N,C,H,W] in channels-last memory, N = rows * frames."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from .attention import MotionModule, SpatialTransformer, Transformer
from .config import UNetConfig
from .flow import Flow
from .prepared import Prepared


class Resnet(Prepared):
    """Norm, SiLU, 3x3 convolution, twice, beside a shortcut. The norms' statistics run over the frames of a row as well as over pixels.

    Prepared: the biases of the sum, and constants of the layers that will add to it (see `Transformer`).
    """

    slot: slice  # of `Flow.shifts`

    def __init__(self, in_channels: int, out_channels: int, time_width: int, groups: int):
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, in_channels, eps=1e-5)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.time_emb_proj = nn.Linear(time_width, out_channels)
        self.norm2 = nn.GroupNorm(groups, out_channels, eps=1e-5)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else None

    def shift(self, embedding: Tensor) -> Tensor:
        """What is added after the first convolution, [T, out_channels]. It depends on the timestep alone, so that bias is in it too."""
        return self.time_emb_proj(embedding) + self.conv1.bias

    def prepare(self, lead: Tensor) -> None:
        """lead [C], float32: what to add for the transformers after this."""
        biases = [layer.bias.data.float() for layer in (self.conv2, self.conv_shortcut) if layer is not None]
        self.prepared = (sum(biases) + lead).to(self.conv2.bias.dtype)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        shift = flow.shifts[: x.shape[0] // flow.frames, self.slot]
        h = ops.group_norm(x, self.norm1, frames=flow.frames, silu=True)
        h = F.conv2d(h, self.conv1.weight, padding=1)
        flow.check()
        h = ops.group_norm(h, self.norm2, frames=flow.frames, shift=shift, silu=True)
        x = ops.convolved(h, self.conv2, x, self.conv_shortcut, self.prepared)
        flow.check()
        return x


class Shrink(nn.Module):
    """Half the size, by a convolution. (The wrapper is the checkpoint's.)"""

    def __init__(self, width: int):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Enlarge(Prepared):
    """Twice the size, then a convolution. Prepared: its weight for doing both at once."""

    def __init__(self, width: int):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def prepare(self) -> None:
        if self.conv.weight.is_cuda:  # elsewhere nothing would use it
            self.prepared = ops.phase_weight(self.conv.weight.data)

    def forward(self, x: Tensor) -> Tensor:
        return ops.enlarged(x, self.conv, self.prepared)


def prepare_stage(resnet: Resnet, transformers: list[Transformer]) -> None:
    """Let the resnet add the constants of the transformers after it, so that they add to its pictures in place (see `Transformer`)."""
    lead = torch.zeros(resnet.conv2.out_channels, device=resnet.conv2.weight.device)
    for transformer in reversed(transformers):
        lead = transformer.prepare(lead)
    resnet.prepare(lead)


class Level(nn.Module):
    """A resnet for each of `inputs` (its channels), followed by a spatial transformer where `spatial` and by a motion module."""

    def __init__(self, config: UNetConfig, inputs: list[int], width: int, spatial: bool):
        super().__init__()
        groups, time_width = config.norm_groups, 4 * config.block_out_channels[0]
        self.resnets = nn.ModuleList([Resnet(channels, width, time_width, groups) for channels in inputs])
        self.attentions = nn.ModuleList([SpatialTransformer(width, config.heads, config.audio_width, groups) for _ in inputs if spatial])
        self.motion_modules = nn.ModuleList([MotionModule(width, config.heads, config.max_frames, groups) for _ in inputs])

    def stages(self) -> list[tuple[nn.Module, ...]]:
        """The layers between one skip connection and the next."""
        rows = [self.resnets, self.attentions, self.motion_modules] if len(self.attentions) else [self.resnets, self.motion_modules]
        return list(zip(*rows, strict=True))

    def prepare(self) -> None:
        for resnet, *others in self.stages():
            prepare_stage(resnet, [getattr(other, "temporal_transformer", other) for other in others])


class DownLevel(Level):
    def __init__(self, config: UNetConfig, inputs: list[int], width: int, spatial: bool, last: bool):
        super().__init__(config, inputs, width, spatial)
        self.downsamplers = nn.ModuleList([] if last else [Shrink(width)])

    def forward(self, x: Tensor, skips: list[Tensor], flow: Flow) -> Tensor:
        """Leaves a skip connection on `skips` after every stage and after halving the size."""
        x = self.descend(x, skips, flow)
        for downsampler in self.downsamplers:
            x = downsampler(x)
            skips.append(x)
        return x

    def descend(self, x: Tensor, skips: list[Tensor], flow: Flow, count: int | None = None) -> Tensor:
        """The first `count` stages (None: all)."""
        for stage in self.stages()[:count]:
            for layer in stage:
                x = layer(x, flow)
            skips.append(x)
        return x


class UpLevel(Level):
    def __init__(self, config: UNetConfig, inputs: list[int], width: int, spatial: bool, last: bool):
        super().__init__(config, inputs, width, spatial)
        self.upsamplers = nn.ModuleList([] if last else [Enlarge(width)])

    def forward(self, x: Tensor, skips: list[Tensor], flow: Flow) -> Tensor:
        """Takes a skip connection from `skips` before every stage; doubles the size at the end."""
        x = self.climb(x, skips, flow)
        for upsampler in self.upsamplers:
            x = upsampler(x)
        return x

    def climb(self, x: Tensor, skips: list[Tensor], flow: Flow, which: slice = slice(None)) -> Tensor:
        """Some of the stages. x is left as it is."""
        for stage in self.stages()[which]:
            x = ops.joined(x, skips.pop())
            for layer in stage:
                x = layer(x, flow)
        return x


class Middle(nn.Module):
    """Resnet, spatial transformer, resnet: no motion module."""

    def __init__(self, config: UNetConfig, width: int):
        super().__init__()
        groups, time_width = config.norm_groups, 4 * config.block_out_channels[0]
        self.attentions = nn.ModuleList([SpatialTransformer(width, config.heads, config.audio_width, groups)])
        self.resnets = nn.ModuleList([Resnet(width, width, time_width, groups) for _ in range(2)])

    def prepare(self) -> None:
        prepare_stage(self.resnets[0], list(self.attentions))
        prepare_stage(self.resnets[1], [])

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        for layer in (self.resnets[0], self.attentions[0], self.resnets[1]):
            x = layer(x, flow)
        return x
