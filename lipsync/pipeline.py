"""All stages in a row, for use without ComfyUI. In a graph, the nodes call the same stages one by one."""
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from . import audio as audio_stage
from . import budget, denoise, face, folders, restore, sampler, sound, timeline, vae, weights
from .clip import check_target, copies_sound, open_clip, read_audio
from .errors import AudioError
from .face import MIN_SCORE, MIN_SIZE, SMOOTHINGS
from .journal import Journal
from .progress import Progress, silent
from .runners.base import Runner
from .runners.choice import AUTO
from .runners.pool import runner_for
from .silence import check_silence, with_silence

SAMPLER = "ddim"  # the reference's


@dataclass(frozen=True)
class Job:
    """What to do; the fields are the inputs of the nodes.

    video, audio: media files; `audio` may be a video with sound.
    out: the MP4 to write; its folder must exist.
    model: name of a checkpoint; None takes the first one found.
    face: which one, see `face.align_clip`. face_preview: a PNG to write that shows where it was found.
    work_rate: frames a second of the work and of the result; None keeps the clip's own.
    backend: see `runners.choice`. device: torch device name; None takes the GPU if there is one.
    silence, silence_db: what the mouth does in silence, and what that is, see `silence.with_silence`.
    encoder: of the pictures, see `ClipWriter`. lossless: write sound that cannot be copied from its file as FLAC instead of AAC.
    resume: keep finished blocks in `folders.jobs_dir()` until the job is done, and go on from those that are there.
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
    backend: str = AUTO
    silence: str = "off"
    silence_db: float = audio_stage.THRESHOLD_DB
    encoder: str = "auto"
    lossless: bool = False
    resume: bool = True


@dataclass(frozen=True)
class Result:
    """path: the clip written. summary: one line about faces and model, for people."""

    path: Path
    summary: str


@dataclass(frozen=True)
class Parts:
    """What to use instead of what the job would load for itself: a caller with many jobs loads it once. A runner given stays loaded."""

    runner: Runner | None = None
    vae: object | None = None
    encoder: audio_stage.WhisperEncoder | None = None
    detector: face.Detector | None = None


def run(job: Job, progress: Progress = silent, parts: Parts | None = None) -> Result:
    """Run every stage of `job`. What can be refused without work is refused first.

    Raises the errors of the stages, all `LatentSyncError`; `job.out` is written under a partial name and renamed at the end.
    """
    parts = parts or Parts()
    check_target(job.out, job.crf, job.encoder)
    sampler.schedule(SAMPLER, job.steps)
    check_silence(job.silence)
    device = torch.device(job.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model = weights.find_model(job.model)
    speech = read_audio(job.audio)
    if speech is None:
        raise AudioError(f"{job.audio} has no sound: give a file with speech in it.")
    seconds = sound.check(speech).seconds
    clip = open_clip(job.video, rate=job.work_rate)
    side, frames = job.resolution or model.resolution, len(_plan(job, clip.frame_count, clip.rate, seconds))
    temp, jobs = folders.temp_dir(), folders.jobs_dir() if job.resume else None
    budget.require(
        temp=temp,
        side=side,
        seconds=seconds,
        aligned=clip.frame_count,
        redrawn=frames,
        jobs=jobs,
        out={job.out.absolute().parent: budget.film(frames, clip.width, clip.height, float(frames / clip.rate), job.crf)},
    )
    detector = parts.detector or face.load_detector(job.detector)
    decoder = parts.vae or model.load_vae(path=job.vae, device=device)
    runner = parts.runner or runner_for(model, job.backend, device=device, resolution=side)
    encoder = parts.encoder or model.load_whisper()
    journal = Journal(jobs) if jobs else None
    with torch.inference_mode():
        features = audio_stage.extract(
            speech, encoder, windows=job.windows, device=device, spool_folder=temp, progress=progress
        )
        track = face.align_clip(
            clip,
            detector,
            side,
            choice=job.face,
            min_score=job.min_score,
            min_size=job.min_size,
            smooth=job.smooth,
            device=device,
            spool_folder=temp,
            progress=progress,
        )
        if job.face_preview is not None:
            track.write_preview(job.face_preview)
        plan = with_silence(_plan(job, len(track), clip.rate, features.seconds), features, job.silence, job.silence_db)
        try:
            latents = denoise.denoise_clip(
                runner,
                decoder,
                track,
                plan,
                features,
                steps=job.steps,
                guidance=job.guidance,
                seed=job.seed,
                sampler=SAMPLER,
                journal=journal,
                spool_folder=temp,
                progress=progress,
            )
        finally:
            if parts.runner is None:
                runner.unload()
        crops = vae.decode_crops(decoder, latents, track, plan, spool_folder=temp, progress=progress)
    voice = job.audio if copies_sound(job.audio, job.out) else features.audio
    encoding = {"crf": job.crf, "encoder": job.encoder, "lossless": job.lossless}
    path = restore.restore_clip(track, crops, voice, job.out, device=device, progress=progress, **encoding)
    if journal:
        journal.discard()
    notes = [track.summary(), f"Model: {model.description}", runner.model and runner.model.resolution_warning(side)]
    return Result(path, " ".join(filter(None, notes)))


def _plan(job: Job, frames: int, rate: Fraction, seconds: float) -> timeline.Timeline:
    return timeline.build(frames, rate, seconds, length=job.length, extend=job.extend)
