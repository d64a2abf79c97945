"""A portrait that speaks: its mouth opens as told, in front of a camera that sways, and a sound that is as loud as the mouth is open."""
import sys
import wave
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from latentsync_rtx.lipsync.face.mediapipe import MediaPipeDetector

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "tools") not in sys.path:
    sys.path.insert(0, str(ROOT / "tools"))
COUNT, RATE, SIZE = 60, 25, (288, 352)  # frames, a second, height and width


@pytest.fixture(scope="session")
def detector(face_files):
    return MediaPipeDetector(face_files)


@pytest.fixture(scope="session")
def talking(detector):
    """said: how far the mouth should be open, float32 [COUNT]. frames: uint8 [COUNT,H,W,3], a mouth that does that. speech: AUDIO of it."""
    from demo_data.clips import video
    from demo_data.portrait import portrait
    from demo_media import astronaut

    picture = astronaut()
    (face, *_), = detector.detect([picture])
    random = np.random.default_rng(4)
    said = np.clip(np.convolve(random.standard_normal(COUNT + 8), np.ones(5) / 5, "same")[4:-4] * 0.9, 0, 0.65).astype(np.float32)
    speaking, _ = portrait(face.mesh, picture)
    frames = video(speaking, torch.from_numpy(said), torch.ones(COUNT), torch.Generator().manual_seed(2), SIZE, scale=0.26)
    noise = random.standard_normal(COUNT * 640).astype(np.float32)
    waveform = torch.from_numpy(noise * np.repeat(said, 640) * 0.3)[None, None]
    return SimpleNamespace(said=said, frames=frames.numpy(), speech={"waveform": waveform, "sample_rate": 16000}, rate=RATE)


@pytest.fixture(scope="session")
def write_media():
    """`write_media(folder, name, frames, speech)`: an MP4 of frames (nearly lossless), with sound if there is a speech; gives its path."""
    from latentsync_rtx.lipsync.clip import ClipWriter

    def write(folder, name, frames, speech=None, rate=RATE):
        path = folder / name
        with ClipWriter(path, frames.shape[2], frames.shape[1], rate, audio=speech, crf=4, preset="ultrafast") as writer:
            for frame in frames:
                writer.write(frame)
        return path

    return write


@pytest.fixture(scope="session")
def write_wav():
    def write(path, speech):
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, speech["sample_rate"], 0, "NONE", ""))
            file.writeframes((speech["waveform"].flatten().clamp(-1, 1) * 32767).short().numpy().tobytes())
        return path

    return write
