"""The demo model's parts: a small autoencoder, an encoder of speech from a seed, and the one file with the trained weights.

`docs/demo_model.md` is its card, `tools/train_demo.py` made it.
"""

from pathlib import Path

import numpy as np
import torch

from ..checkpoint import Uninitialised
from ..whisper import TINY, WhisperEncoder
from .autoencoder import Autoencoder, DemoVAE

__all__ = ["AUTOENCODER", "RESOLUTION", "UNET", "WEIGHTS", "Autoencoder", "DemoVAE", "demo_encoder", "load_part"]

WEIGHTS = Path(__file__).with_name("demo.safetensors")  # float16; names start with "unet." or "vae."
RESOLUTION = 256  # px of its face crops
UNET = dict(block_out_channels=(64, 64, 64, 96), layers_per_block=1, heads=2)  # sizes of its `UNetConfig`
AUTOENCODER = dict(widths=(16, 32, 48, 64), groups=8)  # sizes of its `Autoencoder`
ENCODER_SEED = 8


def demo_encoder() -> WhisperEncoder:
    """Whisper tiny with weights from a fixed seed instead of a file: random features of the mel spectrum, float32 on the CPU.

    The stem is made strong enough for its GELUs to bend, the blocks' outputs and the position table weak, so that every hidden state
    still tells what sounds when. NumPy's RandomState gives the same numbers in every version of NumPy.
    """
    random = np.random.RandomState(ENCODER_SEED)
    with Uninitialised():
        encoder = WhisperEncoder(**TINY)
    with torch.no_grad():
        encoder.positional_embedding.mul_(0.05)
        for name, parameter in sorted(encoder.named_parameters()):
            values = torch.from_numpy(random.standard_normal(tuple(parameter.shape)).astype(np.float32))
            if parameter.ndim > 1:
                gain = 2.0 if name.startswith("conv") else 0.3 if name.endswith(("attn.out.weight", "mlp.2.weight")) else 1.0
                parameter.copy_(values * gain / parameter[0].numel() ** 0.5)
            elif "ln" in name:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            else:
                parameter.copy_(values * 0.1)
    return encoder.eval().requires_grad_(False)


def load_part(part: str) -> dict[str, torch.Tensor]:
    """The weights of "unet" or "vae": float32 on the CPU."""
    from safetensors.torch import load_file

    return {name.removeprefix(f"{part}."): value.float() for name, value in load_file(WEIGHTS).items() if name.startswith(f"{part}.")}
