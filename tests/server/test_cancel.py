"""F49: a cancel is heard in every long node, and leaves nothing behind that a later run would notice."""
import numpy as np
import pytest
from comfy_client import as_images, only, pictures_of

LONG_NODES = ("LatentSyncFaceAlign", "LatentSyncAudioFeatures", "LatentSyncDenoise", "LatentSyncVAEDecode", "LatentSyncRestore")


def cancel_when(comfy, condition):
    """An `on_event` that interrupts once, when `condition(kind, data)` holds."""
    pending = [condition]

    def on_event(kind, data):
        if pending and pending[0](kind, data):
            pending.clear()
            comfy.post("/interrupt", {"prompt_id": data["prompt_id"]})

    return on_event


def test_cancel_at_step_three_then_the_next_run_equals_a_clean_one(comfy, example):
    # as pictures: x264 may encode the same frames in different ways
    workflow = as_images(example({"LatentSyncDenoise.seed": 49, "LatentSyncDenoise.steps": 5}))
    denoise = only(workflow, "LatentSyncDenoise")

    def at_step_three(kind, data):
        return kind == "progress" and data["node"] == denoise and data["value"] >= 3

    cancelled = comfy.run(workflow, cancel_when(comfy, at_step_three))
    assert cancelled.status == "interrupted"
    assert cancelled.failure["node_type"] == "LatentSyncDenoise"
    assert comfy.saved(cancelled) == []
    after = comfy.run(workflow)
    comfy.forget()
    clean = comfy.run(workflow)
    assert after.status == clean.status == "success"
    assert len(clean.executed) == len(workflow)
    assert np.array_equal(*(pictures_of(comfy.saved(finished)) for finished in (after, clean)))


@pytest.mark.parametrize("class_type", LONG_NODES)
def test_cancel_is_heard_inside_every_long_node(comfy, example, class_type):
    comfy.forget()
    workflow = example({"LatentSyncDenoise.seed": 490})
    node = only(workflow, class_type)
    comfy.temp.mkdir(exist_ok=True)
    cancelled = comfy.run(workflow, cancel_when(comfy, lambda kind, data: kind == "executing" and data["node"] == node))
    assert cancelled.status == "interrupted"
    assert cancelled.failure["node_type"] == class_type
    assert not [path for path in comfy.temp.rglob("*partial*")]
