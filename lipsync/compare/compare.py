"""Two clips in, a `Comparison` out: one pass over both, of which only numbers stay, and with SyncNet's weights one more over each."""
import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from .. import face, sound
from ..clip import Clip
from ..errors import FaceError
from ..progress import Progress, silent
from ..runners.engines import Engine
from . import mouths, sounds, syncnet
from .mfcc import mfcc
from .pairs import Pairs, frames_in_time
from .perceptual import load_lpips
from .pictures import Likeness
from .report import Comparison
from .strip import Strip

NONE = "none"
MESHED = "MediaPipe"  # the name of the detector that shows mouths
DETECTORS = ("mediapipe", "insightface", NONE)
SMOOTHING = 13  # frames of the running median that steadies SyncNet's crops; its authors' value


def detector_for(kind: str) -> face.Detector | None:
    """One of DETECTORS; "none" measures whole pictures only. Raises FaceError where its files are missing."""
    if kind not in DETECTORS:
        raise FaceError(f"{kind!r} is none of {', '.join(DETECTORS)}: choose one of them.")
    return None if kind == NONE else face.load_detector(kind)


@torch.inference_mode()
def compare_clips(
    a: Clip,
    b: Clip,
    *,
    detector: face.Detector | None,
    speech_a: dict | None = None,
    speech_b: dict | None = None,
    resize: bool = False,
    max_frames: int | None = None,
    guide: Clip | None = None,
    engine: Engine | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> Comparison:
    """Compare `b` with `a`, frame by frame in time; see docs/validate.md for the numbers.

    detector: finds the faces; only MediaPipe's mesh tells mouths. None: whole pictures only.
    speech_a, speech_b: AUDIO that the mouth of either clip should follow; often the same one.
    resize, max_frames: see `Pairs`. device: of SSIM, LPIPS and SyncNet.
    guide: a clip that shows the same scene, in which the mouth's place is looked for instead, where the pictures to compare are too
    damaged for it. engine: its comparison with PyTorch is told too.
    Raises ShapeError for sizes that differ, DependencyError without kornia, ModelFileError for a broken file of weights.
    """
    pairs = Pairs(a, b, resize=resize, max_frames=max_frames)
    result = Comparison(a, b, pairs, detector.name if detector else None, engine)
    lpips = load_lpips(device)
    if isinstance(lpips, str):
        result.lack("LPIPS", lpips)
        lpips = None
    _measure(result, detector, Likeness(device), lpips, guide, progress)
    _note_faces(result, detector)
    _offsets(result, {"a": speech_a, "b": speech_b}, device, progress)
    return result


def _measure(result, detector, likeness, lpips, guide, progress) -> None:
    """Fills the series, frame by frame."""
    pairs, series, strip = result.pairs, result.series, Strip(len(result.pairs))
    finders = [mouths.Finder(detector) for _ in range(3)] if detector else None
    with contextlib.closing(iter(pairs)) as frames, contextlib.closing(_guided(guide, pairs)) as guides:
        for k, (first, second) in enumerate(frames):
            row = dict(zip(("ssim", "error"), likeness(first, second), strict=True))
            if lpips:
                row["lpips"] = lpips(likeness.tensor(first), likeness.tensor(second))
            box, guiding = None, next(guides)
            if finders:
                face_a = finders[0](first)
                face_b = finders[1](second, near=face_a)
                row.update(_faces(face_a, face_b))
                meshes = [face.mesh for face in (face_a, face_b) if face is not None]
                if guiding is not None:
                    told = finders[2](guiding)
                    meshes = [] if told is None else [told.mesh] * 2
                for name, found in (("a", face_a), ("b", face_b)):
                    if found is not None:
                        result.boxes[name][k] = found.box
                if len(meshes) == 2 and all(mesh is not None for mesh in meshes):
                    box = mouths.mouth_box(meshes, first.shape)
                    row.update(zip(("mouth_ssim", "mouth_error"), likeness(first[box], second[box]), strict=True))
                    if lpips:
                        row["mouth_lpips"] = lpips(likeness.tensor(first[box]), likeness.tensor(second[box]))
            for name, value in row.items():
                series[name][k] = value
            strip.see(k, first, second, box)
            progress(k + 1, len(pairs), stage="compare")
    result.pictures = strip


def _guided(guide: Clip | None, pairs: Pairs) -> Iterator[np.ndarray | None]:
    if guide is None:
        yield from (None for _ in range(len(pairs)))
        return
    with contextlib.closing(guide.frames_at(frames_in_time(guide, pairs.rate, len(pairs)))) as frames:
        for frame in frames:
            yield pairs.as_first(frame) if frame.shape[:2] != (pairs.a.height, pairs.a.width) else frame


def _faces(a, b) -> dict[str, float]:
    row = {f"opening_{name}": mouths.opening(one.mesh) for name, one in (("a", a), ("b", b)) if one is not None and one.mesh is not None}
    if a is not None and b is not None:
        row["drift"], row["lip_drift"] = mouths.drift(a, b)
        row["face_size"] = a.size
    return row


def _note_faces(result, detector) -> None:
    count = len(result.pairs)
    if detector is None:
        result.lack("mouths and faces", "no detector was asked for")
        return
    for name in ("a", "b"):
        missing = result.without_face(name)
        if missing:
            result.notes.append(f"{missing} of {count} frames of {name.upper()} have no face: left out of what is measured on mouths.")
    if result.detector != MESHED:
        result.lack("mouth opening, mouth SSIM and PSNR, lip drift, A/V offset", f"{result.detector} gives no mesh of the mouth: use MediaPipe")
    elif why := sounds.why_no_correlation(result.series["opening_a"], result.series["opening_b"]):
        result.lack("correlation of the two mouths", why)


def _offsets(result, speeches, device, progress) -> None:
    spoken = {}
    for name, speech in speeches.items():
        if speech is None:
            result.lack(f"A/V offset of {name.upper()}", "it has no sound, and no speech was given")
            continue
        known = result.envelopes["a"] if speech is speeches["a"] else None
        loud = known if known is not None else sounds.envelope(speech, result.pairs.rate, len(result.pairs))
        result.envelopes[name] = loud
        opening = result.series[f"opening_{name}"]
        if np.isfinite(opening).any():
            spoken[name] = speech
            told = sounds.offset(opening, loud, result.pairs.rate)
            if isinstance(told, str):
                result.lack(f"mouth against speech in {name.upper()}", told)
            else:
                result.offsets[name]["envelope"] = told
                enough = sounds.needed(result.pairs.seconds)
                if told.score < enough:
                    result.notes.append(
                        f"{name.upper()}: mouth and speech correlate by {told.score:.2f}, which {result.pairs.seconds:.1f} s can do by chance: "
                        f"do not rely on its offset ({enough:.2f} is needed)."
                    )
        elif result.detector == MESHED:
            result.lack(f"A/V offset of {name.upper()}", "no frame shows its mouth")
    if not spoken:
        return
    network = syncnet.load_syncnet(device)
    if isinstance(network, str):
        result.lack("SyncNet's A/V offset", f"{network}. The {sounds.METHOD} is told instead")
        return
    for name, speech in spoken.items():
        told = _by_syncnet(result, name, speech, network, device, progress)
        if isinstance(told, str):
            result.lack(f"SyncNet's A/V offset of {name.upper()}", told)
        else:
            result.offsets[name]["syncnet"] = told


def _by_syncnet(result, name, speech, network, device, progress):
    samples = sound.mono_16k(sound.check(speech)).numpy()
    cepstra = mfcc(np.rint(samples * 32768).clip(-32768, 32767))
    count = int(result.pairs.seconds * syncnet.RATE)
    crops = _crops(result, name, count, progress)
    with contextlib.closing(crops):
        return syncnet.offset(network, crops, cepstra, device)


def _crops(result, name, count, progress) -> Iterator[np.ndarray | None]:
    """SyncNet's pictures of one clip at 25 frames a second, None where the comparison found no face."""
    from scipy.signal import medfilt

    boxes, pairs = result.boxes[name], result.pairs
    found = np.isfinite(boxes[:, 0])
    places = np.arange(len(boxes))
    if len(boxes) < SMOOTHING:  # one median of all
        steady = np.tile(np.nanmedian(boxes, 0), (len(boxes), 1))
    else:
        steady = np.stack([medfilt(np.interp(places, places[found], side[found]), SMOOTHING) for side in boxes.T], 1)
        edge = SMOOTHING // 2  # a median over the zeros beyond the ends is none
        steady[:edge], steady[-edge:] = steady[edge], steady[-edge - 1]
    clip = getattr(pairs, name)
    then = np.minimum((np.arange(count) * float(pairs.rate / syncnet.RATE)).astype(int), len(boxes) - 1)
    with contextlib.closing(clip.frames_at(frames_in_time(clip, syncnet.RATE, count))) as frames:
        for k, (frame, place) in enumerate(zip(frames, then, strict=True)):
            shown = pairs.as_first(frame) if name == "b" else frame
            yield syncnet.face_crop(shown, steady[place]) if found[place] else None
            progress(k + 1, count, stage=f"SyncNet on {name.upper()}")
