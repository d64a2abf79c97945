"""Frames to crops on a GPU: what `align.warp_crops` does, for several frames at once."""
from collections.abc import Callable, Sequence

import numpy as np
import torch

from .. import batched
from .align import BORDER, ROUNDING, common_regions, face_size, inverse, lookups_at


class Warper:
    """Cuts crops of `resolution` px out of frames on `device`; the resize's weights stay there."""

    def __init__(self, resolution: int, device: torch.device):
        self.resolution, self.device, self._size = resolution, device, face_size(resolution)
        self._columns, self._rows = (batched.resize_weights(length, resolution, batched.lanczos, device) for length in self._size)

    @torch.inference_mode()
    def begin(self, frames: Sequence[np.ndarray], matrices: Sequence[np.ndarray]) -> Callable[[], np.ndarray]:
        """Start on frames uint8 [H,W,3] of one shape and their matrices [2,3]; the call of what is returned gives uint8 [N,r,r,3].

        The frames are not needed any more when this returns.
        """
        origins, width, height = common_regions(matrices, self._size, frames[0].shape)
        if not width or not height:
            return lambda: np.full((len(frames), self.resolution, self.resolution, 3), BORDER, np.uint8)
        regions = [frame[y:y + height, x:x + width] for frame, (x, y) in zip(frames, origins, strict=True)]
        pixels = batched.to_device(regions, self.device).permute(0, 3, 1, 2).float() - BORDER  # so that zeros are the grey outside
        back = np.stack([inverse(lookup) for lookup in lookups_at(matrices, origins)])
        faces = batched.sample(pixels, back, *self._size, outside="zeros") + (BORDER + ROUNDING)
        faces = faces.clamp_(0, 255).floor_()  # truncated, as in the reference
        crops = self._rows @ faces @ self._columns.T
        return batched.from_device(crops.clamp_(0, 255).round_().to(torch.uint8).permute(0, 2, 3, 1).contiguous())
