"""Faces: finding them, following one, cutting it out aligned."""
from pathlib import Path

from ..errors import FaceError
from .align import Aligner, align_matrices, warp_crops
from .detector import MIN_SCORE, MIN_SIZE, Detector, Face
from .identity import CHOICES
from .track import SMOOTHINGS, FaceTrack, align_clip

DETECTORS = ("auto", "mediapipe", "insightface")

__all__ = [
    "CHOICES", "DETECTORS", "MIN_SCORE", "MIN_SIZE", "SMOOTHINGS", "Aligner", "Detector", "Face", "FaceTrack", "align_clip",
    "align_matrices", "load_detector", "warp_crops"
]


def load_detector(kind: str = "auto", folder: str | Path | None = None) -> Detector:
    """The detector called `kind`, with its files from `folder` or from where they usually are.

    "auto" takes InsightFace where its files are (the reference's choice; non-commercial licence), else MediaPipe.
    Raises FaceError naming what is missing.
    """
    from .insightface import InsightFaceDetector, has_files
    from .mediapipe import MediaPipeDetector

    if kind not in DETECTORS:
        raise FaceError(f"unknown face detector {kind!r}: use one of {', '.join(DETECTORS)}")
    if kind == "insightface" or (kind == "auto" and has_files(folder)):
        return InsightFaceDetector(folder)
    return MediaPipeDetector(folder)
