"""SyncNet: its ears, its shape, and how an offset follows from it."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from latentsync_rtx.lipsync import compare, folders
from latentsync_rtx.lipsync.clip import open_clip
from latentsync_rtx.lipsync.compare import syncnet
from latentsync_rtx.lipsync.compare.mfcc import mfcc
from latentsync_rtx.lipsync.errors import ModelFileError

# python_speech_features 0.6, mfcc(samples, 16000), rows 0, 7 and 28
CEPSTRA = [
    [16.659, -19.139, 20.255, 22.34, 14.02, 0.648, 28.619, 25.173, -11.609, 19.735, -4.963, 0.64, 34.818],
    [17.224, -7.69, 31.548, 26.531, 11.258, -1.162, 20.247, 8.977, -24.101, 4.21, -27.131, -21.71, 12.665],
    [16.442, -10.326, 17.039, -0.672, -24.133, -42.25, -12.374, -2.782, -13.856, 34.042, 7.309, 2.446, 29.33],
]


def test_cepstra_are_those_that_it_was_trained_on():
    t = np.arange(4800.0)
    samples = np.rint(8000 * np.sin(t * t * 2e-5) * np.cos(t * 3e-4) + (t * 7919 % 601 - 300))
    heard = mfcc(np.trunc(samples))
    assert heard.shape == (29, 13)
    np.testing.assert_allclose(heard[[0, 7, 28]], CEPSTRA, atol=0.02)
    np.testing.assert_allclose(mfcc(np.zeros(500))[:, 0], -36.044, atol=0.001)


def test_cepstra_of_a_long_sound_have_no_seams():
    samples = np.random.default_rng(0).integers(-9000, 9000, 16000 * 70)
    whole, later = mfcc(samples), mfcc(samples[160 * 5990 :])
    np.testing.assert_allclose(whole[5991:6100], later[1:110], atol=1e-3)


@pytest.fixture(scope="module")
def weights():
    """Seeded values under the published names."""
    torch.manual_seed(3)
    return syncnet.SyncNet().state_dict()


def test_names_and_shapes_are_the_published_ones(weights):
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    assert len(shapes) == 2 * (6 * 7 + 9)
    assert shapes["netcnnaud.0.weight"] == (64, 1, 3, 3) and shapes["netcnnaud.18.weight"] == (512, 256, 5, 4)
    assert shapes["netcnnlip.0.weight"] == (96, 3, 5, 7, 7) and shapes["netcnnlip.18.weight"] == (512, 256, 1, 6, 6)
    assert shapes["netcnnlip.19.running_var"] == (512,) and shapes["netcnnaud.12.running_mean"] == (256,)
    assert shapes["netfclip.3.weight"] == shapes["netfcaud.3.weight"] == (1024, 512)


def test_a_file_loads_strictly(weights, tmp_path):
    old = {name: value for name, value in weights.items() if "num_batches" not in name}  # as PyTorch wrote it in 2017
    torch.save(old, tmp_path / syncnet.FILE, _use_new_zipfile_serialization=False)
    network = syncnet.read_syncnet(tmp_path / syncnet.FILE)
    frames, heard = torch.rand(2, 3, 5, 224, 224) * 255, torch.randn(2, 1, 13, 20)
    with torch.inference_mode():
        assert network.look(frames).shape == network.listen(heard).shape == (2, 1024)
        assert not torch.equal(*network.look(frames))
    del old["netfclip.3.bias"]
    torch.save(old, tmp_path / "less.model")
    with pytest.raises(ModelFileError, match=r"is not SyncNet: .*netfclip\.3\.bias"):
        syncnet.read_syncnet(tmp_path / "less.model")


class Twin:
    """Sees the number that is in the middle of a crop, hears the one that is in the cepstra."""

    @staticmethod
    def look(frames):
        return frames[:, 0, :, 112, 112].mean(1, keepdim=True).expand(-1, 4) / 10

    @staticmethod
    def listen(cepstra):
        return cepstra.mean((1, 2, 3))[:, None].expand(-1, 4) / 10


@pytest.mark.parametrize("late", [3, 0, -4])
def test_offset_is_positive_for_a_mouth_that_comes_late(late):
    values = np.random.default_rng(1).integers(0, 255, 80).astype(np.float32)
    cepstra = np.repeat(values, 4)[:, None].repeat(13, 1)
    crops = [np.full((224, 224, 3), values[np.clip(k - late, 0, 79)], np.uint8) for k in range(80)]
    crops[40:44] = [None] * 4  # no face
    told = syncnet.offset(Twin, crops, cepstra)
    assert told.frames == late and told.method == "SyncNet"
    assert told.score < 0.5 and told.confidence > 2 * told.score


def test_few_frames_tell_nothing():
    assert "too few" in syncnet.offset(Twin, [np.zeros((224, 224, 3), np.uint8)] * 8, np.zeros((32, 13), np.float32))


def test_crop_is_around_the_face_and_a_little_lower():
    frame = np.zeros((400, 500, 3), np.uint8)
    frame[100:300, 150:350] = 255
    crop = syncnet.face_crop(frame, np.array([150, 100, 350, 300]))
    rows, columns = np.nonzero(crop[..., 0] > 127)
    # 280 px become 224: the face is 160 px of them, in the middle across, from the very top down
    assert (np.ptp(rows), np.ptp(columns)) == pytest.approx((159, 159), abs=1)
    assert columns.min() == pytest.approx(32, abs=1) and rows.min() == pytest.approx(16, abs=17)


@pytest.mark.parametrize("count", [1, 5, 12, 20])
def test_a_short_clip_has_crops_too(count):
    clip = open_clip(torch.full((count, 64, 64, 3), 0.5), 10)
    boxes = np.tile([20.0, 20, 40, 40], (count, 1))
    boxes[count // 2 + 1 :] = np.nan
    result = SimpleNamespace(pairs=compare.pairs.Pairs(clip, clip), boxes={"a": boxes})
    crops = list(compare.compare._crops(result, "a", count * 5 // 2, lambda *_, **__: None))
    assert len(crops) == count * 5 // 2 and crops[0].min() in (127, 128) and np.ptp(crops[0]) == 0


def test_weights_in_their_place_are_used(weights, talking, detector, tmp_path, monkeypatch):
    """From file to number; what a random network says means nothing."""
    monkeypatch.setattr(folders, "paths", lambda kind=folders.KIND: [tmp_path])
    (tmp_path / "auxiliary").mkdir()
    torch.save(weights, tmp_path / "auxiliary" / syncnet.FILE)
    clip, stages = open_clip(talking.frames[:42], 25), set()
    speech = {**talking.speech, "waveform": talking.speech["waveform"][..., : 42 * 640]}
    found = compare.compare_clips(
        clip, clip, detector=detector, speech_a=speech, progress=lambda done, total, stage, **_: stages.add(stage)
    )
    assert found.offset("a").method == "SyncNet" and "envelope" in found.json()["av_offset"]["a"]["all"]
    assert "by SyncNet (distance" in found.summary() and stages == {"compare", "SyncNet on A"}
    assert found.json()["av_offset"]["b"] is None
