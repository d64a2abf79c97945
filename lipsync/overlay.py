"""Crops back into frames on a GPU: what `restore.paste` does, for several frames at once."""
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from . import batched
from .face.align import ROUNDING, common_regions, face_size, lookups_at
from .matte import blur_sigma, coarseness, edge_of, ramps


class Overlay:
    """Pastes crops of `resolution` px into frames on `device`; the resize's weights stay there."""

    def __init__(self, resolution: int, device: torch.device):
        self.device, self._size = device, face_size(resolution)
        self._columns, self._rows = (batched.resize_weights(resolution, length, batched.bicubic, device) for length in self._size)

    @torch.inference_mode()
    def begin(self, frames: Sequence[np.ndarray], crops: Sequence[np.ndarray], matrices: Sequence[np.ndarray]) -> Callable[[], None]:
        """Start on frames uint8 [H,W,3] of one shape, crops uint8 [r,r,3] and matrices [2,3]; what is returned paints into the frames."""
        origins, width, height = common_regions(matrices, self._size, frames[0].shape)
        if not width or not height:
            return lambda: None
        targets = [frame[y:y + height, x:x + width] for frame, (x, y) in zip(frames, origins, strict=True)]
        lookups = lookups_at(matrices, origins)
        faces = self._rows @ batched.to_device(crops, self.device).permute(0, 3, 1, 2).float() @ self._columns.T
        faces = batched.sample(faces, lookups, width, height, outside="border").clamp_(0, 255)
        pixels = batched.to_device(targets, self.device).permute(0, 3, 1, 2).float()
        pixels += self._matte(lookups, (width, height)) * faces.sub_(pixels)
        wait = batched.from_device(pixels.add_(ROUNDING).to(torch.uint8).permute(0, 2, 3, 1).contiguous())

        def finish():
            for target, result in zip(targets, wait(), strict=True):
                target[:] = result

        return finish

    def _matte(self, lookups: np.ndarray, region: tuple[int, int]) -> Tensor:
        """`matte.soft_matte` of each frame, [N,1,h,w]; the blur is two matrix products."""
        edges = [edge_of(lookup, self._size, region) for lookup in lookups]
        step = coarseness(min(edges))
        sides = [ramps(lookup, self._size, region, edge, step) for lookup, edge in zip(lookups, edges, strict=True)]
        across, down = (batched.to_device(part, self.device) for part in zip(*sides, strict=True))
        matte = (across[:, :, None, :] + down[:, :, :, None]).clamp_(0, 1).prod(1)
        widths = np.array([(-(-edge // step), blur_sigma(edge) / step) for edge in edges], np.float32)
        reach, sigma = batched.to_device(widths, self.device).unbind(1)
        matte = (_blur(matte.shape[1], reach, sigma) @ matte @ _blur(matte.shape[2], reach, sigma).mT)[:, None]
        if step > 1:
            matte = torch.nn.functional.interpolate(matte, scale_factor=step, mode="bilinear")
        return matte[..., :region[1], :region[0]].clamp(0, 1)


def _blur(length: int, reach: Tensor, sigma: Tensor) -> Tensor:
    """Gaussians of `reach` [N] px to each side as matrices [N,length,length]; beyond the ends the blur sees a mirror."""
    places = torch.arange(length, device=reach.device)
    row, column = places[:, None], places[None, :]
    reach, spread = reach[:, None, None], 2 * sigma[:, None, None] ** 2

    def weight(distance):
        return torch.exp(-(distance**2) / spread) * (distance.abs() <= reach)

    weights = weight(row - column) + weight(row + column) * (column > 0) + weight(2 * (length - 1) - row - column) * (column < length - 1)
    return weights / weights.sum(-1, keepdim=True)
