"""Between the YUV of files and RGB: the right matrix both ways, so that a picture that is decoded and encoded keeps its colours.

Numbers are those of ITU-T H.273, which FFmpeg uses as AVColorSpace, AVColorPrimaries and AVColorTransferCharacteristic. swscale numbers
its matrices apart (SWS_CS_*), and PyAV before 17 ignores a frame's tags unless told: so all is told, in numbers that all releases know.
"""
from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np

UNSPECIFIED = 2
BT709 = 1
_LIMITED, _FULL = 1, 2  # AVColorRange
_SWSCALE_601 = 5
_QUICK = 2  # SWS_BILINEAR, and swscale's quick path: 3 ms for 1080p, one level dark; what ComfyUI's own nodes read, to the bit
_EXACT = 2 | 0x40000 | 0x4000  # with SWS_ACCURATE_RND and SWS_FULL_CHR_H_INP: writing adds no error of its own
_SWSCALE = {1: 1, 4: 4, 5: 5, 6: 5, 7: 7, 9: 9, 10: 9}  # H.273 matrix -> SWS_CS_*; others are read as BT.601, as FFmpeg and ComfyUI do


@dataclass(frozen=True)
class Look:
    """How the numbers in a file become light. A result written under its source's look is shown as the source is, HDR tags included."""
    matrix: int = BT709
    primaries: int = BT709
    transfer: int = BT709
    pixel_aspect: Fraction = Fraction(1)  # width of a pixel over its height; frames keep the file's pixels, they are not stretched


def look_of(stream: av.VideoStream, frame: av.VideoFrame, turned: bool) -> Look:
    """The look of a decoded stream; `turned` swaps the sides of its pixels."""
    aspect = Fraction(stream.codec_context.sample_aspect_ratio or stream.sample_aspect_ratio or 1)
    if not Fraction(1, 8) < aspect < 8:
        aspect = Fraction(1)
    if turned:
        aspect = 1 / aspect
    matrix = int(frame.colorspace)
    if frame.format.is_rgb or frame.format.name.startswith("gray"):
        return Look(pixel_aspect=aspect)
    if matrix not in _SWSCALE and matrix != UNSPECIFIED:
        return Look(UNSPECIFIED, UNSPECIFIED, UNSPECIFIED, aspect)
    context = stream.codec_context
    return Look(matrix, int(context.color_primaries), int(context.color_trc), aspect)


def to_rgb(reformatter, frame: av.VideoFrame, width: int, height: int) -> np.ndarray:
    """uint8 RGB [height, width, 3] of a decoded frame; alpha is dropped, more than 8 bits are rounded, another size is scaled."""
    full = int(frame.color_range) == _FULL or frame.format.name.startswith("yuvj")
    rgb = reformatter.reformat(
        frame, width, height, "rgb24",
        src_colorspace=_SWSCALE.get(int(frame.colorspace), _SWSCALE_601), dst_colorspace=_SWSCALE_601,
        src_color_range=_FULL if full else _LIMITED, dst_color_range=_LIMITED, interpolation=_QUICK,
    )
    picture = rgb.to_ndarray()
    return picture.copy() if rgb is frame else picture  # the decoder's own picture may be shown again, and the caller may paint on it


def to_yuv(reformatter, frame: av.VideoFrame, look: Look, pixel_format: str) -> av.VideoFrame:
    """An RGB frame as limited-range YUV under `look`."""
    yuv = reformatter.reformat(
        frame, frame.width, frame.height, pixel_format,
        src_colorspace=_SWSCALE_601, dst_colorspace=_SWSCALE.get(look.matrix, _SWSCALE_601),
        src_color_range=_FULL, dst_color_range=_LIMITED, interpolation=_EXACT,
    )
    yuv.colorspace = look.matrix
    yuv.color_range = _LIMITED
    return yuv


def tag(context: av.VideoCodecContext, look: Look) -> None:
    """Write the look into an encoder that is not open yet."""
    context.colorspace, context.color_range = look.matrix, _LIMITED
    context.color_primaries, context.color_trc = look.primaries, look.transfer
    if look.pixel_aspect != 1:
        context.sample_aspect_ratio = look.pixel_aspect
