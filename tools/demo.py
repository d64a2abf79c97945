"""`make demo`: a clip through the example workflow in a real ComfyUI on the CPU. By default, a drawn face that the demo model was not
trained on is to say what a synthesiser's voice says that it never heard; how well it does is measured on the result and printed.

    python tools/demo.py [--video CLIP] [--audio SPEECH] [--output build/demo/lipsync.mp4] [further options of examples/submit.py]
"""
import argparse
import json
import runpy
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import speech
from comfyui import ROOT, ComfyUIError, Server, exit_on_sigterm, own_models
from demo_data.held_out import FPS, HeldOut, held_out
from demo_data.talk import RATE
from demo_media import write_clip
from face_models import fetch

BASE = ROOT / "build" / "comfyui"
EXAMPLE = ROOT / "examples" / "api" / "lipsync.json"
STEPS = 8  # of the workflow's 20: the whole should take two cores three minutes at most
SECONDS, SEED = 4.0, 9  # of the default clip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--video", type=Path, help="default: a drawn face, made now")
    parser.add_argument("--audio", type=Path, help="default: a synthesiser's sentence, made now; with --video alone, that clip's own sound")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "demo" / "lipsync.mp4")
    options, further = parser.parse_known_args()
    exit_on_sigterm()
    for path in (options.video, options.audio):
        if path and not path.is_file():
            return fail(f"{path}: no such file")
    own = options.video or options.audio
    made = default_media(ROOT / "build" / "demo")
    video = options.video or made.clip
    audio = options.audio or (None if options.video else made.speech)
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
    if not own and options.output.is_file():
        print(reading(made, options.output))
    return 0


@dataclass(frozen=True)
class Media:
    """Files of a clip and of new speech for it, and the sound and the opening that belongs to it, see `demo_data.held_out`."""

    clip: Path
    speech: Path
    said: HeldOut


def default_media(folder: Path) -> Media:
    """Made anew each time (some seconds), so that half-written files of another run do no harm."""
    folder.mkdir(parents=True, exist_ok=True)
    said = held_out(SECONDS, SEED)
    write_clip(folder / "face.mp4", iter(said.frames), FPS)
    speech.save_wav(folder / "speech.wav", said.sound, RATE)
    return Media(folder / "face.mp4", folder / "speech.wav", said)


def reading(made: Media, result: Path) -> str:
    """How well the mouth in `result` follows the speech, in one line, and where the picture of it is."""
    import lip_reading
    from lip_strip import strip
    from PIL import Image

    frames = list(lip_reading.pack.clip.open_clip(result).frames())
    finder = lip_reading.pack.compare.mouths.Finder(lip_reading.pack.face.load_detector("mediapipe", ROOT / ".cache" / "face"))
    faces = [finder(frame) for frame in frames]
    mouth = lip_reading.of_faces(faces)
    picture = result.with_suffix(".png")
    Image.fromarray(strip(frames, faces, made.said.sound, RATE, mouth, made.said.truth, FPS)).save(picture)
    return f"{lip_reading.report(mouth, made.said.truth)}\n{shown(picture)} shows it"


def honest_line(further: list[str]) -> str:
    """What the model that was used says of itself."""
    submitted = argparse.ArgumentParser(add_help=False)
    (loader,) = (node for node in json.loads(EXAMPLE.read_text(encoding="utf-8")).values() if node["class_type"] == "LatentSyncModelLoad")
    submitted.add_argument("--model", default=loader["inputs"]["checkpoint"])
    submitted.add_argument("--steps", default=STEPS)
    submitted.add_argument("--profile")
    used, _ = submitted.parse_known_args(further)
    runpy.run_path(str(ROOT / "__main__.py"))["load_pack"]()
    from latentsync_rtx.lipsync.demo import BUNDLED
    from latentsync_rtx.lipsync.profiles import EXACT

    told = BUNDLED[used.model].description if used.model in BUNDLED else f"Model: {used.model}."
    own_steps = used.profile in (None, EXACT)  # the others have steps of their own
    return f"{told} ({f'{used.steps} steps' if own_steps else f'profile {used.profile}'})"


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
