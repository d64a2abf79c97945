"""Routes for our panels on the page: what runs the network here, and a frame of a clip with its faces.

They take names (of a checkpoint, an engine, a file in ComfyUI's input folder) and look these up; a name never becomes a path by itself. They
compute nothing lasting: a build goes through the queue.
"""
import asyncio
import base64
import functools
import logging
import math
import os
from pathlib import Path

import comfy.model_management
import cv2
import folder_paths

from ..lipsync import face, weights
from ..lipsync.clip import open_clip
from ..lipsync.errors import LatentSyncError, MediaError
from ..lipsync.face.look import frame_number, look
from ..lipsync.runners import engines
from ..lipsync.runners.choice import gpu_of
from ..lipsync.runners.manifest import unsupported
from ..lipsync.runners.pool import runner_for
from ..lipsync.runners.status import describe
from .engine_load import BEST, PRECISIONS
from .media import WORK_RATES

log = logging.getLogger(__name__)

PREFIX = "/latentsync-rtx"
SHOWN_PIXELS = 640  # longest side of the frame that is sent
FEW_AT_A_TIME = asyncio.Semaphore(2)  # frames that are decoded: a scrubber asks for many


def register(routes) -> None:
    """routes: `PromptServer.instance.routes`. May be called twice."""
    if any(getattr(route, "path", "").startswith(PREFIX) for route in routes):
        return
    for name, answer in (("status", status), ("look", seen)):
        routes.get(f"{PREFIX}/{name}")(functools.partial(_answered, answer))


async def _answered(answer, request):
    """What `answer(query)` gives, worked out beside the event loop; or {"error": for people}. request, response: aiohttp's."""
    from aiohttp import web  # here: importing it changes the warning filters

    try:
        async with FEW_AT_A_TIME:
            return web.json_response(await asyncio.to_thread(answer, dict(request.query)))
    except (LatentSyncError, ValueError) as error:
        return web.json_response({"error": str(error)}, status=400)
    except Exception as error:
        log.exception("%s failed", request.path)
        return web.json_response({"error": f"{type(error).__name__}: see ComfyUI's log"}, status=500)


def status(query: dict) -> dict:
    """Of {checkpoint, back_end, engine_file, precision}, each optional: `lines` to show, and whether an engine for this GPU can be built."""
    device = comfy.model_management.get_torch_device()
    gpu = gpu_of(device)
    why_not = unsupported(gpu) or ("" if engines.installed_version() else "the package tensorrt-rtx is not installed")
    found = {"lines": {"GPU": gpu.name if gpu else "none"}, "can_build_for_gpu": not why_not, "why_not_build": why_not}
    if not query.get("checkpoint"):
        return found | {"resolution": 512}
    model = weights.find_model(query["checkpoint"])
    found["resolution"] = model.resolution
    name = query.get("engine_file", BEST)
    engine = None if name == BEST else engines.find_engine(name)
    precision = PRECISIONS.get(query.get("precision", "auto"))
    runner = runner_for(model, query.get("back_end", "auto"), engine=engine, device=device, dtype=precision)
    return found | {"lines": describe(runner)}


def seen(query: dict) -> dict:
    """Of {name, seconds, work_rate, detector, min_score, min_size}: the frame shown then, and the faces in it that count, left to right.

    picture: a data URL. faces: [{box: [x0, y0, x1, y1] in 0..1 of the picture, score}]. seconds, duration, rate: of the clip as it is worked on.
    """
    clip = _clip(input_file(query.get("name", "")), query.get("work_rate"))
    detector = _detector(query.get("detector", "auto"))
    seconds = float(query.get("seconds", 0))
    if math.isnan(seconds):
        raise ValueError("seconds is not a number")
    limits = {"min_size": float(query.get("min_size", face.MIN_SIZE)), "min_score": float(query.get("min_score", face.MIN_SCORE))}
    frame, faces = look(clip, min(max(0.0, seconds), 1e6), detector, **limits)
    height, width = frame.shape[:2]
    scale = min(1.0, SHOWN_PIXELS / max(height, width))
    small = cv2.resize(frame, (max(1, round(width * scale)), max(1, round(height * scale))), interpolation=cv2.INTER_AREA)
    encoded = cv2.imencode(".jpg", small[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 85])[1]
    sides = (width, height, width, height)
    return {
        "picture": "data:image/jpeg;base64," + base64.b64encode(encoded.tobytes()).decode(),
        "faces": [{"box": [float(place) / side for place, side in zip(one.box, sides, strict=True)], "score": round(one.score, 3)} for one in faces],
        "seconds": frame_number(clip, min(max(0.0, seconds), 1e6)) / float(clip.rate),
        "duration": clip.duration,
        "rate": float(clip.rate),
    }


def input_file(name: str) -> Path:
    """The file that ComfyUI's loaders call `name`, in the input folder (or, with ComfyUI's own " [output]" and " [temp]", in these).

    Raises MediaError when there is none, or when the name leads out of the folder.
    """
    plain, base = folder_paths.annotated_filepath(name)
    folder = os.path.abspath(base or folder_paths.get_input_directory())
    path = os.path.abspath(os.path.join(folder, plain))
    if not plain or "\0" in name or os.path.commonpath((folder, path)) != folder or not os.path.isfile(path):
        raise MediaError(f"there is no clip {name!r} in ComfyUI's folder {os.path.basename(folder)}: choose one from the list.")
    return Path(path)


def _clip(path: Path, work_rate: str | None):
    stamp = path.stat()
    return _opened(path, work_rate, stamp.st_size, stamp.st_mtime_ns)


@functools.lru_cache(maxsize=4)
def _opened(path: Path, work_rate: str | None, _size: int, _time: int):
    """Opening reads the whole file's index: once for a scrubber's many looks."""
    return open_clip(path, rate=WORK_RATES.get(work_rate))


@functools.lru_cache(maxsize=3)
def _detector(kind: str):
    return face.load_detector(kind)
