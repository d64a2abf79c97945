"""The repository as the package `latentsync_rtx`, for tools that run from their own folder."""

import importlib
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = "latentsync_rtx"


def load(*modules: str):
    """Import the package and some of its modules ("lipsync.unet", ...); without names, those that `prepare` needs."""
    if NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(NAME, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
        package = importlib.util.module_from_spec(spec)
        sys.modules[NAME] = package
        spec.loader.exec_module(package)
    for module in modules or ("lipsync.audio", "lipsync.face", "lipsync.mask"):
        importlib.import_module(f"{NAME}.{module}")
    return sys.modules[NAME]
