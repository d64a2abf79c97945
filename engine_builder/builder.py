"""From a model to an engine in the engine folder: what is refused first, the steps, and what is left when one fails (nothing)."""
import importlib.util
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from ..lipsync import weights
from ..lipsync.checkpoint import Uninitialised
from ..lipsync.errors import DependencyError, DiskSpaceError, EngineError
from ..lipsync.progress import Progress, silent
from ..lipsync.runners import engines, storage
from ..lipsync.runners import manifest as manifests
from ..lipsync.runners.engines import Engine, find_engine, list_engines
from ..lipsync.runners.manifest import DEEP, EXPORT_REVISION, FORMAT, PORTABLE, SHALLOW, THIS_GPU, WHOLE
from ..lipsync.unet import LatentSyncUNet
from . import weight_file
from .process import Step

__all__ = ["PORTABLE", "THIS_GPU", "Engine", "build", "check", "find_engine", "list_engines", "summary"]

log = logging.getLogger(__name__)

STAGE, EXPORT, COMPILE, WAIT = "build engine", "export network", "compile engine", "wait for another build"  # in progress reports
EXPORT_SHARE = 0.35  # of the time
BUILD_LOCK = ".build.lock"
WORK = ".build-"  # what the folders of unfinished builds begin with


def build(
    model,
    out_dir: str | Path | None = None,
    *,
    resolution: int = 512,
    frames: int = 16,
    guided: bool = True,
    targets: str | Iterable = PORTABLE,
    weight_streaming: bool = False,
    caching: bool = False,
    rebuild: bool = False,
    progress: Progress | None = None,
) -> dict:
    """Build an engine of `model` into `out_dir`, by default models/latentsync/engines; its manifest, with the plan's place as "path".

    model: a LatentSyncModel, or a LatentSyncUNet. resolution: px of the face crops. frames: of a block, 1 to 24. guided: a batch of two,
    for guidance above 1. targets: "portable", "gpu" (the card in this machine) or compute capabilities such as ["8.6", "8.9"].
    weight_streaming: weights may stay in host memory (slower). caching: a pair for profiles that reuse deep features; the manifest is of
    the deep one, which runs every profile and finds its partner by itself. An engine that was built before is not built again, unless
    `rebuild`.

    About a minute and 7 GB of memory for the full network. `progress` is asked several times a second; when it raises, everything stops
    at once. However it ends, nothing partial stays. Raises EngineError, DiskSpaceError, DependencyError.
    """
    progress = progress or silent
    source = _Source(model)
    roles = (SHALLOW, DEEP) if caching else (WHOLE,)
    wants = [_wanted(source, resolution, frames, guided, targets, weight_streaming, role) for role in roles]
    folder = engines.folder_of(out_dir)
    for index, want in enumerate(wants):
        path = folder / _file_name(source.name, want)
        manifest = None if rebuild else _existing(path, want)
        if manifest is None:
            try:
                manifest = _build_at(path, source, want, _share(progress, index, len(wants)), rebuild)
            except OSError as error:  # a read-only folder, a full disk
                raise EngineError(f"cannot build an engine in {folder}: {error}.") from error
    progress(100, 100, stage=STAGE)
    return {**manifest, "path": str(path)}


