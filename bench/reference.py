"""What the fast paths are measured against: the same networks computed in the order of the reference implementation.

The reference keeps video as [B,C,F,H,W] and turns it over before and after every layer; it computes both halves of guidance in full, one
projection at a time. The functions here do the same on the modules of `LatentSyncUNet`, so that weights and results can be compared.
"""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lipsync.unet import LatentSyncUNet
from ..lipsync.unet.attention import Attention, FeedForward, SpatialTransformer, TemporalTransformer
from ..lipsync.unet.blocks import Level, Resnet


def unet(net: LatentSyncUNet, sample: Tensor, timestep: Tensor, audio: Tensor) -> Tensor:
    """sample [B,13,F,h,w], timestep [1], audio [B,F,50,384] -> noise [B,4,F,h,w]."""
    time = F.silu(net.time_embedding(timestep)).expand(len(sample), -1)
    audio = audio.flatten(0, 1)
    x = convolution(net.conv_in, sample)
    skips = [x]
    for level in net.down_blocks:
        for stage in level.stages():
            x = _stage(stage, x, time, audio)
            skips.append(x)
        for downsampler in level.downsamplers:
            x = convolution(downsampler.conv, x)
            skips.append(x)
    middle = net.mid_block
    for layer in (middle.resnets[0], middle.attentions[0], middle.resnets[1]):
        x = _stage([layer], x, time, audio)
    for level in net.up_blocks:
        x = _up(level, x, skips, time, audio)
    return convolution(net.conv_out, F.silu(group_norm(net.conv_norm_out, x)))


def _up(level: Level, x: Tensor, skips: list[Tensor], time: Tensor, audio: Tensor) -> Tensor:
    for stage in level.stages():
        x = _stage(stage, torch.cat([x, skips.pop()], dim=1), time, audio)
    for upsampler in level.upsamplers:
        x = convolution(upsampler.conv, F.interpolate(x, scale_factor=[1.0, 2.0, 2.0], mode="nearest"))
    return x


def _stage(layers, x: Tensor, time: Tensor, audio: Tensor) -> Tensor:
    for layer in layers:
        if isinstance(layer, Resnet):
            x = resnet(layer, x, time)
        elif isinstance(layer, SpatialTransformer):
            x = spatial(layer, x, audio)
        else:
            x = temporal(layer.temporal_transformer, x)
    return x


def folded(x: Tensor) -> Tensor:
    """[B,C,F,H,W] -> [B*F,C,H,W]."""
    return x.transpose(1, 2).flatten(0, 1)


def unfolded(x: Tensor, frames: int) -> Tensor:
    return x.unflatten(0, (-1, frames)).transpose(1, 2)


def convolution(conv: nn.Conv2d, x: Tensor) -> Tensor:
    return unfolded(conv(folded(x)), x.shape[2])


def group_norm(norm: nn.GroupNorm, x: Tensor) -> Tensor:
    return F.group_norm(x, norm.num_groups, norm.weight, norm.bias, norm.eps)


def resnet(block: Resnet, x: Tensor, time: Tensor) -> Tensor:
    h = convolution(block.conv1, F.silu(group_norm(block.norm1, x)))
    h = h + block.time_emb_proj(time)[:, :, None, None, None]
    h = convolution(block.conv2, F.silu(group_norm(block.norm2, h)))
    return h + (x if block.conv_shortcut is None else convolution(block.conv_shortcut, x))


def attention(layer: Attention, x: Tensor, source: Tensor) -> Tensor:
    query, key, value = layer.to_q(x), layer.to_k(source), layer.to_v(source)
    query, key, value = (t.unflatten(-1, (layer.heads, -1)).transpose(1, 2) for t in (query, key, value))
    return layer.to_out[0](F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


def feed_forward(layer: FeedForward, x: Tensor) -> Tensor:
    value, gate = layer.net["0"]["proj"](x).chunk(2, dim=-1)
    return layer.net["2"](value * F.gelu(gate))


def spatial(layer: SpatialTransformer, x: Tensor, audio: Tensor) -> Tensor:
    pictures, block = folded(x), layer.transformer_blocks[0]
    tokens = layer.proj_in(group_norm(layer.norm, pictures)).flatten(2).transpose(1, 2).contiguous()
    normed = block.norm1(tokens)
    tokens = tokens + attention(block.attn1, normed, normed)
    tokens = tokens + attention(block.attn2, block.norm2(tokens), audio)
    tokens = tokens + feed_forward(block.ff, block.norm3(tokens))
    return unfolded(layer.proj_out(tokens.transpose(1, 2).unflatten(2, pictures.shape[2:]).contiguous()) + pictures, x.shape[2])


def temporal(layer: TemporalTransformer, x: Tensor) -> Tensor:
    frames, pictures, block = x.shape[2], folded(x), layer.transformer_blocks[0]
    tokens = layer.proj_in(group_norm(layer.norm, pictures).flatten(2).transpose(1, 2))  # [B*F,P,C]
    pixels = tokens.shape[1]
    for one, norm in zip(block.attention_blocks, block.norms, strict=True):
        over_time = norm(tokens).unflatten(0, (-1, frames)).transpose(1, 2).flatten(0, 1)  # [B*P,F,C]
        over_time = over_time + one.pos_encoder.pe[:, :frames]
        tokens = tokens + attention(one, over_time, over_time).unflatten(0, (-1, pixels)).transpose(1, 2).flatten(0, 1)
    tokens = layer.proj_out(tokens + feed_forward(block.ff, block.ff_norm(tokens)))
    return unfolded(tokens.transpose(1, 2).unflatten(2, pictures.shape[2:]).contiguous() + pictures, frames)
