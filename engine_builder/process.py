"""The other end of `child.py`: starts a step, passes on how far it is, and ends it when it is no longer wanted."""
import json
import logging
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..lipsync import errors
from ..lipsync.errors import EngineError, LatentSyncError

log = logging.getLogger(__name__)

BEAT_SECONDS = 0.25  # how often the listener is asked whether to go on
END_SECONDS = 5  # for a killed process to be gone
TAIL_LINES = 5
SCRIPT = Path(__file__).with_name("child.py")


class Step:
    """A context in which the step runs; leaving it early kills the process.

    listen(fraction) is called from `check` and `result`, a few times a second whatever the process does, and may raise.
    """

    def __init__(self, name: str, folder: Path, job: dict, listen: Callable[[float], None]):
        self.name, self.listen, self.fraction, self.answer, self.said = name, listen, 0.0, {}, []
        self.output = folder / f"{name}.log"
        description = folder / f"{name}.json"
        description.write_text(json.dumps({"step": name, "folder": str(folder), "sys_path": sys.path, **job}), encoding="utf-8")
        self.command = [sys.executable, str(SCRIPT), str(description)]

    def __enter__(self) -> "Step":
        if not sys.executable:
            raise EngineError("an engine is built in a Python process of its own, and this Python does not know its own program.")
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output)
        self.lines: queue.Queue = queue.Queue()
        self.reader = threading.Thread(target=self._read, name="latentsync-build", daemon=True)
        self.reader.start()
        return self

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        self.reader.join(END_SECONDS)
        self.process.stdin.close()
        self.process.stdout.close()

    def check(self) -> None:
        """Take in what the process has said until now, and ask the listener. Does not wait."""
        while not self.lines.empty():
            line = self.lines.get()
            if line is None:  # the end, for `result` to find
                self.lines.put(None)
                break
            self._take(line)
        self.listen(self.fraction)

    def result(self) -> dict:
        """Wait for the step to end; what it found out. Raises EngineError with the process's own last words."""
        while True:
            try:
                line = self.lines.get(timeout=BEAT_SECONDS)
            except queue.Empty:
                self.listen(self.fraction)
                continue
            if line is None:
                break
            self._take(line)
            self.listen(self.fraction)
        while (code := self.process.poll()) is None:
            time.sleep(BEAT_SECONDS)
            self.listen(self.fraction)
        if code or "result" not in self.answer:
            raise self._failure(code)
        return self.answer["result"]

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            self.said.append(line.decode(errors="replace").strip())
            return
        if "progress" in message:
            self.fraction = max(self.fraction, message["progress"])
        elif "log" in message:
            self.said.append(message["log"])
            log.debug("%s: %s", self.name, message["log"])
        else:
            self.answer |= message

    def _failure(self, code: int) -> LatentSyncError:
        """What the process said was wrong, else the last that was heard of it and how it ended."""
        if "error" in self.answer:
            kind = getattr(errors, self.answer.get("kind", ""), EngineError)
            return kind(f"the engine was not built: {self.answer['error']}")
        output = self.output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        words = " ".join(self.said[-1:] or output[-TAIL_LINES:]) or "it said nothing"
        ending = f"ended with {code}" if code >= 0 else f"was ended from outside, signal {-code} (for lack of memory, perhaps)"
        return EngineError(f"the engine was not built: {words}. The process {ending} at step '{self.name}'.")
