"""What `doctor` looks at, one function a subject. Nothing here needs a package that it reports on, writes a file, or asks the network."""
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, wraps
from pathlib import Path

from ..lipsync import folders
from ..lipsync.errors import EngineError, FaceError, LatentSyncError

OK, NOTE, MISSING = "ok", "note", "missing"
NEEDED = {name: name for name in ("torch", "numpy", "av", "safetensors", "scipy", "tqdm")} | {"cv2": "opencv-python", "yaml": "pyyaml"}  # -> pip's name
PYTHONS = (3, 10), (3, 13)  # tested
COMFYUI = (0, 3, 75)  # the release that the tests run
FREE_DISK, FREE_MEMORY = 10e9, 8e9  # bytes below which something usual will not fit: the models, a long clip; an engine build
REQUIREMENTS = folders.PACK / "requirements.txt"
DRIVER_SECONDS = 20


@dataclass(frozen=True)
class Finding:
    """name: of what was looked at. state: OK, NOTE (it works, but ...) or MISSING (needed, and not there). found: what is there, for people.
    do: what to do about it, "" when nothing is."""

    name: str
    state: str
    found: str
    do: str = ""


Check = Callable[[], Iterator[Finding]]
CHECKS: list[Check] = []  # in the order in which they are told


def check(name: str) -> Callable[[Check], Check]:
    """Marks a check; one that breaks tells so, and does not keep the others from being made."""

    def mark(function: Check) -> Check:
        @wraps(function)
        def guarded() -> Iterator[Finding]:
            try:
                yield from function()
            except ImportError as error:
                yield Finding(name, NOTE, f"cannot be looked at: {error}", "see the packages above")
            except Exception as error:  # of any kind: what is broken here is what the user wants to know
                yield Finding(name, NOTE, f"cannot be looked at: {type(error).__name__}: {error}", "see the other findings first")

        CHECKS.append(guarded)
        return guarded

    return mark


@check("Python")
def python() -> Iterator[Finding]:
    version, name = sys.version_info[:2], f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    low, high = PYTHONS
    if version < low:
        yield Finding("Python", MISSING, name, "use Python 3.10 to 3.13: ComfyUI's own, usually")
    else:
        untested = f"tested up to {high[0]}.{high[1]}" if version > high else ""
        yield Finding("Python", NOTE if untested else OK, name, untested)
    absent = [pip for module, pip in NEEDED.items() if importlib.util.find_spec(module) is None]
    if absent:
        do = f"{sys.executable} -m pip install -r {REQUIREMENTS}; what it does not bring comes with ComfyUI"
        yield Finding("packages", MISSING, f"not installed: {', '.join(absent)}", do)
    else:
        yield Finding("packages", OK, ", ".join(f"{NEEDED[module]} {_version(module)}" for module in ("numpy", "av", "cv2")))


@check("PyTorch")
def pytorch() -> Iterator[Finding]:
    import torch

    build = f"{torch.__version__}, CUDA {torch.version.cuda}" if torch.version.cuda else f"{torch.__version__} without CUDA"
    yield Finding("PyTorch", OK, build)
    card, driver = gpu(), _nvidia()
    if card is not None:
        memory = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0
        yield Finding("GPU", OK, f"{card.key}, {memory / 1e9:.0f} GB, driver {driver[0] if driver else 'for'} CUDA {card.driver}")
    elif driver is None:
        yield Finding("GPU", NOTE, "no NVIDIA driver: everything runs on the CPU", "enough to try the graph with the demo model; far too slow for the real one")
    elif torch.version.cuda is None:
        yield Finding("GPU", NOTE, f"{driver[1]} is there, but this PyTorch cannot use it", "install PyTorch's CUDA build: https://pytorch.org/get-started")
    else:
        yield Finding("GPU", NOTE, f"{driver[1]}, driver {driver[0]}: PyTorch does not see it", f"update the driver: it must know CUDA {torch.version.cuda}")


@check("Triton")
def triton() -> Iterator[Finding]:
    if gpu() is None:
        yield Finding("Triton", OK, "not needed without a GPU")
    elif importlib.util.find_spec("triton") is None:
        package = "triton-windows" if os.name == "nt" else "triton"
        yield Finding("Triton", NOTE, "not installed: plain PyTorch operations run instead, slower", f"{sys.executable} -m pip install {package}")
    elif os.name != "nt" and not _compiler():  # the Windows package brings one
        yield Finding("Triton", NOTE, "has no C compiler: plain PyTorch operations run instead, slower", "install gcc (Debian: apt install gcc)")
    else:
        yield Finding("Triton", OK, importlib.metadata.version("triton-windows" if os.name == "nt" else "triton"))


