"""Crops to latents and back, through any object with ComfyUI's `encode` and `decode`.

Such an object takes pixels [N,H,W,3] in 0..1 and gives latents [N,4,H/8,W/8], and back, latents being unscaled; it manages its own
device. The network works on latents times `SCALE`. ComfyUI's VAE, `DiffusersVAE` and the demo's VAE are such objects.
"""
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch

from . import mapped
from .ahead import ahead
from .crops import Crops
from .errors import NumericError, ShapeError
from .mask import keep_mask
from .progress import Progress, silent
from .spool import Spool
from .vae_diffusers import DiffusersVAE
from .vae_fast import accelerated

__all__ = ["POSTERIORS", "SCALE", "DiffusersVAE", "decode", "decode_crops", "decoded", "encode", "with_crops"]

SCALE = 0.18215  # of SD 1.5's latents: makes their standard deviation about 1
POSTERIORS = ("mode", "sample")
CELL = 8  # pixels per latent pixel
BLOCK = 16  # crops decoded at a time
RIGHT_VAE = "load the SD 1.5 VAE (vae-ft-mse-840000-ema-pruned or sd-vae-ft-mse)"


def encode(vae, images: torch.Tensor, *, posterior: str = "mode", generator: torch.Generator | None = None) -> torch.Tensor:
    """images float [N,H,W,3] in 0..1, H and W multiples of 8 -> scaled latents float32 [N,4,H/8,W/8], on the device the VAE returns.

    posterior "mode": the mean of what the encoder predicts, the same every time. "sample": drawn around it with `generator` (default: the
    global one of the CPU), all N at once on the generator's device, in order, as the reference draws. Of a VAE that is neither ours nor
    ComfyUI's AutoencoderKL only its own `encode` is known, so it does what it does.
    Raises ShapeError for other shapes or a VAE of another family, NumericError when the encoder gives NaN.
    """
    if posterior not in POSTERIORS:
        raise ValueError(f"posterior is one of {', '.join(POSTERIORS)}, not {posterior!r}")
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[3] != 3 or shape[1] % CELL or shape[2] % CELL or not images.is_floating_point():
        raise ShapeError(f"the VAE takes float images [N,H,W,3], H and W multiples of {CELL}, not {list(shape)} {images.dtype}.")

    def choose(moments: torch.Tensor) -> torch.Tensor:
        mean, log_variance = moments.chunk(2, 1)
        if posterior == "mode":
            return mean
        device = generator.device if generator is not None else "cpu"
        noise = torch.randn(mean.shape, generator=generator, device=device).to(mean)
        return mean + noise * (0.5 * log_variance.clamp(-30, 20)).exp()  # the clamp is Stable Diffusion's

    with accelerated(vae), _chosen(vae, choose):
        latents = choose(vae.moments(images)) if hasattr(vae, "moments") else vae.encode(images)
    wanted = (shape[0], 4, shape[1] // CELL, shape[2] // CELL)
    if tuple(latents.shape) != wanted:
        raise ShapeError(f"this VAE makes latents {list(latents.shape)}, but LatentSync needs {list(wanted)}: {RIGHT_VAE}.")
    if not torch.isfinite(latents).all():
        raise NumericError(f"the VAE encoded {shape[0]} crops to NaN or infinity: {_precision(vae)}.")
    return latents.float() * SCALE


def decode(vae, latents: torch.Tensor, *, first: int = 0) -> torch.Tensor:
    """Scaled latents [N,4,h,w] -> float32 [N,3,8h,8w] in -1..1, on the device the VAE returns. Messages count crops from `first`.

    Raises NumericError, naming the frames, when the latents or the pictures are NaN, or a picture is flat though its latents are not.
    """
    if latents.ndim != 4 or latents.shape[1] != 4:
        raise ShapeError(f"latents to decode are [N,4,h,w], not {list(latents.shape)}.")
    broken = ~torch.isfinite(latents).flatten(1).all(1)
    _refuse(broken, first, "the latents of crops {} are NaN or infinite: the denoising went wrong, before the VAE.")
    with accelerated(vae):
        images = vae.decode(latents / SCALE).movedim(-1, 1)
    wanted = (latents.shape[0], 3, latents.shape[2] * CELL, latents.shape[3] * CELL)
    if tuple(images.shape) != wanted:
        raise ShapeError(f"this VAE decodes {list(latents.shape)} to {list(images.shape)}, not {list(wanted)}: {RIGHT_VAE}.")
    _refuse(~torch.isfinite(images).flatten(1).all(1), first, "crops {} decode to NaN or infinity: " + _precision(vae))
    _refuse(_flat(images).cpu() & ~_flat(latents).cpu(), first, "crops {} decode to one flat colour: " + _precision(vae))
    return images.float() * 2 - 1


def decode_crops(vae, latents: torch.Tensor, track, timeline, *, spool_folder: Path | None = None, progress: Progress = silent) -> Crops:
    """The crops with their mouths redrawn, see `decoded`; 16 are decoded at a time, on a CPU one. Reading runs ahead of decoding.

    latents: unscaled [M,4,r/8,r/8], one for each of `timeline.redrawn(track.found)`. Raises ShapeError when they are not this track's, and
    what `decode` raises.
    """
    count, side = len(timeline.redrawn(track.found)), track.resolution
    wanted = (count, 4, side // CELL, side // CELL)
    if tuple(latents.shape) != wanted:
        raise ShapeError(f"these faces need latents {list(wanted)}, not {list(latents.shape)}: decode what was denoised for them.")

    def pieces() -> Iterator[torch.Tensor]:
        size = BLOCK if _device(vae, latents) != "cpu" else 1  # on a CPU one crop takes long enough
        for start in range(0, count, size):
            yield latents[start : start + size].clone()
            mapped.release(latents)

    spool = Spool((side, side, 3), folder=spool_folder)
    try:
        progress(0, count, stage="decode")
        with ahead(with_crops(pieces(), track, timeline), depth=1) as both:
            for block in decoded(vae, both, track, timeline):
                spool.append(block)
                progress(len(spool), count, stage="decode", preview=block[0])
    except BaseException:
        spool.close()
        raise
    return Crops(spool, timeline)


def with_crops(pieces: Iterable[torch.Tensor], track, timeline) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each of `pieces` of latents [n,...], which follow each other, with the aligned crops uint8 [n,r,r,3] that they were made for."""
    rows, done = np.asarray(track.crop_row)[timeline.source[timeline.redrawn(track.found)]], 0
    for piece in pieces:
        yield piece, torch.from_numpy(track.crops.read(rows[done : done + len(piece)]))
        done += len(piece)


def decoded(vae, pieces: Iterable[tuple[torch.Tensor, torch.Tensor]], track, timeline) -> Iterator[np.ndarray]:
    """Decode latents and put the kept pixels of the aligned crops back, piece by piece: uint8 [n,r,r,3].

    pieces: of `with_crops`, latents unscaled. The sum is `decoded * (1 - keep) + crop * keep`, rounded; where `timeline.shown` is less
    than 1 the aligned crop shows through. Raises what `decode` raises.
    """
    redrawn, redraw, done = timeline.redrawn(track.found), 1 - torch.from_numpy(keep_mask(track.resolution)), 0
    for latents, crops in pieces:
        pictures = decode(vae, latents * SCALE, first=done)
        share = redraw.to(pictures.device)
        if timeline.shown is not None:
            shown = torch.from_numpy(timeline.shown[redrawn[done : done + len(latents)]])
            share = share * shown.to(pictures.device)[:, None, None, None]
        original = crops.to(pictures.device).movedim(-1, 1)
        pixels = (pictures + 1) * 127.5 * share + original * (1 - share)
        done += len(latents)
        yield pixels.round_().clamp_(0, 255).to(torch.uint8).movedim(1, -1).cpu().numpy()


def _device(vae, latents: torch.Tensor) -> str:
    """Kind of the device that a VAE decodes on: what it says, else where its weights are, else where the latents are."""
    model = getattr(vae, "model", None)
    device = getattr(vae, "device", None) or getattr(model, "device", None)
    if device is None and isinstance(model, torch.nn.Module):
        device = next((weights.device for weights in model.parameters()), None)
    return torch.device(device or latents.device).type


def _chosen(vae, choose):
    """A context in which ComfyUI's AutoencoderKL gives `choose(moments)`, whatever it does by default (releases before 2025 draw from the
    posterior with the global generator, later ones take the mode). A hook, so the VAE itself stays as it is."""
    regularization = getattr(getattr(vae, "first_stage_model", None), "regularization", None)
    if not hasattr(regularization, "register_forward_hook") or not hasattr(regularization, "sample"):
        return nullcontext()

    @contextmanager
    def hooked():
        handle = regularization.register_forward_hook(lambda module, moments, output: (choose(moments[0]), None))
        try:
            yield
        finally:
            handle.remove()

    return hooked()


def _refuse(bad: torch.Tensor, first: int, message: str) -> None:
    if bad.any():
        rows = [first + row for row in bad.nonzero().flatten().tolist()]
        raise NumericError(message.format(", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")))


def _flat(pictures: torch.Tensor) -> torch.Tensor:
    """bool [N]: every channel of the picture [C,H,W] is one value."""
    pixels = pictures.flatten(2)
    return (pixels.amax(2) - pixels.amin(2) < 1e-6).all(1)


def _precision(vae) -> str:
    dtype = str(getattr(vae, "vae_dtype", None) or getattr(vae, "dtype", "its own precision")).removeprefix("torch.")
    return f"the VAE runs in {dtype}, try float32 (ComfyUI's option --fp32-vae)"
