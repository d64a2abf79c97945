"""A small AutoencoderKL: Stable Diffusion's picture codec with few channels, under diffusers' names, without needing diffusers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Resnet(nn.Module):
    def __init__(self, inputs: int, outputs: int, groups: int):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, inputs, eps=1e-6), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(groups, outputs, eps=1e-6), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        return self.conv_shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class Attention(nn.Module):
    def __init__(self, width: int, groups: int):
        super().__init__()
        self.group_norm = nn.GroupNorm(groups, width, eps=1e-6)
        self.to_q, self.to_k, self.to_v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.group_norm(x).flatten(2).transpose(1, 2)
        heard = F.scaled_dot_product_attention(self.to_q(tokens)[:, None], self.to_k(tokens)[:, None], self.to_v(tokens)[:, None])[:, 0]
        return x + self.to_out[0](heard).transpose(1, 2).unflatten(2, x.shape[2:])


class Middle(nn.Module):
    def __init__(self, width: int, groups: int):
        super().__init__()
        self.resnets = nn.ModuleList([Resnet(width, width, groups), Resnet(width, width, groups)])
        self.attentions = nn.ModuleList([Attention(width, groups)])

    def forward(self, x: Tensor) -> Tensor:
        return self.resnets[1](self.attentions[0](self.resnets[0](x)))


class Halve(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Double(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Level(nn.Module):
    """Resnets, then half or twice the size (`resize` names which, as diffusers does; None for the last level)."""

    def __init__(self, inputs: int, outputs: int, count: int, groups: int, resize: str | None):
        super().__init__()
        self.resnets = nn.ModuleList(Resnet(inputs if i == 0 else outputs, outputs, groups) for i in range(count))
        self.resize = resize
        if resize:
            setattr(self, resize, nn.ModuleList([(Halve if resize == "downsamplers" else Double)(outputs)]))

    def forward(self, x: Tensor) -> Tensor:
        for resnet in self.resnets:
            x = resnet(x)
        return getattr(self, self.resize)[0](x) if self.resize else x


class Encoder(nn.Module):
    def __init__(self, widths: tuple[int, ...], groups: int, latent: int):
        super().__init__()
        self.conv_in = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down_blocks = nn.ModuleList(
            Level(widths[max(i - 1, 0)], width, 1, groups, "downsamplers" if i < len(widths) - 1 else None)
            for i, width in enumerate(widths)
        )
        self.mid_block = Middle(widths[-1], groups)
        self.conv_norm_out = nn.GroupNorm(groups, widths[-1], eps=1e-6)
        self.conv_out = nn.Conv2d(widths[-1], 2 * latent, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for level in self.down_blocks:
            x = level(x)
        return self.conv_out(F.silu(self.conv_norm_out(self.mid_block(x))))


class Decoder(nn.Module):
    def __init__(self, widths: tuple[int, ...], groups: int, latent: int):
        super().__init__()
        widths = widths[::-1]
        self.conv_in = nn.Conv2d(latent, widths[0], 3, padding=1)
        self.mid_block = Middle(widths[0], groups)
        self.up_blocks = nn.ModuleList(
            Level(widths[max(i - 1, 0)], width, 2, groups, "upsamplers" if i < len(widths) - 1 else None) for i, width in enumerate(widths)
        )
        self.conv_norm_out = nn.GroupNorm(groups, widths[-1], eps=1e-6)
        self.conv_out = nn.Conv2d(widths[-1], 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mid_block(self.conv_in(x))
        for level in self.up_blocks:
            x = level(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


class Autoencoder(nn.Module):
    """widths: channels of each level, from full size down; each level but the last halves the picture. One resnet a level down, two up.

    `load_state_dict` and diffusers' `AutoencoderKL(block_out_channels=widths, layers_per_block=1, norm_num_groups=groups)` take each
    other's weights and compute the same.
    """

    def __init__(self, widths: tuple[int, ...], groups: int, latent: int = 4):
        super().__init__()
        self.encoder, self.decoder = Encoder(widths, groups, latent), Decoder(widths, groups, latent)
        self.quant_conv, self.post_quant_conv = nn.Conv2d(2 * latent, 2 * latent, 1), nn.Conv2d(latent, latent, 1)

    def moments(self, pictures: Tensor) -> Tensor:
        """[N,3,H,W] in -1..1 -> mean and log variance of the unscaled latents, [N,8,H/8,W/8]."""
        return self.quant_conv(self.encoder(pictures))

    def decode(self, latents: Tensor) -> Tensor:
        """Unscaled latents [N,4,h,w] -> pictures [N,3,8h,8w], about -1..1."""
        return self.decoder(self.post_quant_conv(latents))


class DemoVAE:
    """`Autoencoder` behind ComfyUI's `encode` (pixels [N,H,W,3] in 0..1 -> unscaled latents, the posterior's mode) and `decode` (back).

    Works on the model's device, gives float32 on the CPU. identity: of the weights, see `journal.vae_identity`. batch: pictures at a time.
    """

    def __init__(self, model: Autoencoder, identity: str = "", batch: int = 8):
        self.model, self.identity, self.batch = model.eval().requires_grad_(False), identity, batch

    @property
    def dtype(self) -> torch.dtype:
        return self.model.quant_conv.weight.dtype

    @torch.no_grad()
    def moments(self, pixels: Tensor) -> Tensor:
        """Mean and log variance that the encoder predicts: float32 [N,8,H/8,W/8]."""
        like = self.model.quant_conv.weight
        return torch.cat([self.model.moments(part.to(like).movedim(-1, 1) * 2 - 1).float().cpu() for part in pixels.split(self.batch)])

    def encode(self, pixels: Tensor) -> Tensor:
        return self.moments(pixels).chunk(2, 1)[0]

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        parts = [self.model.decode(part.to(self.model.quant_conv.weight)).float().cpu() for part in latents.split(self.batch)]
        return (torch.cat(parts) / 2 + 0.5).clamp_(0, 1).movedim(1, -1)
