"""Files that several processes write: whole or not at all, one writer at a time."""
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

RETRY_SECONDS = 0.25


def write(path: Path, data: bytes | memoryview) -> None:
    """Write `data` beside `path` and rename it into place: a reader sees the old file or the new one, also after a crash."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock that the file `path` stands for, against threads and processes; a process that dies lets go of it.

    `waiting` is called several times a second while another holds it, and may raise. The (empty) file stays: removing it would let two in.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        while not _take(file):
            if waiting:
                waiting()
            time.sleep(RETRY_SECONDS)
        try:
            yield
        finally:
            _give(file)


if sys.platform == "win32":
    import msvcrt

    def _take(file) -> bool:
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _give(file) -> None:
        file.seek(0)
        with suppress(OSError):
            msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _take(file) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True  # any other OSError: the file system has no locks, and says so

    def _give(file) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
