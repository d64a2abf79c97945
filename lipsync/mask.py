"""Which part of the square crop the network redraws: LatentSync's fixed mouth-and-cheeks region, one shape for every face."""
from functools import cache

import cv2
import numpy as np

from .errors import ShapeError

OUTLINE = (  # (x, y) corners of the redrawn region on a 256 x 256 crop; filled with cv2.fillPoly they give the reference's mask bit for bit
    (9, 95), (9, 135), (10, 136), (10, 149), (11, 150), (11, 163), (12, 164), (12, 170), (13, 171), (13, 172), (14, 173), (14, 174),
    (15, 175), (16, 178), (18, 180), (19, 183), (21, 185), (22, 188), (26, 192), (26, 193), (34, 201), (34, 202), (40, 208), (41, 208),
    (45, 212), (46, 212), (49, 215), (50, 215), (52, 217), (55, 218), (60, 222), (61, 222), (62, 223), (63, 223), (64, 224), (65, 224),
    (66, 225), (67, 225), (68, 226), (69, 226), (70, 227), (71, 227), (72, 228), (73, 228), (74, 229), (75, 229), (76, 230), (77, 230),
    (82, 233), (84, 233), (87, 235), (89, 235), (90, 236), (92, 236), (95, 238), (98, 238), (99, 239), (103, 239), (104, 240),
    (107, 240), (108, 241), (130, 241), (131, 242), (152, 242), (153, 241), (156, 241), (157, 240), (160, 240), (161, 239), (164, 239),
    (165, 238), (166, 238), (169, 236), (171, 236), (176, 233), (178, 233), (181, 231), (183, 231), (184, 230), (185, 230), (186, 229),
    (187, 229), (188, 228), (191, 227), (193, 225), (196, 224), (198, 222), (199, 222), (201, 220), (202, 220), (205, 217), (206, 217),
    (209, 214), (210, 214), (223, 201), (223, 200), (228, 195), (228, 194), (230, 192), (230, 191), (232, 189), (232, 188), (234, 186),
    (234, 185), (236, 183), (236, 182), (240, 177), (240, 176), (241, 175), (241, 174), (244, 169), (244, 163), (245, 162), (245, 149),
    (246, 148), (246, 135), (247, 134), (247, 128), (246, 127), (246, 95), (178, 95), (178, 127), (177, 128), (78, 128), (77, 127),
    (77, 95),
)
OUTLINE_SIZE = 256
LATENT_CELL = 8  # crop pixels per latent pixel


def keep_mask(resolution: int) -> np.ndarray:
    """float32 [r,r] in 0..1: 1 keeps the crop's pixel, 0 redraws it; the edge is slightly soft (Lanczos-4) where r is not 256.

    Raises ShapeError unless r is a multiple of 8.
    """
    return _keep_mask(resolution).copy()


def latent_keep_mask(resolution: int) -> np.ndarray:
    """float32 [r/8,r/8] in 0..1: the keep mask on the latent grid (nearest), as the network's mask channel wants it."""
    return _keep_mask(resolution)[::LATENT_CELL, ::LATENT_CELL].copy()


@cache
def _keep_mask(resolution):
    if resolution < LATENT_CELL or resolution % LATENT_CELL:
        raise ShapeError(f"resolution {resolution} is not a multiple of {LATENT_CELL}; the models were trained at 256 (1.5) and 512 (1.6)")
    mask = np.full((OUTLINE_SIZE, OUTLINE_SIZE), 255, np.uint8)
    cv2.fillPoly(mask, [np.array(OUTLINE, np.int32)], 0)
    if resolution != OUTLINE_SIZE:
        mask = cv2.resize(mask, (resolution, resolution), interpolation=cv2.INTER_LANCZOS4)
    return mask.astype(np.float32) / 255
