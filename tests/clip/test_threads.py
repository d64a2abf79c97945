"""Reading beside busy threads in a process where PyAV logs through Python, as ComfyUI's is: importing torchvision makes it so."""
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import faulthandler, importlib.util, sys, threading
import av.logging
from fractions import Fraction
import numpy as np
root, path = sys.argv[1:]
spec = importlib.util.spec_from_file_location("latentsync_rtx", root + "/__init__.py", submodule_search_locations=[root])
sys.modules["latentsync_rtx"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from latentsync_rtx.lipsync.clip import open_clip

noise = np.random.default_rng(0).integers(0, 255, (60, 96, 128, 3), np.uint8)
with av.open(path, "w") as container:
    stream = container.add_stream("libx264", rate=25, options={"preset": "ultrafast"})
    stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p"
    for picture in noise:
        container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
    container.mux(stream.encode(None))
av.logging.set_level(av.logging.ERROR)

def busy():
    while True:
        pass

for _ in range(2):
    threading.Thread(target=busy, daemon=True).start()
faulthandler.dump_traceback_later(60, exit=True)  # a decoder's thread and the interpreter that wait for each other do so for ever
for _ in range(4):
    clip = open_clip(path)
    frames = clip.frames()
    next(frames)
    frames.close()
print(clip.frame_count)
"""


def test_a_decoder_that_has_errors_to_report_does_not_stop_the_process(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(ROOT), str(tmp_path / "clip.mp4")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["60"]
