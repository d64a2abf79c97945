"""The SD 1.5 VAE outside ComfyUI: diffusers' AutoencoderKL behind ComfyUI's `encode` and `decode`."""
import json
import logging
import re
from pathlib import Path

import torch

from .checkpoint import read_checkpoint
from .errors import DependencyError, ModelFileError
from .gpu import free_memory

log = logging.getLogger(__name__)

SOURCE = (
    "get diffusion_pytorch_model.safetensors of stabilityai/sd-vae-ft-mse on Hugging Face (335 MB), "
    "or vae-ft-mse-840000-ema-pruned.safetensors of stabilityai/sd-vae-ft-mse-original, into models/vae"
)
WHAT = "the VAE"
CELL = 8  # pixels per latent pixel
BATCH = 4  # pictures at a time; more are hardly faster (docs/performance.md)
BYTES_PER_PIXEL = 2600  # that decoding in half precision needs at most, by the plain way; the fast way of `vae_fast` needs half of that
FOLDER_FILES = ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.bin")
OLD_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}  # diffusers' names before 0.15


class DiffusersVAE:
    """encode: pixels [N,H,W,3] in 0..1 -> unscaled latents [N,4,H/8,W/8], the posterior's mode. decode: back. float32, on its device.

    model: a diffusers AutoencoderKL, on its device and in its dtype. batch: pictures at a time, which bounds the memory; None: 4, or on a
    GPU with little free memory fewer.
    """

    def __init__(self, model, batch: int | None = None):
        self.model, self.batch = model.eval().requires_grad_(False), batch

    @classmethod
    def load(cls, path: str | Path, *, dtype: torch.dtype | None = None, device="cpu", batch: int | None = None) -> "DiffusersVAE":
        """From a diffusers folder, or a single file in diffusers' or in Stable Diffusion's own layout (`vae-ft-mse-840000-ema-pruned`).

        dtype None: float16 on CUDA, as the reference, else float32. Raises ModelFileError when the file is missing, damaged or no SD
        VAE, DependencyError without diffusers.
        """
        path = Path(path)
        if path.is_dir():
            path = next((path / name for name in FOLDER_FILES if (path / name).is_file()), path / FOLDER_FILES[0])
        contents = read_checkpoint(path, what=WHAT, source=SOURCE)
        state = contents.get("state_dict", contents)
        try:
            from diffusers import AutoencoderKL
        except ImportError as error:
            raise DependencyError(f"a VAE outside ComfyUI needs the package diffusers ({error}): pip install diffusers") from error
        state = _in_diffusers_layout(state, path)
        on_gpu = torch.device(device).type == "cuda"
        dtype = dtype or (torch.float16 if on_gpu else torch.float32)
        with torch.device("meta"):
            model = AutoencoderKL.from_config(_config(state, path))
        try:
            model.load_state_dict({name: value.to(dtype, copy=True) for name, value in state.items()}, strict=True, assign=True)
        except RuntimeError as error:
            reason = " ".join(str(error).split(":", 1)[-1].split())
            raise ModelFileError(f"{path} does not fit the SD VAE ({reason[:300]}): {SOURCE}.") from error
        model.to(device, memory_format=torch.channels_last if on_gpu else torch.preserve_format)
        log.info("VAE from %s on %s", path, device)
        return cls(model, batch)

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @torch.no_grad()
    def moments(self, pixels: torch.Tensor) -> torch.Tensor:
        """Mean and log variance that the encoder predicts: float32 [N,8,H/8,W/8]."""
        return torch.cat([self._encoded(part) for part in pixels.movedim(-1, 1).split(self._slice(pixels[0, ..., 0]))])

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.moments(pixels).chunk(2, 1)[0]

    @torch.no_grad()
    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        parts = [self.model.decode(part.to(self.model.device, self.dtype)).sample.float() for part in latents.split(self._slice(latents[0, 0], CELL))]
        return (torch.cat(parts) / 2 + 0.5).clamp_(0, 1).movedim(1, -1)

    def _slice(self, area: torch.Tensor, enlarged: int = 1) -> int:
        """How many pictures of the area [h,w], `enlarged` times as high and wide, to work on at once."""
        if self.batch is not None:
            return self.batch
        if self.model.device.type != "cuda":
            return BATCH
        return max(1, min(BATCH, int(free_memory(self.model.device) / 2 / (area.numel() * enlarged**2 * BYTES_PER_PIXEL))))

    def _encoded(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model.encode((pixels * 2 - 1).to(self.model.device, self.dtype)).latent_dist.parameters.float()


def _in_diffusers_layout(state: dict, path: Path) -> dict:
    """Tensors under diffusers' present names, from either layout."""
    if "decoder.mid_block.resnets.0.norm1.weight" not in state:
        from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint

        if not any(name.endswith("decoder.mid.block_1.norm1.weight") for name in state):
            raise ModelFileError(f"{path} is no SD VAE (it has neither diffusers' nor Stable Diffusion's names): {SOURCE}.")
        levels = {int(match[1]) for name in state if (match := re.search(r"encoder\.down\.(\d+)\.block", name))}
        return convert_ldm_vae_checkpoint(state, _blocks(len(levels)))
    renamed = {}
    for name, value in state.items():
        head, _, tail = name.partition(".attentions.0.")
        old, _, kind = tail.partition(".")
        modern = f"{head}.attentions.0.{OLD_ATTENTION[old]}.{kind}" if old in OLD_ATTENTION else name
        renamed[modern] = value.flatten(1) if tail and value.ndim == 4 else value
    return renamed


def _config(state: dict, path: Path) -> dict:
    """The sizes, read off the tensors (and a folder's config.json only for what they do not tell)."""
    levels = 1 + max(int(match[1]) for name in state if (match := re.match(r"encoder\.down_blocks\.(\d+)\.", name)))
    resnets = 1 + max(int(match[1]) for name in state if (match := re.match(r"encoder\.down_blocks\.0\.resnets\.(\d+)\.", name)))
    widths = tuple(state[f"encoder.down_blocks.{level}.resnets.0.conv1.weight"].shape[0] for level in range(levels))
    channels = state["decoder.conv_in.weight"].shape[1]
    beside = path.parent / "config.json"
    groups = json.loads(beside.read_text()).get("norm_num_groups", 32) if path.name in FOLDER_FILES and beside.is_file() else 32
    return {
        "latent_channels": channels, "layers_per_block": resnets, "block_out_channels": widths, "norm_num_groups": groups, **_blocks(levels)
    }


def _blocks(levels: int) -> dict:
    return {"down_block_types": ["DownEncoderBlock2D"] * levels, "up_block_types": ["UpDecoderBlock2D"] * levels}
