"""The loaded network in ComfyUI's other cache modes; the shared server has the default one, `test_bare_server` none at all."""
import shutil

from comfy_client import CLIP

LOADED = "Demo: a small model of our own"  # said when the demo's network is loaded


def test_with_few_results_cached_the_network_is_loaded_once(start_server, face_files, media, example):
    comfy = start_server("--cache-lru", "1")
    shutil.copytree(face_files, comfy.server.base / "models" / "latentsync" / "face", dirs_exist_ok=True)
    shutil.copytree(media, comfy.input, dirs_exist_ok=True)
    first = comfy.run(example({"LatentSyncDenoise.seed": 1}))
    assert first.status == "success", first.failure
    loads = comfy.server.log().count(LOADED)
    shutil.copy(comfy.input / CLIP, comfy.input / "other.mp4")  # nothing of the first prompt but the model serves the second
    second = comfy.run(example({"LatentSyncDenoise.seed": 2, "LoadVideo.file": "other.mp4"}))
    assert second.status == "success", second.failure
    assert loads == 1 == comfy.server.log().count(LOADED)
