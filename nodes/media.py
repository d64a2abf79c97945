"""ComfyUI's VIDEO and IMAGE as a `Clip`."""
import inspect
import logging
from fractions import Fraction
from pathlib import Path
from uuid import uuid4

import torch
from comfy_api.latest import InputImpl

from ..lipsync import folders
from ..lipsync.clip import Clip, open_clip

log = logging.getLogger(__name__)

WORK_RATES = {"25 fps (as the model was trained)": Fraction(25), "source": None}
EDITED_CRF = 4  # of a clip that ComfyUI has to encode once more for us: no loss that anybody sees


def clip_from(media, work_rate: str, image_rate: float) -> Clip:
    """`media` is a VIDEO or an IMAGE batch; `image_rate` is the frame rate of an IMAGE batch, which carries none.

    A VIDEO that was trimmed is read from there on to there. One that was cropped or resized is written out first, frame by frame.
    """
    if isinstance(media, InputImpl.VideoFromComponents):  # already decoded: encoding it again to stream it would lose quality
        components = media.get_components()
        media, image_rate = components.images, components.frame_rate
    if isinstance(media, torch.Tensor):  # pictures that the user may have worked on one by one: used frame by frame, never retimed
        return open_clip(media, rate=image_rate)
    rate = WORK_RATES[work_rate]
    if _is_edited(media):
        return open_clip(_written(media), rate=rate)
    start, duration = _trim(media)
    return open_clip(media.get_stream_source(), rate=rate, start=start, duration=duration)


def _trim(video) -> tuple[float, float]:
    """Seconds from the start, and of duration (0: to the end), that a VIDEO is trimmed to; its stream source is the whole file."""
    if hasattr(video, "get_active_trim_window"):
        return video.get_active_trim_window()
    start, duration = (getattr(video, f"_VideoFromFile__{name}", 0) or 0 for name in ("start_time", "duration"))
    if start < 0:  # from the end; the first releases that trim (0.5 to 0.8) have no other way to ask
        start = max(0.0, InputImpl.VideoFromFile(video.get_stream_source()).get_duration() + start)
    return float(start), float(duration)


def _is_edited(video) -> bool:
    """Whether the pictures of a VIDEO are not those of its stream source."""
    if hasattr(video, "has_pending_frame_edits"):
        return video.has_pending_frame_edits()
    return getattr(video, "_VideoFromFile__crop", None) is not None


def _written(video) -> Path:
    """The VIDEO as ComfyUI writes it, in its temporary folder."""
    path = folders.temp_dir() / f"latentsync-{uuid4().hex}.mp4"
    quality = {"crf": EDITED_CRF} if "crf" in inspect.signature(video.save_to).parameters else {}
    log.info("the clip was cropped or resized: written to %s first", path)
    video.save_to(str(path), **quality)
    return path
