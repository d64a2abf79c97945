"""Model folders: the same answers inside ComfyUI and out, and no way out of them."""
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from latentsync_rtx.lipsync import folders
from latentsync_rtx.lipsync.errors import ModelFileError

ROOT = Path(__file__).resolve().parent.parent


def comfyui():
    """A ComfyUI checkout to compare with, if there is one already."""
    places = [os.environ.get("COMFYUI_PATH"), ROOT / ".cache" / "comfyui"]
    return next((Path(place) for place in places if place and (Path(place) / "folder_paths.py").is_file()), None)


COMFYUI = comfyui()


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A ComfyUI folder of our own, without a ComfyUI in it."""
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path / "comfy"))
    (tmp_path / "comfy" / "models").mkdir(parents=True)
    return tmp_path / "comfy"


def put(path, contents=b"x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents)
    return path


def test_models_are_found_under_comfyui_path(root):
    put(root / "models/latentsync/b.safetensors")
    put(root / "models/latentsync/LatentSync-1.6/latentsync_unet.pt")
    put(root / "models/latentsync/notes.txt")
    put(root / "models/latentsync/.git/objects.pt")
    assert folders.names() == ["LatentSync-1.6/latentsync_unet.pt", "b.safetensors"]
    assert folders.path("b.safetensors") == root / "models/latentsync/b.safetensors"
    assert folders.find("none.pt") is None
    with pytest.raises(ModelFileError, match=r"no 'none\.pt' in .*models.latentsync"):
        folders.path("none.pt")


def test_a_name_from_windows_is_found(root):
    put(root / "models/latentsync/sub/a.pt")
    assert folders.path("sub\\a.pt") == root / "models/latentsync/sub/a.pt"


@pytest.mark.parametrize(
    "name",
    ["../vae/secret.pt", "/etc/passwd", "sub/../../x.pt", "..", "C:/x.pt", "c:x.pt", "..\\vae\\secret.pt", "\\\\host\\x.pt", "a\0.pt", ""],
)
def test_a_name_never_leaves_its_folder(root, name):
    put(root / "models/vae/secret.pt")
    with pytest.raises(ModelFileError, match="not the name of a file"):
        folders.find(name)


def test_models_only_in_extra_model_paths_are_found(root, tmp_path):  # F40
    shared = tmp_path / "shared models"
    put(shared / "ls/only.pt")
    put(shared / "vae-a/one.safetensors")
    put(shared / "vae-b/two.safetensors")
    (root / "extra_model_paths.yaml").write_text(
        f"shared:\n  base_path: {shared}\n  latentsync: ls\n  vae: |\n    vae-a\n    vae-b\nempty:\n", encoding="utf-8"
    )
    assert folders.names() == ["only.pt"]
    assert folders.path("only.pt") == shared / "ls/only.pt"
    assert folders.names("vae") == ["one.safetensors", "two.safetensors"]


def test_a_broken_extra_model_paths_names_itself(root):
    (root / "extra_model_paths.yaml").write_text("- a\n- b\n", encoding="utf-8")
    with pytest.raises(ModelFileError, match=r"extra_model_paths\.yaml"):
        folders.names()


@pytest.mark.skipif(COMFYUI is None, reason="no ComfyUI here (COMFYUI_PATH or .cache/comfyui)")
def test_the_shim_searches_where_comfyui_does(root, tmp_path):  # F40
    """The same yaml, read by ComfyUI itself and by the shim, gives the same folders in the same order, with our kind and with ComfyUI's."""
    listing = {
        "one": {"base_path": str(tmp_path / "one"), "latentsync": "ls\nls2\n", "vae": "vae"},
        "two": {"base_path": "relative", "is_default": True, "latentsync": "ls", "vae": "vae1\nvae2"},
        "three": {"vae": f"{tmp_path / 'absolute'}\nbeside", "latentsync": str(root / "models/latentsync")},
        "four": None,
        "five": {"base_path": "$LS_TEST_BASE/x", "is_default": True, "vae": str(tmp_path / "absolute")},
    }
    (root / "extra_model_paths.yaml").write_text(json.dumps(listing), encoding="utf-8")
    script = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); sys.argv[1:] = []\n"
        "import folder_paths, utils.extra_config as extra\n"
        f"folder_paths.models_dir = {str(root / 'models')!r}\n"
        f"folder_paths.folder_names_and_paths['vae'] = ([{str(root / 'models/vae')!r}], set())\n"
        f"extra.load_extra_path_config({str(root / 'extra_model_paths.yaml')!r})\n"
        f"sys.path.insert(0, {str(ROOT / 'tests')!r}); import conftest\n"
        "from latentsync_rtx.lipsync import folders; folders.register(); folders.register()\n"
        "assert folders._comfy() is folder_paths\n"
        "answer = {kind: [str(path) for path in folders.paths(kind)] for kind in ('latentsync', 'vae')}\n"
        "sys.stdout.write(json.dumps([answer, sorted(folder_paths.folder_names_and_paths['latentsync'][1])]))\n"
    )
    environment = {**os.environ, "LS_TEST_BASE": str(tmp_path / "variable")}
    done = subprocess.run([sys.executable, "-c", script, str(COMFYUI)], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    wanted, extensions = json.loads(done.stdout)
    os.environ["LS_TEST_BASE"] = environment["LS_TEST_BASE"]
    try:
        assert {kind: [str(path) for path in folders.paths(kind)] for kind in wanted} == wanted
    finally:
        del os.environ["LS_TEST_BASE"]
    assert extensions == [".pt", ".safetensors"]


def test_nothing_is_registered_outside_comfyui(monkeypatch):
    monkeypatch.setitem(sys.modules, "folder_paths", types.ModuleType("folder_paths"))  # somebody else's module of that name
    folders.register()
    assert not hasattr(sys.modules["folder_paths"], "folder_names_and_paths")


def test_temporary_folder_exists_and_output_is_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert folders.temp_dir().is_dir()
    assert folders.output_dir() == tmp_path
    assert folders.engines_dir().parts[-2:] == ("latentsync", "engines")


def test_unfinished_jobs_are_kept_where_a_start_of_comfyui_does_not_empty(tmp_path, monkeypatch):
    monkeypatch.delenv("LATENTSYNC_JOBS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert folders.jobs_dir() == tmp_path / "caches" / "latentsync-jobs"
    comfy = types.SimpleNamespace(add_model_folder_path=None, models_dir="", get_user_directory=lambda: str(tmp_path / "user"))
    monkeypatch.setitem(sys.modules, "folder_paths", comfy)
    assert folders.jobs_dir() == tmp_path / "user" / "latentsync-jobs"
    monkeypatch.setenv("LATENTSYNC_JOBS", "~/here")
    assert folders.jobs_dir() == Path.home() / "here"
    assert not (tmp_path / "caches").exists() and not (tmp_path / "user").exists()
