"""Downloads from a real server on the loopback address that behaves like Hugging Face, on good days and bad ones."""
import json
from types import SimpleNamespace

import pytest
from latentsync_rtx.lipsync import download as downloads
from latentsync_rtx.lipsync import folders, weights
from latentsync_rtx.lipsync.errors import DiskSpaceError, ModelFileError

from .hub import serving
from .model_files import save_unet, save_whisper, unet_state

CONTENTS = bytes(range(256)) * 12000  # 3 MB


REMOTE = downloads.Remote("someone/model", "sub/unet.pt", folders.KIND, "Model/unet.pt")


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(downloads, "PAUSE", 0.0)
    with serving() as server:
        server.files["/someone/model/resolve/main/sub/unet.pt"] = CONTENTS
        yield server


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    return tmp_path / "models"


def test_a_file_arrives_whole_with_its_source_beside_it(hub, models):
    calls = []
    path = downloads.fetch(REMOTE, lambda done, total, *, stage="", preview=None: calls.append((done, total, stage)), endpoint=hub.endpoint)
    assert path == models / "latentsync/Model/unet.pt" and path.read_bytes() == CONTENTS
    assert calls[-1] == (len(CONTENTS), len(CONTENTS), "download unet.pt")
    assert sorted(file.name for file in path.parent.iterdir()) == ["unet.pt", "unet.pt.source.json"]
    assert json.loads((path.parent / "unet.pt.source.json").read_text())["revision"] == "c0ffee"
    assert downloads.source_of(path) == "someone/model"
    path.write_bytes(b"another")
    assert downloads.source_of(path) is None


def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(hub, models):  # F39
    hub.breaks = 3
    assert downloads.fetch(REMOTE, endpoint=hub.endpoint).read_bytes() == CONTENTS
    starts = [int(wanted[6:-1]) if wanted else 0 for _, wanted in hub.requests]
    assert len(starts) == 4 and starts == sorted(starts) and starts[1] >= len(CONTENTS) // 3


def test_a_cancelled_download_leaves_a_partial_name_and_resumes(hub, models, monkeypatch):  # F39, F49
    monkeypatch.setattr(downloads, "TELL_EVERY", 0.0)

    class Stop(Exception):
        pass

    def stop(done, total, *, stage="", preview=None):
        if done > len(CONTENTS) // 2:
            raise Stop

    with pytest.raises(Stop):
        downloads.fetch(REMOTE, stop, endpoint=hub.endpoint)
    assert [file.name for file in (models / "latentsync/Model").iterdir()] == ["unet.pt.part"]
    assert weights.list_models()[0] == weights.DEMO  # a partial file is not a model
    assert downloads.fetch(REMOTE, endpoint=hub.endpoint).read_bytes() == CONTENTS
    assert int(hub.requests[-1][1][6:-1]) > len(CONTENTS) // 2


def test_a_server_that_ignores_ranges_starts_over(hub, models):
    hub.breaks, hub.ranges = 1, False
    assert downloads.fetch(REMOTE, endpoint=hub.endpoint).read_bytes() == CONTENTS


@pytest.mark.parametrize("left", [CONTENTS, CONTENTS + b"more"], ids=["whole", "too long"])
def test_whatever_an_earlier_try_left_ends_in_the_right_file(hub, models, left):
    part = models / "latentsync/Model/unet.pt.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(left)
    assert downloads.fetch(REMOTE, endpoint=hub.endpoint).read_bytes() == CONTENTS
    assert not part.exists()


def test_a_part_of_another_file_is_noticed_and_removed(hub, models):
    part = models / "latentsync/Model/unet.pt.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1000)
    with pytest.raises(ModelFileError, match=r"SHA-256.*removed"):
        downloads.fetch(REMOTE, endpoint=hub.endpoint)
    assert list(part.parent.iterdir()) == []
    assert downloads.fetch(REMOTE, endpoint=hub.endpoint).read_bytes() == CONTENTS


