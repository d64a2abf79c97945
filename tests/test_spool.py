"""A spool gives back the rows it was given, in memory or on disk, and leaves nothing behind."""
import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from latentsync_rtx.lipsync import spool as spools
from latentsync_rtx.lipsync.errors import DiskSpaceError, MediaError, ShapeError
from latentsync_rtx.lipsync.spool import Spool, require_space, require_spaces


def open_files(folder) -> int:
    """How many files in `folder`, named or not, this process holds open."""
    held = [os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{number}")]
    return sum(os.path.dirname(path) == str(folder) for path in held)


def rows_of(count: int, shape=(5, 7, 3), dtype=np.uint8, seed=0) -> np.ndarray:
    return (np.random.default_rng(seed).random((count, *shape)) * 255).astype(dtype)


@pytest.mark.parametrize("limit", [0, 1000, 10 ** 9])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float16, np.int64])
def test_rows_come_back_in_any_order(tmp_path, limit, dtype):
    rows = rows_of(50, dtype=dtype)
    with Spool((5, 7, 3), dtype, tmp_path, limit) as spool:
        for start, count in [(0, 1), (1, 0), (1, 16), (17, 3), (20, 30)]:
            spool.append(rows[start:start + count])
        assert len(spool) == 50 and spool.nbytes == rows.nbytes and spool.on_disk == (limit < rows.nbytes)
        for wanted in ([0], [49], [3, 4, 5], [9, 2, 2, 40, 41, 42, 0], [], slice(None), slice(10, 20), slice(-3, None), slice(40, 5, -7)):
            got = spool.read(wanted)
            assert got.dtype == dtype and np.array_equal(got, rows[wanted] if len(rows[wanted]) else rows[:0])
        assert np.array_equal(spool.read(np.array([1, 48])), rows[[1, 48]]) and np.array_equal(spool.read(7), rows[7])
        for wrong in ([-1], [50], 50, -1):
            with pytest.raises(IndexError):
                spool.read(wrong)
        assert open_files(tmp_path) == spool.on_disk
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("limit", [0, 10 ** 9])
def test_rows_are_copies(tmp_path, limit):
    rows = rows_of(3)
    with Spool((5, 7, 3), folder=tmp_path, memory_limit_bytes=limit) as spool:
        spool.append(rows)
        spool.append(rows[::-1, ::-1][:, ::-1])  # a view that is not contiguous
        kept = rows.copy()
        rows[:] = 0
        read = spool.read([0, 1])
        read[:] = 9
        assert np.array_equal(spool.read(slice(None)), np.concatenate([kept, kept[::-1]]))


def test_a_single_row_and_no_rows(tmp_path):
    with Spool((), np.float32, tmp_path) as spool:
        assert spool.read([]).shape == (0,)
        spool.append(np.float32(3))
        spool.append(np.array([4, 5], np.float32))
        assert spool.read(slice(None)).tolist() == [3, 4, 5]


def test_rows_of_another_kind_are_refused():
    with Spool((4, 4)) as spool:
        for wrong in (rows_of(2, (4, 5)), rows_of(2, (4, 4), np.float32), rows_of(2, (4,)), rows_of(1, (1, 4, 4))):
            with pytest.raises(ShapeError, match=r"\[4, 4\] uint8"):
                spool.append(wrong)
        assert len(spool) == 0


