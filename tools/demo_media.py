"""The demo's and the tests' own media: a short clip of a human face, and speech.

    python tools/demo_media.py FOLDER       writes face.mp4 (4 s, 25 frames/s, no sound) and speech.wav

The face is astronaut Eileen Collins in NASA's portrait, public domain, which scikit-image ships as a test picture; the camera drifts and
zooms a little over it.
"""
import math
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import speech

RATE = 25  # frames/s
SIZE = (512, 512)  # width, height
FACE = (224.0, 110.0)  # the middle of the face in the picture, px
VIEW = 260.0  # side of the square that the camera sees, px of the picture: small enough never to see past its edge


def astronaut() -> np.ndarray:
    """The portrait: uint8 RGB [512,512,3]."""
    from skimage import data

    return data.astronaut()


def face_frames(seconds: float = 4, rate: int = RATE, size: tuple[int, int] = SIZE) -> Iterator[np.ndarray]:
    """Frames uint8 RGB [height,width,3]: the camera circles the face once in 4 s, breathing in and out by 6 %."""
    picture = astronaut()
    width, height = size
    for index in range(round(seconds * rate)):
        angle = 2 * math.pi * index / rate / 4
        scale = min(size) / VIEW * (1 + 0.06 * math.sin(angle))
        x, y = FACE[0] + 8 * math.sin(angle), FACE[1] + 40 + 5 * math.cos(angle)
        matrix = np.float32([[scale, 0, width / 2 - scale * x], [0, scale, height / 2 - scale * y]])
        yield cv2.warpAffine(picture, matrix, size, flags=cv2.INTER_CUBIC)


def still_frames(picture: np.ndarray, seconds: float, rate: int = RATE) -> Iterator[np.ndarray]:
    """`picture`, uint8 RGB with even sides, again and again."""
    for _ in range(round(seconds * rate)):
        yield picture


def write_clip(path: Path, frames: Iterator[np.ndarray], rate: int = RATE, sound: tuple[np.ndarray, int] | None = None) -> Path:
    """H.264 in MP4 from uint8 RGB frames of even sides, with `sound` (float [T] in -1..1, its sample rate) as AAC if given."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=rate, options={"crf": "18", "preset": "veryfast"})
        video.pix_fmt = "yuv420p"
        audio = container.add_stream("aac", rate=sound[1], layout="mono") if sound else None
        for index, pixels in enumerate(frames):
            if index == 0:
                video.height, video.width = pixels.shape[:2]
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, rate)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        if sound:
            block = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound[0], np.float32)[None], format="fltp", layout="mono")
            block.sample_rate, block.pts, block.time_base = sound[1], 0, Fraction(1, sound[1])
            container.mux(audio.encode(block))
            container.mux(audio.encode(None))
    return path


def make(folder: Path, seconds: float = 4) -> tuple[Path, Path]:
    """-> (face.mp4, speech.wav) in `folder`, both `seconds` long; kept if they are there already."""
    folder.mkdir(parents=True, exist_ok=True)
    clip, sound = folder / "face.mp4", folder / "speech.wav"
    _once(sound, lambda path: speech.save_wav(path, *spoken(seconds)))
    _once(clip, lambda path: write_clip(path, face_frames(seconds)))
    return clip, sound


def spoken(seconds: float) -> tuple[np.ndarray, int]:
    """The synthesiser's default sentence, cut or followed by silence to last `seconds`: float32 [T] in -1..1, and its sample rate."""
    waveform, rate, _ = speech.speak()
    length = round(seconds * rate)
    return np.pad(waveform[:length], (0, max(0, length - len(waveform)))), rate


def _once(path: Path, write: Callable[[Path], object]) -> None:
    """Write to a name beside `path` first, so that a half-written file is never taken for a finished one."""
    if not path.exists():
        partial = path.with_name(f"partial-{path.name}")
        write(partial)
        partial.replace(path)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    for file in make(Path(sys.argv[1])):
        print(file)
