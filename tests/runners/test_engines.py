"""Whether an engine may be used: pure questions, then files in a folder. F41, F42, F46."""
import json
import logging
import shutil
import threading

import pytest
from latentsync_rtx.lipsync import folders
from latentsync_rtx.lipsync.errors import EngineError
from latentsync_rtx.lipsync.runners import engines, storage
from latentsync_rtx.lipsync.runners import manifest as manifests
from latentsync_rtx.lipsync.runners.manifest import Gpu, covers, identity, judge, normalised_targets, unsupported
from latentsync_rtx.tests.runners.doubles import CARD, VERSION, write_engine

H200 = Gpu("NVIDIA H200", "9.0", "13.0")
BLACKWELL = Gpu("NVIDIA GeForce RTX 5090", "12.0", "13.0")


@pytest.fixture
def engine(tmp_path):
    return write_engine(tmp_path)


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(engines, "installed_version", lambda: VERSION)


def judged(engine, **changes):
    manifest = {**engine.manifest, **changes.pop("manifest", {})}
    given = {"header": engine.path.read_bytes()[:64], "size": engine.path.stat().st_size, "version": VERSION, **changes}
    return judge(manifest, **given)


# --- pure ---


def test_a_good_plan_passes(engine):
    for gpu in (None, CARD, BLACKWELL):
        assert judged(engine, gpu=gpu, want={"resolution": 64, "frames": 4, "guided": True, "fingerprint": "f00d"}) == (True, "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"want": {"resolution": 512}}, "its resolution is 64, needed is 512"),
        ({"want": {"frames": 16}}, "its frames is 4, needed is 16"),
        ({"want": {"guided": False}}, "its guided is True, needed is False"),
        ({"want": {"fingerprint": "beef"}}, "its checkpoint is f00d, needed is beef"),
        ({"version": "1.8.0.1"}, "its TensorRT-RTX release is 1.7.1.116, needed is 1.8.0.1"),
        ({"manifest": {"export_revision": 0}}, "its export revision is 0"),
        ({"manifest": {"targets": ["8.6"]}, "gpu": BLACKWELL}, "built for compute capability 8.6, not for this GPU (NVIDIA GeForce RTX 5090"),
        ({"manifest": {"targets": "gpu", "gpu": {"name": "RTX A", "capability": "8.9"}}, "gpu": CARD}, "built for RTX A only"),
        ({"gpu": H200}, "does not support this GPU (NVIDIA H200, compute capability 9.0)"),
        ({"manifest": {"parity": {CARD.key: {"passed": False, "cosine": 0.98, "largest_error": 3.0}}}, "gpu": CARD}, "cosine 0.980000"),
        ({"size": 500}, "truncated: expected 1,032 bytes, found 500"),
        ({"size": 5000}, "not the plan that was built"),
        ({"header": b"\x01" * 64}, "another file took its place"),
        ({"header": b"", "size": 0}, "empty (0 bytes)"),
        ({"header": b"version https://git-lfs.github.com/spec/v1\noid sha256:0123456789012"}, "Git LFS pointer"),
        ({"header": b"once upon a time there was a plan that was none, and it was text"}, "text file"),
        ({"header": b"\x08\x0a\x12\x07pytorch\x1a\x05" + bytes(50)}, "ONNX model"),
    ],
)
def test_what_differs_is_named(engine, changes, words):
    ok, reason = judged(engine, **changes)
    assert not ok
    assert words in reason


def test_whatever_another_build_would_fix_offers_it(engine):
    assert all("Build the engine again" in judged(engine, **change)[1] for change in ({"version": "2"}, {"size": 9000}, {"want": {"frames": 1}}))


def test_a_verdict_counts_on_its_own_card_only(engine):
    failed = {"parity": {BLACKWELL.key: {"passed": False, "cosine": 0.1, "largest_error": 1.0}}}
    assert judged(engine, manifest=failed, gpu=CARD)[0]
    assert not judged(engine, manifest=failed, gpu=BLACKWELL)[0]


