"""A second ComfyUI: without TensorRT-RTX, its model files only where extra_model_paths.yaml says, and no cache between prompts."""
import os
import shutil

import comfyui
import numpy as np
import pytest
from comfy_client import as_images, pictures_of

BLOCK = '''"""Makes the machine look as if TensorRT-RTX had never been installed."""
import sys
from importlib.machinery import PathFinder

HIDDEN = {"tensorrt_rtx", "tensorrt_rtx_bindings", "tensorrt_rtx_libs", "cuda"}


class Others(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in HIDDEN else PathFinder.find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Others
'''


@pytest.fixture(scope="module")
def bare(start_server, face_files, media, tmp_path_factory):
    blocker, elsewhere = tmp_path_factory.mktemp("blocker"), tmp_path_factory.mktemp("elsewhere")
    (blocker / "sitecustomize.py").write_text(BLOCK, encoding="utf-8")
    shutil.copytree(face_files, elsewhere / "face")
    checkout = files_of(comfyui.get())
    comfy = start_server("--cache-none", environment={"PYTHONPATH": str(blocker)}, extra_model_paths={"latentsync": elsewhere})
    shutil.copytree(media, comfy.input, dirs_exist_ok=True)
    comfy.checkout = checkout
    return comfy


def files_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_nodes_load_and_lists_are_empty(bare):
    """F46."""
    listed = bare.get("/object_info")
    assert {"LatentSyncModelLoad", "LatentSyncEngineLoad", "LatentSyncDenoise"} <= set(listed)
    assert "IMPORT FAILED" not in bare.server.log()
    back_ends = listed["LatentSyncEngineLoad"]["input"]["required"]["back_end"][1]["options"]
    assert "torch" in back_ends


def test_the_graph_runs_in_pytorch_with_files_from_extra_model_paths(bare, example):
    """F40, F46; with --cache-none the second run executes everything again and comes to the same end."""
    workflow = as_images(example())
    first, second = bare.run(workflow), bare.run(workflow)
    assert first.status == second.status == "success", first.failure or second.failure
    assert len(second.executed) == len(workflow)
    assert np.array_equal(*(pictures_of(bare.saved(finished)) for finished in (first, second)))


def test_stopping_leaves_nothing_behind(bare):
    """The last test of this file: the demo and every test rely on it."""
    pid = bare.server.process.pid
    assert os.getpgid(pid) == pid  # its own group, so that children of its are stopped with it
    bare.server.stop()
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)
    assert files_of(comfyui.get()) == bare.checkout  # ComfyUI's own folder, which may be the user's, is as it was
