"""How alike two pictures are: SSIM by kornia, which ComfyUI ships, and PSNR."""
import math

import numpy as np
import torch
from torch import Tensor

from ..errors import DependencyError

WINDOW = 11  # px: of SSIM, with a Gaussian of sigma 1.5 (Wang et al. 2004, "Image quality assessment: from error visibility to ...")

PIXELS = 1 << 17  # of a picture at once on a CPU: in the large temporary tensors of a whole one, the system would spend more time than we


class Likeness:
    """SSIM and mean squared error of pairs of pictures, on `device`. Raises DependencyError where kornia is missing."""

    def __init__(self, device: torch.device | str = "cpu"):
        try:
            from kornia.metrics import ssim
        except ImportError as error:
            raise DependencyError("comparing pictures needs kornia, which ComfyUI ships: pip install kornia") from error
        self._ssim, self.device = ssim, torch.device(device)

    def tensor(self, frame: np.ndarray) -> Tensor:
        """uint8 [H,W,3] -> float32 [1,3,H,W] in 0..1 on the device."""
        return torch.from_numpy(np.ascontiguousarray(frame)).to(self.device).permute(2, 0, 1)[None].float() / 255

    def __call__(self, a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
        """(SSIM, mean squared error in 0..1) of two pictures, uint8 [H,W,3], over all three colours; NaN below WINDOW px."""
        height, width = a.shape[:2]
        if min(height, width) < WINDOW:
            return math.nan, math.nan
        rows = height if self.device.type != "cpu" else max(1, PIXELS // width)
        alike = error = 0.0
        for top in range(0, height - WINDOW + 1, rows):
            last = top + rows >= height - WINDOW + 1
            band = slice(top, height if last else top + rows + WINDOW - 1)
            one, other = self.tensor(a[band]), self.tensor(b[band])
            alike += self._ssim(one, other, WINDOW, padding="valid").sum().item()
            own = slice(None if last else rows)  # the next band has the rest
            error += (one[:, :, own] - other[:, :, own]).square().sum().item()
        return alike / (3 * (height - WINDOW + 1) * (width - WINDOW + 1)), error / (3 * height * width)


def psnr(error: float) -> float:
    """dB of a mean squared error of pictures in 0..1; infinity for none."""
    return math.nan if math.isnan(error) else math.inf if error == 0 else -10 * math.log10(error)