def test_identity_is_what_was_built_not_how_it_went(engine):
    same = {**engine.manifest, "parity": {"x": 1}, "seconds": {}, "model": "renamed"}
    assert identity(same) == engine.identity
    for name in manifests.IDENTITY:
        assert identity({**engine.manifest, name: "other"}) != engine.identity


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "portable"),
        ("portable", "portable"),
        (["portable"], "portable"),
        ("this GPU", "gpu"),
        ("gpu", "gpu"),
        (["12.0", "8.9", "8.9"], ["8.9", "12.0"]),
        ("8.6, 8.9", ["8.6", "8.9"]),
        (["sm_120", "SM80"], ["8.0", "12.0"]),
        (8.9, ["8.9"]),
        ((8, 6), ["8.6"]),
        ([(8, 6), 89], ["8.6", "8.9"]),
    ],
)
def test_targets_in_any_usual_spelling(given, expected):
    assert normalised_targets(given) == expected


@pytest.mark.parametrize("given", ["9.0", ["sm90"], ["7.5"], [], "everything"])
def test_unknown_targets_are_refused_with_the_known_ones(given):
    with pytest.raises(EngineError, match=r"8\.9"):
        normalised_targets(given)


def test_cards_that_it_runs_on():
    for capability in ("8.0", "8.6", "8.9", "12.0", "12.1"):
        gpu = Gpu("a card", capability)
        assert unsupported(gpu) is None
        assert covers({"targets": "portable"}, gpu) and covers({"targets": [capability]}, gpu) and not covers({"targets": ["8.7"]}, gpu)
    for capability in ("6.1", "7.5", "9.0", "10.0"):
        assert capability in unsupported(Gpu("a card", capability))
    assert "no NVIDIA GPU" in unsupported(None)


# --- files ---


def test_check_answers_for_a_good_engine_and_what_is_wanted(engine):
    assert engines.check(engine.path) == (True, "")
    ok, reason = engines.check(engine.path, resolution=512, gpu=CARD)
    assert not ok
    assert engine.path.name in reason and "resolution" in reason


@pytest.mark.parametrize(
    "content",
    [b"", b"half a plan", b"vtrt" + bytes(100), b"\x08\x0apytorch" + bytes(100), b"some text\n" * 20, b"version https://git-lfs.github.com/spec/v1\n" * 3],
    ids=["0 bytes", "short", "cut", "onnx", "text", "lfs pointer"],
)
def test_a_wrong_file_is_refused_and_stays(engine, content):  # F42
    engine.path.write_bytes(content)
    ok, reason = engines.check(engine.path)
    assert not ok and engine.path.name in reason
    assert engine.path.read_bytes() == content


@pytest.mark.parametrize("content", [None, "", "not json", "[]", "{}", '{"format": 99}', "\xff\xfe"])
def test_a_missing_or_broken_manifest_is_refused_and_stays(engine, content):
    beside = engine.path.with_suffix(".json")
    beside.unlink() if content is None else beside.write_text(content, encoding="latin-1")
    ok, reason = engines.check(engine.path)
    assert not ok and beside.name in reason
    with pytest.raises(EngineError):
        engines.find_engine(engine.path.name, engine.path.parent)
    assert engine.path.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("plan_bytes", None), ("header", 5), ("parity", []), ("parity", {CARD.key: {"passed": False}}), ("targets", [8.9]), ("targets", "gpu"),
        ("frames", "16"), ("network", None), ("role", "outer"), ("weights_bytes", "2 GB"),
    ],
)  # fmt: skip
def test_a_damaged_manifest_costs_one_engine_not_the_list(engine, tmp_path, name, value, caplog):
    good = write_engine(tmp_path, resolution=512)
    beside = engine.path.with_suffix(".json")
    beside.write_text(json.dumps({**json.loads(beside.read_text()), name: value}))
    with caplog.at_level(logging.WARNING):
        assert [one.label for one in engines.list_engines(tmp_path)] == [good.label]
    assert beside.name in caplog.text
    ok, reason = engines.check(engine.path, gpu=CARD)
    assert not ok and beside.name in reason


def test_links_in_a_circle_long_names_and_copies(engine, tmp_path):
    copy = engine.path.with_name("a copy (1).plan")
    for suffix in (".plan", ".json"):
        shutil.copy(engine.path.with_suffix(suffix), copy.with_suffix(suffix))
    (tmp_path / "loop.plan").symlink_to("loop.plan")
    assert {one.path for one in engines.list_engines(tmp_path)} == {engine.path, copy}
    assert engines.find_engine(engines.read(copy).label, tmp_path).path == copy
    for name in ("loop.plan", "x" * 300 + ".plan"):
        with pytest.raises(EngineError):
            engines.find_engine(name, tmp_path)


