"""How much of a pasted face each frame pixel shows: LatentSync's soft matte, computed from the matrix alone.

The reference warps a picture of ones into the frame, erodes it (2 x 2), erodes it again by a twentieth of the face's size on each side,
and blurs it. A warped rectangle is four straight ramps, and the minimum of a ramp over a box is the ramp at one corner of the box, so the
eroded picture is written down directly, and on a grid of every few pixels where the blur is wide.

Outside the region counts as in OpenCV: it never erodes, and the blur sees a mirror.
"""
import cv2
import numpy as np

from .face.align import inverse

EDGE_SHARE = 20  # the soft edge is sqrt(face area) / 20 wide
FINE_EDGE = 8  # the matte is computed on a grid this much finer than its soft edge


def soft_matte(lookup: np.ndarray, size: tuple[int, int], region: tuple[int, int]) -> np.ndarray:
    """float32 [h,w] in 0..1. region: (w, h) in frame px; lookup [2,3] maps its pixels to those of a face picture of `size` (w, h)."""
    edge = edge_of(lookup, size, region)
    step = coarseness(edge)
    matte = None
    for across, down in zip(*ramps(lookup, size, region, edge, step), strict=True):
        ramp = np.add.outer(down, across)
        np.clip(ramp, 0, 1, out=ramp)
        matte = ramp if matte is None else np.multiply(matte, ramp, out=matte)
    if edge == 0:
        return matte
    side = 2 * -(-edge // step) + 1
    matte = cv2.GaussianBlur(matte, (side, side), blur_sigma(edge) / step)
    if step > 1:
        matte = cv2.resize(matte, (matte.shape[1] * step, matte.shape[0] * step), interpolation=cv2.INTER_LINEAR)
    return np.clip(matte[:region[1], :region[0]], 0, 1)


def blur_sigma(edge: int) -> float:
    """OpenCV's sigma for a kernel of 2 * edge + 1 px."""
    return 0.3 * (edge - 1) + 0.8


def coarseness(edge: int) -> int:
    """Frame pixels from one grid point to the next for a soft edge of `edge` px."""
    return max(1, edge // FINE_EDGE)


def edge_of(lookup: np.ndarray, size: tuple[int, int], region: tuple[int, int]) -> int:
    """Width of the soft edge in px. (The reference sums the face's area in fp16, which overflows above 256 x 256.)"""
    return int(_area(lookup, size, region) ** 0.5) // EDGE_SHARE


def ramps(lookup: np.ndarray, size: tuple[int, int], region: tuple[int, int], edge: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The four sides of the eroded face: float32 [4,nx] and [4,ny], at the middle of each `step` x `step` cell of the region.

    The eroded picture is the product over the sides of `clip(across[x] + down[y], 0, 1)`.
    """
    (w, h), middle = region, (step - 1) / 2
    before, after = edge + 1, max(0, edge - 1)  # an even box reaches further back in OpenCV; the 2 x 2 one reaches back only
    x, y = (np.arange(-(-n // step), dtype=np.float64) * step + middle for n in (w, h))
    low, high = (np.maximum(x - before, 0), np.maximum(y - before, 0)), (np.minimum(x + after, w - 1), np.minimum(y + after, h - 1))
    across, down = np.empty((4, len(x)), np.float32), np.empty((4, len(y)), np.float32)
    for axis, ((a, b, c), length) in enumerate(zip(lookup, size, strict=True)):
        # One edge rises from 0 at -1 to 1 at 0, the other falls from 1 at length - 1 to 0 at length.
        for side, (slope_x, slope_y, start) in enumerate(((a, b, c + 1), (-a, -b, length - c))):
            across[2 * axis + side] = slope_x * (low if slope_x > 0 else high)[0]
            down[2 * axis + side] = slope_y * (low if slope_y > 0 else high)[1] + start
    return across, down


def _area(lookup, size, region):
    """Pixels of the region under the face after the 2 x 2 erosion."""
    spans = []
    for (a, b, _), length in zip(lookup, size, strict=True):  # where the ramps pass one half
        spans.append((max(a, 0) + max(b, 0) - 0.5, length - 0.5 - max(-a, 0) - max(-b, 0)))
    (left, right), (top, bottom) = spans
    if right <= left or bottom <= top:
        return 0.0
    corners = np.array([[left, right, right, left], [top, top, bottom, bottom], [1, 1, 1, 1]])
    face = (inverse(lookup) @ corners).T.astype(np.float32)
    w, h = region[0] - 0.5, region[1] - 0.5
    frame = np.array([[-0.5, -0.5], [w, -0.5], [w, h], [-0.5, h]], np.float32)
    return float(cv2.intersectConvexConvex(face, frame)[0])
