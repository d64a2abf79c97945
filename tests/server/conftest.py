"""A real ComfyUI for the tests in this folder, and the media it works on."""
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(Path(__file__).parent)]

import comfyui  # noqa: E402 - ours, in tools/
import demo_media  # noqa: E402
import speech  # noqa: E402
from comfy_client import CLIP, SPEECH, Comfy, patch  # noqa: E402

SECONDS = 0.6  # of the clip and of the speech: one block of 16 frames

RECORDER = '''"""Writes down, in the file NETWORK_CALLS, who calls or looks up a host that is not this machine."""
import socket
import traceback

HERE = {None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::"}


def watched(original, host_of):
    def call(*arguments, **options):
        host = host_of(arguments)
        if host not in HERE:
            with open(os.environ["NETWORK_CALLS"], "a") as file:
                file.write(f"{host} from " + " < ".join(f"{one.filename}:{one.lineno}" for one in traceback.extract_stack()[-12:-1]) + "\\n")
        return original(*arguments, **options)
    return call


def of_socket(arguments):
    return arguments[1][0] if arguments[0].family in (socket.AF_INET, socket.AF_INET6) else None


for name in ("connect", "connect_ex"):
    setattr(socket.socket, name, watched(getattr(socket.socket, name), of_socket))
socket.getaddrinfo = watched(socket.getaddrinfo, lambda arguments: arguments[0])
'''

HELD = '''"""Tells at /held how many bytes each runner of the pack holds: [[back end, bytes], ...]."""
import sys

from aiohttp import web
from server import PromptServer

NODE_CLASS_MAPPINGS = {}


@PromptServer.instance.routes.get("/held")
async def held(request):
    (pool,) = (module.POOL for name, module in list(sys.modules.items()) if name.endswith(".lipsync.runners.pool"))
    return web.json_response([[key[0], runner.size_bytes] for key, runner in pool._runners.items()])
'''


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.server)


@pytest.fixture(scope="session")
def media(tmp_path_factory) -> Path:
    """A folder with SECONDS of a face (CLIP) and of speech (SPEECH)."""
    folder = tmp_path_factory.mktemp("media")
    demo_media.write_clip(folder / CLIP, demo_media.face_frames(SECONDS, size=(320, 256)))
    speech.save_wav(folder / SPEECH, *demo_media.spoken(SECONDS))
    return folder


@pytest.fixture(scope="session")
def start_server(tmp_path_factory) -> Iterator[Callable[..., Comfy]]:
    """`start_server(*ComfyUI's options, **Server's)` -> Comfy; all are stopped when the tests end."""
    running = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a killed test run ends as Ctrl-C does, and leaves no server behind

    def start(*arguments: str, **options) -> Comfy:
        server = comfyui.Server(tmp_path_factory.mktemp("comfyui"), arguments, **options)
        running.append(server)
        return Comfy(server.__enter__())

    yield start
    for server in running:
        server.stop()


@pytest.fixture(scope="session")
def comfy(start_server, face_files, media, tmp_path_factory) -> Comfy:
    """The server that most tests share, with ComfyUI's default cache, the face models in its models folder and `media` as its input.

    `network_calls`: a file with a line for each call to another machine. /held: see HELD.
    LATENTSYNC_FRONTEND: the folder of another frontend to serve, see browser/conftest.py."""
    recorder = tmp_path_factory.mktemp("recorder")
    (recorder / "sitecustomize.py").write_text(RECORDER, encoding="utf-8")
    watcher = tmp_path_factory.mktemp("custom_nodes")
    (watcher / "held").mkdir()
    (watcher / "held" / "__init__.py").write_text(HELD, encoding="utf-8")
    environment = {"PYTHONPATH": str(recorder), "NETWORK_CALLS": str(recorder / "calls")}
    front_end = os.environ.get("LATENTSYNC_FRONTEND")
    options = ["--front-end-root", front_end] if front_end else []
    started = start_server(*options, environment=environment, extra_model_paths={"custom_nodes": watcher})
    started.network_calls = recorder / "calls"
    started.network_calls.touch()
    shutil.copytree(face_files, started.server.base / "models" / "latentsync" / "face", dirs_exist_ok=True)
    shutil.copytree(media, started.input, dirs_exist_ok=True)
    return started


@pytest.fixture(scope="session")
def example() -> Callable[..., dict]:
    """`example({"Class.input": value})` -> examples/api/lipsync.json on the test media, in one step without guidance, with the changes."""
    workflow = json.loads((ROOT / "examples" / "api" / "lipsync.json").read_text(encoding="utf-8"))
    fast = {"LoadVideo.file": CLIP, "LoadAudio.audio": SPEECH, "LatentSyncDenoise.steps": 1, "LatentSyncDenoise.guidance": 1.0}
    return lambda changes=None: patch(workflow, {**fast, **(changes or {})})
