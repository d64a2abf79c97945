"""What runs the network, on a real server without a GPU: what is chosen and said, what a build refuses, what /free gives back."""
import json
import shutil
import time

import numpy as np
import pytest
from comfy_client import Refused, as_images, pictures_of
from latentsync_rtx.tests.runners.doubles import write_engine

WAIT_SECONDS = 30  # /free is done by the thread that runs prompts, a moment later


def held(comfy) -> int:
    return sum(size for _, size in comfy.get("/held"))


def load_only(**inputs) -> dict:
    given = {"model": ["1", 0], "back_end": "auto", "engine_file": "best match", "precision": "auto", **inputs}
    return {
        "1": {"class_type": "LatentSyncModelLoad", "inputs": {"checkpoint": "demo (synthetic faces)", "vae": "auto", "download": False}},
        "2": {"class_type": "LatentSyncEngineLoad", "inputs": given},
        "3": {"class_type": "PreviewAny", "inputs": {"source": ["2", 0]}},
    }


def build_only(**inputs) -> dict:
    given = {"resolution": "256", "frames": 2, "guided": False, "targets": "portable", "compute_capabilities": "8.9", "weight_streaming": False}
    return {"1": load_only()["1"], "2": {"class_type": "LatentSyncEngineBuild", "inputs": {"model": ["1", 0], **given, **inputs}}}


def engine_files(comfy) -> list[str]:
    return [path.name for path in (comfy.server.base / "models" / "latentsync" / "engines").glob("*") if path.name != ".build.lock"]


def test_free_gives_the_memory_back_and_the_next_prompt_takes_it_again(comfy, example):
    """F45."""
    workflow = as_images(example({"LatentSyncDenoise.seed": 45}))
    first = comfy.run(workflow)
    assert first.status == "success", first.failure
    size = held(comfy)
    assert size > 1e6
    comfy.post("/free", {"unload_models": True})
    deadline = time.monotonic() + WAIT_SECONDS
    while held(comfy) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert held(comfy) == 0
    other = comfy.run(as_images(example({"LatentSyncDenoise.seed": 46})))
    assert other.status == "success", other.failure
    assert held(comfy) == size
    released = comfy.run(as_images(example({"LatentSyncDenoise.seed": 45, "LatentSyncDenoise.release_runner": True, "LatentSyncDenoise.resume": False})))
    assert released.status == "success" and held(comfy) == 0
    assert np.array_equal(*(pictures_of(comfy.saved(finished)) for finished in (first, released)))


def test_auto_says_in_one_line_why_it_is_pytorch(comfy):
    comfy.forget()
    before = len(comfy.server.log())
    assert comfy.run(load_only()).status == "success"
    lines = [line for line in comfy.server.log()[before:].splitlines() if "PyTorch runs the network" in line]
    assert len(lines) == 1 and "no NVIDIA GPU" in lines[0]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"back_end": "tensorrt_rtx"}, "TensorRT-RTX cannot run: there is no NVIDIA GPU here"),
        ({"engine_file": "gone.plan (2.57 GB)"}, "gone.plan has no manifest"),
        ({"engine_file": "../../x.plan"}, "not the name of an engine"),
    ],
)
def test_an_impossible_choice_says_so(comfy, inputs, words):
    finished = comfy.run(load_only(**inputs))
    assert (finished.status, finished.failure["node_type"]) == ("error", "LatentSyncEngineLoad")
    assert words in finished.failure["exception_message"]


def test_engines_are_listed_with_their_size_and_a_damaged_one_is_not(comfy):
    folder = comfy.server.base / "models" / "latentsync" / "engines"
    good, damaged = write_engine(folder), write_engine(folder, frames=2)
    damaged.path.with_suffix(".json").write_text(json.dumps({**damaged.manifest, "plan_bytes": None}))
    try:
        options = comfy.get("/object_info/LatentSyncEngineLoad")["LatentSyncEngineLoad"]["input"]["required"]["engine_file"][1]["options"]
        assert options == ["best match", f"{good.path.name} (0.00 GB)"]
        finished = comfy.run(load_only(engine_file=good.label))
        assert finished.status == "success"
        refused = comfy.run(load_only(engine_file=damaged.path.name))
        assert "is damaged: plan_bytes cannot be None" in refused.failure["exception_message"]
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("workflow", [load_only(back_end="cuda"), build_only(frames=25), build_only(resolution="300"), build_only(targets="all")])
def test_values_that_no_menu_has_are_not_queued(comfy, workflow):
    with pytest.raises(Refused):
        comfy.run(workflow)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"targets": "this GPU"}, "there is no NVIDIA GPU here"),
        ({"targets": "chosen", "compute_capabilities": "7.5"}, "compute capability 7.5"),
        ({"targets": "chosen", "compute_capabilities": " , "}, "(none given)"),
    ],
)
def test_an_impossible_build_says_so_before_it_begins(comfy, inputs, words):
    finished = comfy.run(build_only(**inputs))
    assert (finished.status, finished.failure["node_type"]) == ("error", "LatentSyncEngineBuild")
    assert words in finished.failure["exception_message"]
    assert engine_files(comfy) == []


def test_a_build_that_is_cancelled_leaves_nothing(comfy):
    asked = []

    def cancel(kind, data):
        if kind == "progress" and data["node"] == "2" and not asked:
            asked.append(time.monotonic())
            comfy.post("/interrupt", {"prompt_id": data["prompt_id"]})

    finished = comfy.run(build_only(), cancel)
    assert (finished.status, finished.failure["node_type"]) == ("interrupted", "LatentSyncEngineBuild")
    assert asked and engine_files(comfy) == []