@check("TensorRT-RTX")
def tensorrt_rtx() -> Iterator[Finding]:
    from ..lipsync.runners.engines import installed_version
    from ..lipsync.runners.manifest import unsupported

    version, card = installed_version(), gpu()
    why_not = unsupported(card)
    if version is None:
        do = "" if why_not else f"{sys.executable} -m pip install tensorrt-rtx onnx onnxscript"
        yield Finding("TensorRT-RTX", OK if why_not else NOTE, "not installed: PyTorch runs the network", do)
        return
    absent = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if absent:
        yield Finding("engine builder", NOTE, f"{version}, without {' and '.join(absent)}", f"{sys.executable} -m pip install {' '.join(absent)}")
    if why_not:
        do = "" if card is None else "nothing: engines for other cards can be built here"
        yield Finding("TensorRT-RTX", OK if card is None else NOTE, f"{version}, but {why_not}: PyTorch runs the network", do)
    else:
        yield Finding("TensorRT-RTX", OK, f"{version}, supports this card")


@check("ComfyUI")
def comfyui() -> Iterator[Finding]:
    root = folders.comfyui_root()
    if not (root / "folder_paths.py").is_file():
        told = os.environ.get("COMFYUI_PATH")
        where = f"COMFYUI_PATH is {told!r}, where no ComfyUI is" if told else "not found"
        do = "set COMFYUI_PATH to its folder, or put this pack into its custom_nodes"
        yield Finding("ComfyUI", NOTE, f"{where}; models are looked for in {root / 'models'}", do)
        return
    told = root / "comfyui_version.py"
    number = re.search(r'__version__\s*=\s*"([\d.]+)', told.read_text(encoding="utf-8")) if told.is_file() else None
    version = tuple(int(part) for part in number[1].split(".")) if number else ()
    name = f"{number[1] if number else 'of unknown version'} in {root}"
    if not (root / "comfy_api" / "latest").is_dir():
        yield Finding("ComfyUI", MISSING, f"{name}: too old for these nodes", f"update ComfyUI to {'.'.join(map(str, COMFYUI))} or newer")
    else:
        old = version < COMFYUI
        yield Finding("ComfyUI", NOTE if old else OK, name, f"update: {'.'.join(map(str, COMFYUI))} is the oldest that is tested" if old else "")


@check("models")
def models() -> Iterator[Finding]:
    from ..lipsync import checkpoint, download, weights
    from ..lipsync.demo import BUNDLED

    present = [name for name in weights.list_models() if name not in BUNDLED and folders.find(name)]
    for name in present:
        try:
            model = weights.find_model(name)
            yield Finding("checkpoint", OK, f"{_sized(model.path)}; {model.description}")
        except LatentSyncError as error:
            yield Finding("checkpoint", MISSING, str(error), "replace the file")
    for name, find, source in (("Whisper", weights.find_whisper, weights.WHISPER_SOURCE), ("VAE", weights.find_vae, weights.VAE_SOURCE)):
        try:
            path = find()
            if path.is_file():  # a VAE may be a folder
                checkpoint.check_file(path, what=name, source=source)
            yield Finding(name, OK, _sized(path))
        except LatentSyncError as error:
            if "is missing" not in str(error):
                yield Finding(name, MISSING, str(error), "replace the file")
    lacking = download.missing(present[0] if present else None)
    if lacking:
        yield Finding("models", MISSING, f"not there: {', '.join(one.name for one in lacking)}", download.offer(lacking))


@check("faces")
def faces() -> Iterator[Finding]:
    from ..lipsync.face import insightface
    from ..lipsync.face.mediapipe import MediaPipeDetector

    try:
        MediaPipeDetector(threads=1)
        yield Finding("MediaPipe's face files", OK, "both found and readable")
    except FaceError as error:
        state, tool = NOTE if insightface.has_files() else MISSING, folders.PACK / "tools" / "face_models.py"
        yield Finding("MediaPipe's face files", state, str(error), f"{sys.executable} {tool} {folders.paths()[0] / 'face'}")
    if insightface.has_files():
        yield Finding("InsightFace's face files", NOTE, "found: the detector 'auto' uses them", insightface.LICENCE)


