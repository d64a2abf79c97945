"""The batched way to crops, on a CPU: against the reference's pictures and against OpenCV's way."""

import numpy as np
import pytest
import torch
from latentsync_rtx.lipsync import batched
from latentsync_rtx.lipsync.clip import open_clip
from latentsync_rtx.lipsync.face import align_clip, align_matrices, track, warp_crops
from latentsync_rtx.lipsync.face.warp import Warper
from latentsync_rtx.tests.pictures import GOLDEN, SEED, psnr
from safetensors.numpy import load_file

CPU = torch.device("cpu")


@pytest.mark.parametrize("resolution", [256, 512])
def test_crops_agree_with_the_reference(recipe, resolution):
    golden = load_file(GOLDEN / "align_restore.safetensors")
    picture, matrices = recipe.picture(SEED), golden[f"{resolution}.matrices_smooth"]
    crops = Warper(resolution, CPU).begin([picture] * 3, matrices[:3])()
    assert crops.shape == (3, resolution, resolution, 3)
    assert crops.dtype == np.uint8
    assert psnr(crops[0], golden[f"{resolution}.crop_0"]) > 65
    assert psnr(crops[1:], warp_crops(np.stack([picture] * 2), matrices[1:3], resolution)) > 50  # OpenCV 4 looks up in steps of 1/32 px


def test_faces_of_all_sizes_turns_and_places_in_one_batch(recipe):
    """Small, huge, upside down, cut by each edge, wholly outside: one region size serves all."""
    picture, points = recipe.picture(SEED), recipe.landmarks(SEED, 1)[0]
    turn = np.array([[0.0, -1], [1, 0]])
    faces = [
        points, points - (130, 0), points - (-150, -100), points - (0, 110), points - (-5000, 0), points - (5000, 0),
        points * 0.2, points * 3 - (300, 200), (points - 160) @ turn + 140, (points - 160) @ turn @ turn + 140,
    ]
    matrices = align_matrices(np.stack(faces), 256, smooth=False)
    crops = Warper(256, CPU).begin([picture] * len(faces), matrices)()
    for k, (crop, expected) in enumerate(zip(crops, warp_crops(np.stack([picture] * len(faces)), matrices, 256), strict=True)):
        assert psnr(crop, expected) > 50, k
    assert (crops[4:6] == 127).all()


def test_a_face_outside_the_frame_by_itself_is_grey(recipe):
    matrices = align_matrices(recipe.landmarks(SEED, 2) + 5000, 256)
    assert (Warper(256, CPU).begin([recipe.picture(SEED)] * 2, matrices)() == 127).all()


def test_even_areas_stay_even(recipe):
    matrices = align_matrices(recipe.landmarks(SEED, 4), 512)
    for grey in (1, 77, 200, 255):
        crops = Warper(512, CPU).begin([np.full((240, 320, 3), grey, np.uint8)] * 4, matrices)()
        assert (crops[:, 200:300, 200:300] == grey).all()


def test_only_a_gpu_works_in_batches():
    assert batched.picture_device(None) is None
    assert batched.picture_device("cpu") is None
    assert batched.picture_device("cuda:1") == torch.device("cuda:1")


def test_groups_are_bounded_in_frames_and_bytes():
    assert batched.frames_at_once(1000) == 8
    assert batched.frames_at_once(1920 * 1080 * 3) == 8
    assert batched.frames_at_once(3840 * 2160 * 3) == 5
    assert batched.frames_at_once(10**9) == 1
    assert list(batched.groups(range(5), 2)) == [[0, 1], [2, 3], [4]]


def test_the_next_begins_before_the_last_is_waited_for():
    said = []

    def begin(item):
        said.append(("begin", item))
        return lambda: said.append(("finish", item)) or item

    assert list(batched.overlapped(begin, [1, 2, 3])) == [1, 2, 3]
    assert said == [("begin", 1), ("begin", 2), ("finish", 1), ("begin", 3), ("finish", 2), ("finish", 3)]


@pytest.fixture
def batches(monkeypatch):
    """`align_clip` works in batches, on the CPU."""
    monkeypatch.setattr(track, "picture_device", lambda device: CPU)


def test_a_clip_in_batches_is_the_same_track(detector, stage, batches):
    """Gaps, a tail shorter than a batch, in order."""
    frames = [stage.shot(200 + 6 * k) for k in range(21)]
    frames[4] = frames[5] = stage.empty()
    clip = open_clip(np.stack(frames))
    found = align_clip(clip, detector, 256, min_size=50)
    assert np.flatnonzero(~found.found).tolist() == [4, 5]
    crops = found.crops.read(slice(0, 19))
    assert psnr(crops, warp_crops(np.stack(frames)[found.found], found.matrices[found.found], 256)) > 55
    assert found.crop_row[found.found].tolist() == list(range(19))


def test_a_batch_without_memory_is_done_by_opencv(detector, stage, batches, monkeypatch, caplog):
    """F35: a full card costs time, not the job."""
    frames = [stage.shot(200 + 6 * k) for k in range(10)]
    begin = Warper.begin

    def full(self, frames, matrices):
        if len(frames) == 8:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return begin(self, frames, matrices)

    monkeypatch.setattr(Warper, "begin", full)
    found = align_clip(open_clip(np.stack(frames)), detector, 256, min_size=50)
    assert found.found.all()
    assert psnr(found.crops.read(slice(0, 10)), warp_crops(np.stack(frames), found.matrices, 256)) > 55
    assert "no memory left on cpu to align 8 frames" in caplog.text


def test_batches_stream_and_stop(detector, stage, batches, tmp_path):
    """F32, F49"""
    class Counted:
        read = 0

        def __init__(self, clip):
            self._clip = clip

        def __getattr__(self, name):
            return getattr(self._clip, name)

        def frames(self, start=0):
            for frame in self._clip.frames(start):
                Counted.read += 1
                yield frame

    def stop(done, total, *, stage="", preview=None):
        assert Counted.read - done <= 32
        if done == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        align_clip(Counted(open_clip(np.stack([stage.shot()] * 60))), detector, 256, min_size=50, spool_folder=tmp_path, progress=stop)
    assert Counted.read < 45
    assert not list(tmp_path.iterdir())
