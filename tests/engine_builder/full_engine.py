"""Builds the full-size engine with seeded weights and prints what it took: `python tests/engine_builder/full_engine.py`.

Minutes, 7 GB of memory, 6 GB of disk; no GPU. The engine is removed again unless --keep names a folder for it.
"""
import argparse
import hashlib
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import conftest  # noqa: F401 - loads the pack
from latentsync_rtx import engine_builder
from latentsync_rtx.lipsync.unet import LatentSyncUNet, UNetConfig


class SeededModel:
    """A full-size model whose tensors are made when they are asked for, one at a time, as they come out of a mapped file."""

    name, fingerprint = "seeded", "seeded-full-1"

    def __init__(self):
        self.config = UNetConfig()
        with torch.device("meta"):
            self.shapes = LatentSyncUNet(self.config).state_dict()

    def tensors(self) -> Mapping[str, torch.Tensor]:
        return _OnDemand(self.shapes)


class _OnDemand(Mapping):
    """Each a stretch of the same normal numbers: drawing 1.3 thousand million would take longer than reading a checkpoint."""

    def __init__(self, shapes: dict[str, torch.Tensor]):
        self.shapes = shapes
        largest = max(tensor.numel() for tensor in shapes.values())
        self.numbers = torch.randn(largest + (1 << 20), generator=torch.Generator().manual_seed(1))

    def __getitem__(self, name: str) -> torch.Tensor:
        shape = self.shapes[name].shape
        start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % (1 << 20)
        return self.numbers[start : start + shape.numel()].view(shape) * 0.5 / max(1, shape[1:].numel()) ** 0.5

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


class PeakMemory(threading.Thread):
    """The most that this process and its children held together, sampled: `total` counts mapped files, `own` does not."""

    def __init__(self):
        super().__init__(daemon=True)
        self.total = self.own = 0
        self.start()

    def run(self) -> None:
        me = psutil.Process()
        while True:
            try:
                infos = [process.memory_info() for process in [me, *me.children(recursive=True)]]
            except psutil.NoSuchProcess:
                continue
            self.total = max(self.total, sum(info.rss for info in infos))
            self.own = max(self.own, sum(info.rss - getattr(info, "shared", 0) for info in infos))
            time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--resolution", type=int, default=512)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--unguided", action="store_true")
    parser.add_argument("--targets", default="portable")
    parser.add_argument("--keep", type=Path, help="folder to leave the engine in")
    arguments = parser.parse_args()
    memory, shown = PeakMemory(), -1

    def progress(done: int, total: int, *, stage: str = "", preview=None) -> None:
        nonlocal shown
        if done >= shown + 10:
            shown = done
            sys.stderr.write(f"{stage}: {done} of {total}\n")

    with tempfile.TemporaryDirectory() as temporary:
        manifest = engine_builder.build(
            SeededModel(),
            arguments.keep or temporary,
            resolution=arguments.resolution,
            frames=arguments.frames,
            guided=not arguments.unguided,
            targets=arguments.targets,
            rebuild=True,
            progress=progress,
        )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = manifest["seconds"]
    rows = [
        ("export (with the weights)", f"{seconds['export']:.0f} s"),
        ("ahead-of-time build", f"{seconds['plan']:.0f} s"),
        ("all", f"{seconds['total']:.0f} s, of which the CPU worked {used.ru_utime + used.ru_stime:.0f} s"),
        ("peak memory of a build process", f"{manifest['peak_host_bytes'] / 1e9:.2f} GB"),
        ("peak memory, all processes together", f"{memory.total / 1e9:.2f} GB ({memory.own / 1e9:.2f} GB without mapped files)"),
        ("plan", f"{manifest['plan_bytes'] / 1e9:.3f} GB"),
        ("weights on the GPU", f"{manifest['weights_bytes'] / 1e9:.3f} GB"),
        ("activation memory", f"{manifest['activation_bytes'] / 1e9:.3f} GB"),
    ]
    name = f"{manifest['resolution']} px, {manifest['frames']} frames, {'guided' if manifest['guided'] else 'unguided'}, {manifest['targets']}"
    lines = [f"| {name} | TensorRT-RTX {manifest['tensorrt_rtx']}, torch {manifest['torch']} |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
