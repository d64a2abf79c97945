"""Puts redrawn crops back into the clip: paste under a soft matte, frame by frame, then one encode.

Everything happens in the frame region the face covers; pixels outside the matte (see `matte`) keep their bytes. On a GPU, `overlay` does
the same for several frames at once.
"""
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import torch

from . import batched
from .ahead import ahead, in_order
from .crops import ComingCrops, Crops
from .errors import MediaError, ShapeError
from .face.align import ROUNDING, face_size, frame_region, shifted
from .face.track import FaceTrack
from .matte import soft_matte
from .overlay import Overlay
from .progress import Progress, silent

log = logging.getLogger(__name__)

CROP_RANGE = 127.5  # crops run over -1..1


def paste(frame: np.ndarray, crop: torch.Tensor | np.ndarray, matrix: np.ndarray, resolution: int) -> np.ndarray:
    """A copy of `frame` (uint8 [H,W,3]) with `crop` (float [3,r,r] in -1..1) in place of its face; `matrix` [2,3] aligned the crop.

    Raises ShapeError when crop and resolution differ, or the frame is not uint8 RGB.
    """
    crop = torch.as_tensor(crop)
    if tuple(crop.shape) != (3, resolution, resolution):
        raise ShapeError(f"the crop must be [3,{resolution},{resolution}] for resolution {resolution}; got {list(crop.shape)}")
    face = _resized(crop.detach().float().cpu()[None], resolution)
    return _paste_face(frame.copy(), (face + 1) * CROP_RANGE, matrix)


