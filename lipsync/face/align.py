"""Where a face goes in the square crop the network sees: three landmarks -> similarity matrix -> crop.

The template, the normalisation and the smoothed bias are LatentSync's (its AlignRestore), computed here in float64; the reference works in
fp16 and is off by up to a pixel at 4K.
"""
from collections.abc import Sequence

import cv2
import numpy as np

from ..errors import ShapeError

TEMPLATE = np.array([[17.0, 20.0], [58.0, 20.0], [37.5, 40.0]])  # left brow, right brow, nose on a 75 x 100 card, as (x, y)
CARD = (75, 100)  # width, height the template is drawn on
TEMPLATE_SCALE = 2.8 / 256  # card units -> crop pixels, per pixel of resolution
CARRIED_BIAS = 0.2  # weight of the previous frame's bias in the smoothed one
BORDER = 127  # grey outside the picture
ROUNDING = 1e-4  # added before truncation: a grey value of 199.9999 is 200


def face_size(resolution: int) -> tuple[int, int]:
    """(width, height) of the upright face picture between the frame and the square crop: 420 x 560 at 512, 210 x 280 at 256."""
    scale = TEMPLATE_SCALE * resolution
    return round(CARD[0] * scale), round(CARD[1] * scale)


class Aligner:
    """Matrices frame by frame: the smoothed bias is state, so `reset()` it at a cut, a gap or another face."""

    def __init__(self, resolution: int, smooth: bool = True):
        self.resolution, self.smooth, self._bias = resolution, smooth, None

    def reset(self) -> None:
        self._bias = None

    def __call__(self, landmarks: np.ndarray) -> np.ndarray:
        """Landmarks [N,3,2] of N successive frames (left brow, right brow, nose; frame px) -> float32 [N,2,3], frame px -> face picture px.

        Raises ShapeError for another shape, for values that are not finite, and for three points in one place.
        """
        points = np.asarray(landmarks, dtype=np.float64)
        if points.ndim != 3 or points.shape[1:] != (3, 2):
            raise ShapeError(f"landmarks must be [N,3,2] (left brow, right brow, nose as x, y); got {list(points.shape)}")
        if not np.isfinite(points).all():
            raise ShapeError("landmarks contain NaN or infinity; drop the frames whose face was not found before aligning")
        template = TEMPLATE * (TEMPLATE_SCALE * self.resolution)
        target_centre, target_spread, target = _normalised(template[None])
        centre, spread, source = _normalised(points)
        if (spread < 1e-6).any():
            raise ShapeError(f"the three landmarks of frame {int(np.argmin(spread))} fall on one point: no face can be aligned to them")

        # Kabsch in two dimensions: the best proper rotation turns by atan2(sum of cross products, sum of dot products).
        dot = (source * target).sum((1, 2))
        cross = (source[..., 0] * target[..., 1] - source[..., 1] * target[..., 0]).sum(1)
        scale, length = target_spread / spread, np.hypot(dot, cross)
        a, b = scale * dot / length, scale * cross / length
        rotation = np.stack([np.stack([a, -b], -1), np.stack([b, a], -1)], 1)
        offset = target_centre - np.einsum("nij,nj->ni", rotation, centre)
        if self.smooth:
            offset = offset + self._smoothed(target[:, 2] - source[:, 2])
        return np.concatenate([rotation, offset[:, :, None]], 2).astype(np.float32)

    def _smoothed(self, bias: np.ndarray) -> np.ndarray:
        smoothed = np.empty_like(bias)
        for i, now in enumerate(bias):
            self._bias = now if self._bias is None else CARRIED_BIAS * self._bias + (1 - CARRIED_BIAS) * now
            smoothed[i] = self._bias
        return smoothed


def _normalised(points):
    """Centroid [N,2], standard deviation [N] (of all centred coordinates, unbiased) and normalised points [N,3,2]."""
    centre = points.mean(1)
    centred = points - centre[:, None]
    spread = centred.reshape(len(points), -1).std(1, ddof=1)
    return centre, spread, centred / np.maximum(spread, 1e-12)[:, None, None]


def align_matrices(landmarks: np.ndarray, resolution: int, smooth: bool = True) -> np.ndarray:
    """Similarity matrices of one unbroken run of frames: landmarks [N,3,2] (frame px) -> float32 [N,2,3]; see `Aligner`."""
    return Aligner(resolution, smooth)(landmarks)


