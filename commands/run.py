"""`run`: one clip and one speech in, one clip out."""
import argparse
import sys
from pathlib import Path

from ..lipsync import audio, face, timeline, weights
from ..lipsync.pipeline import Job, run
from .terminal import TerminalProgress

HELP = "lip-sync one video to one speech"
DEFAULTS = Job(video=Path(), audio=Path(), out=Path())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--video", type=Path, required=True, help="the clip")
    parser.add_argument("--audio", type=Path, required=True, help="the new speech (a sound file, or a video with sound)")
    parser.add_argument("--out", type=Path, required=True, help="the MP4 to write")
    parser.add_argument("--model", default=DEFAULTS.model, help=f"checkpoint in models/latentsync, or {weights.DEMO!r} (default: the first found)")
    parser.add_argument("--vae", help="VAE file or folder (default: looked for in models/vae)")
    parser.add_argument("--steps", type=int, default=DEFAULTS.steps, help="denoising steps (default %(default)s)")
    parser.add_argument("--guidance", type=float, default=DEFAULTS.guidance, help="audio guidance, 1 = off (default %(default)s)")
    parser.add_argument("--seed", type=int, default=DEFAULTS.seed)
    parser.add_argument("--resolution", type=int, choices=(256, 512), default=DEFAULTS.resolution)
    parser.add_argument("--rate", choices=("25", "source"), default="25", help="frame rate of the work and the result (default %(default)s)")
    parser.add_argument("--length", choices=timeline.LENGTHS, default=DEFAULTS.length, help="how long the result is (default %(default)s)")
    parser.add_argument("--extend", choices=timeline.EXTENSIONS, default=DEFAULTS.extend, help="what a short clip does (default %(default)s)")
    parser.add_argument("--face", choices=face.CHOICES, default=DEFAULTS.face, help="which face (default %(default)s)")
    parser.add_argument("--detector", choices=face.DETECTORS, default=DEFAULTS.detector)
    parser.add_argument("--windows", choices=audio.WINDOWS, default=DEFAULTS.windows, help="audio context (default %(default)s)")
    parser.add_argument("--device", help="cuda, cuda:1, cpu (default: the GPU if there is one)")
    parser.add_argument("--crf", type=int, default=DEFAULTS.crf, help="H.264 quality, lower is better (default %(default)s)")
    parser.add_argument("--download", action="store_true", help="fetch missing model files from Hugging Face first")


def main(arguments: argparse.Namespace) -> int:
    options = {key: value for key, value in vars(arguments).items() if key in Job.__dataclass_fields__ and value is not None}
    job = Job(**options, work_rate=None if arguments.rate == "source" else 25)
    with TerminalProgress() as progress:
        if arguments.download:
            weights.download(job.model, progress=progress)
        result = run(job, progress=progress)
    sys.stdout.write(f"{result.summary}\n{result.path}\n")
    return 0
