"""Loads the repository root as the package `latentsync_rtx`: with the root itself on `sys.path`, `nodes/` would shadow ComfyUI's `nodes.py`."""
import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load_pack():
    spec = importlib.util.spec_from_file_location("latentsync_rtx", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    package = importlib.util.module_from_spec(spec)
    sys.modules["latentsync_rtx"] = package
    spec.loader.exec_module(package)
    return package


if "latentsync_rtx" not in sys.modules:
    load_pack()


@pytest.fixture(scope="session")
def recipe():
    """The module that makes the reference tensors' inputs again."""
    from latentsync_rtx.tests.data.golden import recipe

    return recipe


@pytest.fixture(scope="session")
def face_files() -> Path:
    """The folder with MediaPipe's two face models: LATENTSYNC_FACE_MODELS, else what `make test` fetched."""
    sys.path.insert(0, str(ROOT / "tools"))
    import face_models

    folder = Path(os.environ.get("LATENTSYNC_FACE_MODELS") or ROOT / ".cache" / "face")
    face_models.fetch(folder)
    return folder


@pytest.fixture
def own_folders(tmp_path, monkeypatch):
    """Temporary files and finished blocks of jobs, beside their media."""
    from latentsync_rtx.lipsync import folders

    monkeypatch.setenv("LATENTSYNC_JOBS", str(tmp_path / "jobs"))
    monkeypatch.setattr(folders, "temp_dir", lambda: tmp_path / "temp")
