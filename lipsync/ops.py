"""The operations of the network and the VAE that are more than one library call: in plain PyTorch, and where that pays as Triton kernels.

Pictures are [N,C,H,W] in `torch.channels_last` memory and tokens are [...,C], so going from one to the other is a change of view. Frames
are folded into the batch: N = rows * frames, a row's frames together. Group statistics are taken in float32 whatever the dtype.

The kernels run in half precision on CUDA, without gradients, and not while PyTorch compiles or exports the network: then the plain form is
what it sees.
"""
import functools
import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

log = logging.getLogger(__name__)

_allowed = ContextVar("kernels allowed", default=True)

BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # fastest first
MASKED = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # flash attention takes no masks
ORDERED = {"set_priority": True} if "set_priority" in inspect.signature(sdpa_kernel).parameters else {}  # since PyTorch 2.6
HALF = (torch.float16, torch.bfloat16)
FEW = 64  # keys that fit into one tile of a kernel, ours or a library's
FEW_ROWS = 4  # up to so many, a kernel call for each row costs less than reductions over all
TILE = 16  # pictures must have a multiple of this many pixels for the kernels


def group_norm(x: Tensor, norm: nn.GroupNorm, *, frames: int = 1, shift: Tensor | None = None, silu: bool = False) -> Tensor:
    """Group norm of pictures [N,C,H,W] whose statistics are shared by each run of `frames` pictures (1: every picture by itself).

    `shift` [N/frames or 1, C] is added first: the bias and time embedding that the convolution before left out. `silu` is applied last.
    """
    if (kernels := _kernels(x)) and x.shape[2] * x.shape[3] % TILE == 0:
        return kernels.group_norm(x.contiguous(memory_format=torch.channels_last), norm, frames=frames, shift=shift, silu=silu)
    if _is_half(x):
        return _group_norm_in_half(x, norm, frames, shift, silu)
    grouped = x.unflatten(1, (norm.num_groups, -1)).unflatten(0, (-1, frames)).float()  # [rows, frames, groups, C/groups, H, W], a view
    if shift is not None:
        grouped = grouped + shift.float().view(-1, 1, norm.num_groups, grouped.shape[3], 1, 1)
    variance, mean = torch.var_mean(grouped, dim=(1, 3, 4, 5), correction=0, keepdim=True)
    scale = norm.weight.float().view(1, 1, norm.num_groups, -1, 1, 1) * torch.rsqrt(variance + norm.eps)
    offset = norm.bias.float().view(1, 1, norm.num_groups, -1, 1, 1) - mean * scale
    y = torch.addcmul(offset, grouped, scale)
    return (F.silu(y) if silu else y).to(x.dtype).flatten(2, 3).flatten(0, 1)


