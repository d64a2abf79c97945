"""The memory-bound operations of the network, in plain PyTorch.

Pictures are [N,C,H,W] in `torch.channels_last` memory and tokens are [...,C], so going from one to the other is a change of view. Frames
are folded into the batch: N = rows * frames, a row's frames together. Group statistics are taken in float32 whatever the dtype.
"""
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def group_norm(x: Tensor, norm: nn.GroupNorm, *, frames: int = 1, shift: Tensor | None = None, silu: bool = False) -> Tensor:
    """Group norm of pictures [N,C,H,W] whose statistics are shared by each run of `frames` pictures (1: every picture by itself).

    `shift` [N/frames or 1, C] is added first: the bias and time embedding that the convolution before left out. `silu` is applied last.
    """
    grouped = x.unflatten(1, (norm.num_groups, -1)).unflatten(0, (-1, frames)).float()  # [rows, frames, groups, C/groups, H, W], a view
    if shift is not None:
        grouped = grouped + shift.float().view(-1, 1, norm.num_groups, grouped.shape[3], 1, 1)
    variance, mean = torch.var_mean(grouped, dim=(1, 3, 4, 5), correction=0, keepdim=True)
    scale = norm.weight.float().view(1, 1, norm.num_groups, -1, 1, 1) * torch.rsqrt(variance + norm.eps)
    offset = norm.bias.float().view(1, 1, norm.num_groups, -1, 1, 1) - mean * scale
    y = torch.addcmul(offset, grouped, scale)
    return (F.silu(y) if silu else y).to(x.dtype).flatten(2, 3).flatten(0, 1)


def layer_norm(x: Tensor, norm: nn.LayerNorm, *, add: Tensor | None = None) -> Tensor:
    """Layer norm over the last dimension, then plus `add` (broadcast): the position table of a temporal attention."""
    y = F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    return y if add is None else y + add


def geglu(x: Tensor) -> Tensor:
    """[..., 2n] -> [..., n]: the first half times the GELU (exact, by erf) of the second."""
    value, gate = x.chunk(2, dim=-1)
    return value * F.gelu(gate)


def attention(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Softmax attention within each picture: [N,P,C] queries over [N,S,C] keys and values -> [N,P,C]."""
    query, key, value = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (query, key, value))  # [N, heads, tokens, C/heads]
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


def temporal_attention(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Softmax attention of every pixel over its own frames: three [rows, frames, P, C] -> the same."""
    rows = query.shape[0]
    # [rows*P, heads, F, C/heads]
    query, key, value = (t.unflatten(-1, (heads, -1)).permute(0, 2, 3, 1, 4).flatten(0, 1) for t in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value).unflatten(0, (rows, -1)).permute(0, 3, 1, 2, 4).flatten(3)
