"""How far a mouth is open in each frame of a clip, as MediaPipe's face mesh sees it, and how well that follows what was said.

python tools/lip_reading.py CLIP.mp4 TRACK.npy [FACE_FOLDER]      TRACK: the true opening at 25 frames a second, float [T]
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

UPPER, LOWER = 13, 14  # vertices in the middle of the inner lips
EYE_CORNERS = (33, 263)  # outer corners: how large the face is


def openings(frames: Iterable[np.ndarray], detector) -> np.ndarray:
    """Distance between the inner lips over the distance between the outer eye corners: float32 [T], NaN where no face is found.

    frames: uint8 RGB [H,W,3]. detector: `lipsync.face.MediaPipeDetector`.
    """
    measured = []
    face = None
    for frame in frames:
        face = detector.follow(frame, face) if face is not None else None
        if face is None:
            face = next(iter(detector.detect([frame])[0]), None)
        measured.append(np.nan if face is None else opening(face.mesh))
    return np.float32(measured)


def opening(mesh: np.ndarray) -> float:
    """Of one mesh [468,2] in pixels."""
    left, right = mesh[EYE_CORNERS[0]], mesh[EYE_CORNERS[1]]
    return float(np.hypot(*(mesh[LOWER] - mesh[UPPER])) / np.hypot(*(right - left)))


def correlation(measured: np.ndarray, truth: np.ndarray, lag: int = 0) -> float:
    """Pearson's r over the frames in which both are known. lag: frames by which `measured` is taken to come late."""
    length = min(len(measured), len(truth))
    measured, truth = np.asarray(measured[:length], float), np.asarray(truth[:length], float)
    if lag:
        measured, truth = (measured[lag:], truth[:-lag]) if lag > 0 else (measured[:lag], truth[-lag:])
    known = np.isfinite(measured) & np.isfinite(truth)
    if known.sum() < 3 or measured[known].std() < 1e-9 or truth[known].std() < 1e-9:
        return 0.0
    return float(np.corrcoef(measured[known], truth[known])[0, 1])


def delay(measured: np.ndarray, truth: np.ndarray, most: int = 8) -> int:
    """The lag, in frames, at which the two agree best: 0 for a mouth in time, positive for one that comes late."""
    return max(range(-most, most + 1), key=lambda lag: correlation(measured, truth, lag))


def report(measured: np.ndarray, truth: np.ndarray) -> str:
    """One line for people."""
    quiet, wide = measured[: len(truth)][truth[: len(measured)] < 0.02], measured[: len(truth)][truth[: len(measured)] > 0.3]
    levels = ", ".join(f"{name} {np.nanmean(part):.3f}" for name, part in (("at rest", quiet), ("wide", wide)) if np.isfinite(part).any())
    return f"mouth against speech: r = {correlation(measured, truth):.2f}, {delay(measured, truth):+d} frames late; opening {levels}"


def main() -> None:
    from demo_data.pack import load

    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    pack = load("lipsync.face", "lipsync.clip")
    detector = pack.lipsync.face.load_detector("mediapipe", sys.argv[3] if len(sys.argv) == 4 else None)
    measured = openings(pack.lipsync.clip.open_clip(Path(sys.argv[1])).frames(), detector)
    print(report(measured, np.load(sys.argv[2])))


if __name__ == "__main__":
    main()
