"""The first half of a feed-forward: a matrix product and the GEGLU after it."""
import functools

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # before Triton 3.4
    TensorDescriptor = None

HIGH, WIDE, DEEP = 128, 128, 64  # rows, columns (twice: value and gate) and depth of a tile of `_product`
GROUP = 8  # tiles are taken this many rows at a time, so that x and the weight stay in the cache
DEEPEST = 320  # up to this depth `_product` beats the library's product and a pass over its result (measured: docs/performance.md)
ROWS, COLUMNS = 16, 128  # of a tile of `_geglu`


@triton.jit
def _gelu(x):
    """x times the normal distribution's integral: a polynomial within 4.2 of 0 (error below 6e-5, found by reweighted least squares), 0 or 1
    beyond. The hardware's exponential, which the error function needs, is slower than the products before it."""
    near = tl.minimum(tl.maximum(x, -4.2), 4.2)
    square = near * near
    p = 5.06986295e-11 * square - 4.89475141e-09
    p = p * square + 2.09966723e-07
    p = p * square - 5.32807537e-06
    p = p * square + 9.01320829e-05
    p = p * square - 0.00108762881
    p = p * square + 0.00974276025
    p = p * square - 0.0662214972
    p = p * square + 0.398832069
    return x * (0.5 + near * p)


@triton.jit
def _product(x, weight, bias, y, rows, columns, depth, programs,
             HIGH: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr, GROUP: tl.constexpr):
    """x [rows, depth] times weight' [2*columns, depth], plus bias, GEGLU -> y [rows, columns]. x, weight and y are tensor descriptors."""
    across = tl.cdiv(columns, WIDE)
    down = tl.cdiv(rows, HIGH)
    for tile in tl.range(tl.program_id(0), down * across, programs, flatten=True):
        first = tile // (GROUP * across) * GROUP
        height = tl.minimum(down - first, GROUP)
        row = (first + tile % (GROUP * across) % height) * HIGH
        column = tile % (GROUP * across) // height * WIDE
        value = tl.zeros([HIGH, WIDE], tl.float32)
        gate = tl.zeros([HIGH, WIDE], tl.float32)
        for start in range(0, depth, DEEP):
            part = x.load([row, start])
            value = tl.dot(part, weight.load([column, start]).T, value)
            gate = tl.dot(part, weight.load([column + columns, start]).T, gate)
        lane = column + tl.arange(0, WIDE)
        value += tl.load(bias + lane, mask=lane < columns, other=0.0).to(tl.float32)[None, :]
        gate += tl.load(bias + columns + lane, mask=lane < columns, other=0.0).to(tl.float32)[None, :]
        y.store([row, column], (value * _gelu(gate)).to(y.dtype))


@triton.jit
def _geglu(x, bias, y, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    keep = column < width
    inside = (row < rows)[:, None] & keep[None, :]
    place = row[:, None] * (2 * width) + column[None, :]
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x + place + width, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + column, mask=keep, other=0.0).to(tl.float32)[None, :]
    gate += tl.load(bias + width + column, mask=keep, other=0.0).to(tl.float32)[None, :]
    tl.store(y + row[:, None] * width + column[None, :], (value * _gelu(gate)).to(y.dtype.element_ty), mask=inside)


@functools.lru_cache
def programs(device: torch.device) -> int:
    """How many programs of `_product` a device runs at once; 0 where it should not: its tiles are made for Hopper."""
    suits = TensorDescriptor is not None and torch.cuda.get_device_capability(device) == (9, 0)
    return torch.cuda.get_device_properties(device).multi_processor_count if suits else 0


def geglu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`ops.geglu` for contiguous x."""
    depth, width = x.shape[-1], len(weight) // 2
    rows = x.numel() // depth
    y = torch.empty(*x.shape[:-1], width, dtype=x.dtype, device=x.device)
    if depth <= DEEPEST and depth % DEEP == 0 and programs(x.device):
        described = TensorDescriptor.from_tensor
        _product[(min(programs(x.device), triton.cdiv(rows, HIGH) * triton.cdiv(width, WIDE)),)](
            described(x.view(rows, depth), [HIGH, DEEP]), described(weight, [WIDE, DEEP]), bias, described(y.view(rows, width), [HIGH, WIDE]),
            rows, width, depth, programs(x.device), HIGH=HIGH, WIDE=WIDE, DEEP=DEEP, GROUP=GROUP, num_stages=3, num_warps=8,
        )  # fmt: skip
        return y
    both = F.linear(x, weight)
    _geglu[(triton.cdiv(rows, ROWS), triton.cdiv(width, COLUMNS))](both, bias, y, rows, width, ROWS=ROWS, COLUMNS=COLUMNS)
    return y