def inverse(matrix: np.ndarray) -> np.ndarray:
    """The inverse [2,3] of an affine matrix [2,3], in float64 (face picture px -> frame px)."""
    matrix = np.asarray(matrix, dtype=np.float64)
    linear = np.linalg.inv(matrix[:, :2])
    return np.concatenate([linear, -linear @ matrix[:, 2:]], 1)


def frame_region(matrix: np.ndarray, size: tuple[int, int], frame_shape: tuple[int, ...], margin: int = 2) -> tuple[int, int, int, int]:
    """Frame pixels that a face picture of `size` (w, h) can touch and `margin` more: (x0, y0, x1, y1), half open, maybe empty."""
    w, h = size
    corners = np.array([[-1, w, w, -1], [-1, -1, h, h], [1, 1, 1, 1]], dtype=np.float64)
    x, y = inverse(matrix) @ corners
    height, width = frame_shape[:2]
    x0, y0 = max(0, int(np.floor(x.min())) - margin), max(0, int(np.floor(y.min())) - margin)
    x1, y1 = min(width, int(np.ceil(x.max())) + margin + 1), min(height, int(np.ceil(y.max())) + margin + 1)
    return x0, y0, max(x0, x1), max(y0, y1)


def shifted(matrix: np.ndarray, x: float, y: float) -> np.ndarray:
    """`matrix` for a picture whose origin is (x, y) of the one it was made for."""
    moved = np.array(matrix, dtype=np.float64)
    moved[:, 2] += moved[:, :2] @ (x, y)
    return moved


def common_regions(matrices: Sequence[np.ndarray], size: tuple[int, int], shape: tuple[int, ...]) -> tuple[list[tuple[int, int]], int, int]:
    """The frame regions under face pictures of `size` (w, h), all as large as the largest: origins (x, y), width, height (maybe 0)."""
    regions = [frame_region(matrix, size, shape) for matrix in matrices]
    width, height = max(x1 - x0 for x0, _, x1, _ in regions), max(y1 - y0 for _, y0, _, y1 in regions)
    return [(min(x0, shape[1] - width), min(y0, shape[0] - height)) for x0, y0, _, _ in regions], width, height


def lookups_at(matrices: Sequence[np.ndarray], origins: Sequence[tuple[int, int]]) -> np.ndarray:
    """Matrices for regions that start at `origins`: float64 [N,2,3], region px -> face picture px."""
    return np.stack([shifted(matrix, x, y) for matrix, (x, y) in zip(matrices, origins, strict=True)])


def warp_face(frame: np.ndarray, matrix: np.ndarray, resolution: int) -> np.ndarray:
    """The upright face picture, uint8 [h,w,3] of `face_size(resolution)`: bilinear, grey 127 outside, truncated as in the reference."""
    size = face_size(resolution)
    x0, y0, x1, y1 = frame_region(matrix, size, frame.shape)
    if x1 <= x0 or y1 <= y0:
        return np.full((size[1], size[0], 3), BORDER, np.uint8)
    region = frame[y0:y1, x0:x1].astype(np.float32)  # float: an integer warp would round where the reference truncates
    outside = {"borderMode": cv2.BORDER_CONSTANT, "borderValue": (BORDER,) * 3}
    face = cv2.warpAffine(region, shifted(matrix, x0, y0), size, flags=cv2.INTER_LINEAR, **outside)
    return face.astype(np.uint8)


def warp_crop(frame: np.ndarray, matrix: np.ndarray, resolution: int) -> np.ndarray:
    """One frame's crop, uint8 [r,r,3]; see `warp_crops`."""
    return cv2.resize(warp_face(frame, matrix, resolution), (resolution, resolution), interpolation=cv2.INTER_LANCZOS4)


def warp_crops(frames: np.ndarray, matrices: np.ndarray, resolution: int) -> np.ndarray:
    """Crops of frames uint8 [N,H,W,3] by matrices [N,2,3] -> uint8 [N,r,r,3]. Raises ShapeError for another dtype or shape.

    The CPU's way; `warp.Warper` is the GPU's.
    """
    frames, matrices = np.asarray(frames), np.asarray(matrices)
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8:
        raise ShapeError(f"frames must be uint8 [N,H,W,3]; got {frames.dtype} {list(frames.shape)}")
    if matrices.shape != (len(frames), 2, 3):
        raise ShapeError(f"one [2,3] matrix a frame is needed: {len(frames)} frames, matrices {list(matrices.shape)}")
    crops = np.empty((len(frames), resolution, resolution, 3), np.uint8)
    for crop, frame, matrix in zip(crops, frames, matrices, strict=True):
        crop[:] = warp_crop(frame, matrix, resolution)
    return crops
