"""`bench`: what this machine needs for each stage, as a table, as JSON, and against another run."""
import argparse
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from ..bench import results
from ..lipsync import gpu
from ..lipsync.errors import DependencyError, LatentSyncError
from ..lipsync.unet import UNetConfig
from .models import model_name
from .terminal import TerminalProgress

HELP = "measure every stage on this machine (random weights; nothing to download), or compare two measurements"

LIMITS_HOLD_ON = "H200"
WEIGHTS = ("auto", "real", "random")  # of --published
WAYS = {"compare": "--compare", "profiles": "--profiles", "published": "--published", "groups": "the table of stages"}
OPTIONS = {  # that each way listens to
    "compare": ("compare",),
    "profiles": ("profiles", "json", "model", "device"),
    "published": ("published", "json", "device", "resolution", "dtype", "memory", "seconds", "weights", "video", "audio"),
    "groups": ("only", "json", "device", "resolution", "frames", "dtype", "compile", "memory"),
}
LONGEST = 600  # seconds of film
SIDES = 64  # px: the VAE makes 8 of them one, and the network halves that three times


def add_arguments(parser) -> None:
    parser.add_argument("--only", help="groups to measure, comma separated: unet, block, profiles, vae, faces, clip (default: all)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file: a new one, or one of `bench`, which is replaced; after Ctrl-C, too")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"), help="measure nothing: print two JSON files side by side")
    parser.add_argument(
        "--profiles", type=Path, nargs=2, metavar=("CLIP", "SPEECH"), help="measure what each profile of `run` costs and changes on this clip, by --model"
    )
    parser.add_argument("--model", type=model_name, help="for --profiles, as in `run` (default: first found)")
    parser.add_argument("--device", help="torch device (default: the GPU if there is one)")
    parser.add_argument("--resolution", type=int, default=512, help="px of the face crops, a multiple of 64 (default: 512; a CPU always does 64)")
    parser.add_argument("--frames", type=int, default=16, help="frames of a block, 1 to 24 (default: 16; a CPU does 2 at most)")
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16", help="of the networks on a GPU (default: float16)")
    parser.add_argument("--compile", action="store_true", help="also measure torch.compile (its first compilation takes minutes)")
    parser.add_argument("--published", action="store_true", help="whole jobs, as the published table has them: exact, with a runner, in fewer steps")
    parser.add_argument("--seconds", type=float, help="of film, for --published (default: 9.68; 0.4 without a GPU)")
    parser.add_argument("--weights", choices=WEIGHTS, default=WEIGHTS[0], help="for --published: 'auto' takes real ones where they are (default)")
    parser.add_argument("--video", type=Path, help="for --published: another clip than the published fixture")
    parser.add_argument("--audio", type=Path, help="for --published: another speech")
    parser.add_argument("--memory", type=float, help="GB of the GPU that the job (group 'clip', or --published) may use, as on a smaller card")


def main(arguments) -> int:
    way = check_options(arguments)
    if way == "compare":
        _write(results.comparison(*map(results.read, arguments.compare)))
        return 0
    report = results.Report(arguments.json)
    try:
        with report:
            return {"profiles": _profiles, "published": published, "groups": _groups}[way](arguments, report)
    except KeyboardInterrupt:
        sys.stderr.write(f"stopped; {report.left}\n")
        return 130


