"""The tools that the demo and the server tests stand on, tried with ComfyUI's own nodes."""
import os
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_a_comfyui_that_does_not_start_says_why(start_server):
    import comfyui

    with pytest.raises(comfyui.ComfyUIError, match="no-such-option"):
        start_server("--no-such-option")


def test_comfyui_path_without_a_comfyui_is_told(tmp_path, monkeypatch):
    import comfyui

    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    with pytest.raises(comfyui.ComfyUIError, match=r"no main\.py"):
        comfyui.get()


def test_demo_media_is_a_face_clip_and_speech(tmp_path):
    """Run as a user would; a second run keeps the files."""
    command = [sys.executable, str(ROOT / "tools" / "demo_media.py"), str(tmp_path)]
    clip, sound = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    with av.open(clip) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == 100 and frames[0].shape == (512, 512, 3)
    assert np.abs(frames[0].astype(int) - frames[50]).mean() > 3  # the camera moves
    with av.open(sound) as container:
        samples = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)]) / 32768
    assert len(samples) / 22050 == pytest.approx(4, abs=0.01)
    assert np.sqrt(np.mean(samples[: 3 * 22050] ** 2)) > 0.02
    before = os.stat(clip).st_mtime_ns
    subprocess.run(command, check=True, capture_output=True)
    assert os.stat(clip).st_mtime_ns == before


def test_speech_tells_when_each_phoneme_sounds():
    import speech

    waveform, rate, phonemes = speech.speak("Papa. Mama.")
    assert waveform.dtype == np.float32 and np.abs(waveform).max() <= 1
    names = [name.strip("ˈˌː") for name, _ in phonemes]
    starts = [start for _, start in phonemes]
    assert starts == sorted(starts) and starts[-1] <= len(waveform) / rate
    assert names.count("p") == 2 and names.count("m") == 2
    # the vowel after the first p is loud, the pause between the sentences is not
    vowel, pause = starts[names.index("p") + 1], starts[names.index("")]

    def loudness(start):
        return np.sqrt(np.mean(waveform[int(start * rate) : int((start + 0.05) * rate)] ** 2))

    assert loudness(vowel) > 20 * loudness(pause + 0.05)


@pytest.mark.parametrize(
    ("platform", "machine", "with_engine"),
    [("linux", "x86_64", True), ("win32", "AMD64", True), ("linux", "aarch64", False), ("darwin", "arm64", False), ("win32", "ARM64", False)],
)
def test_requirements_leave_torch_alone_and_fit_the_platform(platform, machine, with_engine):
    from packaging.requirements import Requirement

    lines = [line for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    listed = [Requirement(line) for line in lines]
    there = {"sys_platform": platform, "platform_machine": machine}
    wanted = {requirement.name for requirement in listed if requirement.marker is None or requirement.marker.evaluate(there)}
    # ComfyUI's, and a CUDA build at that; torch pins the bindings that cuda-python would replace
    assert not {"torch", "torchvision", "torchaudio", "numpy", "cuda-python"} & wanted
    assert "opencv-python" in wanted
    assert ("tensorrt-rtx" in wanted) == with_engine
