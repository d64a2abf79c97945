"""Both clips and their mouths at evenly spread moments: one picture of a fixed width, whatever the clips' length."""
import cv2
import numpy as np

from . import canvas

COLUMNS = 8
LABEL, GAP = 64, 4  # px: of the rows' names, between pictures
MOUTH_SHAPE = 0.75  # height of a mouth's picture, of its width
FAINT = 4  # differences are shown so many times as large
ROWS = (("A", canvas.A), ("B", canvas.B), (f"diff x{FAINT}", canvas.INK), ("mouth A", canvas.A), ("mouth B", canvas.B))


class Strip:
    """Shown every frame of a comparison, keeps small pictures of COLUMNS of them."""

    def __init__(self, count: int):
        self._wanted = np.unique(np.linspace(0, max(0, count - 1), COLUMNS).astype(int)).tolist()
        self._columns: list[tuple[int, list[np.ndarray | None]]] = []
        self._side = (canvas.WIDTH - 2 * canvas.MARGIN - LABEL) // COLUMNS - GAP

    def see(self, index: int, a: np.ndarray, b: np.ndarray, box: tuple[slice, slice] | None) -> None:
        """Frame `index` of both clips, and where its mouth is."""
        if index not in self._wanted:
            return
        apart = np.minimum(cv2.absdiff(a, b), 255 // FAINT) * np.uint8(FAINT)
        whole = [self._fitted(picture, picture.shape[0] / picture.shape[1]) for picture in (a, b, apart)]
        mouths = [None if box is None else self._fitted(_around(picture, box), MOUTH_SHAPE) for picture in (a, b)]
        self._columns.append((index, whole + mouths))

    def draw(self, rate: float) -> np.ndarray:
        """uint8 RGB [H,canvas.WIDTH,3]. Rows: A, B, their difference, the mouths of A and of B."""
        heights = [max((column[row].shape[0] for _, column in self._columns if column[row] is not None), default=0) for row in range(len(ROWS))]
        page = canvas.Page(2 * canvas.MARGIN + canvas.LINE + sum(height + GAP for height in heights if height))
        y = canvas.MARGIN
        for place, (index, _) in enumerate(self._columns):
            page.text(f"{index / rate:.2f} s", canvas.MARGIN + LABEL + place * (self._side + GAP), y, canvas.FAINT)
        y += canvas.LINE
        for row, height in enumerate(heights):
            if not height:
                continue
            name, colour = ROWS[row]
            page.text(name, canvas.MARGIN, y + height / 2 - 8, colour)
            for place, (_, column) in enumerate(self._columns):
                if column[row] is not None:
                    page.paste(column[row], canvas.MARGIN + LABEL + place * (self._side + GAP), y)
            y += height + GAP
        return page.picture()

    def _fitted(self, picture: np.ndarray, shape: float) -> np.ndarray:
        size = self._side, max(1, round(self._side * shape))
        smaller = picture.shape[1] > size[0]
        return cv2.resize(np.ascontiguousarray(picture), size, interpolation=cv2.INTER_AREA if smaller else cv2.INTER_CUBIC)


def _around(picture, box):
    """The part of the picture around a box that has the shape of a mouth's picture, so that nothing is stretched."""
    rows, columns = box
    wide = max(columns.stop - columns.start, (rows.stop - rows.start) / MOUTH_SHAPE)
    x, y = (columns.start + columns.stop) / 2, (rows.start + rows.stop) / 2
    size = max(1, round(wide)), max(1, round(wide * MOUTH_SHAPE))
    return cv2.getRectSubPix(np.ascontiguousarray(picture), size, (x - 0.5, y - 0.5))
