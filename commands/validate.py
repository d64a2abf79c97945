"""`validate`: how near two clips are, and whether their mouths are in time with their speech."""
import argparse
import json
import sys
from pathlib import Path

from ..lipsync import compare, gpu
from ..lipsync.clip import open_clip, read_audio
from ..lipsync.errors import AudioError, MediaError
from ..lipsync.runners.engines import find_engine
from .terminal import TerminalProgress

HELP = "compare two clips: likeness, mouths, and how far they are behind their speech"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", type=Path, metavar="A.mp4", help="the clip to compare with")
    parser.add_argument("b", type=Path, metavar="B.mp4", help="the clip to judge")
    parser.add_argument("--audio", type=Path, help="the speech that both mouths should follow (default: each clip's own sound)")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    parser.add_argument("--png", type=Path, help="write the plot to this PNG")
    parser.add_argument("--strip", type=Path, help="write both clips side by side to this PNG")
    parser.add_argument("--max-frames", type=int, help="compare the first so many frames only")
    parser.add_argument("--resize", action="store_true", help="scale B to A's size where they differ (default: an error)")
    parser.add_argument("--detector", choices=compare.DETECTORS, default=compare.DETECTORS[0], help="of faces (default %(default)s)")
    parser.add_argument("--engine", metavar="NAME", help="also tell how near this built engine is to PyTorch")
    parser.add_argument("--device", help="cuda, cuda:1, cpu (default: the GPU if there is one)")


def main(arguments: argparse.Namespace) -> int:
    targets = [path for path in (arguments.json, arguments.png, arguments.strip) if path]
    check_targets(targets, [path for path in (arguments.a, arguments.b, arguments.audio) if path])
    if arguments.max_frames is not None and arguments.max_frames < 1:
        raise MediaError(f"--max-frames is {arguments.max_frames}: give at least 1, or leave it out for all frames.")
    device = gpu.device_named(arguments.device)
    engine = find_engine(arguments.engine) if arguments.engine else None
    a, b = open_clip(arguments.a), open_clip(arguments.b)
    speech = None
    if arguments.audio:
        speech = read_audio(arguments.audio)
        if speech is None:
            raise AudioError(f"{arguments.audio} has no sound: give a file with speech in it.")
    with TerminalProgress() as progress:
        found = compare.compare_clips(
            a,
            b,
            detector=compare.detector_for(arguments.detector),
            speech_a=speech or compare.sound_of(a),
            speech_b=speech or compare.sound_of(b),
            resize=arguments.resize,
            max_frames=arguments.max_frames,
            engine=engine,
            device=device,
            progress=progress,
        )
    if arguments.json:
        save_json(arguments.json, found.json())
    for path, draw in ((arguments.png, found.plot), (arguments.strip, found.strip)):
        if path:
            save_png(path, draw())
    sys.stdout.write("\n".join([found.summary(), *map(str, targets)]) + "\n")
    return 0


def check_targets(targets: list[Path], read: list[Path]) -> None:
    """Raises MediaError for a file that cannot be written, is read, or would be written twice: before minutes of comparing."""
    taken = {path.resolve(): "is one of the files to compare" for path in read}
    for path in targets:
        if not path.absolute().parent.is_dir():
            raise MediaError(f"cannot write {path}: there is no folder {path.absolute().parent}.")
        if path.is_dir():
            raise MediaError(f"cannot write {path}: it is a folder. Give the name of a file.")
        if why := taken.get(path.resolve()):
            raise MediaError(f"cannot write {path}: it {why}. Give another name.")
        taken[path.resolve()] = "is asked for twice"


def save_json(path: Path, numbers: dict) -> None:
    """Raises MediaError when it cannot be written."""
    try:
        path.write_text(json.dumps(numbers, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise MediaError(f"cannot write {path}: {error.strerror or error}.") from error


def save_png(path: Path, picture) -> None:
    """uint8 RGB [H,W,3]. Raises MediaError when it cannot be written."""
    from PIL import Image

    try:
        Image.fromarray(picture).save(path, format="PNG")
    except OSError as error:
        raise MediaError(f"cannot write {path}: {error.strerror or error}.") from error