def _group_norm_in_half(x: Tensor, norm: nn.GroupNorm, frames: int, shift: Tensor | None, silu: bool) -> Tensor:
    """Without Triton: the moments of every channel, from them those of the groups, so that no step makes a float32 copy of x. For the few
    rows of frames, by the kernels of batch norm, which is a group norm of one channel each; for many pictures, by plain reductions."""
    x = x.contiguous(memory_format=torch.channels_last)
    rows = x.split(frames)
    if few := len(rows) <= FEW_ROWS:
        mean, inverse = (torch.stack(moments) for moments in zip(*(torch.batch_norm_stats(row, norm.eps) for row in rows), strict=True))
        variance = inverse.pow(-2)  # plus eps, as in all of these
    else:
        pixels = x.permute(0, 2, 3, 1).reshape(len(rows), -1, x.shape[1])  # [rows, frames*H*W, C], a view of channels-last memory
        mean = pixels.mean(1, dtype=torch.float32)
        variance = torch.linalg.vector_norm(pixels, dim=1, dtype=torch.float32).square() / pixels.shape[1] - mean.square() + norm.eps
    moved = mean if shift is None else mean + shift
    spread, centre = torch.var_mean(moved.unflatten(1, (norm.num_groups, -1)), 2, correction=0, keepdim=True)
    spread = spread + variance.unflatten(1, (norm.num_groups, -1)).mean(2, keepdim=True)
    inverse = torch.rsqrt(spread.clamp_min(norm.eps)).expand(-1, -1, x.shape[1] // norm.num_groups).flatten(1)
    centre = (centre + (mean - moved).unflatten(1, (norm.num_groups, -1))).flatten(1)  # of x before the shift
    if few:
        y = torch.empty_like(x)
        for row, out, m, i in zip(rows, y.split(frames), centre, inverse, strict=True):
            torch.batch_norm_elemt(row, norm.weight, norm.bias, m, i, norm.eps, out=out)
    else:
        scale = norm.weight * inverse  # float32, as the offset: both can be large, and almost cancel
        offset = torch.addcmul(norm.bias.float(), centre, scale, value=-1)
        y = torch.addcmul(offset[:, None], pixels, scale[:, None], out=torch.empty_like(pixels)).view(len(x), *x.shape[2:], -1)
        y = y.permute(0, 3, 1, 2)
    return F.silu(y, inplace=True) if silu else y


def layer_norm(x: Tensor, norm: nn.LayerNorm, *, shift: Tensor | None = None, table: Tensor | None = None) -> Tensor:
    """Layer norm of x + `shift` [C] over the last dimension, then plus `table` [F,C], the positions of the frames, for x [rows,F,P,C]."""
    if kernels := _kernels(x):
        return kernels.layer_norm(x.contiguous(), norm, shift, table)
    x = x if shift is None else _shifted(x, shift)
    y = F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    return y if table is None else y + table[:, None]


def _shifted(x: Tensor, shift: Tensor) -> Tensor:
    """x [...,C] + shift [C]. PyTorch's sum reads two bytes at a time where one side is repeated, its batch norm eight."""
    if not _is_half(x):
        return x + shift.to(x.dtype)
    pixels = x.reshape(-1, x.shape[-1])
    return torch.batch_norm_elemt(pixels, None, None, -shift.float(), torch.ones_like(shift, dtype=torch.float32), 0.0).view(x.shape)


def geglu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer [...,K] -> [...,2M], then its first half times the GELU (by erf) of its second: [...,M]."""
    if kernels := _kernels(x):
        return kernels.geglu(x.contiguous(), weight, bias)
    if _is_half(x):  # two products, for the sake of contiguous halves: PyTorch is slow on the others
        value, gate = (F.linear(x, *half) for half in zip(weight.chunk(2), bias.chunk(2), strict=True))
        return gated(value, gate) if (gated := _gated(x.device)) else value.mul_(torch.ops.aten.gelu_(gate))
    value, gate = F.linear(x, weight, bias).chunk(2, dim=-1)
    return value * F.gelu(gate)


def accumulate(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """x [...,M] plus y [...,K] times weight' [M,K], in place: the matrix product adds up in its own registers."""
    x.view(-1, x.shape[-1]).addmm_(y.reshape(-1, y.shape[-1]), weight.t())
    return x


def convolved(x: Tensor, conv: nn.Conv2d, residual: Tensor, shortcut: nn.Conv2d | None = None, bias: Tensor | None = None) -> Tensor:
    """conv(x) plus the residual, which goes through the 1x1 convolution `shortcut` where there is one. `bias` [C] is for both, if given."""
    if bias is None:
        return conv(x) + (residual if shortcut is None else pointwise(residual, shortcut.weight, shortcut.bias))
    y = F.conv2d(x, conv.weight, None, conv.stride, conv.padding)
    if shortcut is not None:
        return y.add_(pointwise(residual, shortcut.weight, bias))
    if kernels := _kernels(x):
        return kernels.add(residual, y, bias)
    return picture(_shifted(tokens(y), bias), y).add_(residual)


def pointwise(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A 1x1 convolution, as the linear layer over the channels that it is."""
    return picture(F.linear(tokens(x), weight.flatten(1), bias), x)


def enlarged(x: Tensor, conv: nn.Conv2d, phases: Tensor | None = None) -> Tensor:
    """conv(x enlarged to twice its size, every pixel four times); conv is 3x3. `phases`: of its weight, see `phase_weight`.

    With phases, nine products a pixel become four: of the three columns of pixels under the kernel, two always show the same pixel of x.
    """
    if phases is None or not _is_half(x):
        return conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
    y = F.conv2d(F.pad(x, (1, 1, 1, 1)), phases)  # padded by hand: asked for padding, cuDNN takes a kernel at 16 x 16 that is twice as slow
    if kernels := _kernels(x):
        return kernels.interleave(y, conv.bias)
    count, channels, height, width = x.shape[0], len(conv.bias), *x.shape[2:]
    out = torch.empty(count, channels, 2 * height, 2 * width, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    for phase, part in enumerate(y.split(channels, 1)):
        down, across = divmod(phase, 2)
        torch.add(part[:, :, down : down + height, across : across + width], conv.bias[:, None, None], out=out[:, :, down::2, across::2])
    return out


def phase_weight(weight: Tensor) -> Tensor:
    """A 3x3 weight [M,C,3,3] for enlarged pictures -> [4M,C,2,2]: what the output's even and odd rows and columns see of the picture."""
    w = weight.float()
    rows = torch.stack([w[:, :, 0], w[:, :, 1] + w[:, :, 2], w[:, :, 0] + w[:, :, 1], w[:, :, 2]], 2).unflatten(2, (2, 2))  # [M,C,a,2,3]
    both = torch.stack([rows[..., 0], rows[..., 1] + rows[..., 2], rows[..., 0] + rows[..., 1], rows[..., 2]], -1).unflatten(-1, (2, 2))
    phases = both.permute(2, 4, 0, 1, 3, 5).flatten(0, 2)  # [M,C,a,2,b,2] -> [a,b,M,C,2,2]
    return phases.to(weight.dtype).contiguous(memory_format=torch.channels_last)


def joined(x: Tensor, y: Tensor) -> Tensor:
    """The channels of x and then of y, whose pictures are repeated where they are fewer."""
    if kernels := _kernels(x):
        return kernels.join(x, y)
    return torch.cat([x, repeated(y, len(x))], dim=1)


def attention(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Softmax attention within each picture: [N,P,C] queries over [N,S,C] keys and values -> [N,P,C]."""
    kernels = _kernels(query)
    if kernels and key.shape[1] <= FEW and query.is_contiguous() and key.stride() == value.stride():
        return kernels.attend_few(query, key, value, heads)
    query, key, value = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (query, key, value))  # [N, heads, tokens, C/heads]
    if _is_half(query):
        with sdpa_kernel(BACKENDS, **ORDERED):
            return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


def temporal_attention(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Softmax attention of every pixel over its own frames: three [rows, frames, P, C] -> the same."""
    if (kernels := _kernels(query)) and query.stride() == key.stride() == value.stride():
        return kernels.temporal_attention(query, key, value, heads)
    if not (torch.compiler.is_compiling() or query.is_meta):  # what is exported, compiled or counted has no masks
        at_once = max(1, FEW // query.shape[1])
        rows = zip(query.split(at_once), key.split(at_once), value.split(at_once), strict=True)
        answers = [_attention_with_mask(q, k, v, heads) for q, k, v in rows]
        return answers[0] if len(answers) == 1 else torch.cat(answers)
    count = query.shape[0]
    # [rows*P, heads, F, C/heads]
    query, key, value = (t.unflatten(-1, (heads, -1)).permute(0, 2, 3, 1, 4).flatten(0, 1) for t in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value).unflatten(0, (count, -1)).permute(0, 3, 1, 2, 4).flatten(3)


def _attention_with_mask(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """`temporal_attention` without Triton. A pixel's frames are too few for a library's tiles, so several pixels of all rows go into one
    attention, and a mask lets each frame see those of its own pixel and row. The pixels are P/group apart: then all tokens lie at equal
    distances in memory, and are read where they are."""
    rows, frames, pixels, channels = query.shape
    group = 1
    while 2 * group * rows * frames <= FEW and pixels % (2 * group) == 0:
        group *= 2
    shape = (rows * frames * group, pixels // group, heads, channels // heads)
    q, k, v = (t.reshape(shape).permute(1, 2, 0, 3) for t in (query, key, value))  # [P/group, heads, rows*frames*group, C/heads]
    itself = _same_pixel(rows, frames, group, query.dtype, query.device)
    with sdpa_kernel(MASKED, **ORDERED) if q.is_cuda else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=itself).permute(2, 0, 1, 3).reshape(query.shape)


@functools.cache
def _same_pixel(rows: int, frames: int, group: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[rows*frames*group] squared: 0 between the frames of one pixel of one row, -infinity between others.
    Kept for good (8 KB each, one for every length of a block): recorded graphs hold its address."""
    with torch.inference_mode(False):  # one for all, also for whoever takes gradients
        same = torch.block_diag(*[torch.eye(group, dtype=torch.bool).repeat(frames, frames)] * rows)
        return torch.zeros(same.shape, dtype=dtype).masked_fill_(~same, float("-inf")).to(device)


def tokens(x: Tensor) -> Tensor:
    """Pictures [N,C,H,W] as [N,H*W,C]: a view of channels-last memory."""
    return x.permute(0, 2, 3, 1).flatten(1, 2)


def picture(x: Tensor, like: Tensor) -> Tensor:
    """Tokens [N,H*W,C] as pictures [N,C,H,W] of the height and width of `like`."""
    return x.unflatten(1, like.shape[2:]).permute(0, 3, 1, 2)


def repeated(x: Tensor, count: int) -> Tensor:
    """x [N,...] repeated to `count` pictures."""
    return x if len(x) == count else torch.cat([x] * (count // len(x)))


def accelerates(x: Tensor) -> bool:
    """Whether operations on x run as kernels."""
    return _kernels(x) is not None


@contextmanager
def without_kernels() -> Iterator[None]:
    """While open, the plain forms run everywhere."""
    token = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(token)


def _kernels(x: Tensor):
    """The module `kernels` where its functions can run on x."""
    return _triton(x.device) if _is_half(x) and _allowed.get() else None


def _is_half(x: Tensor) -> bool:
    """Whether x is in half precision on CUDA, and nobody but this call sees what is done to it: no gradients, no compiler, no export."""
    return x.is_cuda and x.dtype in HALF and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


@functools.cache
def _gated(device: torch.device):
    """value * gelu(gate) in one pass, None where it cannot be: compiled by the part of CUDA that PyTorch itself compiles kernels with."""
    try:
        code = "template <typename T> T gated(T v, T g) { return T(float(v) * float(g) * 0.5f * (1.0f + erff(float(g) * 0.70710678f))); }"
        gated = torch.cuda.jiterator._create_jit_fn(code)
        for dtype in HALF:
            gated(*torch.ones(2, 1, dtype=dtype, device=device))
    except torch.cuda.OutOfMemoryError:  # says nothing about the compiler
        raise
    except Exception as error:
        log.info("PyTorch compiles no kernels here (%s): GEGLU takes two passes.", " ".join(str(error).split())[:200])
        return None
    return gated


@functools.cache
def _triton(device: torch.device):
    try:
        from . import kernels

        one = torch.ones(1, 1, 1, 1, dtype=torch.float16, device=device)
        kernels.add(one, one.clone(), one.flatten())  # Triton may be there without what it needs: a C compiler, a driver it knows
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # of any kind: it is another program's compiler
        log.warning("Triton is not usable (%s): the network runs, but takes about a third longer.", " ".join(str(error).split())[:200])
        return None
    return kernels
