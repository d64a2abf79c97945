"""Where model files, temporary files and results live: ComfyUI's folders when it is running, the same folders found by ourselves when not.

Names of models come from workflows, which come from strangers: a name never leads out of its folder.
"""
import os
import re
import sys
import tempfile
from pathlib import Path

from .errors import DependencyError, ModelFileError

KIND = "latentsync"  # our folder below models/
JOBS = "latentsync-jobs"
EXTENSIONS = {KIND: {".pt", ".safetensors"}}
OTHER_EXTENSIONS = {".ckpt", ".pt", ".pt2", ".bin", ".pth", ".safetensors", ".pkl", ".sft", ".onnx", ".tflite"}
PACK = Path(__file__).resolve().parent.parent


def register() -> None:
    """Make ComfyUI know `models/latentsync`, beside what `extra_model_paths.yaml` adds to it. May be called twice."""
    comfy = _comfy()
    if comfy is None:
        return
    comfy.add_model_folder_path(KIND, str(Path(comfy.models_dir) / KIND))
    known = comfy.folder_names_and_paths[KIND]
    comfy.folder_names_and_paths[KIND] = (known[0], set(EXTENSIONS[KIND]))  # an entry made by `add_model_folder_path` lists every file


def paths(kind: str = KIND) -> list[Path]:
    """The folders that are searched for models of `kind` (a folder name below models/), best first; they need not exist."""
    comfy = _comfy()
    if comfy is None:
        return _shim_paths(kind)
    if kind not in comfy.folder_names_and_paths:  # nobody registered it, so there is only ComfyUI's place for it
        return [Path(comfy.models_dir) / kind]
    return [Path(folder) for folder in comfy.get_folder_paths(kind)]


def names(kind: str = KIND) -> list[str]:
    """Sorted names, relative and with `/`, of the model files of `kind` in all its folders and their subfolders."""
    extensions, found = EXTENSIONS.get(kind, OTHER_EXTENSIONS), set()
    for folder in paths(kind):
        for place, subfolders, files in os.walk(folder, followlinks=True):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            relative = Path(place).relative_to(folder)
            found.update((relative / name).as_posix() for name in files if Path(name).suffix.lower() in extensions)
    return sorted(found)


def find(name: str, kind: str = KIND) -> Path | None:
    """The file or folder `name` in the first folder of `kind` that has it, or None. Raises ModelFileError if the name leads elsewhere."""
    relative = _safe(name, kind)
    return next((folder / relative for folder in paths(kind) if (folder / relative).exists()), None)


def path(name: str, kind: str = KIND) -> Path:
    """As `find`, but raises ModelFileError when there is no such file, saying where it was looked for."""
    found = find(name, kind)
    if found is None:
        looked = ", ".join(str(folder) for folder in paths(kind))
        raise ModelFileError(f"there is no {name!r} in {looked}: put it there, or choose one of the files that are there.")
    return found


def engines_dir() -> Path:
    """Where built engines are kept: `models/latentsync/engines`. It may not exist yet."""
    return paths(KIND)[0] / "engines"


def temp_dir() -> Path:
    """Where a job may keep files while it runs: ComfyUI's temporary folder (which it empties when it starts), else one of the system's."""
    comfy = _comfy()
    folder = Path(comfy.get_temp_directory()) if comfy else Path(tempfile.gettempdir()) / "latentsync-rtx"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def jobs_dir() -> Path:
    """Where blocks of unfinished jobs are kept, so that they outlive a crash and a start of ComfyUI (which empties its temporary folder):
    LATENTSYNC_JOBS, else `latentsync-jobs` in ComfyUI's user folder, else in the system's folder for caches. It may not exist yet."""
    if os.environ.get("LATENTSYNC_JOBS"):
        return Path(os.environ["LATENTSYNC_JOBS"]).expanduser().absolute()
    comfy = _comfy()
    if hasattr(comfy, "get_user_directory"):
        return Path(comfy.get_user_directory()) / JOBS
    if sys.platform == "win32":
        caches = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        caches = Path.home() / "Library" / "Caches"
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / JOBS


def output_dir() -> Path:
    """Where results go when nobody says where: ComfyUI's output folder, else the current one."""
    comfy = _comfy()
    return Path(comfy.get_output_directory()) if comfy else Path.cwd()


def comfyui_root() -> Path:
    """The folder that has `models/` outside ComfyUI: COMFYUI_PATH, else the ComfyUI whose `custom_nodes` this pack is in, else the pack's own."""
    if os.environ.get("COMFYUI_PATH"):
        return Path(os.environ["COMFYUI_PATH"]).expanduser().absolute()
    return next((place for place in PACK.parents if (place / "folder_paths.py").is_file()), PACK)


def _comfy():
    """ComfyUI's `folder_paths`, if ComfyUI is what is running: importing it here would read the command line and make folders."""
    module = sys.modules.get("folder_paths")
    return module if hasattr(module, "add_model_folder_path") and hasattr(module, "models_dir") else None


def _safe(name: str, kind: str) -> Path:
    text = str(name).replace("\\", "/")  # workflows made on Windows
    parts = text.split("/")
    if not text or text.startswith("/") or re.match(r"[A-Za-z]:", text) or "\0" in text or ".." in parts:
        raise ModelFileError(f"{name!r} is not the name of a file below models/{kind}: choose one from the list.")
    return Path(*[part for part in parts if part not in ("", ".")] or ["."])


# --- outside ComfyUI ---


def _shim_paths(kind: str) -> list[Path]:
    root, folders = comfyui_root(), []

    def add(folder: Path, is_default: bool = False) -> None:
        if is_default and folder in folders:
            folders.remove(folder)
        if folder not in folders:
            folders.insert(0 if is_default else len(folders), folder)

    if kind != KIND:  # ComfyUI knows its own kinds before it reads the file, and ours after
        add(root / "models" / kind)
    for folder, is_default in _extra_paths(root / "extra_model_paths.yaml", kind):
        add(folder, is_default)
    add(root / "models" / kind)
    return folders


def _extra_paths(file: Path, kind: str) -> list[tuple[Path, bool]]:
    """(folder, is_default) of each line that `file`, in the format of ComfyUI's `extra_model_paths.yaml`, has for `kind`."""
    if not file.is_file():
        return []
    try:
        import yaml
    except ImportError as error:
        raise DependencyError(f"reading {file} needs PyYAML: pip install pyyaml") from error
    try:
        sections = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        found = []
        for section in filter(None, sections.values()):
            base = file.parent / os.path.expandvars(os.path.expanduser(section.get("base_path") or "."))
            lines = [line for line in section.get(kind, "").split("\n") if line]
            found += [(Path(os.path.normpath(base.absolute() / line)), bool(section.get("is_default"))) for line in lines]
    except (yaml.YAMLError, AttributeError, TypeError) as error:
        raise ModelFileError(f"{file} is not a list of model folders as ComfyUI reads it: {error}") from error
    return found
