"""How much disk a job will need, so that it is refused before the work and not after an hour of it."""
from collections.abc import Mapping
from pathlib import Path

from .spool import MEMORY_LIMIT, require_spaces

COLOURS, FLOAT, LATENT_CHANNELS, CELL = 3, 4, 4, 8  # bytes of a pixel and of a number; of a latent's shape
STATE_BYTES_PER_SECOND = 50 * 5 * 384 * FLOAT  # of Whisper's hidden states
BITS_PER_PIXEL = 0.1  # of H.264 at crf 18: a quiet talking head needs half, much grain several times that
SOUND_BYTES_PER_SECOND = 48_000  # of stereo AAC at most; FLAC and PCM are a few times larger, and small beside the pictures


def crops(count: int, side: int) -> int:
    """Bytes on disk of a spool of crops; none while they fit in memory."""
    return _spilled(count * side * side * COLOURS)


def latents(count: int, side: int) -> int:
    return _spilled(journal(count, side))


def journal(count: int, side: int) -> int:
    """Bytes of the finished blocks that are kept for a resume."""
    return count * LATENT_CHANNELS * (side // CELL) ** 2 * FLOAT


def film(frames: int, width: int, height: int, seconds: float, crf: float = 18) -> int:
    """About what a finished clip takes: every 6 less of crf doubles it."""
    return int(frames * width * height * BITS_PER_PIXEL * 2 ** ((18 - crf) / 6) / 8 + seconds * SOUND_BYTES_PER_SECOND)


def require(
    *,
    temp: Path,
    side: int,
    seconds: float = 0.0,
    aligned: int = 0,
    redrawn: int = 0,
    jobs: Path | None = None,
    out: Mapping[Path, int] | None = None,
) -> None:
    """Raises DiskSpaceError unless the folders have room for `aligned` crops and `redrawn` latents and crops of `side` px, and the states
    of `seconds` of sound, in `temp`; the same latents in `jobs`; and so many bytes in each folder of `out`."""
    needs = {temp: crops(aligned, side) + crops(redrawn, side) + latents(redrawn, side) + _spilled(int(seconds * STATE_BYTES_PER_SECOND))}
    for folder, size in {**({jobs: journal(redrawn, side)} if jobs else {}), **(out or {})}.items():
        needs[folder] = needs.get(folder, 0) + size
    require_spaces(needs)


def _spilled(size: int) -> int:
    return size if size > MEMORY_LIMIT else 0
