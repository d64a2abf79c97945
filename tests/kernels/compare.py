"""Run as a program: every kernel against the plain operation it stands for; prints {case: relative distance} as JSON.

On a GPU if there is one. Else in Triton's interpreter, which is why this is a process of its own: Triton must learn of it before it is imported.
"""
# ruff: noqa: E402
import json
import os
import sys
from pathlib import Path

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import conftest  # noqa: F401 (loads the pack)
from latentsync_rtx.lipsync import kernels, ops
from latentsync_rtx.lipsync.kernels import norm, product
from torch import nn
from torch.nn import functional as F

torch.set_grad_enabled(False)


def random(*shape, mean=0.0):
    return (torch.randn(shape) + mean).to(DEVICE, torch.float16)


def pictures(*shape, mean=0.0):
    return random(*shape, mean=mean).contiguous(memory_format=torch.channels_last)


def seeded(layer):
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer.to(DEVICE, torch.float16)


def group_norms():
    for channels, height, width in ((320, 8, 16), (64, 4, 4), (96, 8, 8)):
        x, layer = pictures(8, channels, height, width, mean=2), seeded(nn.GroupNorm(32, channels))
        for name, options in {
            "over frames, shifted by row": dict(frames=4, shift=random(2, channels), silu=True),
            "over frames, shifted": dict(frames=4, shift=random(1, channels).float()),
            "alone": dict(),
        }.items():
            yield f"group norm {channels} {name}", kernels.group_norm(x, layer, **options), ops.group_norm, (x, layer), options
    programs, norm.PROGRAMS = norm.PROGRAMS, 4  # as on a picture so large that a program takes several tiles
    x, layer = pictures(8, 64, 16, 16, mean=-3), seeded(nn.GroupNorm(32, 64))
    yield "group norm in chunks", kernels.group_norm(x, layer, frames=4), ops.group_norm, (x, layer), dict(frames=4)
    norm.PROGRAMS = programs


def cases():
    yield from group_norms()
    x, layer = random(2, 4, 16, 320), seeded(nn.LayerNorm(320))
    yield "layer norm", kernels.layer_norm(x, layer), ops.layer_norm, (x, layer), {}
    options = dict(shift=random(320).float(), table=random(4, 320))
    yield "layer norm of frames", kernels.layer_norm(x, layer, **options), ops.layer_norm, (x, layer), options

    for frames, channels in ((16, 320), (5, 320), (24, 640)):
        qkv = random(2, frames, 6, 3 * channels).chunk(3, -1)
        yield f"attention over {frames} frames", kernels.temporal_attention(*qkv, 8), ops.temporal_attention, (*qkv, 8), {}
    query, heard = random(3, 100, 320), random(3, 50, 640).chunk(2, -1)
    yield "attention to audio", kernels.attend_few(query, *heard, 8), ops.attention, (query, *heard, 8), {}

    x, weight, bias = random(2, 100, 320), random(256, 320) / 18, random(256)
    enough, product.programs = product.programs, lambda device: 0
    yield "geglu after a product", kernels.geglu(x, weight, bias), ops.geglu, (x, weight, bias), {}
    if DEVICE == "cpu" or enough(x.device):  # made for Hopper
        product.programs = lambda device: 3
        yield "geglu within a product", kernels.geglu(x, weight, bias), ops.geglu, (x, weight, bias), {}
    product.programs = enough
    gate = torch.linspace(-9, 9, 4096, dtype=torch.float16, device=DEVICE)[:, None]
    both, weight = torch.cat([torch.ones_like(gate), gate], 1), torch.eye(2, dtype=torch.float16, device=DEVICE)
    yield "gelu", kernels.geglu(both, weight, weight.new_zeros(2)), ops.geglu, (both, weight, weight.new_zeros(2)), {}

    x, y, bias = pictures(2, 40, 4, 8), pictures(2, 40, 4, 8), random(40)
    yield "add", kernels.add(x, y.clone(memory_format=torch.preserve_format), bias), lambda x, y, bias: x + y + bias[:, None, None], (x, y, bias), {}
    four = pictures(4, 24, 4, 8)
    yield "join", kernels.join(four, y), lambda x, y: torch.cat([x, torch.cat([y, y])], 1), (four, y), {}
    conv = seeded(nn.Conv2d(40, 24, 3, padding=1))
    small, weight = F.pad(x, (1, 1, 1, 1)), ops.phase_weight(conv.weight)
    phases = F.conv2d(small.float(), weight.float()).to(x.dtype).contiguous(memory_format=torch.channels_last)
    yield "enlarge", kernels.interleave(phases, conv.bias), lambda x: conv.float()(F.interpolate(x, scale_factor=2.0)), (x,), {}


def plain(operation, arguments, options):
    """The plain form in float32."""
    wide = [value.float() if isinstance(value, torch.Tensor | nn.Module) else value for value in arguments]
    return operation(*wide, **{name: value.float() if isinstance(value, torch.Tensor) else value for name, value in options.items()})


if __name__ == "__main__":
    if DEVICE == "cpu":  # numpy 2.4 and later refuse what Triton's interpreter does to get an index
        from triton.runtime import interpreter

        patch = interpreter._patch_lang_tensor
        interpreter._patch_lang_tensor = lambda tensor: (patch(tensor), setattr(tensor, "__index__", lambda self: int(self.handle.data.item())))
    torch.manual_seed(0)
    distances = {}
    for name, got, operation, arguments, options in cases():
        want = plain(operation, arguments, options)
        assert got.dtype == torch.float16 and got.shape == want.shape, name
        distances[name] = ((got.float() - want).norm() / want.norm()).item()
        for value in arguments:  # `plain` widened modules in place
            if isinstance(value, nn.Module):
                value.half()
    print(json.dumps(distances))  # noqa: T201
