"""One frame on its way from the reader into the track, and the stages it passes: each takes a stream of sights and gives it on."""
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from .. import batched
from .align import Aligner, warp_crop
from .detector import Face
from .follower import Follower
from .steady import REACH, steady_points
from .warp import Warper

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Sight:
    """frame: uint8 [H,W,3]. face: the followed one, if it is there. run: see `FaceTrack.run_ids`. cut: the first frame of a shot.

    points: the landmarks to align to, [3,2]. matrix: float32 [2,3]. crop: uint8 [r,r,3]. All None without a face, and until their stage.
    """

    frame: np.ndarray
    face: Face | None = None
    run: int = -1
    cut: bool = False
    points: np.ndarray | None = None
    matrix: np.ndarray | None = None
    crop: np.ndarray | None = None


def followed(seen: Iterable[tuple[np.ndarray, list[Face] | None]], follower: Follower) -> Iterator[Sight]:
    """Frames, with the faces in them where the detector cannot follow by itself -> sights of one face."""
    run = -1
    for frame, finds in seen:
        face, fresh = follower(frame, finds)
        run += face is not None and fresh
        yield Sight(frame, cut=follower.cut) if face is None else Sight(frame, face, run, follower.cut, face.points)


def steadied(sights: Iterable[Sight]) -> Iterator[Sight]:
    """Landmarks without jitter, see `steady`; sights are given on `REACH` frames later, and all of a run when it ends."""
    before, waiting = deque(maxlen=REACH), deque()

    def next_one() -> Sight:
        points = [*before, *(sight.face.points for sight in waiting)]
        waiting[0].points = steady_points(points, len(before))
        before.append(waiting[0].face.points)
        return waiting.popleft()

    for sight in sights:
        if waiting and sight.run != waiting[-1].run:
            while waiting:
                yield next_one()
            before.clear()
        if sight.face is None:
            yield sight
            continue
        waiting.append(sight)
        if len(waiting) > REACH:
            yield next_one()
    while waiting:
        yield next_one()


def aligned(sights: Iterable[Sight], aligner: Aligner) -> Iterator[Sight]:
    """Matrices; nothing is carried from one run into another."""
    run = None
    for sight in sights:
        if sight.face is not None:
            if sight.run != run:
                aligner.reset()
                run = sight.run
            sight.matrix = aligner(sight.points[None])[0]
        yield sight


def cropped(sight: Sight, resolution: int) -> Sight:
    """The crop, by OpenCV."""
    if sight.face is not None:
        sight.crop = warp_crop(sight.frame, sight.matrix, resolution)
    return sight


def cropped_together(sights: Iterable[Sight], size: int, warper: Warper) -> Iterator[Sight]:
    """The crops of `size` sights at once, on the warper's device; by OpenCV where that has no memory left."""

    def begin(group):
        marked = [sight for sight in group if sight.face is not None]
        try:
            finish = warper.begin([sight.frame for sight in marked], [sight.matrix for sight in marked]) if marked else list
        except torch.cuda.OutOfMemoryError:
            log.warning("no memory left on %s to align %d frames: OpenCV does it, slower", warper.device, len(marked))
            return lambda: [cropped(sight, warper.resolution) for sight in group]

        def done():
            for sight, crop in zip(marked, finish(), strict=True):
                sight.crop = crop
            return group

        return done

    for group in batched.overlapped(begin, batched.groups(sights, size)):
        yield from group
