"""All stages in a row, for use without ComfyUI. In a graph, the nodes call the same stages one by one."""
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from . import audio, denoise, face, folders, restore, timeline, vae, weights
from .clip import open_clip, read_audio
from .errors import AudioError, MediaError
from .face import MIN_SCORE, MIN_SIZE, SMOOTHINGS
from .progress import Progress, silent
from .runners import TorchRunner


@dataclass(frozen=True)
class Job:
    """What to do; the fields are the inputs of the nodes.

    video, audio: media files; `audio` may be a video with sound.
    out: the MP4 to write; its folder must exist.
    model: name of a checkpoint; None takes the first one found.
    face: which one, see `face.align_clip`. face_preview: a PNG to write that shows where it was found.
    work_rate: frames a second of the work and of the result; None keeps the clip's own.
    device: torch device name; None takes the GPU if there is one.
    """

    video: Path
    audio: Path
    out: Path
    model: str | None = None
    vae: str | None = None
    steps: int = 20
    guidance: float = 1.5
    seed: int = 0
    resolution: int | None = None
    work_rate: int | Fraction | None = 25
    length: str = "audio"
    extend: str = "ping-pong"
    face: str | int | np.ndarray = "largest"
    detector: str = "auto"
    min_score: float = MIN_SCORE
    min_size: int = MIN_SIZE
    smooth: str = SMOOTHINGS[0]
    face_preview: Path | None = None
    windows: str = "overlapped"
    device: str | None = None
    crf: int = 18


@dataclass(frozen=True)
class Result:
    """path: the clip written. summary: one line about faces and model, for people."""

    path: Path
    summary: str


def run(job: Job, progress: Progress = silent) -> Result:
    """Run every stage of `job`. What can be refused without work is refused first.

    Raises the errors of the stages, all `LatentSyncError`; `job.out` is written under a partial name and renamed at the end.
    """
    if not job.out.absolute().parent.is_dir():
        raise MediaError(f"the folder of {job.out} does not exist: create it, or choose another --out.")
    device = torch.device(job.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model = weights.find_model(job.model)
    sound = read_audio(job.audio)
    if sound is None:
        raise AudioError(f"{job.audio} has no sound: give a file with speech in it.")
    clip = open_clip(job.video, rate=job.work_rate)
    detector = face.load_detector(job.detector)
    decoder = model.load_vae(path=job.vae, device=device)
    with torch.inference_mode():
        features = audio.extract(sound, model.load_whisper(), windows=job.windows, device=device, progress=progress)
        track = face.align_clip(
            clip,
            detector,
            job.resolution or model.resolution,
            choice=job.face,
            min_score=job.min_score,
            min_size=job.min_size,
            smooth=job.smooth,
            device=device,
            spool_folder=folders.temp_dir(),
            progress=progress,
        )
        if job.face_preview is not None:
            track.write_preview(job.face_preview)
        plan = timeline.build(len(track), clip.rate, features.seconds, length=job.length, extend=job.extend)
        runner = TorchRunner(lambda: model.load_unet(device=device), device)
        latents = denoise.denoise_clip(
            runner, decoder, track, plan, features, steps=job.steps, guidance=job.guidance, seed=job.seed, progress=progress
        )
        runner.unload()
        crops = vae.decode_crops(decoder, latents, track, plan, spool_folder=folders.temp_dir(), progress=progress)
    path = restore.restore_clip(track, crops, features.audio, job.out, crf=job.crf, device=device, progress=progress)
    return Result(path, f"{track.summary()} Model: {model.description}")
