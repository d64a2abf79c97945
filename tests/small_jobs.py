"""Jobs of a second on media of a few kilobytes: every stage is real, only the networks are stubs."""
import wave
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from latentsync_rtx.bench.stubs import LinearVAE, StubDetector, StubEncoder, StubRunner
from latentsync_rtx.lipsync import pipeline, weights
from latentsync_rtx.lipsync.clip import ClipWriter

WIDTH, HEIGHT, SIDE = 160, 120, 64
SPEECH_RATE = 16000


def picture(number: int = 0, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    """A smooth scene that differs a little from number to number, with a textured face in the middle that stays."""
    y, x = np.mgrid[:height, :width]
    scene = np.stack([60 + x * 80 // width, 70 + y * 80 // height, np.full_like(x, 40 + number * 7 % 60)], -1).astype(np.uint8)
    side = height // 2
    face = np.random.default_rng(5).integers(90, 160, (6, 6, 3)).astype(np.uint8).repeat(-(-side // 6), 0).repeat(-(-side // 6), 1)[:side, :side]
    top, left = height // 2 - side // 2, width // 2 - side // 2
    scene[top : top + side, left : left + side] = face
    return scene


def write_film(path: Path, frames, rate=25, **options) -> Path:
    frames = list(frames)
    with ClipWriter(path, frames[0].shape[1], frames[0].shape[0], Fraction(rate), crf=8, preset="ultrafast", **options) as writer:
        for frame in frames:
            writer.write(frame)
    return path


def film(path: Path, count: int, black=(), rate=25, **options) -> Path:
    """A clip of `count` pictures, those in `black` without anything to see."""
    return write_film(path, (picture(k) * (k not in black) for k in range(count)), rate, **options)


def bursts(seconds: float, loud=((0.0, None),), rate: int = SPEECH_RATE) -> np.ndarray:
    """int16 samples: noise in the stretches `loud` (seconds, from and to), digital zero elsewhere."""
    samples = np.zeros(round(seconds * rate), np.int16)
    noise = np.random.default_rng(1).integers(-12000, 12000, len(samples)).astype(np.int16)
    for start, end in loud:
        part = slice(round(start * rate), None if end is None else round(end * rate))
        samples[part] = noise[part]
    return samples


def speech(path: Path, seconds: float, loud=((0.0, None),), rate: int = SPEECH_RATE) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(bursts(seconds, loud, rate).tobytes())
    return path


def parts(runner=None) -> pipeline.Parts:
    return pipeline.Parts(runner or StubRunner(), LinearVAE(), StubEncoder(), StubDetector())


def job(folder: Path, frames: int = 20, seconds: float | None = None, black=(), rate=25, **changes) -> pipeline.Job:
    """A job on a new clip and a new speech in `folder`."""
    made = pipeline.Job(
        video=film(folder / "clip.mp4", frames, black, rate),
        audio=speech(folder / "speech.wav", frames / rate if seconds is None else seconds),
        out=folder / "out.mp4",
        model=weights.DEMO,
        resolution=SIDE,
        steps=2,
        device="cpu",
        crf=8,
    )
    return replace(made, **changes)


def frames_of(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def mouth(frame: np.ndarray) -> float:
    """Mean grey of the part that is redrawn."""
    height, width = frame.shape[:2]
    return float(frame[height // 2 : height * 5 // 8, width * 7 // 16 : width * 9 // 16].mean())


def listen_until(count: int, stage: str, error=KeyboardInterrupt):
    """A listener that stops the job at the `count`-th report of a stage."""
    seen = []

    def listen(done, total, *, stage=stage, preview=None, wanted=stage):
        seen.append(stage)
        if seen.count(wanted) >= count:
            raise error

    return listen