def paste_uint8(frame: np.ndarray, crop: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """`paste` for a crop in bytes, uint8 [r,r,3]: ten times less work for the resize, within a grey level."""
    return painted(frame.copy(), crop, matrix)


def painted(frame: np.ndarray, crop: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """`frame` itself, with the crop painted into it as by `paste_uint8`."""
    pixels = torch.from_numpy(np.ascontiguousarray(crop)).permute(2, 0, 1)[None]  # channels-last in memory: torch's fast way for bytes
    return _paste_face(frame, _resized(pixels, crop.shape[0]), matrix)


def _resized(crop, resolution):
    """Crop [1,3,r,r] -> face picture [h,w,3]: bicubic with antialias, as torchvision's resize in the reference."""
    width, height = face_size(resolution)
    face = torch.nn.functional.interpolate(crop, (height, width), mode="bicubic", antialias=True)
    return np.ascontiguousarray(face[0].permute(1, 2, 0).numpy())


def _paste_face(out, face, matrix):
    """Paints `face` [h,w,3], uint8 or float 0..255, into the frame `out` and returns it."""
    if out.ndim != 3 or out.shape[2] != 3 or out.dtype != np.uint8:
        raise ShapeError(f"the frame must be uint8 [H,W,3]; got {out.dtype} {list(out.shape)}")
    size = face.shape[1], face.shape[0]
    x0, y0, x1, y1 = frame_region(matrix, size, out.shape)
    if x1 <= x0 or y1 <= y0:
        return out
    lookup, region = shifted(matrix, x0, y0), (x1 - x0, y1 - y0)
    # Frame pixels look up the face picture (WARP_INVERSE_MAP), so the aligning matrix is used as it is.
    warped = cv2.warpAffine(face, lookup, region, flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REPLICATE)
    matte = soft_matte(lookup, size, region)
    target = out[y0:y1, x0:x1]
    if face.dtype == np.uint8:
        target[:] = cv2.blendLinear(target, warped, 1 - matte, matte)
        return out
    blend = target.astype(np.float32)
    blend += cv2.merge([matte] * 3) * (np.clip(warped, 0, 255, out=warped) - blend)
    blend += ROUNDING
    target[:] = blend.astype(np.uint8)
    return out


def restored_frames(
    track: FaceTrack, crops: Crops | ComingCrops, progress: Progress = silent, device: torch.device | str | None = None
) -> Iterator[np.ndarray]:
    """The output's frames, uint8 [H,W,3], in order, streamed: redrawn where the plan says so, else the clip's own bytes.

    device: a CUDA device pastes several frames at once; with any other, or None, OpenCV does it.
    Raises ShapeError when `crops` does not belong to `track`.
    """
    plan = crops.timeline
    redrawn = plan.redrawn(track.found)
    if len(redrawn) != len(crops):
        raise ShapeError(
            f"{len(crops)} crops for {len(redrawn)} frames to redraw: faces and crops come from different runs; "
            "wire the same LatentSync Align Face into decode and restore"
        )

    spoken = np.zeros(len(plan), bool)
    spoken[redrawn] = True

    def work(frames):
        rows = crops.rows()
        for frame, source, speaks in zip(frames, plan.source, spoken, strict=True):
            yield frame, next(rows) if speaks else None, track.matrices[source]

    device = batched.picture_device(device)
    with ahead(track.clip.frames_at(plan.source, crops.folder)) as frames:
        if device is None:
            painted = in_order(_one, work(frames))
        else:
            size = batched.frames_at_once(track.clip.width * track.clip.height * 3)
            painted = _together(work(frames), size, Overlay(crops.resolution, device))
        with closing(painted) as finished:
            for done, frame in enumerate(finished, 1):
                yield frame
                progress(done, len(plan), stage="restore")


def _one(item):
    frame, crop, matrix = item
    return frame if crop is None else painted(frame, crop, matrix)  # a clip's frames are ours to paint on


def _together(items, size, overlay):
    """`_one` of every item, `size` at once on the overlay's device; by OpenCV where that has no memory left."""

    def begin(group):
        marked = [item for item in group if item[1] is not None]
        try:
            finish = overlay.begin(*zip(*marked, strict=True)) if marked else None
        except torch.cuda.OutOfMemoryError:
            log.warning("no memory left on %s to restore %d frames: OpenCV does it, slower", overlay.device, len(marked))
            return lambda: [_one(item) for item in group]

        def done():
            if finish is not None:
                finish()
            return [frame for frame, _, _ in group]

        return done

    for frames in batched.overlapped(begin, batched.groups(items, size)):
        yield from frames


def restore_clip(
    track: FaceTrack,
    crops: Crops | ComingCrops,
    audio: dict | None,
    path: str | Path,
    *,
    crf: int = 18,
    device: torch.device | str | None = None,
    progress: Progress = silent,
    **encoding,
) -> Path:
    """Write the finished clip: `crops` pasted into the track's clip, encoded once, with `audio` (ComfyUI's AUDIO dict or None) -> `path`.

    Streams: never more than a few frames in memory. device: see `restored_frames`. `encoding` goes to `ClipWriter`.
    Nothing new is left at `path` when it fails or is cancelled.
    """
    from .clip import ClipWriter

    clip, path = track.clip, Path(path)
    encoding = {"look": clip.look, **encoding}
    with ClipWriter(path, clip.width, clip.height, crops.timeline.rate, audio=audio, crf=crf, **encoding) as writer:
        for frame in restored_frames(track, crops, progress, device):
            writer.write(frame)
    return path


def restore_images(
    track: FaceTrack, crops: Crops, *, device: torch.device | str | None = None, progress: Progress = silent
) -> torch.Tensor:
    """The finished frames as ComfyUI's IMAGE, float32 [N,H,W,3] in 0..1, on the CPU. device: see `restored_frames`.

    Holds the whole clip: raises MediaError when memory cannot.
    """
    shape = len(crops.timeline), track.clip.height, track.clip.width, 3
    try:
        images = torch.empty(shape)
    except RuntimeError as error:  # the allocator's own word
        gigabytes = np.prod(shape) * 4 / 1e9
        raise MediaError(f"{shape[0]} images {shape[2]}x{shape[1]} need {gigabytes:.1f} GB of memory: choose the video output") from error
    given = getattr(track.clip, "images", None)  # a clip made of an IMAGE: what is not redrawn stays as it was, in floats
    for image, frame, source in zip(images, restored_frames(track, crops, progress, device), crops.timeline.source, strict=True):
        torch.div(torch.from_numpy(frame), 255, out=image)
        if given is not None and given.is_floating_point():
            original = given[int(source), ..., :3].to(image)
            same = (original.clamp(0, 1) * 255).round() == torch.from_numpy(frame)
            torch.where(same, original, image, out=image)
    return images
