"""What tests of pictures share: the reference's tensors and how near two pictures are."""
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "data" / "golden"
SEED = 11  # of the reference tensors


def psnr(first: np.ndarray, second: np.ndarray) -> float:
    """Of two pictures in 0..255, in dB."""
    return 10 * np.log10(255**2 / max(1e-9, ((first.astype(float) - second) ** 2).mean()))
