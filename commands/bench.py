"""`bench`: what this machine needs for each stage, as a table, as JSON, and against another run."""
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from ..lipsync import gpu
from ..lipsync.errors import DependencyError, LatentSyncError
from .terminal import TerminalProgress

HELP = "measure every stage on this machine (random weights; nothing to download), or compare two measurements"

LIMITS_HOLD_ON = "H200"
WEIGHTS = ("auto", "real", "random")  # of --published


def add_arguments(parser) -> None:
    parser.add_argument("--only", help="groups to measure, comma separated: unet, block, profiles, vae, faces, clip (default: all)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"), help="measure nothing: print two JSON files side by side")
    parser.add_argument(
        "--profiles", type=Path, nargs=2, metavar=("CLIP", "SPEECH"), help="measure what each profile of `run` costs and changes on this clip, by --model"
    )
    parser.add_argument("--model", help="for --profiles, as in `run` (default: first found)")
    parser.add_argument("--device", help="torch device (default: the GPU if there is one)")
    parser.add_argument("--resolution", type=int, default=512, help="px of the face crops (default: 512; a CPU always does 64)")
    parser.add_argument("--frames", type=int, default=16, help="frames of a block (default: 16)")
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16", help="of the networks on a GPU (default: float16)")
    parser.add_argument("--compile", action="store_true", help="also measure torch.compile (its first compilation takes minutes)")
    parser.add_argument("--published", action="store_true", help="whole jobs, as the published table has them: exact, with a runner, in fewer steps")
    parser.add_argument("--seconds", type=float, help="of film, for --published (default: 9.68; 0.4 without a GPU)")
    parser.add_argument("--weights", choices=WEIGHTS, default=WEIGHTS[0], help="for --published: 'auto' takes real ones where they are (default)")
    parser.add_argument("--video", type=Path, help="for --published: another clip than the published fixture")
    parser.add_argument("--audio", type=Path, help="for --published: another speech")
    parser.add_argument("--memory", type=float, help="GB that the job (group 'clip') may use, as on a smaller card")


def main(arguments) -> int:
    if arguments.compare:
        _write(_comparison(*map(_read, arguments.compare)))
        return 0
    if arguments.profiles:
        return _profiles(arguments)
    if arguments.published:
        return published(arguments)
    from ..bench.cases import CASES

    names = arguments.only.split(",") if arguments.only else list(CASES)
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise LatentSyncError(f"there is nothing called {', '.join(unknown)} to measure: choose from {', '.join(CASES)}.")
    setup, facts = _setup(arguments), _machine()
    if setup.small:
        _write("No GPU: a tiny network at 64 px, to compare one version with another.")
    rows = []
    with torch.inference_mode():
        for name in names:
            try:
                for row in CASES[name](setup):
                    rows.append(asdict(row))
                    _write(_line(rows[-1], LIMITS_HOLD_ON in facts.get("GPU", "")))
            except DependencyError as error:
                _write(f"{name}: {error}")
            if setup.device.type == "cuda":
                torch.cuda.empty_cache()
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
    return 0


def _profiles(arguments) -> int:
    from ..bench.profiles import drift, table
    from ..lipsync.pipeline import Job

    clip, speech = arguments.profiles
    job = Job(video=clip, audio=speech, out=Path("unwritten.mp4"), model=arguments.model, device=arguments.device)
    _machine()
    with TerminalProgress() as progress, torch.inference_mode():
        for line in table(drift(job, progress)):
            _write(line)
    return 0


def _setup(arguments):
    from ..bench.cases import Setup

    device = gpu.device_named(arguments.device)
    small = device.type == "cpu"
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


def _machine() -> dict[str, str]:
    from ..bench.measure import machine

    facts = machine()
    _write(", ".join(f"{name} {fact}" for name, fact in facts.items()))
    return facts


def published(arguments) -> int:
    """`--published`: see bench/published.py."""
    from ..bench import published as table
    from ..lipsync.compare.report import safe
    from ..lipsync.runners.engines import installed_version

    setup, facts = _setup(arguments), _machine()
    facts["TensorRT-RTX"] = installed_version() or "not installed"
    _write(f"TensorRT-RTX {facts['TensorRT-RTX']}; {str(setup.dtype).removeprefix('torch.')}, crops of {setup.size * 8} px, guidance 1.5, blocks of 16 frames")
    if setup.small:
        _write("NO GPU: a tiny network at 64 px on a short clip, to see that it works. These are no measurements of LatentSync.")
    said, rows = [], []

    def say(text: str) -> None:
        said.append(text)
        _write(text)

    with TerminalProgress() as progress:
        measured = table.rows(
            setup, seconds=arguments.seconds, which=arguments.weights, video=arguments.video, audio=arguments.audio, say=say, progress=progress
        )
        for row in measured:
            progress.close()
            if not rows:
                _write(table.heading())
            rows.append(row)
            _write(table.line(row, rows[0]))
    if rows:
        _write(f"Likeness and drift are to the film of the first row ({rows[0].name}). Every row is a whole job, its models loaded beforehand.")
    if any("ssim" in row.quality and "mouth_ssim" not in row.quality for row in rows):
        _write("No mouth is known in this film: SSIM and PSNR are the whole frame's.")
    _write(table.THEIRS)
    if arguments.json:
        content = {"machine": facts, "rows": [asdict(row.row()) for row in rows], "published": [asdict(row) for row in rows], "notes": said}
        arguments.json.write_text(json.dumps(safe(content), indent=1, allow_nan=False) + "\n")
    return 0


def _line(row: dict, limited: bool) -> str:
    limits = [f"{row[key]:g}" for key in ("reach", "stretch") if limited and row[key] is not None]
    against = f"(<= {', '.join(limits)})" if limits else ""
    return f"{row['name']:66} {_number(row['value']):>10} {row['unit']:3} {against:12} {row['note']}".rstrip()


def _number(value: float) -> str:
    return f"{value:.1e}" if value and abs(value) < 1e-2 else f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) < 1000 else f"{value:.0f}"


def _read(path: Path) -> dict:
    try:
        measured = json.loads(path.read_text())
        return {"machine": measured["machine"], "rows": {row["name"]: row for row in measured["rows"]}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LatentSyncError(f"{path} holds no measurements: write some with `bench --json {path}` ({error}).") from error


def _comparison(before: dict, after: dict) -> str:
    lines = [f"{label}: {', '.join(f'{name} {fact}' for name, fact in one['machine'].items())}" for label, one in (("before", before), ("after", after))]
    for name in [*before["rows"], *(name for name in after["rows"] if name not in before["rows"])]:
        pair = [one["rows"].get(name) for one in (before, after)]
        numbers = [_number(row["value"]) if row else "-" for row in pair]
        ratio = f"x {pair[1]['value'] / pair[0]['value']:.3f}" if all(pair) and pair[0]["value"] else ""
        lines.append(f"{name:66} {numbers[0]:>10} {numbers[1]:>10} {(pair[0] or pair[1])['unit']:3} {ratio}".rstrip())
    return "\n".join(lines)


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
