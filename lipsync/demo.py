"""Models that come with the pack, for trying the graph without a download. Only their name gets them: they never stand in for a file."""
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .checkpoint import Uninitialised
from .demo_model import AUTOENCODER, RESOLUTION, UNET, Autoencoder, DemoVAE, demo_encoder, load_part


@dataclass(frozen=True)
class Bundled:
    """name: as the user chooses it. description: one honest sentence. sizes: of its `UNetConfig`. resolution: of its crops in px.
    fingerprint: of its weights; change it with them, results are cached by it. The rest make its parts, float32; the first two on the CPU."""

    name: str
    description: str
    sizes: dict
    resolution: int
    fingerprint: str
    load_unet: Callable
    load_whisper: Callable
    load_vae: Callable[[torch.device | str], object]


def demo_unet():
    from .unet import LatentSyncUNet, UNetConfig

    with Uninitialised():
        network = LatentSyncUNet(UNetConfig(**UNET))
    network.load_state_dict(load_part("unet"))
    return network.eval().requires_grad_(False)


def demo_vae(device: torch.device | str = "cpu") -> DemoVAE:
    with Uninitialised():
        network = Autoencoder(**AUTOENCODER)
    network.load_state_dict(load_part("vae"))
    return DemoVAE(network.to(device), identity=FINGERPRINT)


DEMO = "demo (synthetic faces)"
FINGERPRINT = "demo-synthetic-faces-1"
BUNDLED = {
    model.name: model
    for model in (
        Bundled(
            name=DEMO,
            description="Demo: a small model of our own that knows drawn faces and a synthesiser's voice. It shows that mouths follow speech; "
            "for real faces, use LatentSync's weights.",
            sizes=UNET,
            resolution=RESOLUTION,
            fingerprint=FINGERPRINT,
            load_unet=demo_unet,
            load_whisper=demo_encoder,
            load_vae=demo_vae,
        ),
    )
}
