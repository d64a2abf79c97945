"""The stages' progress calls, shown on the node that is running and turned into ComfyUI's cancel."""
import sys
import time
from collections.abc import Callable

import comfy.model_management
import comfy.utils
import numpy as np
from comfy_execution.utils import get_executing_context
from PIL import Image

from ..lipsync.progress import Pace

PREVIEW_PIXELS = 256  # longest side of a preview picture
SHOWN_SECONDS = 0.25  # between two lines of text or two pictures: a page has to draw them
NAMES = {  # of the stages, for people
    "align": "Following the face",
    "audio": "Listening",
    "denoise": "Drawing the mouth",
    "decode": "Decoding faces",
    "convert": "Converting",
    "restore": "Putting faces back",
    "export network": "1/2 Exporting the network",
    "compile engine": "2/2 Compiling the engine",
    "build engine": "Building the engine",
    "wait for another build": "Waiting for another build",
}


def page_server():
    """ComfyUI's `PromptServer`, or None where our nodes run without one. It is not imported: that would start half of ComfyUI."""
    return getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)


class NodeProgress:
    """A `lipsync.progress.Progress` for the node that is executing: create it in `execute`, which runs in that node's context.

    picture: gives the picture to show at (done, total), uint8 RGB [H,W,3] or None, for stages that bring none.
    """

    def __init__(self, picture: Callable[[int, int], np.ndarray | None] | None = None):
        context = get_executing_context()
        self._node = context.node_id if context else None
        self._bar, self._pace, self._picture = comfy.utils.ProgressBar(1), Pace(), picture
        self._stage, self._spoken, self._shown = None, 0.0, 0.0

    def __call__(self, done: int, total: int, *, stage: str = "", preview: np.ndarray | None = None) -> None:
        comfy.model_management.throw_exception_if_processing_interrupted()
        now = time.monotonic()
        text = self._pace.tell(done, total, NAMES.get(stage, stage.capitalize()))
        if stage != self._stage or done >= total or now - self._spoken > SHOWN_SECONDS:
            self._stage, self._spoken = stage, now
            self._say(text)
        shown = None
        if now - self._shown > SHOWN_SECONDS:
            preview = self._picture(done, total) if preview is None and self._picture else preview
            if preview is not None:
                self._shown, shown = now, ("JPEG", Image.fromarray(preview), PREVIEW_PIXELS)
        self._bar.update_absolute(done, total, shown)

    def _say(self, text: str) -> None:
        server = page_server()
        if server is None or self._node is None or not hasattr(server, "send_progress_text"):
            return
        parts = str(self._node).split(":")  # of a node in a subgraph: the page shows the text on whichever of its ancestors is in view
        for depth in range(len(parts), 0, -1):
            server.send_progress_text(text, ":".join(parts[:depth]), server.client_id)
