"""Names come from workflows, which come from strangers: none leads out of its folder, and a plan, which is code, not by a link either."""
import shutil

import pytest
from latentsync_rtx.engine_builder import builder
from latentsync_rtx.lipsync import download, face, folders, weights
from latentsync_rtx.lipsync.clip import ClipWriter
from latentsync_rtx.lipsync.errors import EngineError, FaceError, MediaError, ModelFileError
from latentsync_rtx.lipsync.runners import engines
from latentsync_rtx.tests.model_files import save_unet, unet_state
from latentsync_rtx.tests.runners.doubles import write_engine

OUTSIDE = [
    "../secret", "../../secret", "sub/../../secret", "..\\secret", "/secret", "\\secret", "C:/secret", "C:secret", "\\\\host\\share\\secret",
    "//host/share/secret", "./../secret", "sub/..\\../secret", "secret\0", "~/../secret", "file:///secret", "..",
]  # fmt: skip


@pytest.fixture
def models(tmp_path, monkeypatch):
    """Model folders, with good files called `secret` in every folder above and beside them."""
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    models = tmp_path / "models"
    (models / "latentsync" / "sub").mkdir(parents=True)
    (models / "vae").mkdir()
    model = save_unet(tmp_path / "secret.pt", unet_state())
    for place in (models, tmp_path / "models" / "vae"):
        shutil.copy(model, place / "secret.pt")
    return models


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_model_name_stays_in_its_folder(models, name):
    for find in (weights.find_model, weights.find_vae, folders.find, lambda name: folders.find(name, "vae"), download.missing, weights.download):
        with pytest.raises(ModelFileError):
            if find(f"{name}.pt") is None:  # `folders.find`: a name that stays inside, where there is no such file
                raise ModelFileError("nothing")


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_engine_name_stays_in_its_folder(models, name):
    folder = models / "latentsync" / "engines"
    folder.mkdir()
    for place in (models / "latentsync", models):
        engine = write_engine(place)
        engine.path.rename(place / "secret.plan")
        engine.path.with_suffix(".json").rename(place / "secret.json")
    with pytest.raises(EngineError):
        engines.find_engine(f"{name}.plan")
    with pytest.raises(EngineError):
        engines.find_engine(f"{name}.plan (0.00 GB)")  # as in the list


def test_a_link_does_not_bring_a_plan_in(models, tmp_path):
    folder = models / "latentsync" / "engines"
    folder.mkdir()
    inside, outside = write_engine(folder), tmp_path / "outside"
    outside.mkdir()
    stranger = write_engine(outside)
    (folder / "link.plan").symlink_to(stranger.path)
    (folder / "link.json").symlink_to(stranger.path.with_suffix(".json"))
    with pytest.raises(EngineError, match=r"is a link to .*a plan is code"):
        engines.find_engine("link.plan")
    assert [engine.path for engine in engines.list_engines()] == [inside.path]


def test_a_models_folder_that_is_itself_a_link_works(models, tmp_path):
    """What people do with large disks."""
    elsewhere = tmp_path / "large disk"
    elsewhere.mkdir()
    engine = write_engine(elsewhere)
    (models / "latentsync" / "engines").symlink_to(elsewhere, target_is_directory=True)
    assert engines.find_engine(engine.path.name).path == models / "latentsync" / "engines" / engine.path.name


def test_an_engine_is_built_under_a_name_of_its_own():
    want = {"resolution": 512, "frames": 16, "guided": True, "targets": "portable", "role": "whole"}
    for name in (*OUTSIDE, "a/b.pt", "con:.pt", "x" * 60 + ".pt", "", "...", "ü 模型.pt"):
        made = builder._file_name(f"{name}.pt", want)
        assert made == made.replace("/", "").replace("\\", "").replace("\0", "") and not made.startswith(".") and made.endswith(".plan")


@pytest.mark.parametrize("kind", ["../../detector", "/etc/passwd", "mediapipe\0", "MediaPipe", ""])
def test_a_detector_is_one_of_three(kind):
    with pytest.raises(FaceError, match="unknown face detector"):
        face.load_detector(kind)


def test_a_manifest_names_no_other_file(models):
    """What a manifest says about its plan's name is for people: the plan beside it is meant, always."""
    folder = models / "latentsync" / "engines"
    folder.mkdir()
    engine = write_engine(folder, plan="../../secret.plan", model="../../../secret")
    (found,) = engines.list_engines()
    assert found.path == engine.path and "secret" not in found.label


def test_a_file_that_was_there_survives_a_failed_job(tmp_path):
    path = tmp_path / "result.mp4"
    path.write_bytes(b"mine")
    with pytest.raises(MediaError), ClipWriter(path, 64, 48, 25):
        pass  # no frames
    assert path.read_bytes() == b"mine"
    assert [one.name for one in tmp_path.iterdir()] == ["result.mp4"]
