"""Matrix products with what follows them: bias, residual, GEGLU. On Hopper by a kernel of our own, elsewhere by the library."""
import functools

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def _gelu(x):
    """Exact up to 1.5e-7: the error function by formula 7.1.26 of Abramowitz and Stegun."""
    z = tl.abs(x) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * z)
    rest = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))) * tl.exp(-z * z)
    return 0.5 * (x + tl.abs(x) * (1.0 - rest))


@triton.jit
def _product(x, weight, y, bias, residual, rows, columns, depth, residual_rows,
             ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
             GEGLU: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr):
    """One tile of x [rows, depth] times weight' [columns, depth], and its epilogue; all but bias are tensor descriptors."""
    tiles = tl.cdiv(columns, COLUMNS)
    first = tl.program_id(0) // (GROUP * tiles) * GROUP  # tiles are taken GROUP rows at a time, so that x and weight stay in the cache
    height = tl.minimum(tl.cdiv(rows, ROWS) - first, GROUP)
    row = (first + tl.program_id(0) % (GROUP * tiles) % height) * ROWS
    column = tl.program_id(0) % (GROUP * tiles) // height * COLUMNS
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    if GEGLU:
        gate = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, depth, DEPTH):
        part = x.load([row, start])
        total = tl.dot(part, weight.load([column, start]).T, total)
        if GEGLU:
            gate = tl.dot(part, weight.load([column + columns, start]).T, gate)
    lane = column + tl.arange(0, COLUMNS)
    if BIAS:
        total += tl.load(bias + lane, mask=lane < columns, other=0.0).to(tl.float32)[None, :]
    if GEGLU:
        gate += tl.load(bias + columns + lane, mask=lane < columns, other=0.0).to(tl.float32)[None, :]
        total *= _gelu(gate)
    if RESIDUAL:
        total += residual.load([row % residual_rows, column]).to(tl.float32)
    y.store([row, column], total.to(y.dtype))


@triton.jit
def _geglu(x, y, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (column < width)[None, :]
    place = row[:, None] * (2 * width) + column[None, :]
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x + place + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row[:, None] * width + column[None, :], (value * _gelu(gate)).to(y.dtype.element_ty), mask=inside)


@functools.lru_cache
def tiled(device: torch.device) -> bool:
    """Whether `_product` runs on a device. Its tiles are measured on Hopper alone."""
    return torch.cuda.get_device_capability(device) == (9, 0)


def _launch(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, y: Tensor, gated: bool, shape: tuple) -> None:
    high, wide, deep, group, stages, warps = shape
    rows, columns, depth = len(x), y.shape[1], x.shape[1]
    described = TensorDescriptor.from_tensor
    _product[(triton.cdiv(rows, high) * triton.cdiv(columns, wide),)](
        described(x, [high, deep]), described(weight, [wide, deep]), described(y, [high, wide]), x if bias is None else bias,
        described(y if residual is None else residual, [high, wide]), rows, columns, depth, rows if residual is None else len(residual),
        ROWS=high, COLUMNS=wide, DEPTH=deep, GROUP=group, GEGLU=gated, BIAS=bias is not None, RESIDUAL=residual is not None,
        num_stages=stages, num_warps=warps,
    )  # fmt: skip


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """`ops.linear`; `out`: contiguous memory for the result."""
    rows, wanted = x.numel() // x.shape[-1], (*x.shape[:-1], len(weight))
    shape = (128, 64, 64, 8, 4, 4)
    if tiled(x.device) and (residual is None or residual.numel() // len(weight) % shape[0] == 0):
        y = torch.empty(wanted, dtype=x.dtype, device=x.device) if out is None else out
        flat = residual if residual is None else residual.reshape(-1, len(weight))
        _launch(x.reshape(rows, -1), weight, bias, flat, y.view(rows, -1), False, shape)
        return y
    y = F.linear(x, weight, bias)
    if residual is not None:
        y.unflatten(0, (-1, len(residual))).add_(residual)
    return y if out is None else out.copy_(y)


def geglu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`ops.geglu`."""
    rows, width = x.numel() // x.shape[-1], len(weight) // 2
    y = torch.empty(*x.shape[:-1], width, dtype=x.dtype, device=x.device)
    if tiled(x.device):
        _launch(x.reshape(rows, -1), weight, bias, None, y.view(rows, -1), True, (128, 128, 64, 8, 3, 8))
        return y
    both = F.linear(x, weight, bias)
    block = min(8, rows & -rows)
    _geglu[(rows // block, triton.cdiv(width, 128))](both, y, width, ROWS=block, COLUMNS=128)
    return y