def test_a_damaged_file_never_gets_its_name(hub, models):
    hub.wrong_sum = True
    with pytest.raises(ModelFileError, match="SHA-256"):
        downloads.fetch(REMOTE, endpoint=hub.endpoint)
    assert list((models / "latentsync/Model").iterdir()) == []


def test_giving_up_keeps_what_came_and_says_what_to_do(hub, models):
    hub.breaks = 1000
    hub.files["/someone/model/resolve/main/sub/unet.pt"] = b"abc"  # of which half is one byte, then nothing more
    with pytest.raises(ModelFileError, match=r"cannot download unet\.pt.*by hand from http.*someone/model.*to .*latentsync.Model.unet\.pt"):
        downloads.fetch(REMOTE, endpoint=hub.endpoint)
    assert [file.name for file in (models / "latentsync/Model").iterdir()] == ["unet.pt.part"]


def test_no_such_file_and_no_server(hub, models):
    with pytest.raises(ModelFileError, match="404"):
        downloads.fetch(downloads.Remote("someone/model", "none.pt", folders.KIND, "none.pt"), endpoint=hub.endpoint)
    hub.server_close()
    with pytest.raises(ModelFileError, match=r"cannot download unet\.pt"):
        downloads.fetch(REMOTE, endpoint=hub.endpoint)


def test_a_disk_too_small_is_told_before_the_first_byte(hub, models, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(DiskSpaceError):
        downloads.fetch(REMOTE, endpoint=hub.endpoint)
    assert not any(file.stat().st_size for file in (models / "latentsync/Model").iterdir())


def test_download_fetches_what_is_missing_and_only_that(hub, models, tmp_path):  # F40
    hub.serve_models(tmp_path)
    assert weights.download(weights.DEMO, endpoint=hub.endpoint) == []
    fetched = weights.download(endpoint=hub.endpoint)
    names = ("latentsync/LatentSync-1.6/latentsync_unet.pt", "latentsync/whisper/tiny.pt", "vae/sd-vae-ft-mse.safetensors")
    assert fetched == [models / name for name in names]
    model = weights.find_model()
    assert model.release == "1.6" and "download from ByteDance/LatentSync-1.6" in model.description
    assert weights.list_models() == ["LatentSync-1.6/latentsync_unet.pt", weights.DEMO]
    assert weights.find_vae() == fetched[2] and model.load_whisper().n_state == 384
    asked = len(hub.requests)
    assert weights.download(endpoint=hub.endpoint) == [] and len(hub.requests) == asked
    fetched[0].unlink()
    assert weights.download(endpoint=hub.endpoint) == fetched[:1]
    with pytest.raises(ModelFileError, match="cannot be downloaded"):
        weights.download("mine.pt", endpoint=hub.endpoint)


def test_what_is_missing_is_told_all_at_once(models):
    wanted = [downloads.CHECKPOINTS[downloads.DEFAULT_CHECKPOINT], downloads.WHISPER, downloads.VAE]
    assert downloads.missing() == wanted and downloads.missing(weights.DEMO) == []
    with pytest.raises(ModelFileError, match="'download'") as told:
        weights.find_model(downloads.DEFAULT_CHECKPOINT)
    for remote, size in zip(wanted, ("5.0 GB", "76 MB", "335 MB"), strict=True):  # which, from where, into which folder, how big
        assert f"({size}) from https://huggingface.co/{remote.repo}/resolve/main/{remote.file} to {models / remote.kind / remote.name}" in str(told.value)


def test_a_checkpoint_without_its_companions_is_told_before_any_stage(models):
    weights.require_files(weights.DEMO)  # has all it needs
    save_unet(models / "latentsync/mine.pt", unet_state())
    with pytest.raises(ModelFileError, match=r"tiny\.pt and sd-vae-ft-mse\.safetensors are missing, which 'mine\.pt' needs.*411 MB"):
        weights.require_files("mine.pt")
    with pytest.raises(ModelFileError, match=r"tiny\.pt is missing"):
        weights.require_files("mine.pt", vae=False)
    save_whisper(models / "latentsync/whisper/tiny.pt")
    weights.require_files("mine.pt", vae=False)
