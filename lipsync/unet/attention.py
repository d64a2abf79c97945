"""The two kinds of transformer: over the pixels and audio of one picture, and over the frames of one pixel."""
import itertools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from .flow import Flow
from .prepared import Prepared


class Attention(Prepared):
    """Projections of one attention; `source` is the width of what is listened to (None: the queries' own tokens).

    The projections that read the same tokens (q, k, v; or k, v of the audio) are separate parameters, named as in the checkpoint. Prepared:
    laid out in one storage, of which they are views, so that one matrix product gives them all.
    """

    def __init__(self, width: int, heads: int, source: int | None = None):
        super().__init__()
        self.heads = heads
        self.joined = ("to_q", "to_k", "to_v") if source is None else ("to_k", "to_v")
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(source or width, width, bias=False)
        self.to_v = nn.Linear(source or width, width, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def prepare(self) -> None:
        weights = [getattr(self, name).weight for name in self.joined]
        self.prepared = torch.cat([weight.data for weight in weights])
        for weight, piece in zip(weights, self.prepared.chunk(len(weights)), strict=True):
            weight.data = piece

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """The joined projections of x [..., source]: each [..., width]."""
        if self.prepared is None:
            return tuple(getattr(self, name)(x) for name in self.joined)
        return F.linear(x, self.prepared).chunk(len(self.joined), dim=-1)


class FeedForward(nn.Module):
    """Linear to twice 4x the width, GEGLU, linear back. The checkpoint numbers the layers 0 and 2 (1 was dropout)."""

    def __init__(self, width: int):
        super().__init__()
        self.net = nn.ModuleDict({"0": nn.ModuleDict({"proj": nn.Linear(width, 8 * width)}), "2": nn.Linear(4 * width, width)})

    @property
    def output(self) -> nn.Linear:
        return self.net["2"]

    def forward(self, x: Tensor) -> Tensor:
        """What `output` is to be applied to."""
        return ops.geglu(x, self.net["0"]["proj"].weight, self.net["0"]["proj"].bias)


class Transformer(Prepared):
    """What both kinds share: a group norm of each picture by itself, a block between two linear layers, residual.

    The block's tokens are a sum that grows by one linear layer after another. Prepared: these leave their biases out, and the sum grows
    inside the matrix products, in place. The later norms add what is missing. At the end, what is missing is a constant for the pictures:
    they come with it added, and with that of the transformer after this one, as their `lead`.
    """

    def __init__(self, width: int, projection: Callable[[int, int], nn.Module], groups: int):
        super().__init__()
        self.norm = nn.GroupNorm(groups, width, eps=1e-6)
        self.proj_in = projection(width, width)
        self.proj_out = projection(width, width)

    def prepare(self, lead: Tensor) -> Tensor:
        """lead [C], float32: what the next transformer's pictures come with -> what this one's must come with."""
        *late, missing = itertools.accumulate(layer.bias.data.float() for layer in self.transformer_blocks[0].growth())
        lead = lead + self.proj_out.weight.data.flatten(1).float() @ missing + self.proj_out.bias.data.float()
        self.prepared = tuple(late), -lead[None]
        return lead

    def enter(self, x: Tensor) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Pictures [N,C,H,W] -> tokens [N,H*W,C], and what each but the first of the block's norms is to add to them."""
        late, shift = self.prepared or ((None, None), None)
        tokens = ops.tokens(ops.group_norm(x, self.norm, shift=shift))
        return F.linear(tokens, self.proj_in.weight.flatten(1), self.proj_in.bias), late

    def leave(self, tokens: Tensor, x: Tensor) -> Tensor:
        """Tokens [M,H*W,C] -> pictures [M,C,H,W], plus x, which is repeated where it has fewer. When prepared, x may be written over."""
        late = None if self.prepared is None else self.prepared[1]
        return ops.picture(grown(ops.repeated(ops.tokens(x), len(tokens)), tokens, self.proj_out, late), x)


def grown(x: Tensor, y: Tensor, layer: nn.Module, late: Tensor | None) -> Tensor:
    """x plus layer(y); with `late`, what x lacks of biases, in place and without the bias."""
    weight = layer.weight.flatten(1)
    return x + F.linear(y, weight, layer.bias) if late is None else ops.accumulate(x, y, weight)


class SpatialBlock(nn.Module):
    """Self-attention over a picture's pixels, cross-attention to its audio tokens, feed-forward."""

    def __init__(self, width: int, heads: int, audio_width: int):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attn1 = Attention(width, heads)
        self.attn2 = Attention(width, heads, source=audio_width)
        self.ff = FeedForward(width)

    def growth(self) -> list[nn.Linear]:
        return [self.attn1.to_out[0], self.attn2.to_out[0], self.ff.output]

    def forward(self, x: Tensor, late: tuple[Tensor | None, ...], keys: Tensor, values: Tensor, flow: Flow) -> Tensor:
        """x [N,P,C] -> the same; N grows to all pictures where silent and hearing ones still shared x."""
        query, key, value = self.attn1.project(ops.layer_norm(x, self.norm1))
        x = grown(x, ops.attention(query, key, value, self.attn1.heads), self.attn1.to_out[0], late[0])
        flow.check()
        hearing = x[-len(keys) :] if flow.silent else x
        query = self.attn2.to_q(ops.layer_norm(hearing, self.norm2, shift=late[0]))
        x = self._hear(x, ops.attention(query, keys, values, self.attn2.heads), flow.silent, late[1])
        flow.check()
        x = grown(x, self.ff(ops.layer_norm(x, self.norm3, shift=late[1])), self.ff.output, late[1])
        flow.check()
        return x

    def _hear(self, x: Tensor, answer: Tensor, silent: int, late: Tensor | None) -> Tensor:
        """Add the answers to the hearing pictures. Zero audio has zero values, hence silent ones get no more than the output's bias."""
        output = self.attn2.to_out[0]
        if not silent:
            return grown(x, answer, output, late)
        if late is None:
            return torch.cat([x[:silent] + output.bias, x[-len(answer) :] + output(answer)])
        x = ops.repeated(x, silent + len(answer))
        grown(x[silent:], answer, output, late)
        return x


class SpatialTransformer(Transformer):
    slot: int  # of `Flow.heard`

    def __init__(self, width: int, heads: int, audio_width: int, groups: int):
        super().__init__(width, lambda *channels: nn.Conv2d(*channels, 1), groups)
        self.transformer_blocks = nn.ModuleList([SpatialBlock(width, heads, audio_width)])

    def listen(self, audio: Tensor) -> tuple[Tensor, ...]:
        """Keys and values [N, tokens, C] of audio tokens [N, tokens, audio_width]."""
        return self.transformer_blocks[0].attn2.project(audio)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        tokens, late = self.enter(x)
        tokens = self.transformer_blocks[0](tokens, late, flow.heard.keys[self.slot], flow.heard.values[self.slot], flow)
        return self.leave(tokens, x)


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

    def growth(self) -> list[nn.Linear]:
        return [*(attention.to_out[0] for attention in self.attention_blocks), self.ff.output]

    def forward(self, x: Tensor, late: tuple[Tensor | None, ...], flow: Flow) -> Tensor:
        """x [rows, frames, P, C] -> the same."""
        for attention, norm, shift, missing in zip(self.attention_blocks, self.norms, (None, late[0]), late, strict=True):
            table = attention.pos_encoder.pe[0, : flow.frames]
            query, key, value = attention.project(ops.layer_norm(x, norm, shift=shift, table=table))
            x = grown(x, ops.temporal_attention(query, key, value, attention.heads), attention.to_out[0], missing)
            flow.check()
        x = grown(x, self.ff(ops.layer_norm(x, self.ff_norm, shift=late[-1])), self.ff.output, late[-1])
        flow.check()
        return x


class TemporalTransformer(Transformer):
    def __init__(self, width: int, heads: int, max_frames: int, groups: int):
        super().__init__(width, nn.Linear, groups)
        self.transformer_blocks = nn.ModuleList([TemporalBlock(width, heads, max_frames)])

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        tokens, late = self.enter(x)
        tokens = self.transformer_blocks[0](tokens.unflatten(0, (-1, flow.frames)), late, flow)
        return self.leave(tokens.flatten(0, 1), x)


class MotionModule(nn.Module):
    """The checkpoint's wrapper of a temporal transformer."""

    def __init__(self, width: int, heads: int, max_frames: int, groups: int):
        super().__init__()
        self.temporal_transformer = TemporalTransformer(width, heads, max_frames, groups)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        return self.temporal_transformer(x, flow)
