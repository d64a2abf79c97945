"""The batched way back into frames, on a CPU: against the reference's picture and against OpenCV's way."""

import cv2
import numpy as np
import pytest
import torch
from latentsync_rtx.lipsync import restore
from latentsync_rtx.lipsync.face import align_matrices
from latentsync_rtx.lipsync.face.align import common_regions, face_size, lookups_at
from latentsync_rtx.lipsync.matte import soft_matte
from latentsync_rtx.lipsync.overlay import Overlay
from latentsync_rtx.tests.pictures import GOLDEN, SEED, psnr
from safetensors.numpy import load_file

CPU = torch.device("cpu")


def generated(recipe, resolution):
    crop = recipe.generated_crop(SEED, resolution)
    return ((crop + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()


def overlaid(frames, crops, matrices):
    painted = [frame.copy() for frame in frames]
    Overlay(crops[0].shape[0], CPU).begin(painted, crops, matrices)()
    return painted


@pytest.mark.parametrize("resolution", [256, 512])
def test_pasting_agrees_with_the_reference(recipe, resolution):
    golden = load_file(GOLDEN / "align_restore.safetensors")
    frame, crop, matrices = recipe.picture(SEED), generated(recipe, resolution), golden[f"{resolution}.matrices_smooth"]
    pasted = overlaid([frame] * 3, [crop] * 3, matrices[:3])
    assert pasted[0].dtype == np.uint8
    assert psnr(pasted[0], golden[f"{resolution}.restored_0"]) > 58
    for one, matrix in zip(pasted, matrices, strict=False):
        assert psnr(one, restore.paste_uint8(frame, crop, matrix)) > 50


def places(recipe):
    points = recipe.landmarks(SEED, 1)[0]
    turn = np.array([[0.0, -1], [1, 0]])
    faces = [
        points, points - (130, 0), points - (-150, -100), points - (0, 110), points - (-5000, 0), points - (5000, 0),
        points * 0.1 + 50, points * 3 - (300, 200), (points - 160) @ turn + 140, (points - 160) @ turn @ turn + 140,
    ]
    return align_matrices(np.stack(faces), 256, smooth=False)


def test_faces_of_all_sizes_turns_and_places_in_one_batch(recipe):
    """F25: and nothing outside the matte, which ends within two pixels of the face's rectangle, changes a byte."""
    frame, crop, matrices = recipe.picture(SEED), np.full((256, 256, 3), (250, 20, 200), np.uint8), places(recipe)
    crop[::2, ::2] = 0
    for k, (pasted, matrix) in enumerate(zip(overlaid([frame] * len(matrices), [crop] * len(matrices), matrices), matrices, strict=True)):
        assert psnr(pasted, restore.paste_uint8(frame, crop, matrix)) > 40, k
        ones, flags = np.ones((280, 210), np.uint8), cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP
        rectangle = cv2.warpAffine(ones, matrix, frame.shape[1::-1], flags=flags)
        around = cv2.dilate(rectangle, np.ones((5, 5), np.uint8))
        changed = (pasted != frame).any(-1)
        assert not changed[around == 0].any(), k
        assert changed.sum() >= 0.4 * rectangle.sum(), k


def test_mattes_are_the_same_as_opencvs(recipe):
    """Also where the grid of one batch is not the one a face would have alone, and for areas that overflow fp16 (F08)."""
    to_frame = [cv2.getRotationMatrix2D((210, 280), angle, scale) for angle, scale in ((0, 0.1), (20, 0.6), (-35, 1.9), (90, 2.6), (170, 0.3))]
    for matrix, place in zip(to_frame, ((300, 200), (20, 500), (600, 500), (500, 400), (990, 40)), strict=True):
        matrix[:, 2] += np.array(place) - (210, 280)
    matrices, size, shape = [cv2.invertAffineTransform(matrix) for matrix in to_frame], face_size(512), (720, 1000)
    for together in (matrices, matrices[2:4]):
        origins, width, height = common_regions(together, size, shape)
        lookups = lookups_at(together, origins)
        mattes = Overlay(512, CPU)._matte(lookups, (width, height))[:, 0].numpy()
        for matte, lookup in zip(mattes, lookups, strict=True):
            expected = soft_matte(lookup, size, (width, height))
            assert np.abs(matte - expected).max() < 0.06
            assert np.abs(matte - expected).mean() < 2e-3


def test_faces_outside_by_themselves_change_nothing(recipe):
    frame = recipe.picture(SEED)
    matrices = align_matrices(recipe.landmarks(SEED, 2) + 5000, 256)
    for pasted in overlaid([frame] * 2, [np.zeros((256, 256, 3), np.uint8)] * 2, matrices):
        assert np.array_equal(pasted, frame)
