"""Puts redrawn crops back into the clip: paste under a soft matte, frame by frame, then one encode.

The matte is LatentSync's: the warped face rectangle, eroded, eroded again by a twentieth of the face's size on each side, and blurred.
Everything happens in the frame region the face covers; pixels outside the matte are never written.
"""
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import torch

from .ahead import ahead, in_order
from .crops import Crops
from .errors import MediaError, ShapeError
from .face.align import face_size, frame_region, inverse, shifted
from .face.track import FaceTrack
from .progress import Progress, silent

EDGE_SHARE = 20  # the matte's soft edge is sqrt(face area) / 20 wide
FINE_EDGE = 8  # the matte is computed on a grid this much finer than its soft edge
ROUNDING = 1e-3  # added before truncation: a grey value of 199.9999 is 200
CROP_ROWS = 8  # crops read from the spool at a time
CROP_RANGE = 127.5  # crops run over -1..1


def paste(frame: np.ndarray, crop: torch.Tensor | np.ndarray, matrix: np.ndarray, resolution: int) -> np.ndarray:
    """A copy of `frame` (uint8 [H,W,3]) with `crop` (float [3,r,r] in -1..1) in place of its face; `matrix` [2,3] aligned the crop.

    Raises ShapeError when crop and resolution differ, or the frame is not uint8 RGB.
    """
    crop = torch.as_tensor(crop)
    if tuple(crop.shape) != (3, resolution, resolution):
        raise ShapeError(f"the crop must be [3,{resolution},{resolution}] for resolution {resolution}; got {list(crop.shape)}")
    face = _resized(crop.detach().float().cpu()[None], resolution)
    return _paste_face(frame, (face + 1) * CROP_RANGE, matrix)


