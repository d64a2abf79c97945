"""Small media made with PyAV. Every picture carries its number as 4x4 grey blocks, which survive any codec, so a test can tell which frame
it got and which way up."""
import struct
import types
from fractions import Fraction

import av
import numpy as np
import pytest


def picture(number: int, width: int = 64, height: int = 48) -> np.ndarray:
    bits = np.array([number >> bit & 1 for bit in range(16)], np.uint8).reshape(4, 4) * 175 + 40
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    return np.repeat(bits[rows][:, columns, None], 3, axis=2)


def number(frame: np.ndarray) -> int:
    height, width = frame.shape[:2]
    bits = [frame[(2 * row + 1) * height // 8, (2 * column + 1) * width // 8].mean() > 127 for row in range(4) for column in range(4)]
    return sum(int(bit) << place for place, bit in enumerate(bits))


def numbers(frames) -> list[int]:
    return [number(frame) for frame in frames]


def tone(seconds: float, rate: int = 16000, channels: int = 1) -> np.ndarray:
    """float32 [channels, samples], a different pitch in each channel."""
    time = np.arange(round(seconds * rate)) / rate
    return np.stack([0.4 * np.sin(2 * np.pi * 220 * (n + 1) * time) for n in range(channels)]).astype(np.float32)


LAYOUTS = {1: "mono", 2: "stereo", 6: "5.1"}


def add_tone(container, stream, seconds: float, rate: int, channels: int, pts: int = 0) -> None:
    layout = LAYOUTS[channels]
    frame = av.AudioFrame.from_ndarray(tone(seconds, rate, channels), format="fltp", layout=layout)
    frame.sample_rate, frame.pts, frame.time_base = rate, pts, Fraction(1, rate)
    convert = av.AudioResampler(stream.codec_context.format, layout, rate)
    for piece in convert.resample(frame):
        container.mux(stream.encode(piece))
    container.mux(stream.encode(None))


def make_clip(path, count=10, rate=25, size=(64, 48), *, codec="libx264", pix_fmt="yuv420p", times=None, ticks=None, options=None,
              sound=None, sound_codec="aac", sound_rate=44100, channels=2, sound_pts=0, sound_first=False,
              first=0, pictures=None, tags=None, **opening):
    """A clip of `count` numbered pictures at `path`; `times` are timestamps in units of `ticks` (default 0, 1, 2... in 1/rate)."""
    rate = Fraction(rate)
    ticks = ticks or 1 / rate
    with av.open(str(path), "w", **opening) as container:
        if sound and sound_first:
            sound_stream = container.add_stream(sound_codec, rate=sound_rate, layout=LAYOUTS[channels])
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = size[0] + size[0] % 2 * (pix_fmt == "yuv420p"), size[1] + size[1] % 2, pix_fmt
        if options:
            stream.codec_context.options = options
        for name, value in (tags or {}).items():
            setattr(stream.codec_context, name, value)
        stream.codec_context.time_base = ticks
        if sound and not sound_first:
            sound_stream = container.add_stream(sound_codec, rate=sound_rate, layout=LAYOUTS[channels])
        for place in range(count):
            rgb = pictures[place] if pictures is not None else picture(first + place, stream.width, stream.height)
            frame = av.VideoFrame.from_ndarray(rgb, format="rgb24").reformat(format=pix_fmt)
            frame.pts, frame.time_base = times[place] if times is not None else place, ticks
            if (tags or {}).get("color_range"):
                frame.color_range = tags["color_range"]
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if sound:
            add_tone(container, sound_stream, sound, sound_rate, channels, sound_pts)
    return path


MATRICES = {  # of a track header: what phones write for a picture to be turned clockwise by so much, and mirrored
    0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0), "mirror": (-1, 0, 0, 1), "flip": (1, 0, 0, -1),
}


def turn(path, how) -> None:
    """Write a display matrix into the first track header of an MP4."""
    data = bytearray(path.read_bytes())
    start = data.find(b"tkhd") + 4 + 40  # version 0: flags, times, id, duration, reserved, layer, group, volume
    a, b, c, d = (value << 16 for value in MATRICES[how])
    data[start:start + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)


def stream_facts(path) -> dict:
    """Per kind of stream, what its header says: index, codec, pix_fmt, start, seconds."""
    with av.open(str(path)) as container:  # a stream must not be asked after its container is closed
        return {stream.type: types.SimpleNamespace(
            index=stream.index, codec=stream.codec_context.name, pix_fmt=getattr(stream.codec_context, "pix_fmt", None),
            start=stream.start_time, seconds=float((stream.duration or 0) * stream.time_base),
        ) for stream in container.streams}


@pytest.fixture
def media():
    """The makers above, for tests: pytest's import mode leaves no other way to share them."""
    return types.SimpleNamespace(
        picture=picture, number=number, numbers=numbers, tone=tone, make_clip=make_clip, turn=turn, MATRICES=MATRICES, facts=stream_facts
    )
