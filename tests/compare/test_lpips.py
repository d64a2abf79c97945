"""LPIPS on weights that lie there: seeded ones stand in for AlexNet's."""
import numpy as np
import pytest
import torch
from latentsync_rtx.lipsync import compare, folders
from latentsync_rtx.lipsync.clip import open_clip
from latentsync_rtx.lipsync.compare import perceptual
from latentsync_rtx.lipsync.errors import ModelFileError


@pytest.fixture
def auxiliary(tmp_path, monkeypatch):
    """models/latentsync/auxiliary; PyTorch's own folder is empty."""
    monkeypatch.setattr(folders, "paths", lambda kind=folders.KIND: [tmp_path])
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    (tmp_path / "auxiliary").mkdir()
    return tmp_path / "auxiliary"


def compared():
    frames = np.random.default_rng(1).integers(0, 255, (2, 80, 96, 3)).astype(np.uint8)
    softer = ((frames.astype(int) + np.roll(frames, 1, 2)) // 2).astype(np.uint8)
    same, other = (compare.compare_clips(open_clip(frames), open_clip(b), detector=None) for b in (frames, softer))
    return same, other


def test_missing_weights_are_named_with_their_place(auxiliary):
    pytest.importorskip("lpips")
    same, _ = compared()
    (_, why), *_ = same.missing
    assert perceptual.FILE in why and str(auxiliary) in why
    assert same.json()["full_frame"]["lpips"] is None


def test_distance_is_nothing_for_the_same_and_more_for_another(auxiliary):
    pytest.importorskip("lpips")
    from torchvision.models import alexnet

    torch.manual_seed(0)
    torch.save(alexnet(weights=None).state_dict(), auxiliary / perceptual.FILE)
    state = torch.random.get_rng_state()
    same, other = compared()
    assert torch.equal(state, torch.random.get_rng_state())
    assert same.json()["full_frame"]["lpips"]["mean"] == 0 < other.json()["full_frame"]["lpips"]["mean"]
    assert "LPIPS" in other.summary()


def test_another_network_is_refused(auxiliary):
    pytest.importorskip("lpips")
    torch.save({"features.0.weight": torch.zeros(3)}, auxiliary / perceptual.FILE)
    with pytest.raises(ModelFileError, match="no AlexNet"):
        perceptual.load_lpips()
