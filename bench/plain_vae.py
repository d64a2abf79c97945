"""The SD 1.5 VAE, written plainly with Stable Diffusion's own names: what the fast VAE is measured against, and what it runs on."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(32, channels, eps=1e-6)


class Resnet(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.norm1, self.conv1 = norm(inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = norm(outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        if inputs != outputs:
            self.nin_shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))
        return h + (self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x)


class Attention(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = norm(width)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        query, key, value = (layer(h).flatten(2).transpose(1, 2)[:, None].contiguous() for layer in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(query, key, value)[:, 0].transpose(1, 2).unflatten(2, x.shape[2:])
        return x + self.proj_out(h)


class Middle(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.block_1, self.attn_1, self.block_2 = Resnet(width, width), Attention(width), Resnet(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.block_2(self.attn_1(self.block_1(x)))


class Resize(nn.Module):
    def __init__(self, width: int, up: bool):
        super().__init__()
        self.up, self.conv = up, nn.Conv2d(width, width, 3, stride=1 if up else 2, padding=1 if up else 0)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0) if self.up else F.pad(x, (0, 1, 0, 1)))


class Level(nn.Module):
    def __init__(self, inputs: int, outputs: int, resnets: int, resize: str | None):
        super().__init__()
        self.block = nn.ModuleList([Resnet(inputs if i == 0 else outputs, outputs) for i in range(resnets)])
        self.attn = nn.ModuleList()
        self.resize = resize
        if resize:
            self.add_module(resize, Resize(outputs, up=resize == "upsample"))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.block:
            x = block(x)
        return getattr(self, self.resize)(x) if self.resize else x


class Encoder(nn.Module):
    def __init__(self, widths: tuple[int, ...]):
        super().__init__()
        self.conv_in = nn.Conv2d(3, widths[0], 3, padding=1)
        inputs = (widths[0], *widths)
        last = len(widths) - 1
        self.down = nn.ModuleList([Level(inputs[i], width, 2, "downsample" if i < last else None) for i, width in enumerate(widths)])
        self.mid = Middle(widths[-1])
        self.norm_out, self.conv_out = norm(widths[-1]), nn.Conv2d(widths[-1], 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for level in self.down:
            x = level(x)
        return self.conv_out(F.silu(self.norm_out(self.mid(x))))


class Decoder(nn.Module):
    def __init__(self, widths: tuple[int, ...]):
        super().__init__()
        self.conv_in = nn.Conv2d(4, widths[-1], 3, padding=1)
        self.mid = Middle(widths[-1])
        inputs = (*widths, widths[-1])
        self.up = nn.ModuleList([Level(inputs[i + 1], width, 3, "upsample" if i else None) for i, width in enumerate(widths)])
        self.norm_out, self.conv_out = norm(widths[0]), nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mid(self.conv_in(x))
        for level in reversed(self.up):
            x = level(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class PlainVAE(nn.Module):
    """encode: [N,3,H,W] in -1..1 -> moments [N,8,H/8,W/8]; decode: back from latents [N,4,h,w]."""

    def __init__(self, widths: tuple[int, ...] = (128, 256, 512, 512)):
        super().__init__()
        self.encoder, self.decoder = Encoder(widths), Decoder(widths)
        self.quant_conv, self.post_quant_conv = nn.Conv2d(8, 8, 1), nn.Conv2d(4, 4, 1)

    def encode(self, x: Tensor) -> Tensor:
        return self.quant_conv(self.encoder(x))

    def decode(self, z: Tensor) -> Tensor:
        return self.decoder(self.post_quant_conv(z))


class BenchVAE:
    """A `PlainVAE` behind ComfyUI's `encode` and `decode`: pixels [N,H,W,3] in 0..1 to unscaled latents, and back, `batch` at a time."""

    def __init__(self, model: PlainVAE, batch: int = 4):
        self.model, self.batch = model, batch

    @property
    def dtype(self) -> torch.dtype:
        return self.model.quant_conv.weight.dtype

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        parts = (pixels.movedim(-1, 1) * 2 - 1).to(self.model.quant_conv.weight).split(self.batch)
        return torch.cat([self.model.encode(part)[:, :4].float() for part in parts])

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        parts = [self.model.decode(part).float() for part in latents.to(self.model.quant_conv.weight).split(self.batch)]
        return (torch.cat(parts) / 2 + 0.5).clamp_(0, 1).movedim(1, -1)
