"""The folder of built engines: which there are, and which may be used. A plan is code: nothing outside this folder is ever loaded."""
import importlib.metadata
import json
import logging
import re
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from .. import folders
from ..errors import EngineError
from . import manifest as manifests
from . import storage
from .manifest import HEADER_BYTES, Gpu

log = logging.getLogger(__name__)

SUFFIX = ".plan"
LOCK = ".lock"  # of manifests and JIT caches, held for moments


@dataclass(frozen=True)
class Engine:
    """What the socket LATENTSYNC_ENGINE carries. path: of the plan. manifest: see manifest.py. Two of one identity and place are equal."""

    path: Path
    identity: str
    manifest: dict = field(compare=False, repr=False)

    @property
    def label(self) -> str:
        """For lists: file name and size."""
        return f"{self.path.name} ({self.manifest['plan_bytes'] / 1e9:.2f} GB)"

    @property
    def variant(self) -> str:
        return manifests.variant(self.manifest)


def folder_of(folder: Path | str | None = None) -> Path:
    return Path(folder) if folder is not None else folders.engines_dir()


def list_engines(folder: Path | str | None = None, roles: Collection[str] = (manifests.WHOLE, manifests.DEEP)) -> list[Engine]:
    """Every engine with a readable manifest, by name: those that can be chosen, unless `roles` says otherwise. Others are left out with a line
    in the log; nothing is ever deleted."""
    found = []
    for path in sorted(folder_of(folder).glob(f"*{SUFFIX}")):
        if path.name.startswith("."):
            continue
        try:
            found.append(find_engine(path.name, folder))
        except EngineError as error:
            log.warning("not listed: %s", error)
    return [engine for engine in found if engine.manifest["role"] in roles]


def partner(engine: Engine) -> Engine | None:
    """The shallow engine that belongs to a deep one: beside it, and the same build in everything else. None when there is none."""
    if engine.manifest["role"] != manifests.DEEP:
        return None
    identity = manifests.identity({**engine.manifest, "role": manifests.SHALLOW})
    return next((one for one in list_engines(engine.path.parent, roles=(manifests.SHALLOW,)) if one.identity == identity), None)


def find_engine(name: str, folder: Path | str | None = None) -> Engine:
    """The engine called `name`: its file name, or its label in a list. Raises EngineError; neither a name nor a link leads out of the folder."""
    name = re.sub(r" \([\d.]+ GB\)$", "", name.strip())
    if not name or name != Path(name).name or "\\" in name or "\0" in name or not name.endswith(SUFFIX):
        raise EngineError(f"{name!r} is not the name of an engine in {folder_of(folder)}: choose one from the list.")
    path = folder_of(folder) / name
    try:
        real = path.resolve()
        if real.parent != path.parent.resolve():
            raise EngineError(f"{path} is a link to {real}, and a plan is code: move the file itself into the folder, with its .json.")
        return read(path)
    except EngineError:
        raise
    except (OSError, RuntimeError) as error:  # a name too long, links in a circle
        raise EngineError(f"cannot use {path}: {error}.") from error


def read(path: Path | str) -> Engine:
    """The engine whose plan is at `path`: its manifest is read, the plan is not looked at. Raises EngineError."""
    path = Path(path)
    beside = path.with_suffix(".json")
    if path.suffix != SUFFIX or not beside.is_file():
        raise EngineError(f"{path} has no manifest {beside.name} beside it, so nothing is known about it. {manifests.REBUILD}")
    try:
        manifest = manifests.parsed(beside.read_text(encoding="utf-8"))
    except (EngineError, UnicodeDecodeError, OSError) as error:
        raise EngineError(f"cannot use {beside}: {error}. {manifests.REBUILD}") from error
    return Engine(path, manifests.identity(manifest), manifest)


def check(
    path: Path | str,
    *,
    gpu: Gpu | None = None,
    version: str | None = None,
    verdict: Callable[[bytes], str | None] | None = None,
    **want,
) -> tuple[bool, str]:
    """(ok, reason) for the plan at `path`, from its manifest and first 64 bytes; loads nothing. The reason names file and field.

    gpu: the card it is to run on. version: of TensorRT-RTX, by default the one installed. verdict: asks the library about the header
    (`tensorrt_rtx.header_verdict`), gives what is wrong with it. want: any IDENTITY fields of manifest.py: resolution=512, guided=True ...
    """
    path = Path(path)
    if not path.is_file():
        return False, f"engine {path}: there is no such file."
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
        size = path.stat().st_size
    except OSError as error:
        return False, f"engine {path}: cannot be read ({error})."
    wrong = manifests.wrong_file(header, size)
    if wrong:
        return False, f"engine {path}: it {wrong}."
    try:
        manifest = read(path).manifest
    except EngineError as error:
        return False, str(error)
    ok, reason = manifests.judge(manifest, header=header, size=size, want=want, version=version or installed_version(), gpu=gpu)
    if ok and verdict:
        reason = verdict(header) or ""
    return not reason, f"engine {path.name}: {reason}" if reason else ""


def installed_version() -> str | None:
    """The release of TensorRT-RTX, without importing it (it is large); None when there is none."""
    loaded = sys.modules.get("tensorrt_rtx")
    if hasattr(loaded, "__version__"):
        return loaded.__version__
    try:
        return importlib.metadata.version("tensorrt-rtx")
    except importlib.metadata.PackageNotFoundError:
        return None


def save_manifest(path: Path, manifest: dict) -> None:
    storage.write(path.with_suffix(".json"), (json.dumps(manifest, indent=1) + "\n").encode())


def record_parity(engine: Engine, gpu: Gpu, verdict: dict) -> Engine:
    """Keep the comparison with PyTorch on `gpu` in the engine's manifest; the engine, with it."""
    with storage.locked(engine.path.parent / LOCK):
        manifest = read(engine.path).manifest
        manifest.setdefault("parity", {})[gpu.key] = {**verdict, "driver": gpu.driver}
        save_manifest(engine.path, manifest)
    return Engine(engine.path, engine.identity, manifest)
