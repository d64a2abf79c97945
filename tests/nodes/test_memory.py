"""Runners under ComfyUI's own memory management, in a process of its own (ComfyUI reads the command line when it is imported)."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))

import comfyui  # noqa: E402 - ours, in tools/

pytestmark = pytest.mark.server


START = """
import json, sys
sys.path.insert(0, sys.argv[1])
import utils.install_util  # as main.py does first: later another module of that name is found
tests, sys.argv = sys.argv[2], ["main.py", "--cpu"]
import comfy.options
comfy.options.enable_args_parsing()
import comfy.model_management as management
sys.path.append(tests)
import conftest
import torch
from latentsync_rtx.lipsync import weights
from latentsync_rtx.lipsync.runners.pool import POOL, TorchRecipe, runner_for
from latentsync_rtx.nodes import memory
listed = lambda: [one.model.runner.key for one in management.current_loaded_models if isinstance(one.model, memory.RunnerPatcher)]
new_runner = lambda: runner_for(weights.find_model(weights.DEMO), "torch", device="cpu")
"""
BODIES = {
    "freed and loaded": """
memory.load(runner)
memory.load(runner)
out["listed"] = len(listed())
out["counted"] = [management.current_loaded_models[0].model_memory(), management.current_loaded_models[0].model_loaded_memory(), runner.size_bytes]
management.unload_all_models()  # what POST /free {"unload_models": true} comes to
out["after free"] = [len(listed()), runner.size_bytes]
management.cleanup_models_gc()
management.cleanup_models()
runner = new_runner()  # the next prompt's
memory.load(runner)
out["again"] = [len(listed()), runner.size_bytes]
memory.release(runner)
out["released"] = runner.size_bytes
memory.load(runner)
out["and again"] = [len(listed()), runner.size_bytes]
for _ in range(30):
    management.unload_all_models()
    memory.load(runner)
out["thirty times"] = [len(listed()), runner.size_bytes, len(POOL._runners)]
""",
    "others": """
import comfy.model_patcher
other = comfy.model_patcher.ModelPatcher(torch.nn.Linear(1000, 1000), torch.device("cpu"), torch.device("cpu"))
management.load_models_gpu([other])
memory.load(runner)
out["both"] = [len(management.current_loaded_models), len(listed())]
management.free_memory(1e30, torch.device("cpu"), keep_loaded=[one for one in management.current_loaded_models if one.model is other])
out["made room for the other"] = [runner.size_bytes, len(management.current_loaded_models)]
memory.load(runner)
management.free_memory(1e30, torch.device("cpu"), keep_loaded=[one for one in management.current_loaded_models if one.model is not other])
out["made room for the runner"] = [runner.size_bytes > 0, len(listed()), len(management.current_loaded_models)]
""",
    "a load that fails": """
from latentsync_rtx.lipsync.errors import ModelFileError
def fails(*_, **__): raise ModelFileError("gone")
POOL.forget()
real, weights.LatentSyncModel.load_unet = weights.LatentSyncModel.load_unet, fails
try:
    memory.load(runner)
except ModelFileError as error:
    out["error"] = str(error)
out["listed"] = len(listed())
weights.LatentSyncModel.load_unet = real
memory.load(runner)
out["then"] = runner.size_bytes > 0
""",
    "not pooled": """
from latentsync_rtx.lipsync.runners import TorchRunner
plain = TorchRunner(weights.find_model(weights.DEMO).load_unet(), "cpu")
memory.load(plain)
out["loaded"] = plain.size_bytes > 0
memory.release(plain)
out["released"] = plain.size_bytes
""",
}


@pytest.fixture(scope="module")
def seen():
    """What each of BODIES put into `out`, each begun with nothing loaded."""
    script = START + "all = {}\n"
    for name, body in BODIES.items():
        script += f"management.unload_all_models(); runner = new_runner(); out = all[{name!r}] = {{}}\n{body}\n"
    script += "sys.__stdout__.write('\\n' + json.dumps(all))"
    command = [sys.executable, "-c", script, str(comfyui.get()), str(ROOT / "tests")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT / "tests")
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_it_is_counted_freed_and_loaded_again(seen):
    out = seen["freed and loaded"]
    size = out["counted"][0]
    assert size > 1e6
    assert out == {
        "listed": 1,
        "counted": [size, size, size],
        "after free": [0, 0],
        "again": [1, size],
        "released": 0,
        "and again": [1, size],
        "thirty times": [1, size, 1],
    }


def test_other_models_make_it_go_and_it_makes_others_go(seen):
    assert seen["others"] == {"both": [2, 1], "made room for the other": [0, 1], "made room for the runner": [True, 1, 1]}


def test_a_load_that_fails_leaves_nothing_listed(seen):
    assert seen["a load that fails"] == {"error": "gone", "listed": 0, "then": True}


def test_a_runner_of_another_kind_loads_by_itself(seen):
    assert seen["not pooled"] == {"loaded": True, "released": 0}
