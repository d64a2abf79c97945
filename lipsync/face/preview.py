"""The track at a glance: found, lost, cuts and the face's place over time, and a contact sheet. One picture of one size for any length."""
import textwrap
from typing import TYPE_CHECKING

import cv2
import numpy as np

if TYPE_CHECKING:
    from .sights import Sight
    from .track import FaceTrack

WIDTH, MARGIN, LINE, GAP = 1280, 16, 22, 6  # px
SPAN = WIDTH - 2 * MARGIN  # px, the clip's whole time
COLUMNS, ROWS = 8, 3  # of the contact sheet
THUMB = 150  # px, longest side
STRIP = 20  # px, height of found or lost
CURVES = (("across: the face's box from the left edge (above) to the right", 100), ("down: from the top edge to the bottom", 100), ("score", 40))
PAPER, INK, GRID = (20, 22, 26), (225, 225, 225), (40, 43, 49)
FOUND, LOST, CUT, RUN, FACE = (70, 185, 95), (225, 75, 65), (250, 205, 70), (235, 235, 235), (60, 110, 190)


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
    """uint8 [H,WIDTH,3]; H depends on the shape of the clip's pictures and, below COLUMNS * ROWS frames, on their number."""
    rows = -(-len(track.thumbnails) // COLUMNS)
    tall = max((picture.shape[0] for _, picture in track.thumbnails), default=0) + LINE + 4
    height = 2 * MARGIN + 4 * LINE + STRIP + sum(tall for _, tall in CURVES) + GAP * len(CURVES) + rows * tall
    page = np.full((height, WIDTH, 3), PAPER, np.uint8)
    y = MARGIN
    for line in _lines(track.summary()):
        _text(page, line, MARGIN, y)
        y += LINE
    x = MARGIN
    for text, colour in (("found", FOUND), ("no face", LOST), ("cut", CUT), ("new run", RUN)):
        cv2.rectangle(page, (x, y + 5), (x + 10, y + 15), colour, -1)
        _text(page, text, x + 16, y)
        x += 40 + 9 * len(text)
    y = _timeline(page, track, y + LINE)
    for place, (index, picture) in enumerate(track.thumbnails):
        row, column = divmod(place, COLUMNS)
        _thumbnail(page, index, picture, FOUND if track.found[index] else LOST, MARGIN + column * (SPAN // COLUMNS), y + row * tall)
    return page


def _lines(text):
    """`text` in two lines."""
    lines = textwrap.wrap(text, 150, max_lines=2, placeholder=" ...")
    return [*lines, ""][:2]


def _timeline(page, track, y):
    """Draws the strip and the curves below `y`; gives where they end."""
    count = len(track)
    first = np.arange(SPAN) * count // SPAN  # the frames that a column of pixels shows: from first to before last
    last = np.maximum(np.arange(1, SPAN + 1) * count // SPAN, first + 1)
    top, right = y, MARGIN + SPAN
    seen = np.concatenate([[0], np.cumsum(track.found)])
    share = (seen[last] - seen[first]) / (last - first)
    lost = np.where(share < 1, np.maximum(4, (1 - share) * STRIP), 0)  # one frame without a face in a long clip is seen, too
    page[y:y + STRIP, MARGIN:right] = np.where(np.arange(STRIP)[:, None, None] < lost[:, None], LOST, FOUND)
    y += STRIP + GAP

    boxes = track.boxes.reshape(-1, 2, 2) / (track.clip.width, track.clip.height)
    spans = ((boxes[:, 0, 0], boxes[:, 1, 0]), (boxes[:, 0, 1], boxes[:, 1, 1]), (1 - track.scores, np.ones(count)))
    for (title, tall), (low, high) in zip(CURVES, spans, strict=True):
        page[y:y + tall, MARGIN:right] = GRID
        for x, (start, end) in enumerate(zip(first, last, strict=True)):
            frames = np.flatnonzero(track.found[start:end]) + start
            if len(frames):
                a, b = (round(float(np.clip(edge, 0, 1)) * (tall - 1)) for edge in (low[frames].min(), high[frames].max()))
                page[y + a:y + b + 1, MARGIN + x] = FACE
        _text(page, title, MARGIN + 6, y + 1)
        y += tall + GAP

    fresh = np.flatnonzero(track.found & (np.diff(track.run_ids, prepend=-1) != 0))
    for marks, colour in ((fresh, RUN), (np.flatnonzero(track.cuts), CUT)):
        columns = MARGIN + np.unique(marks * SPAN // count)
        page[top - 4:top, columns] = page[top + STRIP:y - GAP, columns] = colour
    for tick in range(5):
        frame = round(tick / 4 * (count - 1))
        text = f"{float(frame / track.clip.rate):.1f} s"
        _text(page, text, min(right - 9 * len(text), MARGIN + frame * SPAN // count), y - 4)
    return y + LINE


def _thumbnail(page, index, picture, colour, x, y):
    height, width = picture.shape[:2]
    page[y:y + height, x:x + width] = picture
    cv2.rectangle(page, (x - 1, y - 1), (x + width, y + height), colour, 1)
    _text(page, str(index), x, y + height + 1)


def _text(page, text, x, y):
    """Text whose top is at y."""
    plain = text.encode("ascii", "replace").decode()  # all that OpenCV's font has
    cv2.putText(page, plain, (int(x), int(y) + 14), cv2.FONT_HERSHEY_SIMPLEX, 0.45, INK, 1, cv2.LINE_AA)
