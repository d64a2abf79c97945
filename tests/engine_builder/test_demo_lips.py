"""The graph that an engine of the demo model is built from, in onnxruntime in the place of the network: does the mouth still follow?"""
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from latentsync_rtx.bench.stubs import StubRunner
from latentsync_rtx.engine_builder import graph, weight_file
from latentsync_rtx.lipsync import face, folders, pipeline
from latentsync_rtx.lipsync.runners import RunnerSpec

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import demo_media
import lip_reading
import speech
from demo_data.held_out import FPS, held_out
from demo_data.talk import RATE

onnxruntime = pytest.importorskip("onnxruntime")
FRAMES, SIDE, SECONDS = 16, 256, 2.6


class GraphRunner(StubRunner):
    """Evaluates the exported graph of `model`, unguided."""

    def __init__(self, model, folder: Path):
        super().__init__()
        network = model.load_unet()
        path = graph.export(network.config, folder, dtype=torch.float32, resolution=SIDE, frames=FRAMES, batch=1)
        weight_file.write(folder / weight_file.NAME, network.state_dict(), torch.float32)
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.spec = RunnerSpec("onnxruntime", torch.device("cpu"), torch.float32, frames=FRAMES, size=(SIDE // 8, SIDE // 8), batch=1)
        self.model = SimpleNamespace(fingerprint=model.fingerprint, resolution_warning=model.resolution_warning)

    def predict(self, sample, timestep, audio, check=lambda: None):
        inputs = {"sample": sample.numpy(), "timestep": torch.as_tensor(timestep).reshape(1).numpy(), "audio": audio.numpy()}
        return torch.from_numpy(self.session.run(["noise"], inputs)[0])


def test_mouths_follow_held_out_speech(tmp_path, monkeypatch, model, face_files):
    monkeypatch.setattr(folders, "temp_dir", lambda: tmp_path)
    made = held_out(SECONDS, seed=3)
    clip, sound, out = (tmp_path / name for name in ("face.mp4", "speech.wav", "out.mp4"))
    demo_media.write_clip(clip, iter(made.frames), FPS)
    speech.save_wav(sound, made.sound, RATE)
    detector = face.load_detector("mediapipe", face_files)
    job = pipeline.Job(clip, sound, out, model.name, steps=4, guidance=1.0, device="cpu", resume=False)
    pipeline.run(job, parts=pipeline.Parts(runner=GraphRunner(model, tmp_path), detector=detector))
    mouth = lip_reading.openings(lip_reading.pack.clip.open_clip(out).frames(), detector)
    assert len(mouth) == len(made.frames)
    assert lip_reading.correlation(mouth, made.truth) >= 0.6 and abs(lip_reading.delay(mouth, made.truth)) <= 2
