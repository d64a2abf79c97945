"""Tensors in files: like any other to whoever uses them, and not memory of this process."""
import gc
import os
import subprocess
import sys

import pytest
import torch
from latentsync_rtx.lipsync import mapped, spool
from latentsync_rtx.lipsync.errors import DiskSpaceError

linux = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="Linux only")


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def held_open() -> list[str]:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [link for link in links if os.path.lexists(link)]


@pytest.mark.parametrize("limit", [0, 1 << 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
def test_it_is_a_tensor_like_any_other(tmp_path, limit, dtype):
    made = mapped.zeros((40, 3, 5), dtype, folder=tmp_path, memory_limit_bytes=limit)
    assert mapped.is_mapped(made) == (limit == 0) == mapped.is_mapped(made[3:5])
    assert made.shape == (40, 3, 5) and made.dtype == dtype and not made.any()
    numbers = torch.arange(600).view(40, 3, 5).to(dtype)
    for start in range(0, 40, 7):
        made[start : start + 7] = numbers[start : start + 7]
        mapped.release(made)
    made[[3, 4]] += 1
    numbers[[3, 4]] += 1
    assert torch.equal(made, numbers) and torch.equal(made.clone(), numbers)
    assert torch.equal(torch.nn.functional.pad(made[::2].float(), (1, 1)).sum(), numbers[::2].float().sum())
    assert list(tmp_path.iterdir()) == []


def test_what_shares_its_storage_keeps_the_file(tmp_path):
    made = mapped.zeros((10, 1000), folder=tmp_path, memory_limit_bytes=0)
    made[4] = 7
    part = made[4, 10:20]
    del made
    gc.collect()
    mapped.release(part)
    assert mapped.is_mapped(part) and part.tolist() == [7] * 10
    del part
    gc.collect()
    assert not mapped._PAGES


def test_release_leaves_other_tensors_alone():
    made = torch.ones(1 << 20)
    mapped.release(made)
    assert made.all()


def test_made_in_inference_mode_it_can_be_written_to_outside(tmp_path):
    with torch.inference_mode():
        made = mapped.zeros((4, 4), folder=tmp_path, memory_limit_bytes=0)
        made[0] = 1
    made[1] = 1
    assert made.sum() == 8


def test_a_disk_without_room_is_told_at_once(tmp_path, monkeypatch):  # F33
    monkeypatch.setattr(spool.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 300 << 20}))
    with pytest.raises(DiskSpaceError, match="needs about 67 MB"):
        mapped.zeros((1 << 24,), folder=tmp_path, memory_limit_bytes=0)


@linux
def test_the_room_is_really_there(tmp_path):  # F28: a page that the disk has no room for would kill the process
    made = mapped.zeros((1 << 20,), folder=tmp_path, memory_limit_bytes=0)
    [file] = [path for path in held_open() if os.path.dirname(os.readlink(path)) == str(tmp_path)]
    assert os.stat(file).st_blocks * 512 >= made.nbytes


@linux
def test_memory_stays_flat(tmp_path):  # F32
    before = resident()
    made = mapped.zeros((64, 1 << 18), folder=tmp_path, memory_limit_bytes=0)  # 64 MiB
    for row in made:
        row.fill_(3)
        mapped.release(made)
    total = 0.0
    for row in made:
        total += row.sum().item()
        mapped.release(row)
    assert total == 3 * made.numel()
    assert resident() - before < 16 << 20


@linux
def test_nothing_is_left_of_a_killed_process(tmp_path):  # F30
    code = (
        f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import conftest, os, signal\n"
        "from latentsync_rtx.lipsync import mapped\n"
        f"made = mapped.zeros((1000, 1000), folder={str(tmp_path)!r}, memory_limit_bytes=0); made[:] = 1\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert list(tmp_path.iterdir()) == []
