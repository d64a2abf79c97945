"""Everything the training machine cannot make itself, in one file: speech as mel spectra with mouth tracks, the portrait, the keep mask."""

import logging
import sys
from pathlib import Path

import numpy as np
import torch

from . import portrait as portraits
from . import talk

log = logging.getLogger(__name__)

WINDOW = 30  # s, of Whisper
MEL_LOW, MEL_STEP = -1.6, 0.0135  # mel spectra are kept as bytes: value = MEL_LOW + MEL_STEP * byte


def prepare(path: Path, pack, face_folder: Path, windows: int = 96, held_out: int = 6, seed: int = 1) -> None:
    """Write `path` (.npz): arrays named `train.*` and `test.*` (mel uint8 [W,80,3000], steps int64 [W], opening and spread uint8 [W,3000]),
    `portrait.*` and `natural.*` (the fields of a `Face`, sheets as uint8), `keep` float32 [256,256]. `pack` is the package latentsync_rtx.
    """
    arrays = {"keep": pack.lipsync.mask.keep_mask(256)}
    for name, count, voices, offset in (("train", windows, talk.TRAIN_VOICES, 0), ("test", held_out, talk.HELD_OUT_VOICES, 1000)):
        random = np.random.default_rng(seed + offset)
        parts = [window(voices, random, pack.lipsync.audio.log_mel, rough=name == "train") for _ in range(count)]
        for key, values in zip(("mel", "steps", "opening", "spread"), zip(*parts, strict=True), strict=True):
            arrays[f"{name}.{key}"] = np.stack(values)
        log.info("%s: %d windows of speech", name, count)
    for name, face in zip(("portrait", "natural"), real_face(pack, face_folder), strict=True):
        for key, value in vars(face).items():
            array = np.asarray(value)
            arrays[f"{name}.{key}"] = (array * 255).round().astype(np.uint8) if key == "sheet" else array
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)
    log.info("%s: %.1f MB", path, path.stat().st_size / 1e6)


def window(voices, random, log_mel, rough: bool):
    """One window of speech: mel as bytes [80,3000], its length in steps of 20 ms, opening and spread as bytes [3000] at 100 Hz.

    A third of them are shorter than 30 s, and end in the zeros (of the mel spectrum) that the encoder's window is filled up with.
    """
    seconds = float(random.uniform(3, 25)) if random.random() < 0.33 else float(WINDOW)
    seconds = round(seconds, 1)
    sound, opening, spread = talk.monologue(voices, seconds, random)
    if rough and random.random() < 0.75:
        sound = talk.roughened(sound, random)
    mel = log_mel(torch.from_numpy(sound)).numpy()
    mel = np.pad(mel, ((0, 0), (0, WINDOW * 100 - mel.shape[1])))
    full = WINDOW * talk.TRACK_RATE
    opening, spread = np.pad(opening, (0, full - len(opening))), np.pad(spread, (0, full - len(spread)), constant_values=1)
    packed = np.clip((mel - MEL_LOW) / MEL_STEP, 0, 255).round().astype(np.uint8)
    return packed, np.int64(seconds * 50), (opening * 255).round().astype(np.uint8), (spread * 200).clip(0, 255).round().astype(np.uint8)


def real_face(pack, face_folder: Path):
    """The astronaut as two faces; see `portrait.portrait`."""
    from skimage import data

    picture = data.astronaut()
    face = pack.lipsync.face.load_detector("mediapipe", face_folder).detect([picture])[0][0]
    return portraits.portrait(face.mesh, picture)


def main() -> None:
    """python -m demo_data.prepare OUT.npz FACE_FOLDER, from tools/."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    from .pack import load

    pack = load()
    prepare(Path(sys.argv[1]), pack, Path(sys.argv[2]), *map(int, sys.argv[3:]))


if __name__ == "__main__":
    main()
