"""LatentSync Compare in a graph."""
import json

import demo_media
import pytest
from comfy_client import pictures_of

SIZE = (320, 256)


def graph(a: str, b: str, **inputs) -> dict:
    return {
        "a": {"class_type": "LoadVideo", "inputs": {"file": a}},
        "b": {"class_type": "LoadVideo", "inputs": {"file": b}},
        "compare": {
            "class_type": "LatentSyncCompare",
            "inputs": {
                "a": ["a", 0], "b": ["b", 0], "image_rate": 25.0, "detector": "mediapipe", "resize": False, "max_frames": 0, **inputs,
            },
        },
        "plot": {"class_type": "SaveImage", "inputs": {"images": ["compare", 0], "filename_prefix": "plot"}},
        "strip": {"class_type": "SaveImage", "inputs": {"images": ["compare", 1], "filename_prefix": "strip"}},
        "json": {"class_type": "PreviewAny", "inputs": {"source": ["compare", 2]}},
    }


@pytest.fixture(scope="module")
def clips(comfy):
    """A face, and the same one with a shadow over its mouth; names of files in ComfyUI's input."""
    frames = list(demo_media.face_frames(0.4, size=SIZE))
    shaded = [frame.copy() for frame in frames]
    for frame in shaded:
        frame[110:170, 110:210] //= 2
    for name, pictures in (("one.mp4", frames), ("shaded.mp4", shaded)):
        demo_media.write_clip(comfy.input / name, iter(pictures))
    demo_media.write_clip(comfy.input / "small.mp4", demo_media.face_frames(0.2, size=(160, 128)))


def test_gives_plot_strip_and_numbers(comfy, clips):
    finished = comfy.run(graph("one.mp4", "shaded.mp4"))
    assert finished.status == "success", finished.failure
    numbers = json.loads(finished.outputs["json"]["text"][0])
    assert numbers["compared"]["frames"] == numbers["mouth"]["frames"] == 10
    assert numbers["mouth"]["psnr_db"]["pooled"] < numbers["full_frame"]["psnr_db"]["pooled"] < 30
    assert "whole frame: SSIM" in finished.outputs["compare"]["text"][0]
    plot, strip = (pictures_of([path])[0] for node in ("plot", "strip") for path in comfy.saved(finished) if path.name.startswith(node))
    assert plot.shape[1] == strip.shape[1] == 1280 and plot.std() > 10 and strip.std() > 30


def test_other_sizes_stop_the_graph_with_both(comfy, clips):
    finished = comfy.run(graph("one.mp4", "small.mp4"))
    assert finished.status == "error"
    assert "320 x 256" in finished.failure["exception_message"] and "160 x 128" in finished.failure["exception_message"]