def _share(progress: Progress, index: int, count: int) -> Progress:
    """Progress of one of `count` builds, as part of all."""
    return lambda done, total, **more: progress((100 * index + done) // count, total, **more)


def _build_at(path: Path, source: "_Source", want: Mapping, progress: Progress, rebuild: bool) -> dict:
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    with storage.locked(folder / BUILD_LOCK, waiting=lambda: progress(0, 100, stage=WAIT)):
        found = None if rebuild else _existing(path, want)  # by whoever had the lock
        if found:
            return found
        for left_over in folder.glob(f"{WORK}*"):  # of a build that was killed: the lock says that nobody works there
            shutil.rmtree(left_over, ignore_errors=True)
        _check_space(folder, source)
        _check_memory(source)
        work = folder / f"{WORK}{manifests.identity(want)}"
        work.mkdir()
        try:
            manifest = _run(work, source, want, progress)
            manifest = {"format": FORMAT, "plan": path.name, "model": source.name, **want, **manifest, "parity": {}}
            path.with_suffix(".json").unlink(missing_ok=True)  # from here to its new manifest the plan is nobody's
            (work / "engine.plan").replace(path)
            engines.save_manifest(path, manifest)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    log.info("%s: %s", path, summary(manifest))
    return manifest


def check(path: str | Path, **wanted) -> tuple[bool, str]:
    """(ok, reason): `lipsync.runners.engines.check`, which see, with the library's own verdict on the header where it is installed."""
    verdict = None
    if engines.installed_version():
        from ..lipsync.runners.tensorrt_rtx import header_verdict as verdict
    return engines.check(path, verdict=verdict, **wanted)


def summary(manifest: Mapping) -> str:
    """One line for people: what was built, how large, how long it took."""
    gib = {name: manifest[f"{name}_bytes"] / 1e9 for name in ("plan", "activation", "peak_host") if manifest.get(f"{name}_bytes")}
    sizes = ", ".join(f"{name.replace('_', ' ')} {value:.2f} GB" for name, value in gib.items())
    return f"{manifests.variant(manifest)} for {manifests.targets_text(manifest)}; {sizes}; {manifest['seconds']['total']:.0f} s"


class _Source:
    """The weights, from a model handle or a network in memory. `tensors` maps names to tensors, memory-mapped where there is a file."""

    def __init__(self, model):
        self.config = model.config
        if isinstance(model, torch.nn.Module):
            self.name, self.tensors = "network", model.state_dict
            self.fingerprint = weights.fingerprint_of({name: value.detach().cpu() for name, value in model.state_dict().items()})
        else:
            self.name, self.tensors, self.fingerprint = model.name, model.tensors, model.fingerprint
        with torch.device("meta"), Uninitialised():
            self.shapes = LatentSyncUNet(self.config).state_dict()
        self.places = weight_file.layout(self.shapes, torch.float16)
        self.size = weight_file.size_of(self.places)


def _wanted(source: _Source, resolution: int, frames: int, guided: bool, targets, weight_streaming: bool, role: str = WHOLE) -> dict:
    """The identity of the engine to build. Raises for everything that can be refused before work."""
    version = engines.installed_version()
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if version is None or missing:
        names = " ".join([*missing, *([] if version else ["tensorrt-rtx"])])
        raise DependencyError(f"building an engine needs {names}: pip install {names} (into the Python that runs this).")
    multiple = 8 * source.config.multiple
    if resolution < multiple or resolution % multiple:
        raise EngineError(f"an engine's resolution must be a multiple of {multiple} px (512 and 256 are usual), got {resolution}.")
    if not 1 <= frames <= source.config.max_frames:
        raise EngineError(f"an engine takes 1 to {source.config.max_frames} frames at once, got {frames}; the network was trained on 16.")
    targets = manifests.normalised_targets(targets)
    gpu = None
    if targets == THIS_GPU:
        from ..lipsync.runners.choice import gpu_of

        card = gpu_of()
        if manifests.unsupported(card):
            raise EngineError(f"cannot build for this GPU: {manifests.unsupported(card)}. Build a portable engine instead.")
        gpu = {"name": card.name, "capability": card.capability}
    return {
        "fingerprint": source.fingerprint,
        "network": {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(source.config).items()},
        "export_revision": EXPORT_REVISION,
        "resolution": int(resolution),
        "frames": int(frames),
        "guided": bool(guided),
        "precision": "fp16",
        "role": role,
        "tensorrt_rtx": version,
        "targets": targets,
        "gpu": gpu,
        "weight_streaming": bool(weight_streaming),
    }


def _file_name(model: str, want: Mapping) -> str:
    stem = re.sub(r"[^\w.-]+", "-", Path(model).stem).strip("-.") or "model"
    targets = want["targets"] if isinstance(want["targets"], str) else "sm" + "-".join(want["targets"]).replace(".", "")
    guidance = "guided" if want["guided"] else "unguided"
    role = "" if want["role"] == WHOLE else f"_{want['role']}"
    return f"{stem}_{want['resolution']}_{want['frames']}_{guidance}{role}_{targets}_{manifests.identity(want)}{engines.SUFFIX}"


def _existing(path: Path, want: Mapping) -> dict | None:
    ok, reason = engines.check(path, **want)
    if ok:
        return engines.read(path).manifest
    if path.exists():
        log.warning("built again: %s", reason)
    return None


def _run(work: Path, source: _Source, want: Mapping, progress: Progress) -> dict:
    def hear(stage: str, start: float, share: float) -> Callable[[float], None]:
        return lambda fraction: progress(int(100 * (start + share * fraction)), 100, stage=stage)

    started = time.monotonic()
    with Step("export", work, dict(want), hear(EXPORT, 0.0, EXPORT_SHARE)) as step:
        weight_file.write(work / weight_file.NAME, source.tensors(), report=lambda _: step.check())
        exported = step.result()
    from .graph import weight_names

    used = exported.pop("weights")
    job = {**want, "weights": weight_file.NAME, "places": weight_names({name: source.places[name] for name in used})}
    with Step("plan", work, job, hear(COMPILE, EXPORT_SHARE, 1 - EXPORT_SHARE)) as step:
        built = step.result()
    seconds = {"export": exported.pop("seconds"), "plan": built.pop("seconds"), "total": round(time.monotonic() - started, 1)}
    peaks = [peak for peak in (exported.pop("peak_host_bytes"), built.pop("peak_host_bytes")) if peak]
    return {**exported, **built, "seconds": seconds, "peak_host_bytes": max(peaks, default=None)}


def _check_space(folder: Path, source: _Source) -> None:
    needed, free = int(2.1 * source.size) + (256 << 20), shutil.disk_usage(folder).free  # the weights once more, and the plan
    if free < needed:
        raise DiskSpaceError(f"building an engine needs {needed / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are free: make room.")


def _check_memory(source: _Source) -> None:
    needed, free = int(2.2 * source.size) + (1 << 30), _free_memory()
    if free is not None and free < needed:
        raise EngineError(
            f"building an engine needs {needed / 1e9:.1f} GB of memory, but {free / 1e9:.1f} GB are free: close other programs, or build "
            "on another machine (a portable engine runs on any supported GPU; copy it together with its .json)."
        )


def _free_memory() -> int | None:
    """Bytes that a new process can use, None when nobody says."""
    try:
        import psutil
    except ImportError:
        return None
    return psutil.virtual_memory().available
