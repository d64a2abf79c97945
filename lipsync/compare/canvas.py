"""A dark page to draw on: text by Pillow, which brings a font, smooth lines by OpenCV."""
from functools import lru_cache

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

WIDTH, MARGIN, LINE = 1280, 20, 22  # px
PAPER, PANEL, GRID, INK, FAINT = (20, 22, 26), (30, 33, 38), (52, 56, 63), (228, 228, 228), (150, 155, 163)
A, B, SOUND = (250, 176, 72), (92, 178, 255), (74, 84, 92)


class Page:
    """WIDTH x `height` px; all places in px from the top left."""

    def __init__(self, height: int):
        self.pixels = np.full((height, WIDTH, 3), PAPER, np.uint8)
        self._texts: list[tuple] = []

    def text(self, text: str, x: float, y: float, colour=INK, size: int = 14, right: bool = False) -> None:
        """Text whose top left (with `right`: top right) is there."""
        self._texts.append((text, x, y, colour, size, right))

    def box(self, x: int, y: int, width: int, height: int, colour) -> None:
        self.pixels[y : y + height, x : x + width] = colour

    def paste(self, picture: np.ndarray, x: int, y: int) -> None:
        """uint8 RGB [h,w,3]."""
        self.pixels[y : y + picture.shape[0], x : x + picture.shape[1]] = picture

    def line(self, points: np.ndarray, colour, thick: int = 1) -> None:
        """Through points [n,2]; drawn smooth, to an eighth of a pixel."""
        cv2.polylines(self.pixels, [np.round(points * 8).astype(np.int32)], False, colour, thick, cv2.LINE_AA, shift=3)

    def fill(self, points: np.ndarray, colour) -> None:
        """The polygon of points [n,2]."""
        cv2.fillPoly(self.pixels, [np.round(points * 8).astype(np.int32)], colour, cv2.LINE_AA, shift=3)

    def picture(self) -> np.ndarray:
        """uint8 RGB [height,WIDTH,3]."""
        image = Image.fromarray(self.pixels)
        draw = ImageDraw.Draw(image)
        for text, x, y, colour, size, right in self._texts:
            font = _font(size)
            draw.text((x - draw.textlength(text, font=font) if right else x, y), text, fill=colour, font=font)
        return np.array(image)


def text_width(text: str, size: int = 14) -> float:
    """px"""
    return ImageDraw.Draw(Image.new("L", (1, 1))).textlength(text, font=_font(size))


@lru_cache
def _font(size):
    try:
        return ImageFont.load_default(size)
    except TypeError:  # before Pillow 10.1: one small size only
        return ImageFont.load_default()
