"""ComfyUI's VIDEO and IMAGE as a `Clip`."""
from fractions import Fraction

import torch
from comfy_api.latest import InputImpl

from ..lipsync.clip import Clip, open_clip

WORK_RATES = {"25 fps (as the model was trained)": Fraction(25), "source": None}


def clip_from(media, work_rate: str, image_rate: float) -> Clip:
    """`media` is a VIDEO or an IMAGE batch; `image_rate` is the frame rate of an IMAGE batch, which carries none."""
    if isinstance(media, InputImpl.VideoFromComponents):  # already decoded: encoding it again to stream it would lose quality
        components = media.get_components()
        media, image_rate = components.images, components.frame_rate
    if isinstance(media, torch.Tensor):  # pictures that the user may have worked on one by one: used frame by frame, never retimed
        return open_clip(media, rate=image_rate)
    return open_clip(media.get_stream_source(), rate=WORK_RATES[work_rate])
