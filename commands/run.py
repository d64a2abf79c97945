"""`run`: one clip and one speech in, one clip out."""
import argparse
import contextlib
import sys
from pathlib import Path

import cv2
import numpy as np

from ..lipsync import audio, face, folders, journal, timeline
from ..lipsync.clip import ENCODERS
from ..lipsync.errors import MediaError
from ..lipsync.pipeline import Job, run
from ..lipsync.profiles import PROFILES
from ..lipsync.runners.choice import BACKENDS
from ..lipsync.silence import SILENCES
from .models import DEMO, add_download, download_models, model_name
from .terminal import TerminalProgress

HELP = "lip-sync one video to one speech"
DEFAULTS = Job(video=Path(), audio=Path(), out=Path())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    jobs = str(folders.jobs_dir()).replace("%", "%%")  # argparse formats what it is given
    parser.add_argument("--video", type=Path, required=True, help="the clip")
    parser.add_argument("--audio", type=Path, required=True, help="the new speech (a sound file, or a video with sound)")
    parser.add_argument("--out", type=Path, required=True, help="the MP4 to write")
    parser.add_argument("--model", type=model_name, default=DEFAULTS.model, help=f"file in models/latentsync, or {DEMO} (default: first found)")
    parser.add_argument("--vae", help="VAE file or folder (default: looked for in models/vae)")
    parser.add_argument("--profile", choices=PROFILES, default=DEFAULTS.profile, help="exact, or approximate for speed (default %(default)s)")
    parser.add_argument("--steps", type=int, default=DEFAULTS.steps, help=f"of {DEFAULTS.profile}; other than %(default)s is approximate too")
    parser.add_argument("--guidance", type=float, default=DEFAULTS.guidance, help="audio guidance, 1 = off (default %(default)s)")
    parser.add_argument("--seed", type=int, default=DEFAULTS.seed)
    parser.add_argument("--resolution", type=int, choices=(256, 512), default=DEFAULTS.resolution)
    parser.add_argument("--rate", choices=("25", "source"), default="25", help="frames a second of work and result (default %(default)s)")
    parser.add_argument("--length", choices=timeline.LENGTHS, default=DEFAULTS.length, help="how long the result is (default %(default)s)")
    parser.add_argument("--extend", choices=timeline.EXTENSIONS, default=DEFAULTS.extend, help="for a short clip (default %(default)s)")
    parser.add_argument("--face", type=face_choice, default=DEFAULTS.face, help="largest, left, right, or a number from the left, 0 first")
    parser.add_argument("--face-time", type=float, default=DEFAULTS.face_time, help="second of the clip at which --face is chosen")
    parser.add_argument("--face-mask", type=Path, help="instead of --face: a picture, not black where the face is in the first frame")
    parser.add_argument("--detector", choices=face.DETECTORS, default=DEFAULTS.detector)
    parser.add_argument("--min-score", type=float, default=DEFAULTS.min_score, help="0..1: pass over less sure faces (default %(default)s)")
    parser.add_argument("--min-size", type=int, default=DEFAULTS.min_size, help="pixels: pass over narrower faces (default %(default)s)")
    parser.add_argument("--smooth", choices=face.SMOOTHINGS, default=DEFAULTS.smooth, help="of the alignment (default %(default)s)")
    parser.add_argument("--face-preview", type=Path, help="a PNG to write: where the face was found and lost")
    parser.add_argument("--windows", choices=audio.WINDOWS, default=DEFAULTS.windows, help="audio context (default %(default)s)")
    parser.add_argument("--silence", choices=SILENCES, default=DEFAULTS.silence, help="what the mouth does in it (default %(default)s)")
    parser.add_argument("--silence-db", type=float, default=DEFAULTS.silence_db, help="quieter than this is silence (default %(default)s)")
    parser.add_argument("--backend", choices=BACKENDS, default=DEFAULTS.backend, help="what runs the network (default %(default)s)")
    parser.add_argument("--device", help="cuda, cuda:1, cpu (default: the GPU if there is one)")
    parser.add_argument("--crf", type=int, default=DEFAULTS.crf, help="H.264 quality, lower is better (default %(default)s)")
    parser.add_argument("--encoder", choices=("auto", *ENCODERS), default=DEFAULTS.encoder, help="of the pictures (default: libx264)")
    parser.add_argument("--lossless", action="store_true", help="write sound that cannot be copied from its file as FLAC, not AAC")
    parser.add_argument("--no-resume", dest="resume", action="store_false", help=f"do not keep finished blocks in {jobs}")
    add_download(parser)


def main(arguments: argparse.Namespace) -> int:
    options = {key: value for key, value in vars(arguments).items() if key in Job.__dataclass_fields__ and value is not None}
    if arguments.face_mask is not None:
        options["face"] = read_mask(arguments.face_mask)
    job = Job(**options, work_rate=None if arguments.rate == "source" else 25)
    with TerminalProgress() as progress:
        download_models(arguments, [job.model], progress)
        before = blocks()
        try:
            result = run(job, progress=progress)
        except KeyboardInterrupt:
            if not job.resume or blocks() <= before:
                raise
            progress.close()
            sys.stderr.write("stopped; the same command goes on from the last finished block\n")
            return 130
    sys.stdout.write(f"{result.summary}\n{result.path}\n")
    return 0


def blocks() -> set[tuple[str, int]]:
    """Finished blocks of unfinished jobs on disk; one that a job makes or finds again is new here, by its time."""
    found = set()
    for path in folders.jobs_dir().glob(f"*{journal.SUFFIX}"):
        with contextlib.suppress(OSError):  # another job is done with it
            found.add((path.name, path.stat().st_mtime_ns))
    return found


def face_choice(text: str) -> str:
    """An argument that `face.align_clip` takes as `choice`."""
    if text not in face.CHOICES and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(face.CHOICES)} and no number")
    return text


def read_mask(path: Path) -> np.ndarray:
    """A picture file as float32 [H,W] in 0..1. Raises MediaError when it cannot be read."""
    try:
        picture = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_GRAYSCALE)  # not imread: it takes no such name on Windows
    except (OSError, cv2.error) as error:
        raise MediaError(f"cannot open the mask {path}: {error}") from error
    if picture is None:
        raise MediaError(f"cannot open the mask {path}: it is no picture")
    return picture.astype(np.float32) / 255
