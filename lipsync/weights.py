"""The models of a job: which there are, whether a file is what it says, and loading it.

A missing or wrong file is an error with a name, a place and a source. Random weights are used only when a demo model is chosen by name.
"""
import hashlib
import logging
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from . import demo, folders
from .checkpoint import Uninitialised, read_checkpoint
from .demo import DEMO
from .download import CHECKPOINTS, DEFAULT_CHECKPOINT, VAE, download, missing, offer, source_of
from .errors import ModelFileError
from .vae_diffusers import SOURCE as VAE_SOURCE
from .vae_diffusers import DiffusersVAE
from .whisper import SOURCE as WHISPER_SOURCE
from .whisper import WhisperEncoder, load_encoder

if TYPE_CHECKING:
    from .unet import LatentSyncUNet, UNetConfig

__all__ = ["DEMO", "LatentSyncModel", "download", "find_model", "find_vae", "find_whisper", "list_models", "open_model", "require_files"]

log = logging.getLogger(__name__)

WHAT = "the LatentSync checkpoint"
SOURCE = "get latentsync_unet.pt of ByteDance/LatentSync-1.6 on Hugging Face (5 GB), or turn on 'download'"
RESOLUTIONS = {"1.5": 256, "1.6": 512}  # px of the face crops that a release was trained on
# Fingerprints of published checkpoints -> release. 1.5 and 1.6 have the same names and shapes, so only their values tell them apart. Add a
# line when you have the original file: loading it logs its fingerprint.
KNOWN: dict[str, str] = {}
NOT_UNETS = {"whisper", "face", "vae", "engines", "auxiliary"}  # subfolders of models/latentsync with other things in them
NOT_UNET_STEMS = {"tiny", "tiny.en", "stable_syncnet", "syncnet"}
WHISPER_NAMES = ("whisper/tiny.pt", "whisper/tiny.safetensors", "tiny.pt", "tiny.safetensors")
VAE_STEMS = ("vae-ft-mse-840000-ema-pruned", "sd-vae-ft-mse", "sd-vae-ft-mse-original", "vae-ft-mse-840000-ema", "vaeFtMse840000EmaPruned")


@dataclass(frozen=True)
class LatentSyncModel:
    """What the socket LATENTSYNC_MODEL carries: where the weights are and which they are. Loads nothing until asked.

    name: as in the list. path: the checkpoint, None for a model that comes with the pack. fingerprint: the same for the same weights,
    in `.pt` or `.safetensors`. release: "1.5", "1.6" or None when unknown; told_by: how that is known. global_step: of its training.
    """

    name: str
    config: "UNetConfig"
    fingerprint: str
    path: Path | None = None
    release: str | None = None
    told_by: str = ""
    global_step: int | None = None

    @property
    def is_demo(self) -> bool:
        return self.path is None

    @property
    def resolution(self) -> int:
        """Side in px of the face crops that the model was trained on; 512 when unknown."""
        return demo.BUNDLED[self.name].resolution if self.is_demo else RESOLUTIONS.get(self.release, 512)

    @property
    def description(self) -> str:
        """One honest sentence for people."""
        if self.is_demo:
            return demo.BUNDLED[self.name].description
        if self.release is None:
            return f"{self.name}: LatentSync of an unknown release, taken for 1.6 (512 px); 1.5 (256 px) looks the same from outside."
        return f"{self.name}: LatentSync {self.release} ({self.resolution} px), told by {self.told_by}."

    def resolution_warning(self, resolution: int) -> str | None:
        """What to tell a user who works at another resolution than the model was trained on; None when it fits."""
        if resolution == self.resolution or self.is_demo:
            return None
        if self.release is None:
            return f"{self.name} is of an unknown release: {resolution} px fits only if it is LatentSync {_release_for(resolution)}."
        return f"{self.name} is LatentSync {self.release}, trained on {self.resolution} px: mouths come out wrong at {resolution} px."

    def tensors(self) -> dict[str, torch.Tensor]:
        """The network's weights as they are in the file, memory-mapped; a bundled model's are made. Raises ModelFileError."""
        return demo.BUNDLED[self.name].load_unet().state_dict() if self.is_demo else _state(self.path)

    def load_unet(self, dtype: torch.dtype | None = None, device="cpu") -> "LatentSyncUNet":
        """The network with its weights, in eval mode. dtype None: float16 on CUDA, as the reference, else float32.

        Tensors go from the mapped file to `device` one at a time, so memory holds the network once. Raises ModelFileError, naming keys
        and shapes, unless every tensor fits.
        """
        dtype = dtype or (torch.float16 if torch.device(device).type == "cuda" else torch.float32)
        if self.is_demo:
            log.warning(self.description)
            return demo.BUNDLED[self.name].load_unet().to(device, dtype)
        state = _state(self.path)
        network = _empty(self.config)
        _check_fit(state, network, self.path)
        network.load_state_dict(
            {name: value.to(device, dtype if value.is_floating_point() else None, copy=True) for name, value in state.items()}, assign=True
        )
        log.info("%s on %s as %s", self.description, device, str(dtype).removeprefix("torch."))
        return network.eval().requires_grad_(False)

    def load_whisper(self) -> WhisperEncoder:
        """The encoder, float32 on the CPU. Raises ModelFileError when there is none."""
        if self.is_demo:
            return demo.BUNDLED[self.name].load_whisper()
        return load_encoder(find_whisper(self.path))

    def load_vae(self, path: str | Path | None = None, *, device="cpu", dtype: torch.dtype | None = None):
        """A VAE for use outside ComfyUI (needs diffusers): the file or folder `path`, a name in models/vae, or None to look for it there.

        A demo model has its own. Raises ModelFileError when there is none.
        """
        if self.is_demo and path is None:
            return demo.BUNDLED[self.name].load_vae(device)
        place = Path(path) if path is not None and Path(path).exists() else find_vae(path)
        return DiffusersVAE.load(place, dtype=dtype, device=device)


