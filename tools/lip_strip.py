"""What was said and what the mouth did, in one picture: the speech's loudness, the mouth's opening over it, and frames below."""
from fractions import Fraction

import numpy as np
from lip_reading import pack

canvas, mouths, envelope = pack.compare.canvas, pack.compare.mouths, pack.compare.sounds.envelope
TALL, BETWEEN, COUNT = 130, 34, 8  # px of the curves, px above them for their names; frames shown
TRUE = (150, 155, 163)


def strip(frames: list[np.ndarray], faces: list, sound: np.ndarray, rate: int, opening: np.ndarray, truth: np.ndarray | None, fps: int) -> np.ndarray:
    """uint8 RGB [H,W,3]. frames: uint8 RGB [h,w,3] each; faces: of `mouths.Finder`, None where none is; sound: float32 [T] at `rate`;
    opening: float [N] as measured; truth: float [N], the opening that belongs to the sound, or None."""
    loud = np.nan_to_num(envelope({"waveform": sound[None, None], "sample_rate": rate}, Fraction(fps), len(frames)))
    left, span = canvas.MARGIN, canvas.WIDTH - 2 * canvas.MARGIN
    side = span // COUNT
    page = canvas.Page(BETWEEN + TALL + 8 + side + canvas.MARGIN)

    def curve(values):
        x = left + np.arange(len(values)) / max(len(values) - 1, 1) * (span - 1)
        return np.stack([x, BETWEEN + TALL - 1 - 0.94 * (TALL - 1) * values], 1)[np.isfinite(values)]

    page.box(left, BETWEEN, span, TALL, canvas.PANEL)
    ends = np.array([[left, BETWEEN + TALL - 1], [left + span - 1, BETWEEN + TALL - 1]])
    page.fill(np.concatenate([ends[:1], curve(loud / max(loud.max(), 1e-6)), ends[1:]]), canvas.SOUND)
    names = [("loudness of the speech", canvas.SOUND), ("mouth of the result, measured", canvas.A)]
    if truth is not None:
        page.line(curve(truth / max(truth.max(), 1e-6)), TRUE, 1)
        names.insert(1, ("mouth that belongs to the speech", TRUE))
    page.line(curve(opening / np.nanmax(opening)), canvas.A, 2)
    x = left
    for name, colour in names:
        page.box(x, 16, 18, 6, colour)
        page.text(name, x + 25, 10, canvas.FAINT)
        x += round(50 + canvas.text_width(name))
    for place in range(COUNT):
        at = round((place + 0.5) * len(frames) / COUNT)
        face = next(face for face in faces[at:] + faces[::-1] if face is not None)
        page.paste(_portrait(frames[at], face.mesh, side - 4), left + place * side + 2, BETWEEN + TALL + 8)
    return page.picture()


def _portrait(frame: np.ndarray, mesh: np.ndarray, side: int) -> np.ndarray:
    """The square around a face, `side` px."""
    import cv2

    middle, half = (mesh.min(0) + mesh.max(0)) / 2, 0.62 * max(np.ptp(mesh, axis=0))
    scale = side / (2 * half)
    move = np.float32([[scale, 0, side / 2 - scale * middle[0]], [0, scale, side / 2 - scale * middle[1]]])
    return cv2.warpAffine(frame, move, (side, side), flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REPLICATE)