def check_options(arguments) -> str:
    """Which of WAYS is asked for. Raises LatentSyncError for an option that it does not listen to, and for a number that is not possible."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = [name for name in vars(parser.parse_args([])) if getattr(arguments, name) != parser.get_default(name)]
    way = next((way for way in WAYS if way in given), "groups")
    for name in given:
        if name not in OPTIONS[way]:
            others = " or ".join(WAYS[other] for other, options in OPTIONS.items() if name in options)
            raise LatentSyncError(f"--{name} says nothing to {WAYS[way]}, only to {others}: leave it out, or ask for that.")
    if arguments.resolution <= 0 or arguments.resolution % SIDES:
        near = max(SIDES, round(arguments.resolution / SIDES) * SIDES)
        raise LatentSyncError(f"--resolution is {arguments.resolution}, but must be a multiple of {SIDES}, such as {near}.")
    for name in ("seconds", "memory"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value < math.inf:
            raise LatentSyncError(f"--{name} is {value:g}, but must be more than 0, and finite.")
    if (arguments.seconds or 0) > LONGEST:
        raise LatentSyncError(f"--seconds is {arguments.seconds:g}, but every row draws that much film: {LONGEST} at most.")
    return way


def group_names(wish: str | None, cases: Iterable[str]) -> list[str]:
    """The groups of --only, each once; None is all. Raises LatentSyncError for one that there is not."""
    names = list(cases) if wish is None else list(dict.fromkeys(name.strip() for name in wish.split(",")))
    if unknown := [name for name in names if name not in cases]:
        raise LatentSyncError(f"there is nothing called {', '.join(map(repr, unknown))} to measure: choose from {', '.join(cases)}.")
    return names


def _groups(arguments, report: results.Report) -> int:
    from ..bench.cases import CASES

    names = group_names(arguments.only, CASES)
    if arguments.memory is not None and "clip" not in names:
        raise LatentSyncError(f"--memory is for the group clip, and only {', '.join(names)} would be measured: add clip, or leave --memory out.")
    if arguments.compile and "unet" not in names:
        raise LatentSyncError(f"--compile is for the group unet, and only {', '.join(names)} would be measured: add unet, or leave --compile out.")
    setup = _setup(arguments)
    facts = _machine(setup.device, report)
    report.content["settings"] = _settings(setup)
    if setup.small:
        _write("No GPU: a tiny network at 64 px, to compare one version with another.")
    failed, limited = [], LIMITS_HOLD_ON in facts.get("GPU", "")
    with torch.inference_mode(), gpu.on(setup.device):
        for name in names:
            torch.manual_seed(0)  # the same inputs in every run
            try:
                for row in CASES[name](setup):
                    report.rows.append(asdict(row))
                    _write(results.line(report.rows[-1], limited))
            except DependencyError as error:
                _write(f"{name}: {error}")
            except (LatentSyncError, torch.cuda.OutOfMemoryError) as error:
                failed.append(name)
                _write(f"{name} failed: {str(error).splitlines()[0]}")
            if setup.device.type == "cuda":
                torch.cuda.empty_cache()
    wrong = [f"{row['name']}: {row['value']:g} instead of 0 ({row['note']})" for row in results.broken(report.rows)]
    if failed:
        wrong.append(f"not measured to its end: {', '.join(failed)}, see above")
    if not report.rows:
        wrong.append("nothing was measured")
    if wrong:
        raise LatentSyncError("; ".join(wrong) + ".")
    return 0


def _profiles(arguments, report: results.Report) -> int:
    from ..bench import profiles
    from ..lipsync.compare.report import safe
    from ..lipsync.pipeline import Job

    clip, speech = arguments.profiles
    job = Job(video=clip, audio=speech, out=Path(tempfile.gettempdir()) / "unwritten.mp4", model=arguments.model, device=arguments.device)
    _machine(gpu.device_named(arguments.device), report)
    measured = report.content["profiles"] = []

    def kept(drifts: Iterable[dict]) -> Iterator[dict]:
        for one in drifts:
            measured.append(safe(one))
            report.rows.extend(asdict(row) for row in profiles.rows_of(one))
            progress.close()
            yield one

    with TerminalProgress(lines=False) as progress, torch.inference_mode():
        for line in profiles.table(kept(profiles.drift(job, progress))):
            _write(line)
    return 0


def _setup(arguments):
    from ..bench.cases import Setup

    device, most = gpu.device_named(arguments.device), UNetConfig().max_frames
    small = device.type == "cpu"
    if not 1 <= arguments.frames <= most:
        raise LatentSyncError(f"--frames is {arguments.frames}, but the network takes 1 to {most} at once.")
    if arguments.memory is not None:
        if small:
            raise LatentSyncError(f"--memory is {arguments.memory:g}, but that is of a GPU's, and this runs on {device}: leave it out.")
        total = torch.cuda.get_device_properties(device).total_memory / 1e9
        if arguments.memory > total:
            raise LatentSyncError(f"--memory is {arguments.memory:g} GB, but this GPU has {total:.1f}: give less, or leave it out.")
    return Setup(
        device=device,
        dtype=torch.float32 if small else getattr(torch, arguments.dtype),
        size=8 if small else arguments.resolution // 8,
        frames=min(2, arguments.frames) if small else arguments.frames,
        small=small,
        steps=2 if small else 20,
        compile=arguments.compile,
        memory=arguments.memory,
    )


def _settings(setup, **more) -> dict:
    """What the numbers are of, as far as it can be chosen."""
    kind = str(setup.dtype).removeprefix("torch.")
    settings = {"resolution": setup.size * 8, "frames": setup.frames, "steps": setup.steps, "dtype": kind, "memory": setup.memory, **more}
    return {name: value for name, value in settings.items() if value is not None}


def _machine(device: torch.device, report: results.Report) -> dict[str, str]:
    from ..bench.measure import machine

    facts = report.content["machine"] = machine(device)
    _write(", ".join(f"{name} {fact}" for name, fact in facts.items()))
    return facts


def published(arguments, report: results.Report) -> int:
    """`--published`: see bench/published.py."""
    from ..bench import published as table
    from ..lipsync.compare.report import safe
    from ..lipsync.runners.engines import installed_version

    setup = _setup(arguments)
    facts = _machine(setup.device, report)
    facts["TensorRT-RTX"] = installed_version() or "not installed"
    _write(f"TensorRT-RTX {facts['TensorRT-RTX']}; {str(setup.dtype).removeprefix('torch.')}, crops of {setup.size * 8} px, guidance 1.5, blocks of 16 frames")
    if setup.small:
        _write("NO GPU: a tiny network at 64 px on a short clip, to see that it works. These are no measurements of LatentSync.")
    media = {name: path.name for name in ("video", "audio") if (path := getattr(arguments, name))}
    report.content["settings"] = _settings(setup, seconds=arguments.seconds, weights=arguments.weights, **media)
    rows, failed = [], []
    said, told = (report.content.setdefault(name, []) for name in ("notes", "published"))

    def say(text: str) -> None:
        progress.close()
        said.append(text)
        _write(text)

    with TerminalProgress(lines=False) as progress, gpu.on(setup.device):
        measured = table.rows(
            setup, seconds=arguments.seconds, which=arguments.weights, video=arguments.video, audio=arguments.audio, say=say, failed=failed, progress=progress
        )
        for row in measured:
            progress.close()
            if not rows:
                _write(table.heading())
            rows.append(row)
            told.append(safe(asdict(row)))
            report.rows.append(safe(asdict(row.row())))
            _write(table.line(row, rows[0]))
    if rows:
        _write(f"Likeness and drift are to the film of the first row ({rows[0].name}). Every row is a whole job, its models loaded beforehand.")
    if any("ssim" in row.quality and "mouth_ssim" not in row.quality for row in rows):
        _write("No mouth is known in this film: SSIM and PSNR are the whole frame's.")
    _write(table.THEIRS)
    if failed:
        raise LatentSyncError(f"not measured: {'; '.join(failed)}: see above.")
    return 0


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
