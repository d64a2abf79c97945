"""What became of each job: one JSON object a line, appended as jobs end. The same file says what a batch started again need not do."""
import json
import logging
import os
import threading
from datetime import datetime, timezone
from pathlib import Path

from ..errors import MediaError
from .jobs import STDIN, Entry

log = logging.getLogger(__name__)

DONE, FAILED = "done", "failed"


def results_path(jobs: str | Path) -> Path:
    """Where results go when nobody says where: beside the jobs file."""
    return Path("results.jsonl") if str(jobs) == STDIN else Path(jobs).with_suffix(".results.jsonl")


class Results:
    """The results file at `path`. Safe to append to from several threads. Raises MediaError when it cannot be read or written."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._lock = threading.Lock()
        self._done: dict[str, dict] = {}
        try:
            data = self.path.read_bytes() if self.path.exists() else b""
            self._torn = bool(data) and not data.endswith(b"\n")  # a process died while it wrote
            with self.path.open("ab"):
                pass
        except OSError as error:
            raise self._cannot(error) from error
        for line in data.decode("utf-8", "replace").splitlines():
            try:
                told = json.loads(line)
                if told["status"] == DONE:
                    self._done[told["key"]] = told
            except (ValueError, TypeError, KeyError):
                log.warning("%s has a line that tells no result: %.60s", self.path, line)

    def is_done(self, entry: Entry, key: str) -> bool:
        """Whether a job with this `entry.key()` was finished, and its result is still there."""
        told = self._done.get(key)
        try:
            return told is not None and entry.job.out.stat().st_size == told.get("out_bytes")
        except OSError:
            return False

    def append(self, told: dict) -> None:
        """One write and one flush to the disk: a line is there whole or, after a power cut, is no JSON."""
        line = json.dumps({**told, "time": datetime.now(timezone.utc).isoformat(timespec="seconds")}, ensure_ascii=False) + "\n"
        with self._lock:
            try:
                with self.path.open("ab", buffering=0) as file:
                    file.write(b"\n" * self._torn + line.encode())
                    os.fsync(file.fileno())
            except OSError as error:
                raise self._cannot(error) from error
            self._torn = False

    def _cannot(self, error: OSError) -> MediaError:
        return MediaError(f"cannot keep results in {self.path}: {error.strerror or error}")


def line_of(entry: Entry, key: str, report: dict) -> dict:
    """A result line: which job, and what `Line.run` reported."""
    job = entry.job
    told = {"line": entry.line, "key": key, "status": report["status"], "video": str(job.video), "audio": str(job.audio), "out": str(job.out)}
    if report["status"] == DONE:
        try:
            told["out_bytes"] = job.out.stat().st_size
        except OSError as error:  # made by another machine
            log.warning("%s is done, but cannot be seen from here: %s", job.out, error.strerror)
    return {**told, **{name: value for name, value in report.items() if name != "status"}}
