"""The stages' progress calls, shown on the node that is running and turned into ComfyUI's cancel."""
import comfy.model_management
import comfy.utils
import numpy as np
from PIL import Image

PREVIEW_PIXELS = 256  # longest side of a preview picture


class NodeProgress:
    """A `lipsync.progress.Progress` for the node that is executing: create it in `execute`, which runs in that node's context."""

    def __init__(self):
        self._bar = comfy.utils.ProgressBar(1)

    def __call__(self, done: int, total: int, *, stage: str = "", preview: np.ndarray | None = None) -> None:
        comfy.model_management.throw_exception_if_processing_interrupted()
        picture = None if preview is None else ("JPEG", Image.fromarray(preview), PREVIEW_PIXELS)
        self._bar.update_absolute(done, total, picture)
