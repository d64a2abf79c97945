"""F53: importing the pack, alone or by ComfyUI, changes nothing outside it and needs neither ComfyUI nor a GPU nor TensorRT-RTX."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LOAD = '''
import importlib.util, sys
def load(root, name):
    spec = importlib.util.spec_from_file_location(name, root + "/__init__.py", submodule_search_locations=[root])
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
'''

SNAPSHOT = '''
def snapshot():
    import gc, locale, logging, os, random, signal, sys, tempfile, threading, warnings
    import cv2  # which adds to LD_LIBRARY_PATH itself, whoever imports it
    import numpy, torch
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    state = {
        "environment": dict(os.environ), "folder": os.getcwd(), "path": list(sys.path), "temp": tempfile.gettempdir(),
        "hook": repr(sys.excepthook), "signals": [repr(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM)],
        "root log": [logging.getLogger().level, len(logging.getLogger().handlers)], "warnings": len(warnings.filters),
        "random": hash(random.getstate()), "numpy random": hash(numpy.random.get_state()[1].tobytes()),
        "torch random": hash(torch.random.get_rng_state().numpy().tobytes()), "numpy errors": numpy.geterr(),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()], "alive": threading.active_count(),
        "dtype": str(torch.get_default_dtype()), "gradients": torch.is_grad_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "tf32": [cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic, cudnn.enabled],
        "fp16": cuda.matmul.allow_fp16_reduced_precision_reduction, "deterministic": torch.are_deterministic_algorithms_enabled(),
        "attention": [cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()], "collect": gc.isenabled(),
        "locale": locale.setlocale(locale.LC_ALL), "cuda": torch.cuda.is_initialized(),
    }
    paths = sys.modules.get("folder_paths")
    if paths:
        state["folders"] = [getattr(paths, f"get_{kind}_directory")() for kind in ("temp", "input", "output", "user")]
        state["models"] = {kind: repr(entry) for kind, entry in paths.folder_names_and_paths.items() if "latentsync" not in kind}
    return state
'''


def changes(program: str, *arguments: str) -> dict:
    """Run `program`, which prints {what: [before, after]} as JSON on its last line, in a fresh Python."""
    command = [sys.executable, "-c", LOAD + SNAPSHOT + program, str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT.parent)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_import_alone_is_cheap_and_changes_nothing():
    program = '''
import json
sys.modules["tensorrt_rtx"] = None  # an import of it would raise
root = sys.argv[1]
light = set(sys.modules)
load(root, "some-pack.name")
heavy = sorted({name.split(".")[0] for name in set(sys.modules) - light} & {"torch", "cv2", "av", "numpy", "transformers"})
before = snapshot()
load(root, "latentsync_rtx")
after = snapshot()
different = {key: [before[key], after[key]] for key in before if before[key] != after[key]}
if heavy:
    different["heavy imports"] = [[], heavy]
print(json.dumps(different))
'''
    assert changes(program) == {}


def test_stages_import_without_comfyui_and_change_nothing():
    program = '''
import importlib, json, pkgutil
import numpy, torch
root = sys.argv[1]
for absent in ("tensorrt_rtx", "comfy", "folder_paths", "nodes"):
    sys.modules[absent] = None
before = snapshot()
load(root, "latentsync_rtx")
stages = importlib.import_module("latentsync_rtx.lipsync")
names = [module.name for module in pkgutil.walk_packages(stages.__path__, stages.__name__ + ".")]
for name in names:
    if not name.endswith(".tensorrt_rtx"):
        importlib.import_module(name)
after = snapshot()
different = {key: [before[key], after[key]] for key in before if before[key] != after[key]}
if len(names) < 10:
    different["stages"] = names
print(json.dumps(different, default=str))
'''
    assert changes(program) == {}


@pytest.mark.parametrize("pack_name", ["/opt/ComfyUI/custom_nodes/latentsync-rtx"])
def test_import_by_comfyui_changes_nothing_but_its_own_model_folder(pack_name, tmp_path):
    """As ComfyUI does it: under a name made from the path, then `comfy_entrypoint`, `on_load` and `get_node_list`."""
    import comfyui

    program = '''
import asyncio, json
root, checkout, base, name = sys.argv[1:5]
sys.argv = ["main.py", "--cpu", "--base-directory", base]
sys.path.insert(0, checkout)
import comfy.options
comfy.options.enable_args_parsing()
import folder_paths, nodes, comfy.utils, comfy.model_management, comfy.sd
from comfy_api.latest import ComfyExtension, io
sys.modules["tensorrt_rtx"] = None
async def start():
    extension = await load(root, name).comfy_entrypoint()
    await extension.on_load()
    return [node.GET_SCHEMA().node_id for node in await extension.get_node_list()]
asyncio.run(asyncio.sleep(0))
before = snapshot()
listed = asyncio.run(start())
after = snapshot()
different = {key: [before[key], after[key]] for key in before if before[key] != after[key]}
if "LatentSyncDenoise" not in listed or "latentsync" not in folder_paths.folder_names_and_paths:
    different["nodes"] = listed
print(json.dumps(different))
'''
    assert changes(program, str(comfyui.get()), str(tmp_path), pack_name) == {}
