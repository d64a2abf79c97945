"""How far a mouth is open in each frame of a clip, as MediaPipe's face mesh sees it, and how well that follows what was said.

python tools/lip_reading.py CLIP.mp4 TRACK.npy [FACE_FOLDER]      TRACK: the true opening at 25 frames a second, float [T]
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from demo_data.pack import load

pack = load("lipsync.face", "lipsync.clip", "lipsync.compare").lipsync
opening = pack.compare.mouths.opening
correlation, delay = pack.compare.sounds.correlation, pack.compare.sounds.delay


def openings(frames: Iterable[np.ndarray], detector) -> np.ndarray:
    """Distance between the inner lips over the distance between the outer eye corners: float32 [T], NaN where no face is found.

    frames: uint8 RGB [H,W,3]. detector: `lipsync.face.MediaPipeDetector`.
    """
    return of_faces(map(pack.compare.mouths.Finder(detector), frames))


def of_faces(faces: Iterable) -> np.ndarray:
    """`openings` of faces that were found already, None where none is."""
    return np.float32([np.nan if face is None else opening(face.mesh) for face in faces])


def report(measured: np.ndarray, truth: np.ndarray) -> str:
    """One line for people."""
    quiet, wide = measured[: len(truth)][truth[: len(measured)] < 0.02], measured[: len(truth)][truth[: len(measured)] > 0.3]
    levels = ", ".join(f"{name} {np.nanmean(part):.3f}" for name, part in (("at rest", quiet), ("wide", wide)) if np.isfinite(part).any())
    r = correlation(measured, truth)
    told = "unknown, one of them stands still or no frame has both" if np.isnan(r) else f"r = {r:.2f}, {delay(measured, truth):+d} frames late"
    return f"mouth against speech: {told}; opening {levels or 'unknown'}"


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    detector = pack.face.load_detector("mediapipe", sys.argv[3] if len(sys.argv) == 4 else None)
    measured = openings(pack.clip.open_clip(Path(sys.argv[1])).frames(), detector)
    print(report(measured, np.load(sys.argv[2])))


if __name__ == "__main__":
    main()
