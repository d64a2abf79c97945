"""Attentions whose keys fit into one tile: over the frames of a pixel, and over the audio tokens of a picture."""
import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634  # exp(x) = exp2(x * log2(e)): what the hardware has


@triton.jit(do_not_specialize=["pixels", "frames"])
def _temporal_attention(query, key, value, y, pixels, frames, row_stride, frame_stride, pixel_stride, channels, factor,
                        FRAMES: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """One head of one pixel of one row: softmax(q k') v over its frames."""
    head = tl.program_id(0)  # the fastest index: heads are neighbours in memory
    pixel = tl.program_id(1).to(tl.int64)
    row = pixel // pixels
    pixel = pixel % pixels
    frame = tl.arange(0, FRAMES)
    lane = tl.arange(0, PADDED)
    inside = (frame < frames)[:, None] & (lane < WIDTH)[None, :]
    place = row * row_stride + frame[:, None] * frame_stride + pixel * pixel_stride + head * WIDTH + lane[None, :]
    q = tl.load(query + place, mask=inside, other=0.0)
    k = tl.load(key + place, mask=inside, other=0.0)
    v = tl.load(value + place, mask=inside, other=0.0)
    score = tl.where((frame < frames)[None, :], tl.dot(q, tl.trans(k)) * factor, float("-inf"))
    weight = tl.exp2(score - tl.max(score, 1)[:, None])
    out = tl.dot(weight.to(v.dtype), v) / tl.sum(weight, 1)[:, None]
    target = ((row * frames + frame[:, None]) * pixels + pixel) * channels + head * WIDTH + lane[None, :]
    tl.store(y + target, out.to(y.dtype.element_ty), mask=inside)


def temporal_attention(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """`ops.temporal_attention`: three [rows, frames, P, C] of equal strides, contiguous in the channels (pieces of one product)."""
    rows, frames, pixels, channels = query.shape
    width = channels // heads
    y = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    _temporal_attention[(heads, rows * pixels)](
        query, key, value, y, pixels, frames, query.stride(0), query.stride(1), query.stride(2), channels, LOG2_E / width**0.5,
        FRAMES=max(16, triton.next_power_of_2(frames)), WIDTH=width, PADDED=max(16, triton.next_power_of_2(width)), num_warps=1,
    )  # fmt: skip
    return y


@triton.jit(do_not_specialize=["queries", "keys"])
def _attend_few(query, key, value, y, queries, keys, picture_stride, key_stride, channels, factor,
                QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """One head of QUERIES pixels of one picture, all keys at once."""
    head = tl.program_id(0)
    pixel = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    picture = tl.program_id(2).to(tl.int64)
    lane = tl.arange(0, PADDED)
    token = tl.arange(0, KEYS)
    wide = lane < WIDTH
    inside = (pixel < queries)[:, None] & wide[None, :]
    place = (picture * queries + pixel[:, None]) * channels + head * WIDTH + lane[None, :]
    heard = picture * picture_stride + token[:, None] * key_stride + head * WIDTH + lane[None, :]
    there = (token < keys)[:, None] & wide[None, :]
    q = tl.load(query + place, mask=inside, other=0.0)
    k = tl.load(key + heard, mask=there, other=0.0)
    v = tl.load(value + heard, mask=there, other=0.0)
    score = tl.where((token < keys)[None, :], tl.dot(q, tl.trans(k)) * factor, float("-inf"))
    weight = tl.exp2(score - tl.max(score, 1)[:, None])
    out = tl.dot(weight.to(v.dtype), v) / tl.sum(weight, 1)[:, None]
    tl.store(y + place, out.to(y.dtype.element_ty), mask=inside)


def attend_few(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """`ops.attention` for contiguous queries [N,P,C] and at most 64 keys and values [N,S,C] of equal strides."""
    pictures, queries, channels = query.shape
    width, keys = channels // heads, key.shape[1]
    y = torch.empty_like(query)
    block = 128 if width <= 64 else 64
    _attend_few[(heads, triton.cdiv(queries, block), pictures)](
        query, key, value, y, queries, keys, key.stride(0), key.stride(1), channels, LOG2_E / width**0.5,
        QUERIES=block, KEYS=max(16, triton.next_power_of_2(keys)), WIDTH=width, PADDED=max(16, triton.next_power_of_2(width)), num_warps=4,
    )  # fmt: skip
    return y
