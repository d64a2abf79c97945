"""`build-engine`: the network as a TensorRT-RTX engine."""
import argparse
import sys
from pathlib import Path

from .. import engine_builder
from ..engine_builder.builder import summary
from ..lipsync import weights
from .models import model_name
from .terminal import TerminalProgress

HELP = "build a TensorRT-RTX engine of a checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=model_name, help=f"checkpoint in models/latentsync, or {weights.DEMO!r} (default: the first found)")
    parser.add_argument("--out-dir", type=Path, help="default: models/latentsync/engines, where it is found again")
    parser.add_argument("--resolution", type=int, choices=(256, 512), default=512, help="of the face crops (default %(default)s)")
    parser.add_argument("--frames", type=int, default=16, help="of a block, 1 to 24; 22 and 24 were measured slower (default %(default)s)")
    parser.add_argument("--unguided", action="store_true", help="for guidance 1 only: half the batch")
    parser.add_argument(
        "--targets", default=engine_builder.PORTABLE, help="'portable', 'gpu' (the one here), or compute capabilities: 8.6,8.9,12.0"
    )
    parser.add_argument("--weight-streaming", action="store_true", help="let weights stay in system memory: for small cards, slower")
    parser.add_argument("--caching", action="store_true", help="a pair of engines that can also run profiles with block caching (docs/profiles.md)")
    parser.add_argument("--rebuild", action="store_true", help="also when the same engine is there")


def main(arguments: argparse.Namespace) -> int:
    named = arguments.targets in (engine_builder.PORTABLE, engine_builder.THIS_GPU)
    with TerminalProgress() as progress:
        manifest = engine_builder.build(
            weights.find_model(arguments.model),
            arguments.out_dir,
            resolution=arguments.resolution,
            frames=arguments.frames,
            guided=not arguments.unguided,
            targets=arguments.targets if named else arguments.targets.split(","),
            weight_streaming=arguments.weight_streaming,
            caching=arguments.caching,
            rebuild=arguments.rebuild,
            progress=progress,
        )
    sys.stdout.write(f"{summary(manifest)}\n{manifest['path']}\n")
    return 0
