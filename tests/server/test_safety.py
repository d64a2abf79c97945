"""What strangers' workflows and files can make a server do: nothing but a job. Names, pickles, the network."""
import os

import pytest
import torch
from comfy_client import Refused
from latentsync_rtx.tests.model_files import save_unet, save_whisper, unet_state


class Payload:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def models(comfy):
    """The server's models folder; what a test puts there goes again."""
    folder = comfy.server.base / "models"
    before = {path for path in folder.rglob("*") if path.is_file()}
    yield folder
    for path in folder.rglob("*"):
        if path.is_file() and path not in before:
            path.unlink()


@pytest.mark.parametrize("name", ["../../../secret.plan", "/etc/passwd", "..\\..\\secret.plan", "sub/secret.plan", "secret.plan (0.00 GB)"])
def test_an_engine_is_only_taken_from_its_folder(comfy, example, name):
    (comfy.server.base / "secret.plan").write_bytes(b"code")
    finished = comfy.run(example({"LatentSyncEngineLoad.engine_file": name}))
    assert finished.status == "error" and finished.failure["node_type"] == "LatentSyncEngineLoad"
    assert finished.failure["exception_type"].endswith("EngineError")


@pytest.mark.parametrize("name", ["../../secret.safetensors", "/etc/passwd", "..\\secret.pt"])
def test_a_vae_is_only_taken_from_its_folder(comfy, example, name):
    with pytest.raises(Refused, match="is not there"):
        comfy.run(example({"LatentSyncModelLoad.vae": name}))


def test_pickles_with_code_are_refused_wherever_they_lie(comfy, example, models, tmp_path):
    mark = tmp_path / "mark"
    torch.save({"state_dict": {"conv_in.weight": Payload(mark)}}, models / "latentsync" / "evil.pt")
    failed = [comfy.run(example({"LatentSyncModelLoad.checkpoint": "evil.pt"}))]
    save_unet(models / "latentsync" / "good.pt", unet_state())
    save_whisper(models / "latentsync" / "whisper" / "tiny.pt")
    (models / "vae").mkdir(exist_ok=True)
    torch.save({"state_dict": Payload(mark)}, models / "vae" / "evil.ckpt")
    comfy.get("/object_info")  # the lists are read again
    failed.append(comfy.run(example({"LatentSyncModelLoad.checkpoint": "good.pt", "LatentSyncModelLoad.vae": "evil.ckpt"})))
    torch.save({"dims": Payload(mark)}, models / "latentsync" / "whisper" / "tiny.pt")
    torch.save({"first": torch.zeros(3)}, models / "vae" / "other.pt")  # no code, and no VAE either
    failed.append(comfy.run(example({"LatentSyncModelLoad.checkpoint": "good.pt", "LatentSyncModelLoad.vae": "other.pt"})))
    for finished in failed:
        assert finished.status == "error" and finished.failure["node_type"] == "LatentSyncModelLoad"
        assert finished.failure["exception_type"].endswith("ModelFileError"), finished.failure["exception_message"]
    assert "evil.ckpt" in failed[1].failure["exception_message"] and "no VAE" in failed[2].failure["exception_message"]
    assert not mark.exists()


def test_what_is_missing_is_named_with_source_folder_and_size_and_nothing_is_fetched(comfy, example, models):
    finished = comfy.run(example({"LatentSyncModelLoad.checkpoint": "LatentSync-1.6/latentsync_unet.pt"}))
    assert finished.failure["node_type"] == "LatentSyncModelLoad"
    told = finished.failure["exception_message"]
    places = str(models / "latentsync"), str(models / "vae")
    for word in ("(5.0 GB) from https://huggingface.co/ByteDance/LatentSync-1.6/", *places, "(76 MB)", "(335 MB)", "'download'"):
        assert word in told


def test_a_job_calls_no_other_machine(comfy, example):
    assert comfy.run(example()).status == "success"
    ours = [line for line in comfy.network_calls.read_text().splitlines() if "latentsync-rtx" in line]
    assert ours == []
