"""Crops on their way through an image node: as many, in their places, however large they come back."""
import gc
from fractions import Fraction

import numpy as np
import pytest
import torch
from latentsync_rtx.lipsync import crops as crops_stage
from latentsync_rtx.lipsync import mapped
from latentsync_rtx.lipsync.crops import Crops
from latentsync_rtx.lipsync.errors import ShapeError
from latentsync_rtx.lipsync.spool import Spool
from latentsync_rtx.lipsync.timeline import Timeline


@pytest.fixture
def crops():
    images = Spool((32, 32, 3))
    images.append(np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8))
    return Crops(images, Timeline(Fraction(25), np.arange(40), np.ones(40, bool)), journal="the job's")


def test_there_and_back_is_the_same(crops, tmp_path):
    images = crops.to_images()
    assert images.shape == (40, 32, 32, 3) and images.dtype == torch.float32 and images.min() >= 0 and images.max() <= 1
    back = Crops.from_images(images, crops, tmp_path)
    assert np.array_equal(back.images.read(slice(None)), crops.images.read(slice(None)))
    assert back.timeline is crops.timeline and back.journal == "the job's"


@pytest.mark.parametrize("change", [
    lambda images: torch.nn.functional.interpolate(images.movedim(-1, 1), scale_factor=2.0).movedim(1, -1),
    lambda images: torch.cat([images, torch.ones_like(images[..., :1])], -1),
    lambda images: images.half(),
    lambda images: images * 1.5 - 0.2,
    lambda images: torch.where(torch.rand_like(images) < 0.01, float("nan"), images),
])  # fmt: skip
def test_what_restorers_give_back_is_taken(crops, tmp_path, change):  # F52
    images = change(crops.to_images())
    back = Crops.from_images(images, crops, tmp_path).images.read(slice(None))
    expected = (images[..., :3].float().nan_to_num(0).clamp(0, 1) * 255).round().numpy()
    expected = expected if expected.shape[1] == 32 else expected.reshape(40, 32, 2, 32, 2, 3).mean((2, 4))
    assert np.abs(back - expected).max() <= 1


def test_other_counts_and_shapes_are_refused(crops, tmp_path):
    images = crops.to_images()
    for wrong in (images[:39], images[..., :1], images[0]):
        with pytest.raises(ShapeError, match="40 RGB images"):
            Crops.from_images(wrong, crops, tmp_path)


def test_many_are_in_a_file(crops, tmp_path, monkeypatch):  # F32
    monkeypatch.setattr(crops_stage, "IMAGES_IN_MEMORY", 1000)
    images = crops.to_images(tmp_path)
    assert mapped.is_mapped(images)
    assert np.array_equal(Crops.from_images(images, crops, tmp_path).images.read(slice(None)), crops.images.read(slice(None)))


@pytest.mark.parametrize("way", ["to", "from"])
def test_a_cancel_is_heard_and_leaves_nothing(crops, tmp_path, monkeypatch, way):  # F49
    images = crops.to_images()
    monkeypatch.setattr(crops_stage, "IMAGES_IN_MEMORY", 0)
    seen = []

    def stop(done, total, *, stage="", preview=None):
        seen.append((done, total))
        if done == 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crops.to_images(tmp_path, stop) if way == "to" else Crops.from_images(images, crops, tmp_path, stop)
    gc.collect()
    assert seen == [(16, 40), (32, 40)] and list(tmp_path.iterdir()) == []