def test_two_jobs_in_one_folder(tmp_path):  # F30
    with Spool((8,), folder=tmp_path, memory_limit_bytes=0) as first, Spool((8,), folder=tmp_path, memory_limit_bytes=0) as second:
        for k in range(10):
            first.append(np.full((1, 8), k, np.uint8))
            second.append(np.full((1, 8), 100 + k, np.uint8))
        assert open_files(tmp_path) == 2
        assert first.read(slice(None))[:, 0].tolist() == list(range(10))
        assert second.read(slice(None))[:, 0].tolist() == list(range(100, 110))
        first.close()
        assert open_files(tmp_path) == 1
        first.close()
        with pytest.raises(ValueError, match="closed"):
            first.read([0])
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_when_it_is_forgotten_or_fails(tmp_path):  # F30, F49
    spool = Spool((8,), folder=tmp_path, memory_limit_bytes=0)
    spool.append(np.zeros((4, 8), np.uint8))
    assert open_files(tmp_path) == 1
    del spool
    gc.collect()
    assert open_files(tmp_path) == 0 and list(tmp_path.iterdir()) == []
    with pytest.raises(KeyboardInterrupt), Spool((8,), folder=tmp_path, memory_limit_bytes=0) as spool:
        spool.append(np.zeros((4, 8), np.uint8))
        raise KeyboardInterrupt
    assert open_files(tmp_path) == 0 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", ["raise SystemExit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_nothing_is_left_of_a_process_however_it_ends(tmp_path, end):  # F30
    code = (
        f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import conftest, numpy\n"
        "from latentsync_rtx.lipsync.spool import Spool\n"
        f"kept = [Spool((8,), folder={str(tmp_path)!r}, memory_limit_bytes=0)]; kept[0].append(numpy.zeros((4, 8), numpy.uint8))\n"
        f"assert kept[0].on_disk\n{end}"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode in (3, -9)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used(tmp_path):  # F28
    (tmp_path / "file").touch()
    with Spool((8,), folder=tmp_path / "file", memory_limit_bytes=16) as spool:
        spool.append(np.ones((2, 8), np.uint8))
        with pytest.raises(MediaError, match=r"cannot keep frames in the folder .*file: \w+"):
            spool.append(np.ones((1, 8), np.uint8))
        assert spool.read(slice(None)).sum() == 16, "what was there is still there"
    with Spool((8,), folder=tmp_path / "made" / "when needed", memory_limit_bytes=0) as spool:
        spool.append(np.ones((2, 8), np.uint8))


@pytest.mark.skipif(sys.platform == "win32", reason="no way to make a full disk")
@pytest.mark.parametrize("memory", [0, 20_000])
def test_a_full_disk(tmp_path, memory):  # F28, F33
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with Spool((1000,), folder=tmp_path, memory_limit_bytes=memory) as spool, pytest.raises(DiskSpaceError, match="File too large"):
            for _ in range(50):
                spool.append(np.zeros((1, 1000), np.uint8))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_space_is_required_up_front(tmp_path):  # F33
    require_space(tmp_path, 1000)
    require_space(tmp_path / "not" / "made yet", 1000)
    with pytest.raises(DiskSpaceError, match=r"needs about 1000000000.0 GB .* has [\d.]+ [GM]B"):
        require_space(tmp_path / "not" / "made yet", 10 ** 18)


def test_folders_of_one_disk_are_added_up(tmp_path, monkeypatch):  # F33
    monkeypatch.setattr(spools.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1 << 30}))
    require_spaces({tmp_path / "a": 400 << 20, tmp_path / "b": 300 << 20})
    with pytest.raises(DiskSpaceError, match=r"needs about 839 MB .*/a has 1.1 GB"):
        require_spaces({tmp_path / "a": 400 << 20, tmp_path / "b": 400 << 20})


def test_reading_while_another_thread_appends(tmp_path):
    with Spool((64,), folder=tmp_path, memory_limit_bytes=64 * 50) as spool:
        thread = threading.Thread(target=lambda: [spool.append(np.full((1, 64), k % 251, np.uint8)) for k in range(400)])
        thread.start()
        seen = 0
        while seen < 400:
            seen = len(spool)
            for k in np.random.default_rng(seen).integers(0, max(1, seen), 4 if seen else 0):
                assert (spool.read(int(k)) == k % 251).all()
        thread.join()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="Linux only")
def test_memory_stays_flat_on_disk(tmp_path):  # F32
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    row = np.zeros((1, 1 << 20), np.uint8)
    with Spool((1 << 20,), folder=tmp_path, memory_limit_bytes=8 << 20) as spool:
        for _ in range(16):
            spool.append(row)
        before = resident()
        for _ in range(112):
            spool.append(row)
        for start in range(0, 128, 8):
            spool.read(slice(start, start + 8))
        assert resident() - before < 40 << 20
