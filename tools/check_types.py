"""Checks the pack's types with mypy, under the name that tests and the command line load it as (the folder's own may be no Python name).

    python tools/check_types.py [MYPY'S OPTIONS]
"""
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".cache" / "types"  # holds the link `latentsync_rtx`, and what mypy remembers
PARTS = ("lipsync", "engine_builder", "commands", "nodes")


def main(options: list[str]) -> int:
    PLACE.mkdir(parents=True, exist_ok=True)
    link = PLACE / "latentsync_rtx"
    if not link.is_symlink():
        link.symlink_to(ROOT, target_is_directory=True)
    packages = [word for part in PARTS for word in ("-p", f"latentsync_rtx.{part}")]
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(PLACE / "mypy"), *packages, *options]
    return subprocess.run(command, cwd=PLACE, env={**os.environ, "PYTHONPATH": ""}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
