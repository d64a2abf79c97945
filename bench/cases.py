"""What is measured, in groups that can be asked for by name. Each takes a `Setup` and yields rows."""
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import torch
from torch.nn.attention import sdpa_kernel

from ..lipsync import denoise, ops, vae_fast
from ..lipsync.errors import DependencyError
from ..lipsync.profiles import choose
from ..lipsync.runners import TorchRunner
from ..lipsync.unet import UNetConfig
from . import face, networks, profiles, reference
from .measure import DISTURBING, PACING, Row, apart, captured, disturbances, exact, milliseconds, peak

GUIDANCE = 1.5


@dataclass(frozen=True)
class Setup:
    """device; dtype of the networks; size: of a latent; frames of a block; small: for a CPU, where the real sizes would take hours."""

    device: torch.device
    dtype: torch.dtype
    size: int
    frames: int
    small: bool
    steps: int = 20
    compile: bool = False
    memory: float | None = None  # GB that the job may use

    @property
    def config(self) -> UNetConfig:
        return UNetConfig(block_out_channels=(32, 32, 64, 64)) if self.small else UNetConfig()

    @property
    def widths(self) -> tuple[int, ...]:
        return (32, 32, 64, 64) if self.small else (128, 256, 512, 512)

    @property
    def graphs(self) -> bool:
        return self.device.type == "cuda"


def unet(setup: Setup) -> Iterator[Row]:
    """One guided step of the network: the reference's order, and ours in its several forms."""
    device, half = setup.device, setup.dtype
    sample = torch.randn(1, 13, setup.frames, setup.size, setup.size, device=device).to(half)
    audio = torch.randn(1, setup.frames, 50, 384, device=device).to(half)
    timestep = torch.tensor([500], device=device)
    network = networks.unet(device, half, setup.config)
    with exact():
        truth = network.float()(sample.float(), timestep, audio.float(), guided=True)
    network = network.to(half)
    both, heard_by_one = torch.cat([sample, sample]), torch.cat([torch.zeros_like(audio), audio])

    def in_reference_order():
        return reference.unet(network, both, timestep, heard_by_one)

    yield from _step("reference order", in_reference_order, truth, setup)
    network = network.to(memory_format=torch.channels_last)
    network.fuse()
    shifts, heard = network.embed(timestep), network.listen(audio, silent=1)
    channels_last = sample.permute(0, 2, 3, 4, 1).contiguous().permute(0, 4, 1, 2, 3)

    def step():
        return network.evaluate(channels_last, shifts, heard)

    if setup.graphs:
        with ops.without_kernels():
            yield from _step("without Triton", step, truth, setup, (105, 95))
    yield from _step("ours", step, truth, setup, (90, 78))
    if setup.compile:
        compiled = torch.compile(step, fullgraph=True)
        with sdpa_kernel(ops.BACKENDS, **ops.ORDERED):
            started = time.perf_counter()
            compiled()
            yield Row("UNet step, torch.compile, first", time.perf_counter() - started, "s", note="compiling what its cache on disk has not")
            yield from _step("torch.compile", compiled, truth, setup)


def _step(name: str, work: Callable[[], torch.Tensor], truth: torch.Tensor, setup: Setup, graph=(None, None)) -> Iterator[Row]:
    with peak() if setup.graphs else nullcontext() as used:
        out = work()
        note = f"{used()[0]:.2f} GB of tensors at most" if setup.graphs else ""
    yield Row(f"UNet step, {name}, eager", milliseconds(work, setup.device, 0.1 if setup.small else 1), "ms", note=note)
    yield Row(f"UNet step, {name}, 1 - cosine to float32", apart(out, truth), "", 1e-5)
    if setup.graphs:
        replay, out = captured(work)
        replay()
        yield Row(f"UNet step, {name}, CUDA graph", milliseconds(replay, setup.device, 2), "ms", *graph)
        yield Row(f"UNet step, {name}, CUDA graph, 1 - cosine to float32", apart(out, truth), "", 1e-5)


