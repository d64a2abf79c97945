"""The two kinds of transformer: over the pixels and audio of one picture, and over the frames of one pixel."""
import math

import torch
from torch import Tensor, nn

from .. import ops
from .flow import Flow


class Attention(nn.Module):
    """Projections of one attention; `source` is the width of what is listened to (None: the queries' own tokens).

    The projections that read the same tokens (q, k, v; or k, v of the audio) are separate parameters, named as in the checkpoint. `fuse`
    lays them out in one storage, of which they become views, so that one matrix product gives them all; moving or replacing the
    parameters undoes it.
    """

    def __init__(self, width: int, heads: int, source: int | None = None):
        super().__init__()
        self.heads = heads
        self.joined = ("to_q", "to_k", "to_v") if source is None else ("to_k", "to_v")
        self.fused: Tensor | None = None
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(source or width, width, bias=False)
        self.to_v = nn.Linear(source or width, width, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(width, width)])
        self.register_load_state_dict_post_hook(_unfuse_if_replaced)

    def fuse(self) -> None:
        weights = [getattr(self, name).weight for name in self.joined]
        self.fused = torch.cat([weight.data for weight in weights])
        for weight, piece in zip(weights, self.fused.chunk(len(weights)), strict=True):
            weight.data = piece

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """The joined projections of x [..., source]: each [..., width]."""
        if self.fused is None:
            return tuple(getattr(self, name)(x) for name in self.joined)
        return ops.linear(x, self.fused).chunk(len(self.joined), dim=-1)

    def output(self, x: Tensor, residual: Tensor) -> Tensor:
        return ops.linear(x, self.to_out[0].weight, self.to_out[0].bias, residual=residual)

    def _apply(self, fn, recurse=True):
        self.fused = None
        return super()._apply(fn, recurse)


def _unfuse_if_replaced(attention: Attention, _) -> None:
    """`load_state_dict(assign=True)` puts other tensors in the parameters' place."""
    if attention.fused is not None and getattr(attention, attention.joined[0]).weight.data_ptr() != attention.fused.data_ptr():
        attention.fused = None


class FeedForward(nn.Module):
    """Linear to twice 4x the width, GEGLU, linear back. The checkpoint numbers the layers 0 and 2 (1 was dropout)."""

    def __init__(self, width: int):
        super().__init__()
        self.net = nn.ModuleDict({"0": nn.ModuleDict({"proj": nn.Linear(width, 8 * width)}), "2": nn.Linear(4 * width, width)})

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        wide, narrow = self.net["0"]["proj"], self.net["2"]
        return ops.linear(ops.geglu(x, wide.weight, wide.bias), narrow.weight, narrow.bias, residual=residual)


class SpatialBlock(nn.Module):
    """Self-attention over a picture's pixels, cross-attention to its audio tokens, feed-forward."""

    def __init__(self, width: int, heads: int, audio_width: int):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attn1 = Attention(width, heads)
        self.attn2 = Attention(width, heads, source=audio_width)
        self.ff = FeedForward(width)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, flow: Flow) -> Tensor:
        """x [N,P,C] -> the same; N grows to all pictures where silent and hearing ones still shared x."""
        query, key, value = self.attn1.project(ops.layer_norm(x, self.norm1))
        x = self.attn1.output(ops.attention(query, key, value, self.attn1.heads), residual=x)
        flow.check()
        hearing = x[-keys.shape[0] :] if flow.silent else x
        query = ops.linear(ops.layer_norm(hearing, self.norm2), self.attn2.to_q.weight)
        x = ops.hear(x, ops.attention(query, keys, values, self.attn2.heads), self.attn2.to_out[0], flow.silent)
        flow.check()
        x = self.ff(ops.layer_norm(x, self.norm3), residual=x)
        flow.check()
        return x


class SpatialTransformer(nn.Module):
    """Group norm of each picture by itself, and a `SpatialBlock` between two 1x1 convolutions; residual."""

    slot: int  # of `Flow.heard`

    def __init__(self, width: int, heads: int, audio_width: int, groups: int):
        super().__init__()
        self.norm = nn.GroupNorm(groups, width, eps=1e-6)
        self.proj_in = nn.Conv2d(width, width, 1)
        self.transformer_blocks = nn.ModuleList([SpatialBlock(width, heads, audio_width)])
        self.proj_out = nn.Conv2d(width, width, 1)

    def listen(self, audio: Tensor) -> tuple[Tensor, ...]:
        """Keys and values [N, tokens, C] of audio tokens [N, tokens, audio_width]."""
        return self.transformer_blocks[0].attn2.project(audio)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        keys, values = flow.heard.keys[self.slot], flow.heard.values[self.slot]
        tokens = ops.linear(ops.tokens(ops.group_norm(x, self.norm)), self.proj_in.weight.flatten(1), self.proj_in.bias)
        tokens = self.transformer_blocks[0](tokens, keys, values, flow)
        return ops.picture(ops.linear(tokens, self.proj_out.weight.flatten(1), self.proj_out.bias, residual=ops.tokens(x)), x)


class PositionTable(nn.Module):
    """Sines in the even channels, cosines in the odd ones: [1, length, width], in the checkpoint as a buffer."""

    def __init__(self, length: int, width: int):
        super().__init__()
        angle = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        self.register_buffer("pe", torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[None])


class TemporalAttention(Attention):
    def __init__(self, width: int, heads: int, max_frames: int):
        super().__init__(width, heads)
        self.pos_encoder = PositionTable(max_frames, width)


class TemporalBlock(nn.Module):
    """Twice self-attention over the frames of a pixel, then feed-forward."""

    def __init__(self, width: int, heads: int, max_frames: int):
        super().__init__()
        self.attention_blocks = nn.ModuleList([TemporalAttention(width, heads, max_frames) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.ff = FeedForward(width)
        self.ff_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        """x [rows, frames, P, C] -> the same."""
        for attention, norm in zip(self.attention_blocks, self.norms, strict=True):
            query, key, value = attention.project(ops.layer_norm(x, norm, table=attention.pos_encoder.pe[0, : flow.frames]))
            x = attention.output(ops.temporal_attention(query, key, value, attention.heads), residual=x)
            flow.check()
        x = self.ff(ops.layer_norm(x, self.ff_norm), residual=x)
        flow.check()
        return x


class TemporalTransformer(nn.Module):
    """Group norm of each picture by itself, and a `TemporalBlock` between two linear layers; residual."""

    def __init__(self, width: int, heads: int, max_frames: int, groups: int):
        super().__init__()
        self.norm = nn.GroupNorm(groups, width, eps=1e-6)
        self.proj_in = nn.Linear(width, width)
        self.transformer_blocks = nn.ModuleList([TemporalBlock(width, heads, max_frames)])
        self.proj_out = nn.Linear(width, width)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        tokens = ops.linear(ops.tokens(ops.group_norm(x, self.norm)), self.proj_in.weight, self.proj_in.bias)
        tokens = self.transformer_blocks[0](tokens.unflatten(0, (-1, flow.frames)), flow).flatten(0, 1)
        return ops.picture(ops.linear(tokens, self.proj_out.weight, self.proj_out.bias, residual=ops.tokens(x)), x)


class MotionModule(nn.Module):
    """The checkpoint's wrapper of a temporal transformer."""

    def __init__(self, width: int, heads: int, max_frames: int, groups: int):
        super().__init__()
        self.temporal_transformer = TemporalTransformer(width, heads, max_frames, groups)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        return self.temporal_transformer(x, flow)
