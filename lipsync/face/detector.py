"""What a face detector gives and promises, and the pieces that the back ends share."""
import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np

from ..errors import FaceError

log = logging.getLogger(__name__)

MIN_SIZE = 32  # px: a narrower face has too few pixels for a mouth
MIN_SCORE = 0.6  # real faces, small, dim or turned, reach 0.8; a smiley 0.55


@dataclass(frozen=True, eq=False)
class Face:
    """One face in one frame; all places in px of the frame.

    box: float32 [4], x0 y0 x1 y1.
    score: 0..1, how sure the detector is that this is a face with usable landmarks.
    points: float32 [3,2], left brow, right brow, nose (left and right as seen in the picture).
    mesh: float32 [K,2] of all landmarks of the back end, or None.
    """

    box: np.ndarray
    score: float
    points: np.ndarray
    mesh: np.ndarray | None = None

    @property
    def width(self) -> float:
        return float(self.box[2] - self.box[0])

    @property
    def height(self) -> float:
        return float(self.box[3] - self.box[1])

    @property
    def size(self) -> float:
        """Side of the square with the box's area."""
        return math.sqrt(max(0.0, self.width) * max(0.0, self.height))

    @property
    def centre(self) -> np.ndarray:
        return (self.box[:2] + self.box[2:]) / 2


class Detector(Protocol):
    """Finds faces in frames; safe to call from several threads at once.

    name: for people. device: where it runs, for people (F09). note: what the user must know, or "".
    A detector that can also follow a face cheaply has `follow(frame, face) -> Face | None`, the same face in the next frame (None when
    unsure), and `detect_near(frame, face, around=True) -> list[Face]`.
    """

    name: str
    device: str
    note: str

    def detect(self, frames: Sequence[np.ndarray], *, min_size: float = MIN_SIZE, everywhere: bool = True) -> list[list[Face]]:
        """The faces of each frame (uint8 RGB [H,W,3]), best score first, doubtful ones included.

        Faces narrower than `min_size` px may be missed. everywhere=False spends less: large faces only, where that saves time.
        """


class Nets:
    """A network for each thread that asks: `cv2.dnn` networks keep their activations inside and must not be shared."""

    def __init__(self, load: Callable[[], object]):
        self._load, self._local = load, threading.local()

    def get(self):
        if not hasattr(self._local, "net"):
            self._local.net = self._load()
        return self._local.net


def forward(net: cv2.dnn.Net, blob: np.ndarray, outputs: Sequence[str]) -> list[np.ndarray]:
    """Named outputs of a `cv2.dnn` network. OpenCV 5's new engine gives the outputs of a tflite file one at a time, its classic one all."""
    net.setInput(blob)
    try:
        return net.forward(list(outputs))
    except cv2.error:
        return [net.forward(name) for name in outputs]


def iou(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Intersection over union of `box` [4] with each of `boxes` [N,4]."""
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), 1)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return shared / np.maximum(area + (box[2] - box[0]) * (box[3] - box[1]) - shared, 1e-6)


def best_boxes(boxes: np.ndarray, scores: np.ndarray, overlap: float) -> list[int]:
    """Non-maximum suppression: indices of `boxes` [N,4], best first, without those whose IoU with a better one is above `overlap`."""
    order, kept = np.argsort(-scores, kind="stable"), []
    while len(order):
        best, order = order[0], order[1:]
        kept.append(int(best))
        order = order[iou(boxes[best], boxes[order]) <= overlap]
    return kept


def square_crop(frame: np.ndarray, centre, side: float, angle: float, pixels: int) -> tuple[np.ndarray, np.ndarray]:
    """A turned square of the frame -> (uint8 [pixels,pixels,3], float64 [2,3] from crop px to frame px).

    centre (x, y) and side in frame px; angle in radians, clockwise on screen, of the crop's x axis.
    Black outside; large squares are averaged down first.
    """
    scale = side / pixels
    cos, sin = math.cos(angle) * scale, math.sin(angle) * scale
    half = (pixels - 1) / 2
    back = np.array([[cos, -sin, centre[0] - (cos - sin) * half], [sin, cos, centre[1] - (sin + cos) * half]])
    shrink = max(1, int(scale))
    if shrink == 1:
        return cv2.warpAffine(frame, back, (pixels, pixels), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP), back
    reach = side * (abs(math.cos(angle)) + abs(math.sin(angle))) / 2 + shrink
    x0, y0 = (max(0, int(c - reach)) for c in centre)
    region = frame[y0:max(y0, int(centre[1] + reach) + 1), x0:max(x0, int(centre[0] + reach) + 1)]
    region = region[:region.shape[0] // shrink * shrink, :region.shape[1] // shrink * shrink]
    if region.size == 0:
        return np.zeros((pixels, pixels, 3), np.uint8), back
    small = cv2.resize(region, (region.shape[1] // shrink, region.shape[0] // shrink), interpolation=cv2.INTER_AREA)
    lookup = back / shrink
    lookup[:, 2] = (back[:, 2] - (x0, y0) - (shrink - 1) / 2) / shrink
    return cv2.warpAffine(small, lookup, (pixels, pixels), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP), back


def need_file(name: str, folders: Sequence[Path], hint: str) -> Path:
    """`name` in the first of `folders` that has it. Raises FaceError naming the file, the folders and the remedy (`hint`)."""
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise FaceError(f"the face detector's file {name} is missing; looked in {', '.join(str(folder) for folder in folders)}. {hint}")


def read_net(path: Path, read: Callable[[np.ndarray], cv2.dnn.Net]) -> cv2.dnn.Net:
    """A network from a file's bytes (OpenCV cannot open every path on Windows). Raises FaceError when it is not what its name says."""
    try:
        return read(np.fromfile(path, np.uint8))
    except (cv2.error, OSError) as error:
        reason = str(error).strip().splitlines()[-1]
        size = path.stat().st_size if path.exists() else 0
        raise FaceError(f"cannot load the face detector's file {path} ({size} bytes, cut short?): {reason}. Fetch it again.") from error
