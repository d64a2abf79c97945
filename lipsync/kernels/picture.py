"""Pictures put together: sums, joined channels, and the four phases of an enlarged picture. All are [N,C,H,W], channels last."""
import torch
import triton
import triton.language as tl
from torch import Tensor

PIXELS, CHANNELS = 32, 128  # of the tile of a program


@triton.jit
def _add(x, y, bias, out, pixels, channels, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    pixel = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    keep = column < channels
    inside = (pixel < pixels)[:, None] & keep[None, :]
    place = pixel[:, None] * channels + column[None, :]
    total = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) + tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(bias + column, mask=keep, other=0.0).to(tl.float32)[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)


def add(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
    """x + y + bias [C], over y."""
    channels = x.shape[1]
    pixels = x.numel() // channels
    _add[(triton.cdiv(pixels, PIXELS), triton.cdiv(channels, CHANNELS))](x, y, bias, y, pixels, channels, PIXELS=PIXELS, CHANNELS=CHANNELS)
    return y


@triton.jit
def _join(x, y, out, pixels, y_pixels, first, second, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    pixel = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    here = (pixel < pixels)[:, None]
    left = here & (column < first)[None, :]
    right = here & (column >= first)[None, :] & (column < first + second)[None, :]
    value = tl.load(x + pixel[:, None] * first + column[None, :], mask=left, other=0.0)
    other = tl.load(y + (pixel % y_pixels)[:, None] * second + (column - first)[None, :], mask=right, other=0.0)
    tl.store(out + pixel[:, None] * (first + second) + column[None, :], tl.where(left, value, other), mask=left | right)


def join(x: Tensor, y: Tensor) -> Tensor:
    """x's channels, then y's; y's pictures are repeated where they are fewer."""
    count, first, height, width = x.shape
    second = y.shape[1]
    out = torch.empty(count, first + second, height, width, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    pixels, y_pixels = count * height * width, y.shape[0] * height * width
    _join[(triton.cdiv(pixels, PIXELS), triton.cdiv(first + second, CHANNELS))](
        x, y, out, pixels, y_pixels, first, second, PIXELS=PIXELS, CHANNELS=CHANNELS
    )
    return out


@triton.jit
def _interleave(x, bias, out, height, width, channels, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    """One row of one enlarged picture: pixel (2i+a, 2j+b) is phase (a, b) of x at (i+a, j+b)."""
    row = tl.program_id(0).to(tl.int64)  # of all pictures' enlarged rows
    across = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    column = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    picture, down = row // (2 * height), row % (2 * height)
    a, b = down % 2, across % 2
    inside = (across < 2 * width)[:, None] & (column < channels)[None, :]
    source = (picture * (height + 1) + down // 2 + a) * (width + 1) + across // 2 + b
    value = tl.load(x + (source * 4 + 2 * a + b)[:, None] * channels + column[None, :], mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + column, mask=column < channels, other=0.0).to(tl.float32)[None, :]
    tl.store(out + (row * 2 * width + across)[:, None] * channels + column[None, :], value.to(out.dtype.element_ty), mask=inside)


def interleave(x: Tensor, bias: Tensor) -> Tensor:
    """Phases [N,4C,H+1,W+1] of an enlarged picture -> [N,C,2H,2W], plus bias [C]; see `ops.enlarged`."""
    count, phases, height, width = x.shape
    height, width, channels = height - 1, width - 1, phases // 4
    out = torch.empty(count, channels, 2 * height, 2 * width, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    _interleave[(count * 2 * height, triton.cdiv(2 * width, PIXELS), triton.cdiv(channels, CHANNELS))](
        x, bias, out, height, width, channels, PIXELS=PIXELS, CHANNELS=CHANNELS
    )
    return out
