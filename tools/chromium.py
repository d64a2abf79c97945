"""A Chromium for the browser tests: `python tools/chromium.py` prints where one is, and installs Debian's where there is none and it may.

CHROMIUM names one; else chromium, google-chrome and their like are looked for. Only root on a system with apt installs one; nobody else is asked
for a password.
"""
import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
HOW = "install one (Debian, as root: apt-get install chromium) or name one: CHROMIUM=/path/to/chrome"
# Debian's runs as root and offline: no sandbox, and none of its own calls home
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--mute-audio", "--autoplay-policy=no-user-gesture-required",
)  # fmt: skip


def find() -> str | None:
    """The program, or None."""
    named = os.environ.get("CHROMIUM")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)


def install() -> bool:
    """With apt, as root, without a question -> whether it worked."""
    if os.environ.get("CHROMIUM") or not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "chromium"]):
        done = subprocess.run(["apt-get", *command], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"apt-get {command[0]}: {done.stderr.strip()[-500:]}", file=sys.stderr)
            return False
    return find() is not None


if __name__ == "__main__":
    print(find() or (find() if install() else f"no Chromium: the browser tests are skipped. To run them, {HOW}"))
