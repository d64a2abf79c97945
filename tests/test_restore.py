"""Crops back into the clip: the reference's picture, untouched pixels, streams."""
from fractions import Fraction

import av
import cv2
import numpy as np
import pytest
import torch
from latentsync_rtx.lipsync import batched, restore, timeline
from latentsync_rtx.lipsync.clip import ClipWriter, open_clip
from latentsync_rtx.lipsync.crops import Crops
from latentsync_rtx.lipsync.errors import ShapeError
from latentsync_rtx.lipsync.face import FaceTrack, align_matrices, warp_crops
from latentsync_rtx.lipsync.face.align import face_size, frame_region
from latentsync_rtx.lipsync.matte import soft_matte
from latentsync_rtx.lipsync.overlay import Overlay
from latentsync_rtx.lipsync.spool import Spool
from latentsync_rtx.tests.pictures import GOLDEN, SEED, psnr
from safetensors.numpy import load_file


@pytest.fixture(scope="module")
def golden():
    return load_file(GOLDEN / "align_restore.safetensors")


def in_bytes(crop):
    return ((crop + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()


@pytest.mark.parametrize("resolution", [256, 512])
def test_paste_agrees_with_the_reference(golden, recipe, resolution):
    frame, crop = recipe.picture(SEED), recipe.generated_crop(SEED, resolution)
    matrix, expected = golden[f"{resolution}.matrices_smooth"][0], golden[f"{resolution}.restored_0"]
    before = frame.copy()
    pasted = restore.paste(frame, crop, matrix, resolution)
    assert pasted.dtype == np.uint8
    assert psnr(pasted, expected) >= 60
    assert np.array_equal(frame, before)
    assert psnr(restore.paste_uint8(frame, in_bytes(crop), matrix), expected) >= 52


def straight_matte(matrix, size, shape):
    """The matte as the recipe says it, on the whole frame: warp ones, erode, sum, erode, blur."""
    ones = np.ones((size[1], size[0]), np.float32)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    cover = cv2.erode(cv2.warpAffine(ones, matrix, shape[::-1], flags=flags), np.ones((2, 2), np.uint8))
    edge = int(cover.sum(dtype=np.float64) ** 0.5) // 20
    matte = cv2.erode(cover, np.ones((2 * edge, 2 * edge), np.uint8))
    return cv2.GaussianBlur(matte, (2 * edge + 1, 2 * edge + 1), 0.3 * (edge - 1) + 0.8)


PLACES = [(0.153, (200, 150)), (0.61, (320, 200)), (2.23, (500, 400)), (1.21, (20, 30)), (1.03, (990, 700))]


@pytest.mark.parametrize("angle", [0, 7, -25, 90, 170])
@pytest.mark.parametrize("scale, place", PLACES)
def test_matte_equals_the_straight_way(scale, place, angle):
    """Small faces and large (whose area overflows fp16, F08), turned, and cut by the frame's edges."""
    shape, size = (720, 1000), face_size(512)
    to_frame = cv2.getRotationMatrix2D((size[0] / 2, size[1] / 2), angle, scale)
    to_frame[:, 2] += np.array(place) - (size[0] / 2, size[1] / 2)
    matrix = cv2.invertAffineTransform(to_frame)
    expected = straight_matte(matrix, size, shape)
    x0, y0, x1, y1 = frame_region(matrix, size, shape)
    matte = np.zeros(shape, np.float32)
    shifted = matrix.copy()
    shifted[:, 2] += matrix[:, :2] @ (x0, y0)
    matte[y0:y1, x0:x1] = soft_matte(shifted, size, (x1 - x0, y1 - y0))
    assert np.abs(matte - expected).max() < 0.06
    assert np.abs(matte - expected).mean() < 2e-3
    assert matte.max() > 0.99


def test_only_pixels_under_the_matte_change(recipe):
    """F25, and F08: a face of 900 x 1200 px, far beyond fp16's range of area."""
    frame = np.tile(recipe.picture(SEED), (9, 8, 1))
    matrix = np.array([[0.46, 0.02, -300], [-0.02, 0.46, -180]])
    crop = torch.full((3, 512, 512), 1.0)
    for pasted in (restore.paste(frame, crop, matrix, 512), restore.paste_uint8(frame, in_bytes(crop), matrix)):
        changed = (pasted != frame).any(-1)
        ones, flags = np.ones((560, 420), np.uint8), cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP
        rectangle = cv2.warpAffine(ones, matrix, frame.shape[1::-1], flags=flags)
        assert not changed[rectangle == 0].any()
        assert changed.sum() > 0.7 * rectangle.sum()


def test_what_was_cut_out_and_pasted_back_is_the_frame_again(recipe):
    frame, matrix = recipe.picture(SEED), align_matrices(recipe.landmarks(SEED, 1), 512)[0]
    [crop] = warp_crops(frame[None], matrix[None], 512)
    assert psnr(restore.paste_uint8(frame, crop, matrix), frame) > 45
    assert psnr(restore.paste(frame, torch.from_numpy(crop).permute(2, 0, 1) / 127.5 - 1, matrix, 512), frame) > 45


@pytest.mark.parametrize("shift", [(-400, 0), (5000, 0), (0, -5000), (-150, -100)])
def test_faces_partly_and_wholly_outside(recipe, shift):
    frame = recipe.picture(SEED)
    matrix = align_matrices(recipe.landmarks(SEED, 1) + np.array(shift), 256)[0]
    pasted = restore.paste(frame, torch.ones(3, 256, 256), matrix, 256)
    assert pasted.shape == frame.shape
    if max(np.abs(shift)) >= 400:
        assert np.array_equal(pasted, frame)


def test_tiny_faces_do_not_break_the_matte(recipe):
    frame = recipe.picture(SEED)
    for scale in (8.0, 20.0, 45.0):
        matrix = np.array([[scale, 0, -100 * scale], [0, scale, -100 * scale]])
        assert restore.paste(frame, torch.ones(3, 512, 512), matrix, 512).shape == frame.shape


def test_wrong_shapes_are_refused(recipe):
    matrix = np.eye(2, 3)
    with pytest.raises(ShapeError, match=r"\[3,256,256\]"):
        restore.paste(recipe.picture(SEED), torch.ones(3, 512, 512), matrix, 256)
    with pytest.raises(ShapeError, match="uint8"):
        restore.paste(recipe.picture(SEED).astype(np.float32), torch.ones(3, 256, 256), matrix, 256)


# --- whole clips ---


def job(recipe, clip, folder, found=None, speaking=None, source=None, colour=(250, 20, 200)):
    """A track of `clip` by hand (one face moving right) and crops of one colour for it."""
    count, resolution = clip.frame_count, 64
    found = np.ones(count, bool) if found is None else np.array(found)
    matrices = align_matrices(recipe.landmarks(SEED, count), resolution)
    matrices[~found] = 0
    track = FaceTrack(
        clip=clip,
        resolution=resolution,
        found=found,
        matrices=matrices,
        scores=found.astype(np.float32),
        boxes=np.zeros((count, 4), np.float32),
        run_ids=np.where(found, 0, -1).astype(np.int32),
        crops=Spool((resolution, resolution, 3)),
        crop_row=np.where(found, np.cumsum(found) - 1, -1),
    )
    source = np.arange(count) if source is None else np.array(source)
    speaking = np.ones(len(source), bool) if speaking is None else np.array(speaking)
    plan = timeline.Timeline(clip.rate, source, speaking)
    images = Spool((resolution, resolution, 3), folder=folder)
    for k in range(len(plan.redrawn(found))):
        images.append(np.full((resolution, resolution, 3), (colour[0], colour[1], k), np.uint8))
    return track, Crops(images, plan)


def pictures(recipe, count=8):
    return np.stack([np.roll(recipe.picture(SEED), 2 * k, 1) for k in range(count)])


def test_frames_without_face_or_speech_keep_their_bytes(recipe, tmp_path):
    """F01, F02, F25: gaps and silence pass through; the k-th crop goes to the k-th redrawn frame."""
    frames = pictures(recipe)
    found = [True, True, False, True, True, True, True, True]
    speaking = [True, True, True, True, False, True, True, False]
    track, crops = job(recipe, open_clip(frames), tmp_path, found, speaking)
    out = list(restore.restored_frames(track, crops))
    redrawn = [0, 1, 3, 5, 6]
    for k in range(8):
        assert np.array_equal(out[k], frames[k]) == (k not in redrawn)
    for row, k in enumerate(redrawn):
        x, y = (recipe.landmarks(SEED)[k].mean(0)).round().astype(int)
        assert np.abs(out[k][y, x].astype(int) - (250, 20, row)).max() <= 1


@pytest.fixture
def batches(monkeypatch):
    """Restoring works in batches, on the CPU."""
    monkeypatch.setattr(batched, "picture_device", lambda device: torch.device("cpu"))


def test_batches_give_the_same_clip(recipe, tmp_path, batches):
    """A batch with gaps, one with nothing to paint, a tail; in order."""
    frames = pictures(recipe, 27)
    found, speaking = np.ones(27, bool), np.ones(27, bool)
    found[3:5] = False
    speaking[8:16] = False
    track, crops = job(recipe, open_clip(frames), tmp_path, found, speaking)
    seen = []
    out = list(restore.restored_frames(track, crops, lambda done, total, **_: seen.append(done)))
    assert seen == list(range(1, 28))
    redrawn = crops.timeline.redrawn(found)
    for k in range(27):
        assert np.array_equal(out[k], frames[k]) == (k not in redrawn)
    for row, k in enumerate(redrawn):
        assert psnr(out[k], restore.paste_uint8(frames[k], crops.images.read(row), track.matrices[k])) > 45


def test_a_batch_without_memory_is_done_by_opencv(recipe, tmp_path, batches, monkeypatch, caplog):
    """F35"""
    def full(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Overlay, "begin", full)
    frames = pictures(recipe, 10)
    track, crops = job(recipe, open_clip(frames), tmp_path)
    out = list(restore.restored_frames(track, crops))
    assert "no memory left on cpu to restore 8 frames" in caplog.text
    for k in range(10):
        assert np.array_equal(out[k], restore.paste_uint8(frames[k], crops.images.read(k), track.matrices[k]))


def test_the_clip_given_is_not_painted_on(recipe, tmp_path):
    """Neither an IMAGE batch nor the decoder's own picture, shown twice where 12 frames a second become 25."""
    frames = pictures(recipe, 3)
    before = frames.copy()
    track, crops = job(recipe, open_clip(frames), tmp_path, source=[0, 0, 1, 1, 2, 2])
    list(restore.restored_frames(track, crops))
    assert np.array_equal(frames, before)

    path = tmp_path / "packed.mov"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("png", rate=12)
        stream.width, stream.height, stream.pix_fmt = 320, 240, "rgb24"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    clip = open_clip(path, rate=25)
    found = np.arange(clip.frame_count) % 2 == 0
    track, crops = job(recipe, clip, tmp_path, found)
    out = list(restore.restored_frames(track, crops))
    assert np.array_equal(out[1], frames[0])  # the picture of frame 0, which was painted
    assert not np.array_equal(out[0], frames[0])


def test_the_plan_may_turn_around(recipe, tmp_path):
    """F16: ping-pong; each output frame takes its own crop and its source's place."""
    frames = pictures(recipe, 4)
    track, crops = job(recipe, open_clip(frames), tmp_path, source=[0, 1, 2, 3, 2, 1, 0])
    out = list(restore.restored_frames(track, crops))
    assert len(out) == 7
    x, y = recipe.landmarks(SEED)[1].mean(0).round().astype(int)
    assert [int(out[k][y, x, 2]) for k in (1, 5)] == [1, 5]


def test_images_are_floats_of_the_same_bytes(recipe, tmp_path):
    frames = pictures(recipe, 3)
    track, crops = job(recipe, open_clip(frames), tmp_path, [True, False, True])
    images = restore.restore_images(track, crops)
    assert images.dtype == torch.float32
    assert tuple(images.shape) == (3, 240, 320, 3)
    assert torch.equal(images[1], torch.from_numpy(frames[1]) / 255)
    assert torch.equal((images * 255).round().to(torch.uint8), torch.from_numpy(np.stack(list(restore.restored_frames(track, crops)))))


def test_float_images_keep_every_bit_outside_the_matte(recipe, tmp_path):
    """F25, F52: an IMAGE batch with more than 8 bits, an alpha channel and values out of range."""
    given = torch.rand(3, 240, 320, 4, generator=torch.Generator().manual_seed(0)) * 1.2 - 0.1
    track, crops = job(recipe, open_clip(given), tmp_path, [True, False, True])
    images = restore.restore_images(track, crops)
    assert torch.equal(images[1], given[1, ..., :3])
    assert torch.equal(images[0, :20], given[0, :20, :, :3])
    assert not torch.equal(images[0], given[0, ..., :3])


@pytest.fixture
def film(recipe, tmp_path):
    """A film file of 12 frames at 25 a second."""
    path = tmp_path / "film.mp4"
    with ClipWriter(path, 320, 240, Fraction(25)) as writer:
        for frame in pictures(recipe, 12):
            writer.write(frame)
    return path


def test_a_film_is_written_with_its_sound(recipe, film, tmp_path):
    audio = {"waveform": torch.sin(torch.arange(44100 * 12 // 25) / 20)[None, None].repeat(1, 2, 1) * 0.3, "sample_rate": 44100}
    track, crops = job(recipe, open_clip(film), tmp_path)
    done = []
    path = restore.restore_clip(track, crops, audio, tmp_path / "out.mp4", progress=lambda k, n, **_: done.append((k, n)))
    assert path == tmp_path / "out.mp4"
    assert done == [(k, 12) for k in range(1, 13)]
    with av.open(str(path)) as container:
        assert container.streams.audio[0].rate == 44100
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == 12
    expected = list(restore.restored_frames(track, crops))
    assert min(psnr(a, b) for a, b in zip(frames, expected, strict=True)) > 28
    x, y = recipe.landmarks(SEED)[5].mean(0).round().astype(int)
    assert frames[5][y, x, 0] > 200
    assert frames[5][y, x, 1] < 70


def test_cancelling_leaves_no_film(recipe, film, tmp_path):
    """F49, F28"""
    track, crops = job(recipe, open_clip(film), tmp_path)

    def stop(done, total, **_):
        if done == 5:
            raise KeyboardInterrupt

    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        restore.restore_clip(track, crops, None, tmp_path / "out.mp4", progress=stop)
    assert sorted(tmp_path.iterdir()) == before
    assert restore.restore_clip(track, crops, None, tmp_path / "out.mp4").is_file()


def test_crops_of_another_track_are_refused(recipe, tmp_path):
    clip = open_clip(pictures(recipe, 4))
    _, crops = job(recipe, clip, tmp_path)
    track, _ = job(recipe, clip, tmp_path, [True, False, True, True])
    with pytest.raises(ShapeError, match="4 crops for 3 frames"):
        list(restore.restored_frames(track, crops))
