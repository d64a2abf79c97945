"""The SD VAE's encoder and decoder on the kernels of `ops.py`: the same weights and arithmetic in fewer passes over memory.

Both known layouts are understood, Stable Diffusion's own (ComfyUI) and diffusers'. `accelerated` lends the fast form to a VAE for the time
of a call; where it cannot run (another family of VAE, CPU, float32, weights not all on the GPU) the owner's own code does.
"""
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import ops

Step = Callable[[Tensor], Tensor]


@contextmanager
def accelerated(vae) -> Iterator[None]:
    """While open, the encoder and decoder of `vae` (ComfyUI's VAE, or an object with diffusers' AutoencoderKL as `model`) run fast."""
    owner = getattr(vae, "first_stage_model", None) or getattr(vae, "model", None)
    coders = [coder for name in ("encoder", "decoder") if isinstance(coder := getattr(owner, name, None), nn.Module)]
    lent = [coder for coder in coders if "forward" not in vars(coder)]
    for coder in lent:
        coder.forward = partial(_run, coder)
    try:
        yield
    finally:
        for coder in lent:
            del coder.forward


def _run(coder: nn.Module, x: Tensor, *args, **options):
    program = None if args or options or not _suits(coder, x) else steps(coder)
    if program is None:
        return type(coder).forward(coder, x, *args, **options)
    x = x.contiguous(memory_format=torch.channels_last)
    for step in program:
        x = step(x)
    return x


def _suits(coder: nn.Module, x: Tensor) -> bool:
    return x.ndim == 4 and ops.accelerates(x) and all(p.device == x.device and p.dtype == x.dtype for p in coder.parameters())


def steps(coder: nn.Module) -> list[Step] | None:
    """What an encoder or decoder does, in order; None for one of an unknown layout."""
    try:
        middle, levels, last_norm = _ldm(coder) if hasattr(coder, "mid") else _diffusers(coder)
    except (AttributeError, IndexError):
        return None
    convs = [coder.conv_in, coder.conv_out]
    if not all(isinstance(conv, nn.Conv2d) for conv in convs) or getattr(coder, "give_pre_end", False) or getattr(coder, "tanh_out", False):
        return None
    program = levels + middle if _encodes(coder) else middle + levels
    return [coder.conv_in, *program, partial(ops.group_norm, norm=last_norm, silu=True), coder.conv_out]


def _encodes(coder: nn.Module) -> bool:
    return hasattr(coder, "down") or (hasattr(coder, "down_blocks") and len(coder.down_blocks) > 0)


def _ldm(coder):
    middle = [_resnet(coder.mid.block_1), _attention(coder.mid.attn_1), _resnet(coder.mid.block_2)]
    levels = []
    for level in coder.down if _encodes(coder) else reversed(coder.up):
        if len(level.attn):
            raise AttributeError("attention inside a level")
        levels += [_resnet(block) for block in level.block]
        levels += [partial(_shrunk, conv=level.downsample.conv)] if hasattr(level, "downsample") else []
        levels += [partial(_enlarged, conv=level.upsample.conv)] if hasattr(level, "upsample") else []
    return middle, levels, coder.norm_out


def _diffusers(coder):
    first, second = coder.mid_block.resnets
    middle = [_resnet(first), _attention(coder.mid_block.attentions[0]), _resnet(second)]
    levels = []
    for level in coder.down_blocks if _encodes(coder) else coder.up_blocks:
        if getattr(level, "attentions", None):
            raise AttributeError("attention inside a level")
        levels += [_resnet(block) for block in level.resnets]
        levels += [partial(_shrunk, conv=layer.conv) for layer in getattr(level, "downsamplers", None) or ()]
        levels += [partial(_enlarged, conv=layer.conv) for layer in getattr(level, "upsamplers", None) or ()]
    return middle, levels, coder.conv_norm_out


def _resnet(block) -> Step:
    shortcut = getattr(block, "nin_shortcut", None) or getattr(block, "conv_shortcut", None)
    if shortcut is not None and shortcut.kernel_size != (1, 1):
        raise AttributeError("a 3x3 shortcut")
    return partial(_through_resnet, norms=(block.norm1, block.norm2), convs=(block.conv1, block.conv2), shortcut=shortcut)


def _through_resnet(x: Tensor, norms, convs, shortcut) -> Tensor:
    h = ops.group_norm(x, norms[0], silu=True)
    h = F.conv2d(h, convs[0].weight, None, padding=1)
    h = ops.group_norm(h, norms[1], shift=convs[0].bias[None], silu=True)
    return ops.convolved(h, convs[1], x, shortcut, convs[1].bias if shortcut is None else convs[1].bias + shortcut.bias)


def _attention(block) -> Step:
    """Both layouts' names; Stable Diffusion's are 1x1 convolutions."""
    if hasattr(block, "to_q"):
        return partial(_through_attention, norm=block.group_norm, joined=(block.to_q, block.to_k, block.to_v), output=block.to_out[0])
    return partial(_through_attention, norm=block.norm, joined=(block.q, block.k, block.v), output=block.proj_out)


def _through_attention(x: Tensor, norm, joined, output) -> Tensor:
    """One head over all pixels of a picture, as wide as the picture: too wide for the libraries' fused attention, so by plain products."""
    tokens = ops.tokens(ops.group_norm(x, norm))
    weight, bias = torch.cat([layer.weight.flatten(1) for layer in joined]), torch.cat([layer.bias for layer in joined])
    query, key, value = F.linear(tokens, weight, bias).chunk(3, dim=-1)
    out = torch.empty_like(tokens)
    for picture in range(len(tokens)):  # the scores of one are 32 MB at 512 px
        scores = torch.addmm(out.new_zeros(()), query[picture], key[picture].t(), beta=0, alpha=query.shape[-1] ** -0.5)
        torch.mm(scores.softmax(-1), value[picture], out=out[picture])
    return ops.picture(F.linear(out, output.weight.flatten(1), output.bias).add_(ops.tokens(x)), x)


def _shrunk(x: Tensor, conv: nn.Conv2d) -> Tensor:
    return conv(F.pad(x, (0, 1, 0, 1)))


def _enlarged(x: Tensor, conv: nn.Conv2d) -> Tensor:
    return ops.enlarged(x, conv, ops.phase_weight(conv.weight))
