"""Weight files come from strangers: they are read as tensors, and never as code, whatever they are called and however they are damaged."""
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from latentsync_rtx.lipsync import weights
from latentsync_rtx.lipsync.checkpoint import read_checkpoint
from latentsync_rtx.lipsync.compare import syncnet
from latentsync_rtx.lipsync.errors import LatentSyncError, ModelFileError
from latentsync_rtx.lipsync.vae_diffusers import DiffusersVAE


class Payload:
    """Pickled, it makes the folder `mark` when it is loaded by anything that runs code."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def evil_zip(path, mark):
    torch.save({"conv_in.weight": torch.zeros(4), "state_dict": Payload(mark)}, path)


def evil_legacy(path, mark):
    torch.save({"conv_in.weight": torch.zeros(4), "state_dict": Payload(mark)}, path, _use_new_zipfile_serialization=False)


def evil_pickle(path, mark):
    path.write_bytes(pickle.dumps(Payload(mark)))


def evil_cut(path, mark):
    """A zip without its end: its table of contents is read for the size that it should have."""
    whole = path.with_suffix(".whole")
    torch.save({"payload": Payload(mark), "weights": torch.zeros(5000)}, whole)
    path.write_bytes(whole.read_bytes()[:-200])
    whole.unlink()


def evil_many(path, mark):
    """A zip with a second pickle under another name."""
    torch.save({"conv_in.weight": torch.zeros(4)}, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/extra.pkl", pickle.dumps(Payload(mark)))
        archive.writestr("constants.pkl", pickle.dumps(Payload(mark)))


EVIL = [evil_zip, evil_legacy, evil_pickle, evil_cut, evil_many]


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    for kind in ("latentsync/whisper", "latentsync/auxiliary", "vae"):
        (tmp_path / "models" / kind).mkdir(parents=True)
    return tmp_path / "models"


def test_the_payload_works(tmp_path):
    """Else these tests would prove nothing."""
    evil_zip(tmp_path / "a.pt", tmp_path / "mark")
    torch.load(tmp_path / "a.pt", weights_only=False)
    assert (tmp_path / "mark").is_dir()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("evil", EVIL)
@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "a.ckpt", "a.bin", "a.model"])
def test_no_file_runs_code(tmp_path, evil, name):
    evil(tmp_path / name, tmp_path / "mark")
    try:
        contents = read_checkpoint(tmp_path / name, what="the test", source="nowhere")
    except ModelFileError as error:
        assert name in str(error)
    else:
        assert evil is evil_many and set(contents) == {"conv_in.weight"}
    assert not (tmp_path / "mark").exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("evil", EVIL)
def test_no_model_runs_code(models, tmp_path, evil):
    """Every place that loads weights, by the way that users take."""
    mark, vae = tmp_path / "mark", models / "vae/sd-vae-ft-mse.pt"
    for path in (models / "latentsync/unet.pt", models / "latentsync/whisper/tiny.pt", vae, models / "latentsync/auxiliary" / syncnet.FILE):
        evil(path, mark)
    whisper = weights.load_encoder
    loads = {
        "model": lambda: weights.find_model("unet.pt"),
        "whisper": lambda: whisper(weights.find_whisper()),
        "vae": lambda: DiffusersVAE.load(weights.find_vae("sd-vae-ft-mse.pt")),
        "syncnet": syncnet.load_syncnet,
    }
    for load in loads.values():
        with pytest.raises(LatentSyncError):
            load()
    assert not mark.exists()


def test_nothing_in_the_pack_loads_pickles_otherwise():
    """One place reads weights; a new one that does it by itself is found here."""
    root = Path(weights.__file__).resolve().parent.parent
    folders = [root / name for name in ("lipsync", "nodes", "engine_builder", "commands")]
    found = []
    for path in sorted(file for folder in folders for file in folder.rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if any(word in line for word in ("torch.load(", "pickle.load", "weights_only=False", "allow_pickle=True", "joblib", "trust_remote_code")):
                found.append(f"{path.relative_to(root)}: {line.strip()}")
            assert not any(word in line for word in ("shell=True", "os.system(", "os.popen(", "yaml.load(")), f"{path}:{number}"
    assert [line.split(":")[0] for line in found] == ["lipsync/checkpoint.py"] and "weights_only=True" in found[0]
