"""Networks of the real sizes with seeded random weights: speed does not depend on their values."""
import torch
from torch import nn

from ..lipsync.unet import LatentSyncUNet, UNetConfig
from ..lipsync.unet.attention import PositionTable
from .plain_vae import PlainVAE


def seeded(module: nn.Module, seed: int) -> nn.Module:
    """Weights under which activations neither vanish nor grow: matrices N(0, 0.7/sqrt(fan-in)), norms near 1, biases N(0, 0.1)."""
    for index, (name, parameter) in enumerate(module.named_parameters()):
        generator = torch.Generator(parameter.device).manual_seed(seed * 10_000 + index)
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.7 / parameter[0].numel() ** 0.5, generator=generator)
        else:
            parameter.data.normal_(float(name.endswith("weight")), 0.1, generator=generator)
    return module.eval().requires_grad_(False)


def unet(device: torch.device, dtype: torch.dtype, config: UNetConfig | None = None) -> LatentSyncUNet:
    with torch.device("meta"):
        network = LatentSyncUNet(config)
    network = network.to(dtype).to_empty(device=device)  # never in float32 on the device
    for table in network.modules():
        if isinstance(table, PositionTable):
            table.pe.copy_(PositionTable(*table.pe.shape[1:]).pe)
    return seeded(network, 1)


def vae(device: torch.device, dtype: torch.dtype, widths: tuple[int, ...] | None = None) -> PlainVAE:
    with torch.device(device):
        model = PlainVAE(widths) if widths else PlainVAE()
    return seeded(model.to(dtype), 2)
