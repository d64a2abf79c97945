"""One real engine for the tests in this folder: the demo network's, at 64 px and two frames."""
import pytest
import torch
from latentsync_rtx import engine_builder
from latentsync_rtx.lipsync import weights

VARIANT = {"resolution": 64, "frames": 2, "guided": True}


@pytest.fixture(scope="session")
def model():
    return weights.find_model(weights.DEMO)


@pytest.fixture(scope="session")
def built(tmp_path_factory, model):
    """(manifest, [(done, total, stage)...], folder) of a real build. About half a minute."""
    pytest.importorskip("tensorrt_rtx")
    folder, heard = tmp_path_factory.mktemp("models") / "latentsync" / "engines of é", []
    with torch.inference_mode():  # as under ComfyUI
        manifest = engine_builder.build(
            model, folder, **VARIANT, targets=["8.9", "12.0"], progress=lambda done, total, *, stage="", preview=None: heard.append((done, total, stage))
        )
    return manifest, heard, folder
