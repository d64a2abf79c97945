"""Finished blocks on disk: found when everything is the same, otherwise not; never half a file; old ones go."""
import os
import time

import numpy as np
import pytest
import torch
from latentsync_rtx.bench.stubs import LinearVAE
from latentsync_rtx.lipsync.journal import Journal, clean, name_of, runner_identity, vae_identity

from .small_jobs import StubRunner


def blocks(seed=0):
    return [torch.randn(n, 4, 3, 3, generator=torch.Generator().manual_seed(seed)) for n in (16, 5)]


def test_blocks_come_back_to_the_bit_in_another_process_life(tmp_path):
    Journal(tmp_path / "new" / "folder").write("a", blocks())
    found = Journal(tmp_path / "new" / "folder").read("a", 2)
    assert all(torch.equal(*pair) and pair[0].dtype == torch.float32 for pair in zip(found, blocks(), strict=True))
    assert Journal(tmp_path / "new" / "folder").read("b", 2) is None
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == ["a.block"]


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-7], lambda data: data[:100] + b"\xff" + data[101:], lambda data: b"text"])
def test_a_damaged_block_is_made_again(tmp_path, caplog, damage):
    journal = Journal(tmp_path)
    journal.write("a", blocks())
    path = tmp_path / "a.block"
    path.write_bytes(damage(path.read_bytes()))
    assert journal.read("a", 2) is None
    assert "a.block is damaged" in caplog.text
    journal.write("a", blocks())
    assert journal.read("a", 2) and journal.read("a", 1) is None


def test_broken_numbers_are_not_kept(tmp_path):
    Journal(tmp_path).write("a", [torch.full((2, 2), float("nan"))])
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_nothing_and_is_said_once(tmp_path, monkeypatch, caplog):
    journal = Journal(tmp_path)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    journal.write("a", blocks())
    journal.write("b", blocks())
    assert list(tmp_path.iterdir()) == []
    assert [record.message for record in caplog.records] == [f"this job cannot be resumed: {tmp_path} cannot be written (No space left on device)"]


def test_discard_forgets_what_this_job_used_and_nothing_else(tmp_path):
    Journal(tmp_path).write("earlier", blocks())
    Journal(tmp_path).write("of another job", blocks())
    journal = Journal(tmp_path)
    journal.write("new", blocks())
    assert journal.read("earlier", 2)
    journal.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["of another job.block"]


def test_old_blocks_go_by_age_and_size(tmp_path):
    now = time.time()
    for name, days, size in (("a.block", 9, 10), ("b.block", 3, 400), ("c.block", 2, 400), ("d.block", 1, 400), ("e.block.1f.part", 8, 10)):
        (tmp_path / name).write_bytes(bytes(size))
        os.utime(tmp_path / name, (now - days * 86400,) * 2)
    (tmp_path / "notes.txt").write_text("not ours")
    os.utime(tmp_path / "notes.txt", (0, 0))
    assert clean(tmp_path, 7 * 86400, 1000) == 10 + 400 + 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.block", "d.block", "notes.txt"]
    assert clean(tmp_path / "nowhere") == 0


def test_a_block_in_use_stays_young(tmp_path):
    Journal(tmp_path).write("a", blocks())
    os.utime(tmp_path / "a.block", (time.time() - 6 * 86400,) * 2)
    journal = Journal(tmp_path)
    assert journal.read("a", 2)
    assert time.time() - (tmp_path / "a.block").stat().st_mtime < 3600


def test_a_name_tells_everything_apart():
    array, tensor = np.arange(6, dtype=np.uint8), torch.arange(6, dtype=torch.uint8)
    assert name_of("a", 1, array) == name_of("a", 1, array.copy()) == name_of("a", 1, tensor)
    names = [name_of(*parts) for parts in (("a", 1, array), ("a", 2, array), ("a1", "", array), (1, "a", array), ("a", 1), ("a", 1, array + 1),
                                           ("a", 1, array.reshape(2, 3)), ("a", 1, array.astype(np.int8)), ("a", 1, array[:5]))]  # fmt: skip
    assert len(set(names)) == len(names)
    assert name_of(array[::2]) == name_of(array[::2].copy())


def test_a_runner_is_told_by_weights_back_end_and_engine():
    plain, engine = StubRunner(), StubRunner(frames=16, batch=2)
    assert runner_identity(plain) == runner_identity(StubRunner()) != runner_identity(engine)
    engine.engine_identity = "0123"
    assert "0123" in runner_identity(engine)
    plain.model = None
    assert runner_identity(plain) is None


def test_a_vae_is_told_by_its_weights():
    class Wrapped:
        def __init__(self, seed, dtype=torch.float32):
            torch.manual_seed(seed)
            self.model = torch.nn.Linear(4, 4).to(dtype)

    class Comfy:
        def __init__(self, seed, vae_dtype):
            self.first_stage_model, self.vae_dtype = Wrapped(seed).model, vae_dtype

    made = [Wrapped(0), Wrapped(1), Wrapped(0, torch.bfloat16), Comfy(0, torch.float16), Comfy(0, torch.bfloat16), LinearVAE()]
    names = [vae_identity(vae) for vae in made]
    assert None not in names and len(set(names)) == len(names)
    assert vae_identity(Wrapped(0)) == names[0]
    assert vae_identity(object()) is None
    away = Wrapped(0)
    away.model.to_empty(device="meta")
    assert vae_identity(away) is None
