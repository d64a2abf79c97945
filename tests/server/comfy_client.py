"""Queues prompts on a real ComfyUI and tells what became of them; reads the files that came out."""
import asyncio
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import av
import comfyui
import numpy as np
import requests
from PIL import Image

CLIP = "it's a face (1) 顔.mp4"  # F27: quotes, blanks, brackets, another alphabet
SPEECH = "the new speech.wav"
JOB_SECONDS = 300  # a prompt that takes longer fails the test


@dataclass
class Finished:
    """How a prompt ended, out of the server's history and its websocket."""

    prompt_id: str
    status: str  # "success", "error" or "interrupted"
    outputs: dict  # history's: {node: {kind: [file, ...]}}
    cached: list[str]  # nodes that were not executed since their result was known
    failure: dict  # data of execution_error or execution_interrupted, else {}
    events: list[tuple[str, dict]] = field(repr=False)

    @property
    def executed(self) -> list[str]:
        """Nodes in the order in which they started to execute."""
        return [data["node"] for kind, data in self.events if kind == "executing" and data.get("node")]


class Refused(Exception):
    """/prompt found something wrong with the workflow; the argument is its JSON."""


class Comfy:
    """Queues prompts on one server and waits for them."""

    def __init__(self, server: comfyui.Server):
        self.server, self.url = server, server.url

    @property
    def input(self) -> Path:
        return self.server.base / "input"

    @property
    def temp(self) -> Path:
        return self.server.base / "temp"

    def get(self, route: str):
        answer = requests.get(self.url + route, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def post(self, route: str, content: dict) -> None:
        requests.post(self.url + route, json=content, timeout=60).raise_for_status()

    def cancel(self, prompt_id: str | None) -> None:
        """Take a prompt out of the queue, or interrupt it if it runs."""
        if prompt_id:
            self.post("/queue", {"delete": [prompt_id]})
            self.post("/interrupt", {"prompt_id": prompt_id})

    def forget(self) -> None:
        """Drop every cached output, so that the next prompt executes all its nodes."""
        self.post("/free", {"unload_models": True, "free_memory": True})
        # a prompt that comes at once may still be served from the cache; after this one, it is empty for sure
        image = {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0}}
        self.run({"1": image, "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}})

    def run(self, workflow: dict, on_event: Callable[[str, dict], None] | None = None) -> Finished:
        """Queue the API-form workflow and wait for its end. `on_event(kind, data)` hears every message of this prompt on the way.

        Raises Refused when the server does not take it.
        """
        try:
            return asyncio.run(asyncio.wait_for(self._run(workflow, on_event), JOB_SECONDS))
        except (TimeoutError, asyncio.TimeoutError):
            raise AssertionError(f"the prompt hung for {JOB_SECONDS} s:\n{self.server.abort()}") from None

    async def _run(self, workflow: dict, on_event) -> Finished:
        client_id = uuid.uuid4().hex
        events = []
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{self.url}/ws?clientId={client_id}", max_msg_size=0) as socket:
            async with session.post(f"{self.url}/prompt", json={"prompt": workflow, "client_id": client_id}) as answer:
                content = await answer.json()
            if answer.status != 200 or content["node_errors"]:  # 200 with errors: it runs those outputs that are right
                self.cancel(content.get("prompt_id"))
                raise Refused(content)
            prompt_id = content["prompt_id"]
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    continue
                event = json.loads(message.data)
                kind, data = event["type"], event.get("data") or {}
                if data.get("prompt_id") != prompt_id:
                    continue
                events.append((kind, data))
                if on_event:
                    await asyncio.to_thread(on_event, kind, data)
                if kind == "executing" and data["node"] is None:  # the end, however it came, and after the history is written
                    break
        return self._finished(prompt_id, events)

    def _finished(self, prompt_id: str, events: list) -> Finished:
        entry = self.get(f"/history/{prompt_id}")[prompt_id]
        told = dict(entry["status"]["messages"])
        failure = told.get("execution_error") or told.get("execution_interrupted") or {}
        status = "interrupted" if "execution_interrupted" in told else entry["status"]["status_str"]
        return Finished(prompt_id, status, entry["outputs"], told["execution_cached"]["nodes"], failure, events)

    def saved(self, finished: Finished) -> list[Path]:
        """The files that a finished prompt leaves in the output folder, as paths on this machine; previews are not among them."""
        shown = [file for kinds in finished.outputs.values() for files in kinds.values() for file in files if isinstance(file, dict)]
        files = [file for file in shown if file.get("type") == "output"]
        return [self.server.base / file["type"] / file["subfolder"] / file["filename"] for file in files]


def only(workflow: dict, class_type: str) -> str:
    """The id of the one node of that class."""
    (node,) = (node for node, content in workflow.items() if content["class_type"] == class_type)
    return node


def patch(workflow: dict, changes: dict[str, object]) -> dict:
    """A copy with {"Class.input": value} applied to the one node of each class."""
    workflow = json.loads(json.dumps(workflow))
    for target, value in changes.items():
        class_type, name = target.split(".")
        workflow[only(workflow, class_type)]["inputs"][name] = value
    return workflow


def as_images(workflow: dict) -> dict:
    """A copy whose result is saved as pictures without loss instead of as a video."""
    workflow = patch(workflow, {"LatentSyncRestore.output": "images"})
    images = [only(workflow, "LatentSyncRestore"), 1]
    workflow[only(workflow, "SaveVideo")] = {"class_type": "SaveImage", "inputs": {"images": images, "filename_prefix": "frames"}}
    return workflow


def pictures_of(paths: list[Path]) -> np.ndarray:
    """What SaveImage saved: uint8 RGB [N,H,W,3]."""
    return np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])


def frames_of(path: Path) -> np.ndarray:
    """Every frame of a video file without rotation: uint8 RGB [N,H,W,3]."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def sound_of(path: Path) -> tuple[np.ndarray, int]:
    """The first channel of a file's sound [T], in the codec's own scale, and its sample rate."""
    with av.open(str(path)) as container:
        rate = container.streams.audio[0].rate
        return np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)]), rate