@check("engines")
def engines() -> Iterator[Finding]:
    from .. import engine_builder
    from ..lipsync.runners.engines import SUFFIX
    from ..lipsync.runners.manifest import unsupported

    folder, card = folders.engines_dir(), gpu()
    plans = [path for path in sorted(folder.glob(f"*{SUFFIX}")) if not path.name.startswith(".")] if folder.is_dir() else []
    for path in plans:
        ok, reason = engine_builder.check(path, gpu=card)
        try:
            manifest = engine_builder.find_engine(path.name).manifest
            summary = f"{path.name}: {engine_builder.summary(manifest)}" if ok else reason
            if ok and manifest["fingerprint"] not in _fingerprints():
                ok, summary = False, f"{path.name}: its checkpoint ({manifest['model']}, {manifest['fingerprint']}) is not here"
        except EngineError as error:
            ok, summary = False, str(error)
        yield Finding("engine", OK if ok else NOTE, summary, "" if ok else "build it again with `build-engine`; PyTorch runs the network meanwhile")
    if not plans and unsupported(card) is None:
        yield Finding("engine", NOTE, f"none in {folder}: PyTorch runs the network", f"{sys.executable} {folders.PACK} build-engine")
    elif not plans:
        yield Finding("engine", OK, f"none in {folder}, and none is needed here")


@check("encoders")
def encoders() -> Iterator[Finding]:
    from fractions import Fraction

    import av

    from ..lipsync.clip import ENCODERS
    from ..lipsync.clip.write import choose_encoder

    usable = []
    logging.disable(logging.WARNING)  # one that is not there is no news here
    try:
        usable += [name for name in ENCODERS if choose_encoder(name, 640, 480, Fraction(25)) == name]
    except LatentSyncError:  # none at all
        pass
    finally:
        logging.disable(logging.NOTSET)
    codecs = f"PyAV {av.__version__}: {', '.join(usable) or 'no video encoder'} (no ffmpeg program is needed)"
    best = ENCODERS[0] in usable
    do = "" if best else f"{sys.executable} -m pip install --force-reinstall av: PyPI's build has libx264"
    yield Finding("encoders", OK if best else NOTE if usable else MISSING, codecs, do)


@check("disk")
def disk() -> Iterator[Finding]:
    for name, place in (("models", folders.paths()[0]), ("temporary files", Path(tempfile.gettempdir())), ("unfinished jobs", folders.jobs_dir())):
        there = next(one for one in (place, *place.parents) if one.exists())
        free = shutil.disk_usage(there).free
        do = "make room: models take 5.4 GB, an hour of clip several" if free < FREE_DISK else ""
        yield Finding(f"disk for {name}", NOTE if do else OK, f"{free / 1e9:.0f} GB free in {place}", do)
    jobs = folders.jobs_dir()
    kept = [path.stat().st_size for path in jobs.glob("*.block*")] if jobs.is_dir() else []
    if kept:
        yield Finding("unfinished jobs", OK, f"{len(kept)} blocks, {sum(kept) / 1e9:.2g} GB in {jobs}; they go after a week, and may be deleted")


@check("memory")
def memory() -> Iterator[Finding]:
    import psutil

    told = psutil.virtual_memory()
    few = told.available < FREE_MEMORY
    do = "close other programs before building an engine (7 GB) or loading the checkpoint (5 GB)" if few else ""
    yield Finding("memory", NOTE if few else OK, f"{told.available / 1e9:.0f} of {told.total / 1e9:.0f} GB are free", do)


@lru_cache(maxsize=1)
def gpu():
    """The `Gpu` that PyTorch would use, or None."""
    from ..lipsync.runners.choice import gpu_of

    return gpu_of()


def _fingerprints() -> set[str]:
    """Of the checkpoints that can be read, and of the demo models."""
    from ..lipsync import weights

    found = set()
    for name in weights.list_models():
        with suppress(LatentSyncError):
            found.add(weights.find_model(name).fingerprint)
    return found


def _nvidia() -> tuple[str, str] | None:
    """(driver version, card) as the driver tells them, None without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DRIVER_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    first, _, name = (done.stdout.splitlines() or [""])[0].partition(", ")
    return (first, name) if name else None


def _compiler() -> str | None:
    return os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def _version(module: str) -> str:
    for name in (NEEDED[module], f"{NEEDED[module]}-headless"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return getattr(importlib.import_module(module), "__version__", "?")


def _sized(path: Path) -> str:
    size = path.stat().st_size if path.is_file() else sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
    return f"{path} ({size / 1e9:.2f} GB)" if size >= 1e9 else f"{path} ({size / 1e6:.1f} MB)"
