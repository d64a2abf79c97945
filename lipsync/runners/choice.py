"""Which back end runs a job: the user's wish, what is installed, which card is there, which engines there are."""
import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import EngineError
from . import engines
from .engines import Engine
from .manifest import CACHING, DEEP, REBUILD, SHALLOW, Gpu, unsupported

log = logging.getLogger(__name__)

AUTO, RTX, TORCH = "auto", "tensorrt_rtx", "torch"
BACKENDS = (AUTO, RTX, TORCH)


@dataclass(frozen=True)
class Choice:
    """backend: RTX or TORCH. reason: why, for people. engine: the one to run, for RTX."""

    backend: str
    reason: str
    engine: Engine | None = None


def choose(wish: str, *, gpu: Gpu | None, version: str | None, candidates: list[tuple[Engine, bool, str]]) -> Choice:
    """The back end for `wish` (one of BACKENDS). A pure function.

    gpu: the card, None when there is none. version: of TensorRT-RTX, None when it is not installed. candidates: engines with their check's
    verdict (ok, reason), best first. Raises EngineError when RTX is wished for and cannot be.
    """
    if wish not in BACKENDS:
        raise EngineError(f"there is no back end {wish!r}: choose one of {', '.join(BACKENDS)}.")
    if wish == TORCH:
        return Choice(TORCH, "as chosen")
    usable = next((engine for engine, ok, _ in candidates if ok), None)
    why_not = unsupported(gpu)
    if not why_not and version is None:
        why_not = "the package tensorrt-rtx is not installed"
    if not why_not and usable is None:
        why_not = candidates[0][2] if candidates else f"there is no engine for this checkpoint. {REBUILD}"
    if not why_not:
        return Choice(RTX, f"{usable.path.name} on {gpu.name}", usable)
    if wish == RTX:
        raise EngineError(f"TensorRT-RTX cannot run: {why_not.rstrip('.')}.")
    return Choice(TORCH, why_not.rstrip("."))


def choose_for(
    model,
    wish: str = AUTO,
    *,
    engine: Engine | None = None,
    device: torch.device | str | None = None,
    folder: Path | None = None,
    cached: bool = False,
    **want,
) -> Choice:
    """The back end for a LatentSyncModel on this machine; the one line about it goes to the log.

    engine: this one and no other. folder: of engines. want: IDENTITY fields an engine must have (resolution=512, guided=True), where it
    matters. cached: deep features will be reused from step to step. Raises EngineError as `choose`.
    """
    gpu = gpu_of(device)
    known = [] if wish == TORCH else [engine] if engine else engines.list_engines(folder)
    want = {"fingerprint": model.fingerprint, **want}
    mine = known if engine else [one for one in known if one.manifest["fingerprint"] == model.fingerprint]
    # Guided ones run everything, longer blocks are what the network was trained on, and a larger side is the newer release. Leaving deep
    # features costs a little, so those that do come last unless they are asked for.
    mine = sorted(mine, key=lambda one: (one.manifest["role"] == DEEP) == cached, reverse=True)
    mine = sorted(mine, key=lambda one: (one.manifest["guided"], min(one.manifest["frames"], 16), one.manifest["resolution"]), reverse=True)
    verdicts = [(one, *_verdict(one, cached, gpu=gpu, **want)) for one in mine]
    choice = choose(wish, gpu=gpu, version=engines.installed_version(), candidates=verdicts)
    if choice.backend == TORCH and wish != TORCH:
        log.warning("PyTorch runs the network: %s.", choice.reason)
    else:
        log.info("Back end %s: %s.", choice.backend, choice.reason)
    return choice


def _verdict(engine: Engine, cached: bool, **want) -> tuple[bool, str]:
    """Whether an engine can be used: by itself, and where deep features will be reused, with its partner."""
    if engine.manifest["role"] == SHALLOW:
        return False, f"engine {engine.path.name}: it is only the outer part of one. Choose the deep engine beside it."
    ok, reason = engines.check(engine.path, **want)
    if not ok or not cached:
        return ok, reason
    shallow = engines.partner(engine)
    if shallow is None:
        return False, f"engine {engine.path.name}: it does not let the network's deep features be reused, as the profile does. {CACHING}"
    return engines.check(shallow.path, **want)


def gpu_of(device: torch.device | str | None = None) -> Gpu | None:
    """The NVIDIA card that `device` is on (by default the current one), or None."""
    device = torch.device(device or "cuda")
    if device.type != "cuda" or torch.version.cuda is None or not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(device)
    driver = torch._C._cuda_getDriverVersion()
    return Gpu(properties.name, f"{properties.major}.{properties.minor}", f"{driver // 1000}.{driver % 1000 // 10}")
