"""Real detector files and pictures with real faces, from packaged public-domain photographs."""
from pathlib import Path

import cv2
import numpy as np
import pytest
from latentsync_rtx.lipsync.face.mediapipe import MediaPipeDetector

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def detector(face_files):
    return MediaPipeDetector(face_files)


class Stage:
    """Paints frames: a smooth backdrop with heads where asked for.

    `anna` is scikit-image's astronaut (NASA, public domain), `bea` the same picture mirrored and tinted: to a detector a face like any
    other, to the eye another person.
    """

    FACE = (0.49, 0.45)  # middle of the face's mesh in the head picture
    WIDTH = 0.43  # width of the mesh, of the head picture's side

    def __init__(self, width=640, height=360):
        from skimage import data

        coarse = np.random.default_rng(0).integers(40, 200, (9, 16, 3)).astype(np.uint8)
        self.backdrop = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
        self.anna = np.ascontiguousarray(data.astronaut()[30:250, 120:340])
        bea = self.anna[:, ::-1] * np.array([0.75, 0.8, 1.1])
        self.bea = np.ascontiguousarray(bea.clip(0, 255).astype(np.uint8))

    def empty(self):
        return self.backdrop.copy()

    def put(self, frame, x, y, side, head=None):
        """Paint a head picture of `side` px with its middle at (x, y), cut at the frame's edge."""
        head = self.anna if head is None else head
        head = cv2.resize(head, (side, side), interpolation=cv2.INTER_AREA if side < len(head) else cv2.INTER_CUBIC)
        left, top = int(x - side / 2), int(y - side / 2)
        x0, y0, x1, y1 = max(0, left), max(0, top), min(frame.shape[1], left + side), min(frame.shape[0], top + side)
        if x1 > x0 and y1 > y0:
            frame[y0:y1, x0:x1] = head[y0 - top:y1 - top, x0 - left:x1 - left]
        return frame

    def shot(self, x=320, y=180, side=200, head=None):
        return self.put(self.empty(), x, y, side, head)

    def face_at(self, x, y, side):
        """Middle of the face of a head painted there."""
        return np.array([x + (self.FACE[0] - 0.5) * side, y + (self.FACE[1] - 0.5) * side])


@pytest.fixture(scope="session")
def stage():
    return Stage()


@pytest.fixture(scope="session")
def make_stage():
    return Stage
