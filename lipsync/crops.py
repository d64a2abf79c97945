"""The redrawn face crops of a job, between decode and restore."""
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch

from . import mapped
from .errors import ShapeError
from .journal import Journal
from .progress import Progress, silent
from .spool import Spool
from .timeline import Timeline

ROWS = 16  # crops converted at a time
IMAGES_IN_MEMORY = 2 << 30  # bytes of an IMAGE; above that it is in a file
STAGE = "convert"  # in progress reports


@dataclass
class Crops:
    """What the socket LATENTSYNC_CROPS carries.

    images: one uint8 [r,r,3] row for each redrawn output frame, in order; on disk when large.
    timeline: the plan that says which output frames those are.
    journal: of the job that made them; whoever finishes the job discards it.
    """

    images: Spool
    timeline: Timeline
    journal: Journal | None = None

    @property
    def resolution(self) -> int:
        """Side of the square crops in pixels."""
        return self.images.shape[0]

    @property
    def folder(self) -> Path:
        """For what grows with the clip."""
        return self.images.folder

    def __len__(self) -> int:
        return len(self.images)

    def rows(self) -> Iterator[np.ndarray]:
        """One after the other."""
        for rows in _chunks(len(self)):
            yield from self.images.read(rows)

    def to_images(self, spool_folder: Path | None = None, progress: Progress = silent) -> torch.Tensor:
        """ComfyUI's IMAGE of all crops: float32 [M,r,r,3] in 0..1; in a file in `spool_folder` when it is large (12 GB for 4,000 of 512 px)."""
        images = mapped.zeros((len(self.images), *self.images.shape), folder=spool_folder, memory_limit_bytes=IMAGES_IN_MEMORY)
        for rows in _chunks(len(self.images)):
            images[rows] = torch.from_numpy(self.images.read(rows)).float() / 255
            mapped.release(images)
            progress(rows.stop, len(self.images), stage=STAGE)
        return images

    @classmethod
    def from_images(cls, images: torch.Tensor, like: "Crops", spool_folder: Path, progress: Progress = silent) -> "Crops":
        """Crops from an IMAGE batch [M,H,W,3 or 4] in 0..1 that stand where `like`'s stood; another size is resized (area) to `like`'s.

        Raises ShapeError when the count or the channels differ.
        """
        if images.ndim != 4 or images.shape[0] != len(like.images) or images.shape[-1] not in (3, 4):
            raise ShapeError(
                f"{len(like.images)} RGB images of the crops are needed, but the batch has shape {tuple(images.shape)}: "
                "put exactly the images of LatentSync Crops to Images through your restorer, in order."
            )
        spool = Spool(like.images.shape, folder=spool_folder)
        for rows in _chunks(len(images)):
            block = (images[rows, ..., :3].float().nan_to_num(0.0).clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
            mapped.release(images)
            spool.append(np.stack([_resized(image, like.resolution) for image in block]))
            progress(rows.stop, len(images), stage=STAGE)
        return cls(spool, like.timeline, like.journal)


@dataclass
class ComingCrops:
    """Crops that are still being made: what restoring asks of `Crops`, once.

    pieces: uint8 [n,r,r,3], in order, `count` crops in all.
    """

    pieces: Iterator[np.ndarray]
    count: int
    timeline: Timeline
    resolution: int
    folder: Path

    def __len__(self) -> int:
        return self.count

    def rows(self) -> Iterator[np.ndarray]:
        return itertools.chain.from_iterable(self.pieces)


def _chunks(count: int) -> Iterator[slice]:
    return (slice(start, min(start + ROWS, count)) for start in range(0, count, ROWS))


def _resized(image: np.ndarray, side: int) -> np.ndarray:
    if image.shape[:2] == (side, side):
        return image
    return cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA if image.shape[0] > side else cv2.INTER_CUBIC)
