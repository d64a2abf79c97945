"""Landmarks to crops, against the reference's matrices and pictures."""

import numpy as np
import pytest
from latentsync_rtx.lipsync.errors import ShapeError
from latentsync_rtx.lipsync.face import Aligner, align_matrices, warp_crops
from latentsync_rtx.lipsync.face.align import face_size, inverse, warp_face
from latentsync_rtx.tests.pictures import GOLDEN, SEED, psnr
from safetensors.numpy import load_file


@pytest.fixture(scope="module")
def golden():
    return load_file(GOLDEN / "align_restore.safetensors")


@pytest.mark.parametrize("resolution", [256, 512])
@pytest.mark.parametrize("smooth", [True, False])
def test_matrices_agree_with_the_reference(golden, recipe, resolution, smooth):
    matrices = align_matrices(recipe.landmarks(SEED), resolution, smooth)
    assert matrices.dtype == np.float32
    assert np.abs(matrices - golden[f"{resolution}.matrices_{'smooth' if smooth else 'raw'}"]).max() <= 1e-3


@pytest.mark.parametrize("resolution", [256, 512])
def test_crops_agree_with_the_reference(golden, recipe, resolution):
    picture, matrices = recipe.picture(SEED), golden[f"{resolution}.matrices_smooth"]
    assert psnr(warp_face(picture, matrices[0], resolution), golden[f"{resolution}.warped_face_0"]) >= 55
    crops = warp_crops(np.stack([picture, picture]), matrices[:2], resolution)
    assert crops.shape == (2, resolution, resolution, 3)
    assert crops.dtype == np.uint8
    assert psnr(crops[0], golden[f"{resolution}.crop_0"]) >= 55


def test_smoothing_is_state_that_reset_forgets(recipe):
    points = recipe.landmarks(SEED)
    aligner = Aligner(256)
    whole = aligner(points)
    aligner.reset()
    in_parts = np.concatenate([aligner(points[:1]), aligner(points[1:5]), aligner(points[5:])])
    assert np.array_equal(whole, in_parts)
    # F02: the first frame after a gap is as if nothing had been before
    aligner.reset()
    assert np.array_equal(aligner(points[7:8]), align_matrices(points[7:8], 256))
    assert not np.array_equal(whole[7:8], align_matrices(points[7:8], 256))


def test_any_turn_and_size_lands_on_the_template():
    scale = 2.8 * 2
    template = np.array([[17.0, 20], [58, 20], [37.5, 40]])
    for angle, size in ((0.0, 0.3), (1.0, 3.0), (3.0, 40.0), (-2.0, 1.0)):
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        points = template @ turn.T * size + (3000, 1500)
        [matrix] = align_matrices(points[None], 512, smooth=False)
        assert np.allclose(points @ matrix[:, :2].T.astype(float) + matrix[:, 2], template * scale, atol=2e-2)
        assert np.linalg.det(matrix[:, :2]) > 0


def test_mirrored_points_give_a_rotation_never_a_mirror():
    points = np.array([[[58.0, 20], [17, 20], [37.5, 40]]])
    assert np.linalg.det(align_matrices(points, 256)[0, :, :2]) > 0


def test_place_in_the_frame_does_not_matter(recipe):
    """A face at the far corner of a 4K frame gives the crop it gives near the origin (the reference's fp16 is off by a pixel there)."""
    picture, points = recipe.picture(SEED), recipe.landmarks(SEED, 1)
    large = np.zeros((2160, 3840, 3), np.uint8)
    large[-240:, -320:] = picture
    near = warp_face(picture, align_matrices(points, 512)[0], 512)
    far = warp_face(large, align_matrices(points + np.array([3520, 1920]), 512)[0], 512)
    inside = np.zeros(near.shape, bool)
    inside[:300, 60:360] = True  # what lies within the picture in both
    assert psnr(near[inside], far[inside]) > 50


def test_outside_the_frame_is_grey(recipe):
    picture, points = recipe.picture(SEED), recipe.landmarks(SEED, 1)
    [crop] = warp_crops(picture[None], align_matrices(points - np.array([130, 0]), 256), 256)
    assert (crop[:, :8] == 127).all()
    assert crop[:, -64:].std() > 10
    [gone] = warp_crops(picture[None], align_matrices(points + np.array([5000, 0]), 256), 256)
    assert (gone == 127).all()


def test_crops_do_not_alter_frames_and_take_views(recipe):
    frames = np.stack([recipe.picture(SEED)] * 2)[:, ::-1]
    before = frames.copy()
    warp_crops(frames, align_matrices(recipe.landmarks(SEED, 2), 256), 256)
    assert np.array_equal(frames, before)


def test_inverse_undoes_a_matrix(recipe):
    [matrix] = align_matrices(recipe.landmarks(SEED, 1), 512)
    back = inverse(matrix)
    points = np.array([[3.0, 4], [500, -7]])
    there = points @ matrix[:, :2].T.astype(float) + matrix[:, 2]
    assert np.allclose(there @ back[:, :2].T + back[:, 2], points)


def test_face_size_follows_the_resolution():
    assert face_size(512) == (420, 560)
    assert face_size(256) == (210, 280)


@pytest.mark.parametrize(
    "landmarks, message",
    [
        (np.zeros((2, 5, 2)), "2, 5, 2"),
        (np.zeros((3, 2)), "3, 2"),
        (np.full((1, 3, 2), np.nan), "NaN"),
        (np.full((1, 3, 2), 7.0), "one point"),
    ],
)
def test_points_that_are_no_face_are_refused(landmarks, message):
    with pytest.raises(ShapeError, match=message):
        align_matrices(landmarks, 256)


def test_frames_of_another_kind_are_refused():
    matrix = np.eye(2, 3)[None]
    with pytest.raises(ShapeError, match="float64"):
        warp_crops(np.zeros((1, 8, 8, 3)), matrix, 64)
    with pytest.raises(ShapeError, match="2 frames"):
        warp_crops(np.zeros((2, 8, 8, 3), np.uint8), matrix, 64)
