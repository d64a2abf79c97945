"""`make demo`: a clip through the example workflow in a real ComfyUI on the CPU.

    python tools/demo.py [--video CLIP] [--audio SPEECH] [--output build/demo/lipsync.mp4] [further options of examples/submit.py]
"""
import argparse
import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

from comfyui import ROOT, ComfyUIError, Server, exit_on_sigterm, own_models
from demo_media import make
from face_models import fetch

BASE = ROOT / "build" / "comfyui"
EXAMPLE = ROOT / "examples" / "api" / "lipsync.json"
STEPS = 4  # of the workflow's 20: the whole should take two cores two minutes at most


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--video", type=Path, help="default: a moving portrait, made now")
    parser.add_argument("--audio", type=Path, help="default: a synthesiser's sentence, made now; with --video alone, that clip's own sound")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "demo" / "lipsync.mp4")
    options, further = parser.parse_known_args()
    exit_on_sigterm()
    for path in (options.video, options.audio):
        if path and not path.is_file():
            return fail(f"{path}: no such file")
    clip, sound = make(ROOT / "build" / "demo")
    video = options.video or clip
    audio = options.audio or (None if options.video else sound)
    folder = BASE / "models" / "latentsync" / "face"
    folder.mkdir(parents=True, exist_ok=True)
    for file in fetch(ROOT / ".cache" / "face"):
        shutil.copyfile(file, folder / file.name)
    print("Starting ComfyUI on the CPU ...", flush=True)
    with Server(BASE, extra_model_paths=own_models()) as server:
        print(f"{server.url}   log: {shown(server.log_path)}", flush=True)
        command = [sys.executable, str(ROOT / "examples" / "submit.py"), "--server", server.url, "--output", str(options.output)]
        command += ["--video", str(video), *(["--audio", str(audio)] if audio else []), "--steps", str(STEPS)]
        status = subprocess.run([*command, *further], check=False, stdout=subprocess.DEVNULL).returncode
    if status:
        return fail(f"see {shown(server.log_path)}") if status != 130 else status
    print(f"{shown(options.output)}\n{honest_line(further)}")
    return 0


def honest_line(further: list[str]) -> str:
    """What the model that was used says of itself."""
    submitted = argparse.ArgumentParser(add_help=False)
    (loader,) = (node for node in json.loads(EXAMPLE.read_text(encoding="utf-8")).values() if node["class_type"] == "LatentSyncModelLoad")
    submitted.add_argument("--model", default=loader["inputs"]["checkpoint"])
    submitted.add_argument("--steps", default=STEPS)
    used, _ = submitted.parse_known_args(further)
    runpy.run_path(str(ROOT / "__main__.py"))["load_pack"]()
    from latentsync_rtx.lipsync.demo import BUNDLED

    told = BUNDLED[used.model].description if used.model in BUNDLED else f"Model: {used.model}."
    return f"{told} ({used.steps} steps)"


def shown(path: Path) -> Path:
    """As short as it can be written from here."""
    path = path.resolve()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ComfyUIError as error:
        sys.exit(fail(str(error)))
    except KeyboardInterrupt:
        sys.exit(130)
