"""Model files with the real names and shapes and seeded values, small where the format allows."""
import torch
from latentsync_rtx.lipsync.unet import LatentSyncUNet, UNetConfig
from latentsync_rtx.lipsync.whisper import TINY, WhisperEncoder

SMALL = (32, 32, 64, 64)


def unet_state(seed=0, widths=SMALL, **sizes):
    """State dict of a small network, random in every tensor."""
    generator = torch.Generator().manual_seed(seed)
    state = LatentSyncUNet(UNetConfig(block_out_channels=widths, **sizes)).state_dict()
    return {name: torch.randn(value.shape, generator=generator) * 0.1 for name, value in state.items()}


def save_unet(path, state, step=1234):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"global_step": step, "state_dict": state}, path)
    return path


def save_whisper(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {f"encoder.{name}": value for name, value in WhisperEncoder(**TINY).state_dict().items()}
    torch.save({"dims": {"n_vocab": 51865}, "model_state_dict": state}, path)
    return path
