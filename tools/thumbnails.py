"""`make thumbnails`: the pictures of the templates in `examples/`, drawn from the demo's own media (a public-domain portrait, synthetic speech)."""
import cv2
import demo_media
import numpy as np
from comfyui import ROOT

SIZE = 512  # px, square
PAPER, INK, WAVE, BOX = (24, 26, 30), (235, 235, 235), (255, 170, 70), (70, 185, 95)
QUALITY = 82


def waveform(canvas: np.ndarray, left: int, right: int, middle: int, tall: int) -> None:
    """The demo's sentence as bars."""
    sound, _ = demo_media.spoken(4)
    bars = (right - left) // 8
    loud = np.abs(sound[: len(sound) // bars * bars].reshape(bars, -1)).max(1)
    loud /= max(float(loud.max()), 1e-6)
    for index, level in enumerate(loud):
        x, half = left + index * 8, max(2, int(level * tall / 2))
        cv2.rectangle(canvas, (x, middle - half), (x + 4, middle + half), WAVE, -1)


def frames(count: int, side: int) -> list[np.ndarray]:
    """Evenly spread frames of the demo clip."""
    every = list(demo_media.face_frames(4, rate=count, size=(side, side)))
    return every[:: max(1, len(every) // count)][:count]


def one_node() -> np.ndarray:
    """A face and what it says: the template with one node."""
    canvas = np.full((SIZE, SIZE, 3), PAPER, np.uint8)
    [face] = frames(1, 384)
    canvas[:384, 64:448] = face
    waveform(canvas, 40, SIZE - 40, 448, 90)
    return canvas


def whole_graph() -> np.ndarray:
    """The stages: frames, the face in each, the speech."""
    canvas = np.full((SIZE, SIZE, 3), PAPER, np.uint8)
    side, gap = 152, 12
    for column, face in enumerate(frames(3, 456)):
        x, small = gap + column * (side + gap), cv2.resize(face, (side, side), interpolation=cv2.INTER_AREA)
        canvas[20:20 + side, x:x + side] = small
        cv2.rectangle(canvas, (x + 45, 20 + 22), (x + side - 45, 20 + 90), BOX, 2)
        cv2.arrowedLine(canvas, (x + side // 2, 180), (x + side // 2, 212), INK, 2, cv2.LINE_AA, tipLength=0.35)
        crop = face[60:280, 118:338]
        canvas[220:220 + side, x:x + side] = cv2.resize(crop, (side, side), interpolation=cv2.INTER_AREA)
    waveform(canvas, gap, SIZE - gap, 446, 96)
    return canvas


def main() -> None:
    for name, draw in (("lip-sync-a-video", one_node), ("lipsync", whole_graph)):
        path = ROOT / "examples" / f"{name}.jpg"
        path.write_bytes(cv2.imencode(".jpg", draw()[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes())
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
