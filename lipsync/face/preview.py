"""The track at a glance: found, lost, cuts and the face's place over time, and a contact sheet. One picture of one size for any length."""
from typing import TYPE_CHECKING

import cv2
import numpy as np

if TYPE_CHECKING:
    from .sights import Sight
    from .track import FaceTrack

WIDTH, MARGIN, LINE = 1280, 16, 22  # px
COLUMNS, ROWS = 8, 3  # of the contact sheet
THUMB = 150  # px, longest side
PLOT, STRIP = 96, 20  # px, height of a curve and of the found/lost strip
PAPER, INK, GRID = (24, 26, 30), (225, 225, 225), (58, 62, 70)
FOUND, LOST, CUT, RUN, SCORE = (70, 185, 95), (225, 75, 65), (250, 205, 70), (235, 235, 235), (120, 170, 250)
FONT = cv2.FONT_HERSHEY_SIMPLEX


class Thumbnails:
    """Keeps small pictures of evenly spread frames: as many as the contact sheet shows. pictures: (frame number, uint8 [h,w,3])."""

    def __init__(self, frame_count: int):
        self._wanted = set(np.linspace(0, max(0, frame_count - 1), COLUMNS * ROWS).astype(int).tolist())
        self.pictures: list[tuple[int, np.ndarray]] = []

    def __call__(self, index: int, sight: "Sight") -> None:
        if index not in self._wanted or len(self.pictures) == COLUMNS * ROWS:
            return
        height, width = sight.frame.shape[:2]
        scale = THUMB / max(height, width)
        size = max(1, round(width * scale)), max(1, round(height * scale))
        picture = cv2.resize(sight.frame, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
        if sight.face is not None:
            x0, y0, x1, y1 = (round(float(place) * scale) for place in sight.face.box)
            cv2.rectangle(picture, (x0, y0), (x1, y1), FOUND, 1)
        self.pictures.append((index, picture))


def draw(track: "FaceTrack") -> np.ndarray:
    """uint8 [H,W,3]. Its size depends on nothing but the number of rows of the contact sheet."""
    rows = -(-len(track.thumbnails) // COLUMNS)
    height = 2 * MARGIN + 3 * LINE + STRIP + 3 * (PLOT + LINE) + rows * (THUMB + LINE)
    page = np.full((height, WIDTH, 3), PAPER, np.uint8)
    y = MARGIN
    for line in _lines(track):
        _text(page, line, MARGIN, y)
        y += LINE
    y = _timeline(page, track, y)
    for place, (index, picture) in enumerate(track.thumbnails):
        row, column = divmod(place, COLUMNS)
        _thumbnail(page, track, index, picture, MARGIN + column * ((WIDTH - 2 * MARGIN) // COLUMNS), y + row * (THUMB + LINE))
    return page


def _lines(track):
    """The summary in two lines."""
    words, lines = track.summary().split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) > 150 and len(lines) < 2:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines if len(lines) == 2 else [*lines, ""]


def _timeline(page, track, y):
    """Draws the strip and the three curves below `y`; gives where they end."""
    left, right = MARGIN, WIDTH - MARGIN
    count, width = len(track), right - left
    columns = np.minimum(np.arange(width) * count // width, count - 1)  # the first frame that a column of pixels shows
    ends = np.maximum(np.minimum(np.arange(1, width + 1) * count // width, count), columns + 1)
    sums = np.concatenate([[0], np.cumsum(track.found)])
    share = (sums[ends] - sums[columns]) / (ends - columns)
    for x, part in enumerate(share):
        lost = 0 if part == 1 else STRIP if part == 0 else max(4, round((1 - part) * STRIP))
        page[y:y + lost, left + x] = LOST
        page[y + lost:y + STRIP, left + x] = FOUND
    top, y = y, y + STRIP + 2

    size = np.array([track.clip.width, track.clip.height])
    boxes = track.boxes.reshape(-1, 2, 2) / size
    for title, low, high, colour in (
        ("from left (top) to right (bottom) edge: the face's box", boxes[:, 0, 0], boxes[:, 1, 0], FOUND),
        ("from top to bottom edge: the face's box", boxes[:, 0, 1], boxes[:, 1, 1], FOUND),
        ("score, 0 to 1", 1 - track.scores, np.ones(count), SCORE),
    ):
        page[y:y + PLOT, left:right] = [c * 2 // 3 for c in GRID]
        for x, (first, last) in enumerate(zip(columns, ends, strict=True)):
            seen = np.flatnonzero(track.found[first:last]) + first
            if len(seen):
                a, b = (int(np.clip(edge, 0, 1) * (PLOT - 1)) for edge in (low[seen].min(), high[seen].max()))
                page[y + a:y + b + 1, left + x] = colour
        _text(page, title, left + 6, y + 2)
        y += PLOT + 6

    fresh = np.flatnonzero(track.found & (np.diff(track.run_ids, prepend=-1) != 0))
    for marks, colour in ((fresh, RUN), (np.flatnonzero(track.cuts), CUT)):
        for x in np.unique(left + marks * width // count):
            page[top - 3:y - 6, x] = colour
    for tick in range(5):
        frame = round(tick / 4 * (count - 1))
        text = f"{float(frame / track.clip.rate):.1f} s"
        _text(page, text, left if tick == 0 else min(right - 9 * len(text), left + frame * width // count - 20), y - 4)
    x = left + 260
    for text, colour in (("found", FOUND), ("no face", LOST), ("cut", CUT), ("new run", RUN)):
        _text(page, text, x, top - LINE, colour)
        x += 16 + 9 * len(text)
    return y + LINE


def _thumbnail(page, track, index, picture, x, y):
    height, width = picture.shape[:2]
    page[y:y + height, x:x + width] = picture
    cv2.rectangle(page, (x - 1, y - 1), (x + width, y + height), FOUND if track.found[index] else LOST, 1)
    _text(page, f"{index}", x, y + height + 1, FOUND if track.found[index] else LOST)


def _text(page, text, x, y, colour=INK):
    """Text whose top is at y."""
    plain = text.encode("ascii", "replace").decode()  # all that OpenCV's font has
    cv2.putText(page, plain, (int(x), int(y) + 14), FONT, 0.45, colour, 1, cv2.LINE_AA)
