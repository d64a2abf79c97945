"""Group norm in three passes over a picture's memory (read; read and write), layer norm in one."""
import torch
import triton
import triton.language as tl
from torch import Tensor

PIXELS, CHANNELS = 64, 64  # of the tile that a program holds at a time
CHUNKS = 64  # whose moments a program of `_combine` holds at a time
PROGRAMS = 1024  # about how many programs fill a large GPU


@triton.jit(do_not_specialize=["repeats"])
def _moments(x, mean, squares, channels, repeats, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    """Mean and sum of squared deviations of each channel over a chunk of repeats * PIXELS pixels: float32 [chunks, channels] each."""
    chunk = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    keep = column < channels
    place = x + (chunk * repeats * PIXELS + tl.arange(0, PIXELS)[:, None]) * channels + column[None, :]
    tile = tl.load(place, mask=keep[None, :], other=0.0).to(tl.float32)
    pivot = tl.sum(tile, 0) / PIXELS  # near the mean, so that the difference of sums below loses nothing
    tile -= pivot[None, :]
    total, square = tile, tile * tile
    for _ in range(1, repeats):
        place += PIXELS * channels
        tile = tl.load(place, mask=keep[None, :], other=0.0).to(tl.float32) - pivot[None, :]
        total += tile
        square += tile * tile
    shifted = tl.sum(total, 0)
    count = repeats * PIXELS
    tl.store(mean + chunk * channels + column, pivot + shifted / count, mask=keep)
    tl.store(squares + chunk * channels + column, tl.sum(square, 0) - shifted * shifted / count, mask=keep)


@triton.jit(do_not_specialize=["channels", "size", "chunks", "count", "shift_stride"])
def _combine(mean, squares, shift, weight, bias, scale, offset, channels, size, chunks, count, shift_stride, eps,
             CHUNKS: tl.constexpr, PADDED: tl.constexpr, SHIFTED: tl.constexpr):
    """One group of one row: moments of its chunks of `count` pixels -> y = x * scale + offset per channel (Chan's parallel variance)."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, PADDED)
    column = tl.program_id(1) * size + lane
    keep = lane < size
    moved = tl.zeros([PADDED], tl.float32)
    if SHIFTED:
        moved = tl.load(shift + row * shift_stride + column, mask=keep, other=0.0).to(tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    for start in range(0, chunks, CHUNKS):
        chunk = start + tl.arange(0, CHUNKS)
        inside = (chunk < chunks)[:, None] & keep[None, :]
        total += tl.sum(tl.load(mean + (row * chunks + chunk[:, None]) * channels + column[None, :], mask=inside, other=0.0), 0)
    average = tl.sum(tl.where(keep, total / chunks + moved, 0.0), 0) / size
    spread = tl.zeros([PADDED], tl.float32)
    for start in range(0, chunks, CHUNKS):
        chunk = start + tl.arange(0, CHUNKS)
        inside = (chunk < chunks)[:, None] & keep[None, :]
        place = (row * chunks + chunk[:, None]) * channels + column[None, :]
        apart = tl.where(inside, tl.load(mean + place, mask=inside, other=0.0) + moved[None, :] - average, 0.0)
        spread += tl.sum(tl.load(squares + place, mask=inside, other=0.0) + count * apart * apart, 0)
    inverse = 1.0 / tl.sqrt(tl.sum(spread, 0) / (chunks * count * size) + eps)
    gain = tl.load(weight + column, mask=keep, other=0.0).to(tl.float32) * inverse
    start = tl.load(bias + column, mask=keep, other=0.0).to(tl.float32) + (moved - average) * gain
    tl.store(scale + row * channels + column, gain, mask=keep)
    tl.store(offset + row * channels + column, start, mask=keep)


@triton.jit(do_not_specialize=["pixels_per_row"])
def _normalise(x, scale, offset, y, pixels_per_row, channels, SILU: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    chunk = tl.program_id(0).to(tl.int64)
    row = (chunk * PIXELS) // pixels_per_row
    column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    keep = column < channels
    place = (chunk * PIXELS + tl.arange(0, PIXELS)[:, None]) * channels + column[None, :]
    gain = tl.load(scale + row * channels + column, mask=keep, other=0.0)
    start = tl.load(offset + row * channels + column, mask=keep, other=0.0)
    value = tl.load(x + place, mask=keep[None, :], other=0.0).to(tl.float32) * gain[None, :] + start[None, :]
    if SILU:
        value = value * tl.sigmoid(value)
    tl.store(y + place, value.to(y.dtype.element_ty), mask=keep[None, :])


def group_norm(x: Tensor, norm: torch.nn.GroupNorm, *, frames: int = 1, shift: Tensor | None = None, silu: bool = False) -> Tensor:
    """`ops.group_norm` for channels-last x whose pictures have a multiple of 16 pixels."""
    count, channels, height, width = x.shape
    per_row, rows, size = frames * height * width, count // frames, channels // norm.num_groups
    columns = triton.cdiv(channels, CHANNELS)
    tile = min(PIXELS, largest_power(height * width))
    wanted = max(1, count * height * width * columns // (tile * PROGRAMS))
    repeats = min(largest_power(per_row) // tile, 1 << (wanted.bit_length() - 1))
    chunks = per_row // (tile * repeats)
    mean, squares = torch.empty(2, rows * chunks, channels, dtype=torch.float32, device=x.device)
    scale, offset = torch.empty(2, rows, channels, dtype=torch.float32, device=x.device)
    y = torch.empty_like(x, memory_format=torch.channels_last)
    _moments[(rows * chunks, columns)](x, mean, squares, channels, repeats, PIXELS=tile, CHANNELS=CHANNELS)
    _combine[(rows, norm.num_groups)](
        mean, squares, mean if shift is None else shift, norm.weight, norm.bias, scale, offset, channels, size, chunks, tile * repeats,
        0 if shift is None or shift.shape[0] == 1 else shift.stride(0), norm.eps,
        CHUNKS=CHUNKS, PADDED=max(16, triton.next_power_of_2(size)), SHIFTED=shift is not None,
    )  # fmt: skip
    _normalise[(rows * per_row // tile, columns)](x, scale, offset, y, per_row, channels, SILU=silu, PIXELS=tile, CHANNELS=CHANNELS)
    return y


def largest_power(number: int) -> int:
    """The largest power of two that divides a positive number."""
    return number & -number


@triton.jit(do_not_specialize=["rows", "pixels", "frames"])
def _layer_norm(x, weight, bias, shift, table, y, rows, channels, pixels, frames, eps,
                SHIFT: tl.constexpr, TABLE: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, PADDED)
    keep = column < channels
    inside = (row < rows)[:, None] & keep[None, :]
    place = row[:, None] * channels + column[None, :]
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if SHIFT:
        value += tl.load(shift + column, mask=keep, other=0.0).to(tl.float32)[None, :]
    average = tl.sum(value, 1) / channels
    apart = tl.where(inside, value - average[:, None], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(apart * apart, 1) / channels + eps)
    gain = tl.load(weight + column, mask=keep, other=0.0).to(tl.float32)
    start = tl.load(bias + column, mask=keep, other=0.0).to(tl.float32)
    value = apart * inverse[:, None] * gain[None, :] + start[None, :]
    if TABLE:
        frame = (row // pixels) % frames
        value += tl.load(table + frame[:, None] * channels + column[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(y + place, value.to(y.dtype.element_ty), mask=inside)


def layer_norm(x: Tensor, norm: torch.nn.LayerNorm, shift: Tensor | None = None, table: Tensor | None = None) -> Tensor:
    """`ops.layer_norm` for contiguous x."""
    channels = x.shape[-1]
    rows = x.numel() // channels
    y = torch.empty_like(x)
    padded = triton.next_power_of_2(channels)
    block = 4
    _layer_norm[(triton.cdiv(rows, block),)](
        x, norm.weight, norm.bias, x if shift is None else shift, x if table is None else table, y, rows, channels, x.shape[-2],
        1 if table is None else table.shape[0], norm.eps, SHIFT=shift is not None, TABLE=table is not None, ROWS=block, PADDED=padded,
        num_warps=2 if padded <= 1024 else 4,
    )  # fmt: skip
    return y
