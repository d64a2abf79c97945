"""Rows of one shape, kept in memory while they are few and in one file on disk when they are many.

Aligned crops of ten minutes are 12 GB: a stage appends them as they are made and a later stage reads the few it needs. Plain file
reads, not a memory map: pages of a map count as this process's memory and would make its use grow with the length of the clip.

The files have no names (where the system allows that, else they are deleted when closed): whatever becomes of the process, nothing of
them is left.
"""
import errno
import mmap
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from .errors import DiskSpaceError, MediaError, ShapeError

MEMORY_LIMIT = 32 << 20  # bytes: 42 crops of 512 px; the system keeps what was written lately in memory anyway
SPARE_BYTES = 256 << 20  # left free for everybody else on the disk
_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))


def size_text(size: float) -> str:
    """Bytes as people read them: '850 MB', '12.4 GB' (powers of 1000, as disks are sold)."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def free_space(folder: str | Path | None) -> int:
    """Bytes free where `folder` is or would be (the system's temporary folder when None)."""
    try:
        return shutil.disk_usage(_existing(folder)).free
    except OSError as error:
        raise MediaError(f"cannot use the folder {folder}: {error.strerror or error}") from error


def _existing(folder: str | Path | None) -> Path:
    """The folder, or the nearest one above it that exists."""
    place = Path(folder if folder is not None else tempfile.gettempdir()).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def require_space(folder: str | Path | None, size: int) -> None:
    """Refuse at once a job that will need `size` bytes in `folder` (which may not exist yet) and cannot have them: DiskSpaceError."""
    free = free_space(folder)
    if size > 0 and size + SPARE_BYTES > free:
        where = folder or tempfile.gettempdir()
        raise DiskSpaceError(
            f"this job needs about {size_text(size)} on disk and {size_text(SPARE_BYTES)} to spare, but {where} has {size_text(free)}: "
            "make room, choose another temporary folder, or use a shorter clip"
        )


def require_spaces(needs: Mapping[Path, int]) -> None:
    """`require_space` for a job that uses several folders; those of one disk are added up."""
    disks: dict[int, tuple[Path, int]] = {}
    for folder, size in needs.items():
        place = _existing(folder)
        first, sum_so_far = disks.get(place.stat().st_dev, (folder, 0))
        disks[place.stat().st_dev] = (first, sum_so_far + size)
    for folder, size in disks.values():
        require_space(folder, size)


def scratch_file(folder: str | Path | None, size: int = 0):
    """An open file without a name in `folder` (made when missing; None: the system's), of `size` bytes that are really there.

    Raises DiskSpaceError when they are not, MediaError when the folder is unusable.
    """
    folder = Path(folder if folder is not None else tempfile.gettempdir())
    file = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = tempfile.TemporaryFile(prefix="latentsync-", dir=folder, buffering=0)  # noqa: SIM115 - the caller closes it
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        elif size:
            file.truncate(size)
    except OSError as error:
        if file is not None:
            file.close()
        kind = DiskSpaceError if error.errno in _FULL else MediaError
        raise kind(f"cannot keep {size_text(size) if size else 'frames'} in the folder {folder}: {error.strerror or error}") from error
    return file


class Spool:
    """Rows [*shape] of `dtype`; up to `memory_limit_bytes` in memory, beyond that all of them in a file of its own in `folder`.

    `folder` defaults to the system's temporary folder and is made when missing, but only when the rows outgrow memory. The file goes away
    on `close()`, when the spool is forgotten, or with the process. Safe to append in one thread and read in another.
    """

    def __init__(self, shape, dtype=np.uint8, folder: str | Path | None = None, memory_limit_bytes: int = MEMORY_LIMIT):
        self.shape = tuple(int(n) for n in shape)
        self.dtype = np.dtype(dtype)
        self.folder = Path(folder) if folder is not None else Path(tempfile.gettempdir())
        self.memory_limit_bytes = memory_limit_bytes
        self.row_bytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        self._memory: np.ndarray | None = None  # while the rows are in memory
        self._count = 0
        self._file = None
        self._closed = False
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @property
    def nbytes(self) -> int:
        return self._count * self.row_bytes

    @property
    def on_disk(self) -> bool:
        return self._file is not None

    def append(self, rows: np.ndarray) -> None:
        """Add rows [n, *shape] (or one [*shape]); they are copied. ShapeError, DiskSpaceError; MediaError when the folder is unusable."""
        rows = np.asarray(rows)
        if rows.shape == self.shape:
            rows = rows[None]
        if rows.shape[1:] != self.shape or rows.ndim != len(self.shape) + 1 or rows.dtype != self.dtype:
            raise ShapeError(f"this spool keeps rows of {list(self.shape)} {self.dtype}, not {list(rows.shape)} {rows.dtype}")
        with self._lock:
            self._require_open()
            if self._file is None and (self._count + len(rows)) * self.row_bytes > self.memory_limit_bytes:
                self._move_to_disk()
            if self._file is not None:
                self._write(rows, self._count)
            elif len(rows):
                self._in_memory()[self._count:self._count + len(rows)] = rows
            self._count += len(rows)

    def read(self, rows) -> np.ndarray:
        """A fresh array of the chosen rows: a slice or a sequence of n indices gives [n, *shape], one int gives [*shape].

        Indices run from 0; IndexError for any other, -1 too: a track uses -1 for "no such row"."""
        if isinstance(rows, (int, np.integer)):
            return self.read([rows])[0]
        self._require_open()
        indices = np.arange(self._count)[rows] if isinstance(rows, slice) else np.asarray(rows, dtype=np.int64).reshape(-1)
        if len(indices) and not 0 <= indices.min() <= indices.max() < self._count:
            raise IndexError(f"rows {indices.min()}..{indices.max()} of a spool of {self._count}")
        out = np.empty((len(indices), *self.shape), self.dtype)
        with self._lock:
            self._require_open()
            if self._memory is not None:
                np.take(self._memory, indices, axis=0, out=out, mode="clip")  # "raise" would make a copy
            elif len(indices):
                for first, last in _ascending_runs(indices):
                    self._read_into(out[first:last], int(indices[first]))
        return out

    def close(self) -> None:
        """Forget the rows and remove the file. May be called twice."""
        with self._lock:
            self._closed = True
            self._memory, self._count = None, 0
            if self._file is not None:
                self._file.close()

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError("this spool is closed: the job that it belonged to has ended")

    def _in_memory(self) -> np.ndarray:
        """Room for all rows below the limit, in pages of its own that are taken as they are written to. Rows that come and stay between the
        short-lived arrays of a stage would leave holes all over the heap, and the process would grow to many times what it holds."""
        if self._memory is None:
            count = max(1, self.memory_limit_bytes // self.row_bytes)
            pages = mmap.mmap(-1, count * self.row_bytes)
            self._memory = np.frombuffer(pages, self.dtype).reshape(count, *self.shape)
        return self._memory

    def _move_to_disk(self) -> None:
        file = scratch_file(self.folder)
        try:
            self._file = file
            for start in range(0, self._count, 16):
                self._write(self._memory[start:min(start + 16, self._count)], start)
        except BaseException:  # a spool that failed here goes on as it was, in memory
            self._file = None
            file.close()
            raise
        self._memory = None

    def _write(self, rows: np.ndarray, at: int) -> None:
        data = memoryview(np.ascontiguousarray(rows).reshape(-1).view(np.uint8))
        try:
            self._file.seek(at * self.row_bytes)
            while data:
                data = data[self._file.write(data):]
        except OSError as error:
            kind = DiskSpaceError if error.errno in _FULL else MediaError
            raise kind(
                f"cannot keep frames in the folder {self.folder} ({size_text(self.nbytes)} there so far): {error.strerror or error}"
            ) from error

    def _read_into(self, out: np.ndarray, at: int) -> None:
        data = memoryview(out.reshape(-1).view(np.uint8))
        self._file.seek(at * self.row_bytes)
        while data:
            count = self._file.readinto(data)
            if not count:
                raise MediaError(f"a spool file in {self.folder} became shorter while in use: was the temporary folder cleaned?")
            data = data[count:]


def _ascending_runs(indices: np.ndarray) -> Iterable[tuple[int, int]]:
    """Stretches [first, last) of consecutive indices: one file read each."""
    if len(indices) == 0:
        return []
    edges = np.flatnonzero(np.diff(indices) != 1) + 1
    return zip([0, *edges.tolist()], [*edges.tolist(), len(indices)], strict=True)
