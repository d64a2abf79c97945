"""The page's own routes: names only, an answer to everything, and the server goes on."""
import base64
import io

import numpy as np
import pytest
import requests
from comfy_client import CLIP
from latentsync_rtx.lipsync.weights import DEMO
from PIL import Image


def ask(comfy, route, **query):
    answer = requests.get(f"{comfy.url}/latentsync-rtx/{route}", params=query, timeout=60)
    return answer.status_code, answer.json()


def test_look_shows_a_frame_and_its_faces(comfy):
    status, seen = ask(comfy, "look", name=CLIP, seconds=0.2)
    assert status == 200
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(seen["picture"].split(",")[1]))))
    assert picture.shape == (256, 320, 3) and picture.std() > 30
    assert (seen["seconds"], seen["duration"], seen["rate"]) == (0.2, 0.6, 25.0)
    (face,) = seen["faces"]
    x0, y0, x1, y1 = face["box"]
    assert 0.2 < x0 < 0.5 < x1 < 0.8 and 0 < y0 < y1 < 0.8
    assert ask(comfy, "look", name=CLIP, seconds=0.2, min_size=300)[1]["faces"] == [], "as the node counts"


def test_status_says_what_runs_and_why(comfy):
    status, told = ask(comfy, "status", checkpoint=DEMO, back_end="auto", engine_file="best match", precision="auto")
    assert status == 200
    assert told["lines"]["back end"].startswith("PyTorch") and told["lines"]["GPU"] == "none"
    assert "NVIDIA GPU" in told["lines"]["why not TensorRT-RTX"] and told["why_not_build"]
    assert not told["can_build_for_gpu"] and told["resolution"] == 256


@pytest.mark.parametrize(
    "route, query, says",
    [
        ("look", {"name": "../../etc/passwd"}, "no clip"),
        ("look", {"name": "/etc/passwd"}, "no clip"),
        ("look", {"name": "..\\..\\secret.mp4"}, "no clip"),
        ("look", {"name": "../comfyui.log [input]"}, "no clip"),
        ("look", {"name": "\0"}, "no clip"),
        ("look", {}, "no clip"),
        ("look", {"name": "the new speech.wav"}, "no pictures"),
        ("look", {"name": CLIP, "seconds": "nan"}, "not a number"),
        ("look", {"name": CLIP, "seconds": "soon"}, "soon"),
        ("look", {"name": CLIP, "detector": "../x"}, "unknown face detector"),
        ("status", {"checkpoint": "../../x.pt"}, "not the name of a file"),
        ("status", {"checkpoint": DEMO, "engine_file": "../../x.plan"}, "not the name of an engine"),
        ("status", {"checkpoint": DEMO, "back_end": "magic"}, "no back end"),
    ],
)
def test_what_is_no_name_is_refused(comfy, route, query, says):
    status, told = ask(comfy, route, **query)
    assert status == 400 and says in told["error"]
    assert ask(comfy, "status")[0] == 200, "and it goes on"
