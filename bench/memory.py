"""Does memory stay flat in the length of the clip? `make bench-memory` runs whole jobs of growing length, each in a process of its own.

    python bench/memory.py [--frames 250 2500] [--size 1920 1080] [--resolution 512] [--json FILE]

Everything is real but the networks and the detector (see `stubs`): the clip is read, aligned, encoded and decoded by a VAE of fixed
arithmetic, pasted back and written. Told is the most memory that was resident, less what the imports take; mapped files count while they
are touched. Exit status 1 when the longest job takes LIMIT more than the shortest, or would, at that slope, take MOST at ten minutes.
"""
# ruff: noqa: T201 - a program for a terminal
import argparse
import json
import runpy
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 100  # MB between the shortest and the longest job
MOST, TEN_MINUTES = 1500, 15000  # MB above the imports, for so many frames
RATE = 25


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, nargs="+", default=[250, 2500])
    parser.add_argument("--size", type=int, nargs=2, default=(1920, 1080), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--resolution", type=int, default=512)
    parser.add_argument("--folder", type=Path, help="for clips and temporary files (default: the system's)")
    parser.add_argument("--json", type=Path, help="write the figures there as well, as `bench --json` does")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # the child: the job in this folder
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(run_one(options.one, options.resolution)))
        return 0
    from latentsync_rtx.bench import results
    from latentsync_rtx.lipsync.errors import MediaError

    try:
        with results.Report(options.json) as report:
            return compared(options, report)
    except MediaError as error:
        parser.error(str(error))


def compared(options, report) -> int:
    """Measure every length, print, and keep the rows in `report`."""
    from latentsync_rtx.bench.measure import Row

    width, height = options.size
    print(f"{width}x{height}, crops of {options.resolution} px; resident memory above the imports, MB")
    print(f"{'frames':>7} {'peak':>7}  {'by stage':<58} {'seconds':>8} {'ms/frame':>9}")
    rows = [measured(count, options) for count in sorted(options.frames)]
    shortest, longest = rows[0], rows[-1]
    grown, more = longest["peak"] - shortest["peak"], longest["frames"] - shortest["frames"]
    slope = grown / more * 1000 if more else 0.0
    whole = max(shortest["peak"], longest["peak"] + max(0.0, slope) * (TEN_MINUTES - longest["frames"]) / 1000)
    print(f"slope {slope:+.1f} MB per 1000 frames; {grown:+.0f} MB from {shortest['frames']} to {longest['frames']} frames (limit {LIMIT})")
    print(f"ten minutes: {whole:.0f} MB at most by that slope (limit {MOST})")
    report.content |= {"settings": {"size": options.size, "resolution": options.resolution}, "jobs": rows, "slope": slope}
    report.rows.extend(asdict(Row(f"peak of {row['frames']} frames", row["peak"], "MB")) for row in rows)
    return int(grown > LIMIT or whole > MOST)


def measured(count: int, options) -> dict:
    """One job of `count` frames in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="latentsync-bench-", dir=options.folder) as folder:
        write_media(Path(folder), count, *options.size)
        command = [sys.executable, __file__, "--one", folder, "--resolution", str(options.resolution)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the job of {count} frames failed:\n{done.stderr[-4000:]}")
    row = {"frames": count, **json.loads(done.stdout.splitlines()[-1])}
    stages = ", ".join(f"{stage} {peak:.0f}" for stage, peak in row["stages"].items())
    print(f"{count:>7} {row['peak']:>7.0f}  {stages:<58} {row['seconds']:>8.1f} {row['seconds'] / count * 1000:>9.1f}", flush=True)
    return row


def write_media(folder: Path, count: int, width: int, height: int) -> None:
    """clip.mp4, a picture that drifts behind a still face, and speech.wav, noise, both `count` frames long."""
    import wave

    import numpy as np
    from latentsync_rtx.lipsync.clip import ClipWriter

    random = np.random.default_rng(0)
    coarse = random.integers(40, 200, (9, 16, 3)).astype(np.uint8)
    scene = coarse.repeat(-(-height // 9), 0).repeat(-(-width // 16), 1)[:height, :width]
    side = height // 2
    face = random.integers(90, 160, (8, 8, 3)).astype(np.uint8).repeat(-(-side // 8), 0).repeat(-(-side // 8), 1)[:side, :side]
    top, left = (height - side) // 2, (width - side) // 2
    with ClipWriter(folder / "clip.mp4", width, height, RATE, preset="ultrafast") as writer:
        for index in range(count):
            frame = np.roll(scene, 2 * index, 1)
            frame[top : top + side, left : left + side] = face
            writer.write(frame)
    with wave.open(str(folder / "speech.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        for _ in range(count):
            file.writeframes(random.integers(-9000, 9000, 16000 // RATE).astype(np.int16).tobytes())


def run_one(folder: Path, resolution: int) -> dict:
    """The job in `folder`: its peak and the peaks of its stages above the imports, in MB, and its seconds."""
    from latentsync_rtx.bench.stubs import LinearVAE, StubDetector, StubEncoder, StubRunner
    from latentsync_rtx.lipsync import folders, pipeline, weights

    folders.temp_dir = lambda: folder
    folders.jobs_dir = lambda: folder / "jobs"
    parts = pipeline.Parts(StubRunner(), LinearVAE(), StubEncoder(), StubDetector())
    made = pipeline.Job(
        folder / "clip.mp4", folder / "speech.wav", folder / "out.mp4", weights.DEMO, steps=2, guidance=1.0, resolution=resolution, device="cpu"
    )
    baseline, stages = resident(), {}

    def listen(done, total, *, stage="", preview=None):
        stages[stage] = max(stages.get(stage, 0.0), resident() - baseline)

    Path("/proc/self/clear_refs").write_text("5")  # the system's own high-water mark starts anew
    started = time.perf_counter()
    pipeline.run(made, listen, parts)
    return {"peak": status("VmHWM") - baseline, "baseline": baseline, "stages": stages, "seconds": time.perf_counter() - started}


def resident() -> float:
    return status("VmRSS")


def status(key: str) -> float:
    """MB"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024 / 1e6


if __name__ == "__main__":
    runpy.run_path(str(ROOT / "__main__.py"))["load_pack"]()
    sys.exit(main())
