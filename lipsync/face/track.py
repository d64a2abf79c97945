"""The face track of a clip: one pass over its frames, one face followed, its aligned crops spooled as they are made."""
import logging
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
import torch

from ..ahead import ahead, in_order
from ..batched import frames_at_once, picture_device
from ..errors import FaceError, MediaError, ShapeError
from ..progress import Progress, silent
from ..spool import MEMORY_LIMIT, Spool, require_space
from . import preview
from .align import Aligner
from .detector import MIN_SCORE, MIN_SIZE, Detector
from .follower import Follower, Refused
from .identity import check_choice
from .look import pick
from .preview import Thumbnails
from .sights import Sight, aligned, cropped, cropped_together, followed, steadied
from .warp import Warper

if TYPE_CHECKING:
    from ..clip import Clip

log = logging.getLogger(__name__)

SMOOTHINGS = ("reference", "steady", "off")
DETECT_EVERY = 8  # frames
CROP_BYTES = 3


@dataclass
class FaceTrack:
    """What the socket LATENTSYNC_FACES carries; N frames of `clip`.

    resolution: side of the crops in px.
    found: bool [N], is there a reliable face.
    matrices: float32 [N,2,3], frame px -> px of the upright face picture (see `align`); zeros where not found.
    scores: float32 [N], 0..1; boxes: float32 [N,4], x0 y0 x1 y1 in px; zeros where not found.
    run_ids: int32 [N], -1 where not found; a new number after each gap, cut, or change of face.
    crops: uint8 rows [r,r,3], one for each found frame, in order.
    crop_row: int64 [N], the frame's row in `crops`, -1 where not found.
    cuts: bool [N], the first frame of each shot but the first.
    thumbnails: small pictures of some frames, for `preview`.
    detector: what found the faces and where it ran, for people (F09).
    frame_ms: milliseconds a frame that making the track took, reading included.
    """

    clip: "Clip"
    resolution: int
    found: np.ndarray
    matrices: np.ndarray
    scores: np.ndarray
    boxes: np.ndarray
    run_ids: np.ndarray
    crops: Spool
    crop_row: np.ndarray
    cuts: np.ndarray | None = None
    thumbnails: list[tuple[int, np.ndarray]] = field(default_factory=list)
    detector: str = ""
    frame_ms: float = 0.0

    def __len__(self) -> int:
        return len(self.found)

    def __post_init__(self):
        if self.cuts is None:
            self.cuts = np.zeros(len(self.found), bool)

    def preview(self) -> np.ndarray:
        """The track as one picture, uint8 [H,W,3] about 1280 px wide: found, lost, cuts, the face's place, and a contact sheet."""
        return preview.draw(self)

    def write_preview(self, path: str | Path) -> None:
        """`preview` as a picture file (.png, .jpg, ...). Raises MediaError when it cannot be written."""
        try:
            cv2.imencode(Path(path).suffix, self.preview()[..., ::-1])[1].tofile(path)  # not imwrite: it takes no such name on Windows
        except (OSError, cv2.error) as error:
            raise MediaError(f"cannot write the track's preview {path}: {error}") from error

    def gaps(self) -> list[tuple[int, int]]:
        """Stretches of frames without a face: (first, last), both inclusive."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], ~self.found, [False]])))
        return [(int(first), int(last) - 1) for first, last in zip(edges[::2], edges[1::2], strict=True)]

    def summary(self) -> str:
        """One line for people: how many frames have the face, which do not, how large it is, what found it."""
        gaps, count = self.gaps(), int(self.found.sum())
        widths = self.boxes[self.found, 2] - self.boxes[self.found, 0]
        runs = len(np.unique(self.run_ids[self.found]))
        text = f"Face found in {count} of {len(self)} frames, {widths.min():.0f} to {widths.max():.0f} px wide, "
        text += f"in {runs} run{'s' * (runs != 1)} ({self.detector}, {self.frame_ms:.1f} ms a frame)."
        if gaps:
            listed = ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in gaps[:5])
            more = f" and {len(gaps) - 5} more stretches" if len(gaps) > 5 else ""
            text += f" No face in frames {listed}{more}: they stay as they are."
        return text


def align_clip(
    clip: "Clip",
    detector: Detector,
    resolution: int = 512,
    *,
    choice: str | int | np.ndarray = "largest",
    choice_time: float = 0.0,
    min_size: float = MIN_SIZE,
    min_score: float = MIN_SCORE,
    smooth: str = SMOOTHINGS[0],
    detect_every: int = DETECT_EVERY,
    most_frames: int | None = None,
    device: torch.device | str | None = None,
    spool_folder: str | Path | None = None,
    progress: Progress = silent,
) -> FaceTrack:
    """Follow one face through `clip`, or its first `most_frames`, and cut it out, aligned.

    choice: "largest", "left", "right", an index from the left, or a mask [H,W]. It is made once; then that face is followed, also over a
    cut where it can be told. choice_time: the second of the clip at which it is made (0: where a face is first seen); before that, the same
    face is known by its looks. min_size, min_score: a face narrower (px) or less sure (0..1) does not count. detect_every: see `Follower`.
    smooth: "reference" smooths the alignment over time as LatentSync does (it hardly does), "steady" takes the jitter out of the landmarks
    first (see `steady`), "off" aligns each frame by itself.
    device: a CUDA device cuts the crops out of several frames at once; with any other, or None, OpenCV does it.

    Reading, following and warping overlap; a few frames are in memory at a time. Frames without a reliable face are marked, not guessed.
    Raises FaceError when no frame has a usable face (saying what was seen), MediaError for a clip without frames, DiskSpaceError when the
    crops cannot fit on disk.
    """
    choice = check_choice(choice)
    if smooth not in SMOOTHINGS:
        raise FaceError(f"unknown smoothing {smooth!r}: use one of {', '.join(SMOOTHINGS)}")
    if resolution < 8 or resolution % 8:
        raise ShapeError(f"resolution {resolution} is not a multiple of 8; the models were trained at 256 (1.5) and 512 (1.6)")
    count = clip.frame_count if most_frames is None else min(most_frames, clip.frame_count)
    need = count * resolution * resolution * CROP_BYTES
    if need > MEMORY_LIMIT and spool_folder is not None:
        require_space(spool_folder, need)
    if detector.note:
        log.warning("%s", detector.note)

    device = picture_device(device)
    follower, thumbnails = Follower(detector, choice, min_size, min_score, max(1, detect_every)), Thumbnails(count)
    pick(clip, choice_time, follower)
    crops = Spool((resolution, resolution, 3), folder=spool_folder)
    rows, first, started = [], None, time.perf_counter()

    def noted(sights: Iterator[Sight]) -> Iterator[Sight]:
        nonlocal first
        for index, sight in enumerate(sights):
            first = sight.frame if first is None else first
            thumbnails(index, sight)
            yield sight

    try:
        with ahead(clip.frames_at(range(count))) as frames:
            sights = noted(followed(_with_finds(frames, detector, min_size), follower))
            sights = aligned(steadied(sights) if smooth == "steady" else sights, Aligner(resolution, smooth != "off"))
            if device is None:
                done = in_order(partial(cropped, resolution=resolution), sights)
            else:
                done = cropped_together(sights, frames_at_once(clip.width * clip.height * 3), Warper(resolution, device))
            with closing(done):
                for sight in done:
                    rows.append(_row(sight))
                    if sight.crop is not None:
                        crops.append(sight.crop)
                    progress(len(rows), count, stage="align", preview=sight.crop)
        if not rows:
            raise MediaError(f"{clip.name} has no frames")
        if not len(crops):
            follower.look_closely(first)
            raise FaceError(_nothing_found(clip.name, len(rows), follower.refused, choice, detector))
    except BaseException:
        crops.close()
        raise
    found, matrices, scores, boxes, runs, cuts = (np.array(column) for column in zip(*rows, strict=True))
    made = FaceTrack(
        clip=clip,
        resolution=resolution,
        found=found.astype(bool),
        matrices=matrices.astype(np.float32),
        scores=scores.astype(np.float32),
        boxes=boxes.astype(np.float32),
        run_ids=runs.astype(np.int32),
        crops=crops,
        crop_row=np.where(found, np.cumsum(found) - 1, -1).astype(np.int64),
        cuts=cuts.astype(bool),
        thumbnails=thumbnails.pictures,
        detector=f"{detector.name} on {detector.device}, crops on {device or 'CPU'}",
        frame_ms=(time.perf_counter() - started) / len(rows) * 1e3,
    )
    log.info("%s", made.summary())
    return made


def _with_finds(frames, detector, min_size):
    """(frame, faces or None): a detector that cannot follow looks at every frame, several at once."""
    if hasattr(detector, "follow"):
        return ((frame, None) for frame in frames)
    return in_order(lambda frame: (frame, detector.detect([frame], min_size=min_size)[0]), frames)


def _row(sight):
    """A sight's row of the track: found, matrix, score, box, run, cut."""
    if sight.face is None:
        return False, np.zeros((2, 3)), 0.0, np.zeros(4), -1, sight.cut
    return True, sight.matrix, sight.face.score, sight.face.box, sight.run, sight.cut


def _nothing_found(name, frames, refused: Refused, choice, detector) -> str:
    text, face = f"no usable face in the {frames} frame{'s' * (frames != 1)} of {name} ({detector.name}): ", refused.face
    if refused.most:
        by_mask = isinstance(choice, np.ndarray)
        why = "the mask touches none" if by_mask else f"number {choice}, counted from 0 at the left, is not among them"
        return f"{text}up to {refused.most} were seen at once, but {why}. Choose another."
    if face is None:
        return text + "nothing in it looks like one. Drawn and animal faces are not recognised."
    place = f"{face.width:.0f}x{face.height:.0f} px in frame {refused.frame}, score {face.score:.2f}"
    return f"{text}the likeliest candidate ({place}) is {refused.reason}. Lower that to take it; a drawn or animal face is never sure."
