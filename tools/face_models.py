"""Puts MediaPipe's two face models where the pack finds them.

    python tools/face_models.py FOLDER      usually ComfyUI/models/latentsync/face

Downloads the mediapipe 0.10.21 wheel (35 MB, Apache-2.0) from the package index, takes `face_detection_short_range.tflite` (BlazeFace) and
`face_landmark.tflite` (FaceMesh) out of it and throws the rest away. Nothing is installed; the pack runs the files through OpenCV. Run it
again at no cost: files that are already right are kept.

InsightFace's models, which the pack can use instead, are not fetched by anything here: their licence allows non-commercial research only.
"""
import hashlib
import sys
import tempfile
import zipfile
from pathlib import Path

from comfyui import ComfyUIError, download

WHEEL = "mediapipe==0.10.21"
# the wheel for one platform serves all: the models in it are the same
PLATFORM = ("--python-version", "3.11", "--platform", "manylinux_2_28_x86_64")
MODULES = "mediapipe/modules/"
# path under MODULES: sha256
FILES = {
    "face_detection/face_detection_short_range.tflite": "bbff11cebd1eb27a1e004cae0b0e63ec8c551cbf34a4451148b4908b8db3eca8",
    "face_landmark/face_landmark.tflite": "1055cb9d4a9ca8b8c688902a3a5194311138ba256bcc94e336d8373a5f30c814",
}


def fetch(folder: Path) -> list[Path]:
    """Both files in `folder`, downloaded if they are not there yet. Raises ComfyUIError when that fails or brings other files."""
    wanted = {folder / Path(name).name: name for name in FILES}
    if all(path.is_file() and digest(path.read_bytes()) == FILES[name] for path, name in wanted.items()):
        return list(wanted)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work, zipfile.ZipFile(download(WHEEL, Path(work), *PLATFORM)) as archive:
        contents = {path: archive.read(MODULES + name) for path, name in wanted.items()}
    for path, content in contents.items():
        if digest(content) != FILES[wanted[path]]:
            raise ComfyUIError(f"{path.name} in {WHEEL} is not the file this pack was tested with (sha256 {digest(content)})")
        path.write_bytes(content)
    return list(wanted)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    try:
        for file in fetch(Path(sys.argv[1])):
            print(file)
    except ComfyUIError as error:
        sys.exit(f"error: {error}")
