"""What a batch gains over its jobs one by one, and how long the network stands idle between two.

    python bench/batch.py [--jobs 4] [--frames 242] [--size 1920 1080] [--resolution 512] [--steps 20]

On a GPU the networks have their real sizes and seeded random weights; elsewhere they are stubs, and only the order of things is real. Faces
are given (see `stubs`). Models are loaded and kernels compiled by a short job that is not counted.
"""
# ruff: noqa: T201 - a program for a terminal
import argparse
import json
import logging
import runpy
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--frames", type=int, default=242)
    parser.add_argument("--size", type=int, nargs=2, default=(1920, 1080), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--resolution", type=int, default=512)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="latentsync-bench-") as folder:
        told = measured(Path(folder), options)
    for name, value in told.items():
        print(f"{name}: {value}")
    return 0


def measured(folder: Path, options) -> dict:
    import torch
    from latentsync_rtx.bench.memory import write_media
    from latentsync_rtx.lipsync import folders, pipeline, weights
    from latentsync_rtx.lipsync.batch import Results, open_jobs, read_jobs, run_batch

    folders.temp_dir, folders.jobs_dir = lambda: folder, lambda: folder / "blocks"
    write_media(folder, options.frames, *options.size)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parts = models(device)
    line = {"video": "clip.mp4", "audio": "speech.wav", "model": weights.DEMO, "resolution": options.resolution, "steps": options.steps, "resume": False}
    file = folder / "jobs.jsonl"
    file.write_text("\n".join(json.dumps({**line, "seed": seed, "out": f"{seed}.mp4"}) for seed in range(options.jobs)))
    jobs = read_jobs(file)
    pipeline.run(replace(jobs[0].job, steps=1), parts=parts)
    started = time.perf_counter()
    alone = [pipeline.run(entry.job, parts=parts).path.read_bytes() for entry in jobs]
    one_by_one = time.perf_counter() - started
    results = Results(folder / "results.jsonl")
    started = time.perf_counter()
    failed = run_batch(open_jobs(jobs, results), results, parts=parts)
    together = time.perf_counter() - started
    lines = [json.loads(text) for text in results.path.read_text().splitlines()]
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu, stub networks",
        "jobs": f"{options.jobs} of {options.frames} frames at {options.size[0]}x{options.size[1]}, {options.steps} steps; {failed} failed",
        "one by one, s": round(one_by_one, 2),
        "batch, s": round(together, 2),
        "idle_seconds": [told["idle_seconds"] for told in lines],
        "stages of the last job, s": lines[-1].get("stages"),
        "the same files": [entry.job.out.read_bytes() for entry in jobs] == alone,
    }


def models(device):
    """Parts of the real sizes on a GPU, stubs elsewhere."""
    import torch
    from latentsync_rtx.bench import networks
    from latentsync_rtx.bench.plain_vae import BenchVAE
    from latentsync_rtx.bench.stubs import StubDetector
    from latentsync_rtx.lipsync.pipeline import Parts
    from latentsync_rtx.lipsync.runners import TorchRunner
    from latentsync_rtx.lipsync.whisper import TINY, WhisperEncoder
    from latentsync_rtx.tests.small_jobs import parts as small_parts

    if device.type != "cuda":
        return small_parts()
    runner = TorchRunner(networks.unet(device, torch.float16), device, torch.float16)
    vae = BenchVAE(networks.vae(device, torch.float16).to(memory_format=torch.channels_last), 4)
    return Parts(runner, vae, networks.seeded(WhisperEncoder(**TINY), 3), StubDetector())


if __name__ == "__main__":
    runpy.run_path(str(ROOT / "__main__.py"))["load_pack"]()
    sys.exit(main())