def paste_uint8(frame: np.ndarray, crop: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """`paste` for a crop in bytes, uint8 [r,r,3]: ten times less work for the resize, within a grey level."""
    pixels = torch.from_numpy(np.ascontiguousarray(crop)).permute(2, 0, 1)[None]  # channels-last in memory: torch's fast way for bytes
    return _paste_face(frame, _resized(pixels, crop.shape[0]), matrix)


def _resized(crop, resolution):
    """Crop [1,3,r,r] -> face picture [h,w,3]: bicubic with antialias, as torchvision's resize in the reference."""
    width, height = face_size(resolution)
    face = torch.nn.functional.interpolate(crop, (height, width), mode="bicubic", antialias=True)
    return np.ascontiguousarray(face[0].permute(1, 2, 0).numpy())


def _paste_face(frame, face, matrix):
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        raise ShapeError(f"the frame must be uint8 [H,W,3]; got {frame.dtype} {list(frame.shape)}")
    out = frame.copy()
    size = face.shape[1], face.shape[0]
    x0, y0, x1, y1 = frame_region(matrix, size, frame.shape)
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


def soft_matte(lookup: np.ndarray, size: tuple[int, int], region: tuple[int, int]) -> np.ndarray:
    """How much of the warped face picture a pixel shows, float32 [h,w] in 0..1.

    region: (w, h) in frame px; lookup [2,3] maps its pixels to those of a face picture of `size` (w, h).

    The reference warps a picture of ones, erodes it (2 x 2, then 2e x 2e) and blurs it. A warped rectangle is four straight ramps, and the
    minimum of a ramp over a box is the ramp at one corner of the box, so the eroded picture is computed directly, and on a grid of every
    few pixels where the blur is wide.
    Outside the region counts as in OpenCV: it never erodes, and the blur sees a mirror.
    """
    edge = int(_area(lookup, size, region) ** 0.5) // EDGE_SHARE
    step = max(1, edge // FINE_EDGE)
    if edge == 0:
        return _eroded(lookup, size, region, 0, 1)
    matte = _eroded(lookup, size, region, edge, step)
    side = 2 * -(-edge // step) + 1
    matte = cv2.GaussianBlur(matte, (side, side), (0.3 * (edge - 1) + 0.8) / step)
    if step > 1:
        matte = cv2.resize(matte, (matte.shape[1] * step, matte.shape[0] * step), interpolation=cv2.INTER_LINEAR)
    return np.clip(matte[:region[1], :region[0]], 0, 1)


def _area(lookup, size, region):
    """Pixels of the region under the face after the 2 x 2 erosion. (Summed in fp16, as in the reference, it overflows above 256 x 256.)"""
    spans = []
    for (a, b, _), length in zip(lookup, size, strict=True):  # where the ramps of `_eroded` pass one half
        spans.append((max(a, 0) + max(b, 0) - 0.5, length - 0.5 - max(-a, 0) - max(-b, 0)))
    (left, right), (top, bottom) = spans
    if right <= left or bottom <= top:
        return 0.0
    corners = np.array([[left, right, right, left], [top, top, bottom, bottom], [1, 1, 1, 1]])
    face = (inverse(lookup) @ corners).T.astype(np.float32)
    w, h = region[0] - 0.5, region[1] - 0.5
    frame = np.array([[-0.5, -0.5], [w, -0.5], [w, h], [-0.5, h]], np.float32)
    return float(cv2.intersectConvexConvex(face, frame)[0])


def _eroded(lookup, size, region, edge, step):
    """The warped picture of ones, eroded by 2 and, if `edge`, by 2*edge px squares; at the middle of each `step` x `step` cell."""
    (w, h), middle = region, (step - 1) / 2
    before, after = edge + 1, max(0, edge - 1)  # an even box reaches further back in OpenCV; the 2 x 2 one reaches back only
    x, y = (np.arange(-(-n // step), dtype=np.float32) * step + middle for n in (w, h))
    low, high = (np.maximum(x - before, 0), np.maximum(y - before, 0)), (np.minimum(x + after, w - 1), np.minimum(y + after, h - 1))
    matte = None
    for (a, b, c), length in zip(lookup, size, strict=True):
        # One edge rises from 0 at -1 to 1 at 0, the other falls from 1 at length - 1 to 0 at length.
        for slope_x, slope_y, start in ((a, b, c + 1), (-a, -b, length - c)):
            along_x, along_y = (low if slope_x > 0 else high)[0], (low if slope_y > 0 else high)[1]
            ramp = np.add.outer(slope_y * along_y + start, slope_x * along_x).astype(np.float32)
            np.clip(ramp, 0, 1, out=ramp)
            matte = ramp if matte is None else np.multiply(matte, ramp, out=matte)
    return matte


def restored_frames(track: FaceTrack, crops: Crops, progress: Progress = silent) -> Iterator[np.ndarray]:
    """The output's frames, uint8 [H,W,3], in order, streamed: redrawn where the plan says so, else the clip's own bytes.

    Raises ShapeError when `crops` does not belong to `track`.
    """
    plan = crops.timeline
    redrawn = plan.redrawn(track.found)
    if len(redrawn) != len(crops.images):
        raise ShapeError(
            f"{len(crops.images)} crops for {len(redrawn)} frames to redraw: faces and crops come from different runs; "
            "wire the same LatentSync Align Face into decode and restore"
        )

    def work():
        rows = iter(_rows(crops))
        spoken = np.zeros(len(plan), bool)
        spoken[redrawn] = True
        for frame, source, speaks in zip(track.clip.frames_at(plan.source, crops.images.folder), plan.source, spoken, strict=True):
            yield frame, next(rows) if speaks else None, track.matrices[source]

    def one(item):
        frame, crop, matrix = item
        return frame if crop is None else paste_uint8(frame, crop, matrix)

    with ahead(work()) as items:
        for done, frame in enumerate(in_order(one, items), 1):
            yield frame
            progress(done, len(plan), stage="restore")


def _rows(crops):
    for start in range(0, len(crops.images), CROP_ROWS):
        yield from crops.images.read(slice(start, start + CROP_ROWS))


def restore_clip(
    track: FaceTrack, crops: Crops, audio: dict | None, path: str | Path, *, crf: int = 18, progress: Progress = silent, **encoding
) -> Path:
    """Write the finished clip: `crops` pasted into the track's clip, encoded once, with `audio` (ComfyUI's AUDIO dict or None) -> `path`.

    Streams: never more than a few frames in memory. `encoding` goes to `ClipWriter`.
    Nothing new is left at `path` when it fails or is cancelled.
    """
    from .clip import ClipWriter

    clip, path = track.clip, Path(path)
    encoding = {"look": clip.look, **encoding}
    with ClipWriter(path, clip.width, clip.height, crops.timeline.rate, audio=audio, crf=crf, **encoding) as writer:
        for frame in restored_frames(track, crops, progress):
            writer.write(frame)
    return path


def restore_images(track: FaceTrack, crops: Crops, *, progress: Progress = silent) -> torch.Tensor:
    """The finished frames as ComfyUI's IMAGE, float32 [N,H,W,3] in 0..1. Holds the whole clip: raises MediaError when memory cannot."""
    shape = len(crops.timeline), track.clip.height, track.clip.width, 3
    try:
        images = torch.empty(shape)
    except RuntimeError as error:  # the allocator's own word
        gigabytes = np.prod(shape) * 4 / 1e9
        raise MediaError(f"{shape[0]} images {shape[2]}x{shape[1]} need {gigabytes:.1f} GB of memory: choose the video output") from error
    given = getattr(track.clip, "images", None)  # a clip made of an IMAGE: what is not redrawn stays as it was, in floats
    for image, frame, source in zip(images, restored_frames(track, crops, progress), crops.timeline.source, strict=True):
        torch.div(torch.from_numpy(frame), 255, out=image)
        if given is not None and given.is_floating_point():
            original = given[int(source), ..., :3].to(image)
            same = (original.clamp(0, 1) * 255).round() == torch.from_numpy(frame)
            torch.where(same, original, image, out=image)
    return images