def list_models() -> list[str]:
    """Names for the user to choose from: the checkpoints in models/latentsync, then the demo models.

    Without any checkpoint, the one that `download` fetches is listed last, so that it can be chosen (and downloaded) at all.
    """
    found = _checkpoints()
    return [*found, *demo.BUNDLED] if found else [*demo.BUNDLED, DEFAULT_CHECKPOINT]


def find_model(name: str | None = None) -> LatentSyncModel:
    """The model called `name`, looked at but not loaded; None takes the first checkpoint there is, never a demo.

    Raises ModelFileError when it is missing, damaged, or no LatentSync network.
    """
    if name in demo.BUNDLED:
        from .unet import UNetConfig

        bundled = demo.BUNDLED[name]
        return LatentSyncModel(name, UNetConfig(**bundled.sizes), bundled.fingerprint)
    if name is None:
        name = next(iter(_checkpoints()), DEFAULT_CHECKPOINT)
    path = folders.find(name)
    if path is None:
        how = offer(missing(name)) if name in CHECKPOINTS else SOURCE
        raise ModelFileError(f"{WHAT} {name!r} is missing from {_places(folders.KIND)}: {how}; or choose {DEMO!r} to try the graph.")
    return open_model(path, name)


def require_files(name: str, vae: bool = True) -> None:
    """Raises ModelFileError naming at once all that the model `name` lacks and can be downloaded, instead of one file at each stage. Without
    `vae`, the VAE is somebody else's business. What is there is not looked into."""
    if name not in demo.BUNDLED and folders.find(name) is not None:
        lacking = [remote for remote in missing(name) if vae or remote is not VAE]
        if lacking:
            names = " and ".join(remote.target.name for remote in lacking)
            raise ModelFileError(f"{names} {'are' if len(lacking) > 1 else 'is'} missing, which {name!r} needs: {offer(lacking)}.")


def open_model(path: str | Path, name: str | None = None) -> LatentSyncModel:
    """The checkpoint in any file. Reads names, shapes and a few values of each tensor. Raises as `find_model`."""
    path = Path(path)
    try:
        status = path.stat()
    except OSError as error:
        raise ModelFileError(f"{WHAT} is missing: {path} ({error.strerror}). {SOURCE}.") from error
    config, fingerprint, step = _examined(path, status.st_size, status.st_mtime_ns)
    release, told_by = _release(path, fingerprint)
    model = LatentSyncModel(name or path.name, config, fingerprint, path, release, told_by, step)
    log.info("%s Fingerprint %s.", model.description, fingerprint)
    return model


def find_whisper(checkpoint: Path | None = None) -> Path:
    """Whisper tiny: in `whisper/` beside the checkpoint, in models/latentsync, or in models/audio_encoders. Raises ModelFileError."""
    beside = [checkpoint.parent / name for name in WHISPER_NAMES[:2]] if checkpoint else []
    found = [path for path in beside if path.is_file()]
    found += [path for kind in (folders.KIND, "audio_encoders") for name in WHISPER_NAMES if (path := folders.find(name, kind))]
    found += [path for name in folders.names() if name.endswith(WHISPER_NAMES[:2]) and (path := folders.find(name))]
    if not found:
        raise ModelFileError(f"the Whisper encoder is missing: no whisper/tiny.pt in {_places(folders.KIND)}. {WHISPER_SOURCE}.")
    return found[0]


