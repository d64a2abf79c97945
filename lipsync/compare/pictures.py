"""How alike two pictures are: SSIM by kornia, which ComfyUI ships, and PSNR."""
import math

import numpy as np
import torch
from torch import Tensor

from ..errors import DependencyError

WINDOW = 11  # px: of SSIM, with a Gaussian of sigma 1.5 (Wang et al. 2004, "Image quality assessment: from error visibility to ...")


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

    def __call__(self, a: Tensor, b: Tensor) -> tuple[float, float]:
        """(SSIM, mean squared error) of two pictures [1,3,H,W] in 0..1, over all three colours; NaN below WINDOW px."""
        if min(a.shape[2:]) < WINDOW:
            return math.nan, math.nan
        alike = self._ssim(a, b, WINDOW, padding="valid").mean()
        return alike.item(), torch.nn.functional.mse_loss(a, b).item()


def psnr(error: float) -> float:
    """dB of a mean squared error of pictures in 0..1; infinity for none."""
    return math.nan if math.isnan(error) else math.inf if error == 0 else -10 * math.log10(error)