def block(setup: Setup) -> Iterator[Row]:
    """The steps of a block as the job does them: guidance, sampler, input assembly, progress."""
    runner = TorchRunner(networks.unet(setup.device, setup.dtype, setup.config), setup.device, setup.dtype)
    side, frames, seconds = setup.size, setup.frames, 0.1 if setup.small else 3
    denoiser = denoise.BlockDenoiser(
        runner, choose(steps=setup.steps).plan(GUIDANCE), latent_keep=torch.rand(side, side), noise=torch.randn(4, side, side), frames=frames
    )
    latents = torch.randn(2, frames, 4, side, side, device=setup.device)
    one = denoise.Block(latents[0], latents[1], torch.randn(frames, 50, 384))
    whole = milliseconds(lambda: denoiser.run([one]), setup.device, seconds)
    session = denoiser.session
    step = session.capture(lambda: session.noise(denoiser._index))
    alone = milliseconds(lambda: [step() for _ in range(setup.steps)], setup.device, seconds)
    yield Row(f"block of {setup.steps} steps", whole, "ms")
    yield Row(f"block over {setup.steps} steps of the network alone", (whole / alone - 1) * 100, "%", 1)
    if setup.graphs:
        counts = disturbances(lambda: denoiser.run([one]))
        calls = [f"{name} {counts[name]}" for name in DISTURBING if counts[name]]
        note = ", ".join([*calls, f"{counts['tensors']} tensors handed out by PyTorch, {counts[PACING]} waits of the pacing"])
        yield Row("block: driver allocations, frees, waits for the GPU", sum(counts[name] for name in DISTURBING), "", 0, note=note)
    denoiser.close()
    runner.unload()


def vae(setup: Setup) -> Iterator[Row]:
    """Both encodes and the decode of one block."""
    device, half, side = setup.device, setup.dtype, setup.size * 8
    model = networks.vae(device, half, setup.widths)
    crops = torch.nn.functional.interpolate(torch.rand(2 * setup.frames, 3, side // 8, side // 8, device=device), scale_factor=8, mode="bilinear")
    crops, latents = (crops * 2 - 1).to(half), torch.randn(setup.frames, 4, setup.size, setup.size, device=device).to(half)
    with exact():
        model.float()
        moments, pictures = model.encode(crops[:2].float()), model.decode(latents[:2].float())
        model.to(half)

    def encode(slices: int):
        return [model.encode(part) for part in crops.split(slices)]

    def decode(slices: int):
        return [model.decode(part) for part in latents.split(slices)]

    def rows(name: str, slices: int, reach=(None, None)):
        with peak() if setup.graphs else nullcontext() as used:
            times = [milliseconds(partial(work, slices), device, 0.1 if setup.small else 1) for work in (encode, decode)]
            note = f"encode {times[0]:.1f}, decode {times[1]:.1f}"
            note += f", {used()[0]:.2f} GB of tensors at most" if setup.graphs else ""
        yield Row(f"VAE of a block, {name}, {slices} at a time", sum(times), "ms", *reach, note=note)
        distance = max(apart(model.encode(crops[:2]), moments), apart(model.decode(latents[:2]), pictures))
        yield Row(f"VAE, {name}, 1 - cosine to float32", distance, "", 1e-5)

    yield from rows("plain", 2 if setup.small else 16)
    model.to(memory_format=torch.channels_last)
    if setup.graphs:
        with vae_fast.accelerated(SimpleNamespace(first_stage_model=model)):
            for slices in (2, 4, 8):
                yield from rows("ours", slices, (230, 170))


def faces(setup: Setup) -> Iterator[Row]:
    """Aligning and restoring, a frame: on one core, and on a GPU several at a time."""
    for device in dict.fromkeys(("cpu", setup.device.type)):
        for row in face.align_rows(device) + face.restore_rows(device):
            place = "one core" if device == "cpu" else "GPU"
            note = f"face {row['face']} px" + (f", {row['psnr']:.0f} dB to OpenCV" if row["psnr"] is not None else "")
            yield Row(f"{row['what']} a {row['frame']} frame, {place}", row["ms"], "ms", row["reach"], note=note)


def clip(setup: Setup) -> Iterator[Row]:
    """A whole job, without looking for faces. Raises DependencyError without PyAV, which the other groups do not need."""
    try:
        from . import job
    except ImportError as error:
        raise DependencyError(f"a whole job reads and writes films, which needs PyAV ({error}): pip install av") from error
    yield from job.rows(setup)


CASES: dict[str, Callable[[Setup], Iterator[Row]]] = {
    "unet": unet, "block": block, "profiles": profiles.rows, "vae": vae, "faces": faces, "clip": clip
}  # fmt: skip
