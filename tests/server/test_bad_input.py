"""Bad input ends in a typed message that names the thing, at the node that can know it, before heavy work."""
from pathlib import Path

import demo_media
import numpy as np
import pytest
from comfy_client import Refused, only

HEAVY = {"LatentSyncDenoise", "LatentSyncVAEDecode", "LatentSyncRestore"}


def failure_of(comfy, workflow) -> dict:
    """What execution_error tells about a prompt that must fail before any heavy node has run."""
    finished = comfy.run(workflow)
    assert finished.status == "error"
    assert not HEAVY & {workflow[node]["class_type"] for node in finished.executed}
    return finished.failure


def test_clip_without_a_face(comfy, example):
    from skimage import data

    demo_media.write_clip(comfy.input / "coffee.mp4", demo_media.still_frames(data.coffee(), 0.4))
    failure = failure_of(comfy, example({"LoadVideo.file": "coffee.mp4"}))
    assert failure["node_type"] == "LatentSyncFaceAlign"
    assert failure["exception_type"].endswith("FaceError")
    assert "face" in failure["exception_message"]


@pytest.mark.parametrize(
    "content",
    [b"", b"This is no video.\n", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"],
    ids=["empty", "text", "lfs-pointer"],
)
def test_file_that_is_no_video(comfy, example, content):
    """F29."""
    (comfy.input / "not a video.mp4").write_bytes(content)
    failure = failure_of(comfy, example({"LoadVideo.file": "not a video.mp4"}))
    assert failure["node_type"] == "LatentSyncFaceAlign"
    assert failure["exception_type"].endswith("MediaError")
    assert "not a video.mp4" in failure["exception_message"]


def test_clip_that_has_no_sound(comfy, example):
    """F20: the AUDIO of a silent clip is None."""
    workflow = example()
    workflow["parts"] = {"class_type": "GetVideoComponents", "inputs": {"video": [only(workflow, "LoadVideo"), 0]}}
    workflow[only(workflow, "LatentSyncAudioFeatures")]["inputs"]["audio"] = ["parts", 1]
    failure = failure_of(comfy, workflow)
    assert failure["node_type"] == "LatentSyncAudioFeatures"
    assert failure["exception_type"].endswith("AudioError")


def test_black_images_without_a_face(comfy, example):
    workflow = example()
    workflow["black"] = {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 2, "color": 0}}
    workflow[only(workflow, "LatentSyncFaceAlign")]["inputs"]["clip"] = ["black", 0]
    failure = failure_of(comfy, workflow)
    assert failure["node_type"] == "LatentSyncFaceAlign"
    assert failure["exception_type"].endswith("FaceError")


def test_latent_of_another_node_is_refused(comfy, example):
    workflow = example()
    workflow["empty"] = {"class_type": "EmptyLatentImage", "inputs": {"width": 256, "height": 256, "batch_size": 1}}
    workflow[only(workflow, "LatentSyncVAEDecode")]["inputs"]["latent"] = ["empty", 0]
    finished = comfy.run(workflow)
    assert finished.failure["node_type"] == "LatentSyncVAEDecode"
    assert finished.failure["exception_type"].endswith("ShapeError")
    assert "LatentSync Denoise" in finished.failure["exception_message"]


@pytest.mark.parametrize("target", ["LoadVideo.file", "LoadAudio.audio"])
def test_media_that_does_not_exist_is_refused(comfy, example, target):
    with pytest.raises(Refused, match=r"nowhere\.bin"):
        comfy.run(example({target: "nowhere.bin"}))


@pytest.mark.parametrize("name", ["nowhere.pt", "../../secret.pt", "/etc/passwd", "..\\secret.pt"])
def test_checkpoint_that_is_not_in_the_list(comfy, example, name):
    """ComfyUI 0.3.75 does not check a V3 node's combo values against their list (later ones do): then the node must."""
    (comfy.server.base / "secret.pt").write_bytes(b"not for reading")
    try:
        failure = failure_of(comfy, example({"LatentSyncModelLoad.checkpoint": name}))
    except Refused as refused:
        assert "LatentSyncModelLoad" in str(refused) and Path(name.replace("\\", "/")).name in str(refused)
        return
    assert failure["node_type"] == "LatentSyncModelLoad"
    assert failure["exception_type"].endswith("ModelFileError")
    assert repr(name) in failure["exception_message"]


COMBOS = {
    "LatentSyncEngineLoad.back_end", "LatentSyncFaceAlign.resolution", "LatentSyncFaceAlign.work_rate", "LatentSyncFaceAlign.face",
    "LatentSyncFaceAlign.detector", "LatentSyncAudioFeatures.windows", "LatentSyncDenoise.length", "LatentSyncDenoise.extend",
    "LatentSyncRestore.output", "LatentSyncDenoise.profile",
}


@pytest.mark.parametrize("target", sorted(COMBOS))
def test_choice_that_does_not_exist_is_told_with_the_choices(comfy, example, target):
    """A workflow of another version of the pack, over the API."""
    try:
        finished = comfy.run(example({target: "no such choice"}))
    except Refused as refused:
        assert "no such choice" in str(refused)
        return
    assert finished.status == "error"
    assert "no such choice" in finished.failure["exception_message"], finished.failure["exception_message"]


def test_server_goes_on_after_all_that(comfy, example):
    assert comfy.run(example()).status == "success"
    assert np.all([node in comfy.get("/object_info") for node in HEAVY])
