"""What the commands that run jobs have in common: models by name, and the option --download."""
import argparse
from collections.abc import Iterable

from ..lipsync import weights
from ..lipsync.progress import Progress

DEMO = "demo"  # what people type, for a name that has spaces in it


def model_name(text: str) -> str:
    return weights.DEMO if text == DEMO else text


def add_download(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--download", action="store_true", help="fetch missing model files from Hugging Face first")


def download_models(arguments: argparse.Namespace, names: Iterable[str | None], progress: Progress) -> None:
    """What is missing of the models called `names`, if --download was given. Raises as `weights.download`."""
    for name in dict.fromkeys(names) if arguments.download else ():
        weights.download(name, progress=progress)
