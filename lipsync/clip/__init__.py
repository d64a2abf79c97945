"""Reading and writing media as streams of frames: no clip is ever held whole."""
from .base import Clip, as_rate
from .colour import Look
from .read import TensorClip, open_clip
from .sound import read_audio
from .video import VideoClip
from .write import ENCODERS, ClipWriter, check_format, check_target, copies_sound, partials

__all__ = [
    "ENCODERS", "Clip", "ClipWriter", "Look", "TensorClip", "VideoClip", "as_rate", "check_format", "check_target", "copies_sound", "open_clip", "partials",
    "read_audio",
]
