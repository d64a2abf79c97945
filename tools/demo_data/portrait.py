"""The one real face in the training data: astronaut Eileen Collins in NASA's portrait (public domain), which scikit-image ships as a test
picture."""

import numpy as np
import torch

from .mouth import POINTS, Face

REGION = (-3.0, -2.4, 3.2, 4.6)  # part of the picture that becomes the sheet, in face units
PIXELS_PER_UNIT = 72
# vertices of MediaPipe's face mesh
LEFT_BROW, RIGHT_BROW = [70, 63, 105, 66, 107], [336, 296, 334, 293, 300]
NOSE = [168, 197, 5, 4, 75, 97, 2, 326, 305]
INNER_TOP = [78, 191, 80, 81, 82, 13, 312, 311, 310, 415, 308]
INNER_LOW = [78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308]
TEETH_BELOW = 0.03  # the portrait smiles, and the mesh runs across its teeth: the lower lip's edge is this much lower, in face units
RELAXED = 0.45  # how much of the smile's curve the closed lips keep
CHIN, LEFT_CHEEK, RIGHT_CHEEK = 152, 234, 454


def portrait(mesh: np.ndarray, picture: np.ndarray) -> tuple[Face, Face]:
    """The face of a photograph, twice, each a `Face` of one: made to speak, and with the mouth it was taken with (which opening 0 leaves
    alone).

    mesh     float [468,2 or more], MediaPipe's face mesh in pixels of the picture
    picture  uint8 RGB [H,W,3]
    The sheet is the photograph turned upright and scaled to face units; its coverage is 1, so its own background moves with the head.
    """
    import cv2

    points = mesh[:, :2].astype(np.float64)
    left, right = points[LEFT_BROW].mean(0), points[RIGHT_BROW].mean(0)
    origin, across = (left + right) / 2, (right - left) / 2
    down = np.array([-across[1], across[0]])
    basis = np.stack([across, down], 1)  # face units -> pixels
    faced = (points - origin) @ np.linalg.inv(basis).T

    x0, y0, x1, y1 = REGION
    size = round((x1 - x0) * PIXELS_PER_UNIT), round((y1 - y0) * PIXELS_PER_UNIT)
    step = np.diag([(x1 - x0) / (size[0] - 1), (y1 - y0) / (size[1] - 1)])
    matrix = np.concatenate([basis @ step, (basis @ [x0, y0] + origin)[:, None]], 1)
    upright = cv2.warpAffine(picture, matrix, size, flags=cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REFLECT)
    sheet = torch.from_numpy(upright).permute(2, 0, 1).float().div(255)
    sheet = torch.cat([sheet, torch.ones_like(sheet[:1])])[None]

    top, low = faced[INNER_TOP], faced[INNER_LOW]
    centre, half = (top[0, 0] + top[-1, 0]) / 2, (top[-1, 0] - top[0, 0]) / 2
    at = centre + np.linspace(-1, 1, POINTS) * half
    upper, lower = np.interp(at, top[:, 0], top[:, 1]), np.interp(at, low[:, 0], low[:, 1])
    lower = lower + TEETH_BELOW * (1 - np.linspace(-1, 1, POINTS) ** 2) ** 0.6
    rest = 0.45 * upper + 0.55 * lower
    rest = rest.mean() + RELAXED * (rest - rest.mean())
    natural = sheet.clone()
    draw_seam(sheet, at, upper, lower)

    def tensor(value):
        return torch.as_tensor(value, dtype=torch.float32)[None]

    width = (faced[RIGHT_CHEEK, 0] - faced[LEFT_CHEEK, 0]) / 2
    row, column = round((1.35 - y0) * PIXELS_PER_UNIT), round((0.9 - x0) * PIXELS_PER_UNIT)
    places = dict(
        region=REGION,
        centre=tensor(centre),
        half=tensor(half),
        rest=tensor(rest),
        chin=tensor(faced[CHIN, 1]),
        nose=tensor(faced[NOSE, 1].mean()),
        width=tensor(width),
        teeth=tensor(1.0),
        light=natural[:, :3, row - 6 : row + 6, column - 8 : column + 8].mean((2, 3)),
    )
    speaking = Face(sheet=sheet, upper=tensor(upper), lower=tensor(lower), **places)
    return speaking, Face(sheet=natural, upper=tensor(rest), lower=tensor(rest), **places)


def draw_seam(sheet, at, upper, lower):
    """Darken the rims of the parted lips, so that a line is seen where they meet."""
    x0, y0, x1, y1 = REGION
    tall, wide = sheet.shape[2:]
    xs, ys = np.linspace(x0, x1, wide), np.linspace(y0, y1, tall)[:, None]
    above, below = np.interp(xs, at, upper) - ys, ys - np.interp(xs, at, lower)
    rim = np.maximum(
        np.where(above > -0.02, np.exp(-((above / 0.035) ** 2)), 0), np.where(below > -0.02, np.exp(-((below / 0.035) ** 2)), 0)
    )
    rim = rim * ((xs > at[0]) & (xs < at[-1]))
    sheet[:, :3] *= torch.from_numpy(1 - 0.6 * rim).float()
