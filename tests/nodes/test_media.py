"""A VIDEO of any ComfyUI as a clip, in a process of its own. The tested release cannot trim or crop: later ones are subclasses of its own."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))

import comfyui  # noqa: E402 - ours, in tools/

pytestmark = pytest.mark.server

SCRIPT = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import utils.install_util  # as main.py does first: later another module of that name is found
root, folder, sys.argv = sys.argv[2], sys.argv[3], ["main.py", "--cpu"]
import comfy.options
comfy.options.enable_args_parsing()
import comfy.model_management
sys.path.append(root + "/tests")
import conftest
import torch
from fractions import Fraction
from pathlib import Path
from comfy_api.latest import InputImpl
from comfy_api.latest._util import VideoComponents
from latentsync_rtx.lipsync import folders
from latentsync_rtx.nodes.media import clip_from
from latentsync_rtx.tests.clip.conftest import make_clip, numbers, picture

folders.temp_dir = lambda: Path(folder)
path = str(make_clip(Path(folder) / "clip.mp4", 50, rate=25))
KEEP, AT_25 = "source", "25 fps (as the model was trained)"
out = {}
def told(name, media, rate=KEEP, image_rate=30.0):
    clip = clip_from(media, rate, image_rate)
    out[name] = [clip.width, clip.height, str(clip.rate), numbers(clip.frames())]

told("whole", InputImpl.VideoFromFile(path))

class Trimmed(InputImpl.VideoFromFile):  # releases from 0.9 on
    def get_active_trim_window(self):
        return 0.4, 0.8
told("trimmed", Trimmed(path))
told("trimmed, to the end", type("", (Trimmed,), {"get_active_trim_window": lambda self: (1.6, 0.0)})(path))

class Before(InputImpl.VideoFromFile):  # the first that trim keep it to themselves
    def __init__(self, path, start, duration):
        super().__init__(path)
        self._VideoFromFile__start_time, self._VideoFromFile__duration = start, duration
told("privately trimmed", Before(path, 0.4, 0.8))
told("privately, from the end", Before(path, -0.4, 0))

class Cropped(InputImpl.VideoFromFile):
    def has_pending_frame_edits(self):
        return True
    def get_active_trim_window(self):
        return 0.4, 0.8
    def save_to(self, path, format="auto", codec="auto", metadata=None, crf=None):
        out["quality asked for"] = crf
        make_clip(Path(path), 20, first=10, size=(32, 24))
told("cropped", Cropped(path))

images = torch.stack([torch.from_numpy(picture(n)) for n in range(5)]).float() / 255
told("made of images", InputImpl.VideoFromComponents(VideoComponents(images=images, frame_rate=Fraction(24), audio=None)), AT_25)
told("images", images, AT_25, 29.97)
clip = clip_from(images, KEEP, 25.0)
out["copied"] = clip.images.data_ptr() != images.data_ptr()
sys.__stdout__.write("\\n" + json.dumps(out))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    command = [sys.executable, "-c", SCRIPT, str(comfyui.get()), str(ROOT), str(tmp_path_factory.mktemp("media"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT / "tests")
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_whole_video_is_its_file(seen):
    assert seen["whole"] == [64, 48, "25", list(range(50))]


def test_a_trimmed_video_is_only_that_part(seen):
    assert seen["trimmed"] == seen["privately trimmed"] == [64, 48, "25", list(range(10, 30))]
    assert seen["trimmed, to the end"] == seen["privately, from the end"] == [64, 48, "25", list(range(40, 50))]


def test_an_edited_video_is_what_comfyui_makes_of_it(seen):
    assert seen["cropped"] == [32, 24, "25", list(range(10, 30))]
    assert seen["quality asked for"] == 4


def test_images_are_used_frame_by_frame_and_never_copied(seen):  # F32
    assert seen["made of images"] == [64, 48, "24", list(range(5))]
    assert seen["images"] == [64, 48, "30000/1001", list(range(5))]
    assert seen["copied"] is False
