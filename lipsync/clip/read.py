"""One door for every kind of clip: a file, a file in memory, an IMAGE tensor."""
import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from ..errors import ShapeError
from .base import Clip, as_rate
from .video import VideoClip

DEFAULT_RATE = Fraction(25)


def open_clip(
    source: "str | Path | io.BytesIO | torch.Tensor | np.ndarray | Clip",
    rate: Fraction | float | None = None,
    *,
    start: float = 0.0,
    duration: float = 0.0,
) -> Clip:
    """Open a clip for streaming.

    source  a path, a BytesIO with a media file, or an IMAGE tensor [N,H,W,C] (C = 1, 3 or 4; one picture [H,W,C] too; floats are 0..1,
            clamped and rounded; integers 0..255). A Clip is returned as it is.
    rate    frames a second to present. A file keeps its own by default and is retimed by its timestamps otherwise; for a tensor it
            says how fast the pictures follow each other (default 25).
    start, duration   of a file, only this part: seconds on its own clock; a duration of 0 goes to the end.

    Raises MediaError ("cannot open ...: ..." with the reason), ShapeError for a tensor that is no IMAGE.
    """
    if isinstance(source, Clip):
        return source
    rate = None if rate is None else as_rate(rate)
    if isinstance(source, np.ndarray):
        source = torch.from_numpy(source)
    if isinstance(source, torch.Tensor):
        return TensorClip(source, rate or DEFAULT_RATE)
    return VideoClip(source, rate, start, duration)


class TensorClip(Clip):
    """An IMAGE batch as a clip; the tensor is read one frame at a time, wherever it lives, and never copied whole."""

    def __init__(self, images: torch.Tensor, rate: Fraction):
        shape = list(images.shape)
        if images.ndim == 3:
            images = images[None]
        if images.ndim != 4 or images.shape[-1] not in (1, 3, 4) or 0 in images.shape:
            raise ShapeError(f"an IMAGE is [frames, height, width, channels] with 1, 3 or 4 channels and at least one frame, not {shape}")
        if images.is_complex():
            raise ShapeError(f"an IMAGE has real numbers, not {images.dtype}")
        self.images = images.detach()
        self.frame_count, self.height, self.width = images.shape[:3]
        self.rate = rate
        self.name = f"IMAGE batch of {self.frame_count}"
        self._fingerprint = ""

    @property
    def fingerprint(self) -> str:
        if not self._fingerprint:
            digest = hashlib.blake2b(f"{list(self.images.shape)}|{self.images.dtype}|{self.rate}".encode(), digest_size=32)
            for image in self.images:
                digest.update(image.contiguous().cpu().view(torch.uint8).numpy().data)
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def frames_at(self, indices: Sequence[int], folder: str | os.PathLike | None = None) -> Iterator[np.ndarray]:
        return (self._frame(index) for index in self._checked(indices).tolist())

    def _frame(self, index: int) -> np.ndarray:
        image = self.images[index, ..., :3]
        if image.is_floating_point():
            image = image.float().nan_to_num(0.0).clamp(0, 1).mul(255).round()
        elif image.dtype == torch.bool:
            image = image.to(torch.uint8) * 255
        else:
            image = image.clamp(0, 255)
        image = image.to(torch.uint8).expand(-1, -1, 3)
        return np.array(image.cpu().numpy(), order="C")  # a copy even of a uint8 tensor: the caller may paint on it