def test_a_missing_plan_a_folder_and_another_suffix(engine, tmp_path):
    (tmp_path / "folder.plan").mkdir()
    (tmp_path / "model.onnx").write_bytes(b"\x08\x0a" + bytes(100))
    for name in ("nothing.plan", "folder.plan", "model.onnx"):
        ok, reason = engines.check(tmp_path / name)
        assert not ok and name in reason


def test_the_librarys_own_verdict_counts_last(engine):
    seen = []
    assert engines.check(engine.path, verdict=seen.append) == (True, "")
    assert seen == [engine.path.read_bytes()[:64]]
    assert engines.check(engine.path, verdict=lambda header: "it is stale.") == (False, f"engine {engine.path.name}: it is stale.")


def test_a_want_that_engines_do_not_have_is_a_programming_error(engine):
    with pytest.raises(KeyError):
        engines.check(engine.path, colour="red")


def test_the_list_shows_names_and_sizes_and_skips_what_it_cannot_read(engine, tmp_path, caplog):
    write_engine(tmp_path, resolution=512)
    (tmp_path / "strange.plan").write_bytes(b"x")
    (tmp_path / ".build-1" / "engine.plan").parent.mkdir()
    (tmp_path / ".build-1" / "engine.plan").write_bytes(b"x")
    with caplog.at_level(logging.WARNING):
        found = engines.list_engines(tmp_path)
    assert len(found) == 2 and engine in found
    assert all(one.label == f"{one.path.name} (0.00 GB)" for one in found)
    assert [record.getMessage().count("strange.plan") > 0 for record in caplog.records] == [True]
    assert engines.find_engine(engine.label, tmp_path) == engine


@pytest.mark.parametrize("name", ["../x.plan", "/etc/x.plan", "a\\..\\x.plan", "", "x.onnx", "."])
def test_names_never_lead_out_of_the_folder(tmp_path, name):
    with pytest.raises(EngineError):
        engines.find_engine(name, tmp_path)


def test_without_a_folder_the_list_is_empty(tmp_path, monkeypatch):  # F46
    assert engines.list_engines(tmp_path / "none") == []
    monkeypatch.setattr(folders, "engines_dir", lambda: tmp_path / "models" / "engines")
    assert engines.list_engines() == []
    assert not (tmp_path / "models").exists()


def test_without_the_package_its_release_is_unknown(monkeypatch):  # F46
    monkeypatch.undo()
    monkeypatch.setattr("importlib.metadata.version", lambda name: (_ for _ in ()).throw(engines.importlib.metadata.PackageNotFoundError))
    monkeypatch.delitem(engines.sys.modules, "tensorrt_rtx", raising=False)
    assert engines.installed_version() is None


def test_verdicts_of_several_cards_are_kept_side_by_side(engine):
    engines.record_parity(engine, CARD, {"passed": True, "cosine": 1.0, "largest_error": 0.0})
    both = engines.record_parity(engine, BLACKWELL, {"passed": False, "cosine": 0.5, "largest_error": 2.0})
    kept = json.loads(engine.path.with_suffix(".json").read_text())["parity"]
    assert kept[CARD.key] == {"passed": True, "cosine": 1.0, "largest_error": 0.0, "driver": "13.0"}
    assert not kept[BLACKWELL.key]["passed"]
    assert both == engine and both.manifest["parity"] == kept


# --- writing ---


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "state.json"
    storage.write(path, b"old")
    with pytest.raises(TypeError):
        storage.write(path, "not bytes")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_one_holds_a_lock_at_a_time(tmp_path):
    inside, most, waited = [], [], []

    def work():
        with storage.locked(tmp_path / "new folder" / ".lock", waiting=lambda: waited.append(1)):
            inside.append(1)
            most.append(len(inside))
            threading.Event().wait(0.05)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert most == [1, 1, 1, 1]
    assert waited


def test_whoever_waits_for_a_lock_may_give_up(tmp_path):
    def enough():
        raise KeyboardInterrupt

    with storage.locked(tmp_path / ".lock"), pytest.raises(KeyboardInterrupt), storage.locked(tmp_path / ".lock", waiting=enough):
        pytest.fail("held twice")
    with storage.locked(tmp_path / ".lock"):
        pass