def find_vae(name: str | Path | None = None) -> Path:
    """The SD 1.5 VAE `name` in models/vae, or with None the one that is there under a name we know. Raises ModelFileError."""
    if name is not None:
        return folders.path(str(name), "vae")
    known = [file for stem in VAE_STEMS for file in folders.names("vae") if stem in (Path(file).stem, Path(file).parent.name)]
    if not known:
        wanted = f"{VAE_STEMS[0]}.safetensors or {VAE_STEMS[1]}.safetensors"
        raise ModelFileError(f"the VAE is missing: no {wanted} in {_places('vae')}. {VAE_SOURCE}.")
    return folders.path(known[0], "vae")


def _checkpoints() -> list[str]:
    return [
        name for name in folders.names() if not NOT_UNETS & set(Path(name).parts[:-1]) and Path(name).stem.lower() not in NOT_UNET_STEMS
    ]


def _places(kind: str) -> str:
    return ", ".join(str(folder) for folder in folders.paths(kind))


# --- looking into a checkpoint ---


@lru_cache(maxsize=32)
def _examined(path: Path, size: int, mtime_ns: int) -> tuple["UNetConfig", str, int | None]:
    """(config, fingerprint, global step) of a file; size and time are there for the cache to notice a changed one."""
    contents = read_checkpoint(path, what=WHAT, source=SOURCE)
    state = _unwrapped(contents, path)
    config = _config(state, path)
    _check_fit(state, _empty(config), path)
    step = contents.get("global_step")
    return config, fingerprint_of(state), int(step) if isinstance(step, (int, torch.Tensor)) else None


def _state(path: Path) -> dict[str, torch.Tensor]:
    return _unwrapped(read_checkpoint(path, what=WHAT, source=SOURCE), path)


def _unwrapped(contents: dict, path: Path) -> dict[str, torch.Tensor]:
    state = contents.get("state_dict", contents)
    if not isinstance(state, dict) or "conv_in.weight" not in state:
        found = ", ".join(map(repr, list(state)[:3])) if isinstance(state, dict) else type(state).__name__
        raise ModelFileError(f"{path} is no LatentSync network: it has no 'conv_in.weight', but {found}, ... {SOURCE}.")
    return state


def _config(state: dict[str, torch.Tensor], path: Path) -> "UNetConfig":
    """The sizes, read off the tensors: full models and small trained ones load alike."""
    from .unet import UNetConfig

    widths, resnets = [], 0
    while (key := f"down_blocks.{len(widths)}.resnets.0.conv1.weight") in state:
        widths.append(state[key].shape[0])
    while f"down_blocks.0.resnets.{resnets}.conv1.weight" in state:
        resnets += 1
    channels, wanted = state["conv_in.weight"].shape[1], UNetConfig().in_channels
    if channels != wanted or not widths:
        raise ModelFileError(f"{path} is another model: it takes {channels} channels, LatentSync's network {wanted}. {SOURCE}.")
    return UNetConfig(block_out_channels=tuple(widths), layers_per_block=resnets)


def _empty(config: "UNetConfig") -> "LatentSyncUNet":
    """The network without memory for its weights."""
    from .unet import LatentSyncUNet

    with torch.device("meta"), Uninitialised():
        return LatentSyncUNet(config)


def _check_fit(state: dict[str, torch.Tensor], network: torch.nn.Module, path: Path) -> None:
    wanted = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in state.items()}
    misfits = [f"missing {name}" for name in wanted if name not in found]
    misfits += [f"unknown {name}" for name in found if name not in wanted]
    misfits += [f"{name} is {found[name]}, not {shape}" for name, shape in wanted.items() if found.get(name, shape) != shape]
    if misfits:
        raise ModelFileError(f"{path} does not fit LatentSync's network in {len(misfits)} tensors ({'; '.join(misfits[:4])}): {SOURCE}.")


def fingerprint_of(state: dict[str, torch.Tensor]) -> str:
    """Of every tensor its name, shape and first 64 values as float16: 100 KB of reading for 5 GB, and the same for a fp16 copy."""
    digest = hashlib.sha256()
    for name in sorted(state):
        values = state[name].flatten()[:64].to(torch.float16).numpy()
        digest.update(f"{name} {tuple(state[name].shape)} ".encode() + values.tobytes())
    return digest.hexdigest()[:16]


def _release(path: Path, fingerprint: str) -> tuple[str | None, str]:
    if fingerprint in KNOWN:
        return KNOWN[fingerprint], "its fingerprint"
    source = source_of(path)
    for text, told_by in ((source, f"its download from {source}"), (path.name, "its file name"), (path.parent.name, "its folder's name")):
        match = re.search(r"(?<![\d.])(?:1[._]|v1)([56])(?!\d)", text or "")
        if match:
            return f"1.{match[1]}", told_by
    return None, ""


def _release_for(resolution: int) -> str:
    return next((release for release, side in RESOLUTIONS.items() if side == resolution), "of that size")
