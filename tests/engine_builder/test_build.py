"""Building the demo network's engine for real, without a GPU: what is there afterwards, and what is left when it fails. F41-F46."""
import hashlib
import json
import logging
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import psutil
import pytest
import torch
from latentsync_rtx import engine_builder
from latentsync_rtx.engine_builder import builder, process
from latentsync_rtx.lipsync.errors import DependencyError, DiskSpaceError, EngineError
from latentsync_rtx.lipsync.runners import engines, storage
from latentsync_rtx.lipsync.runners import manifest as manifests
from latentsync_rtx.lipsync.unet import LatentSyncUNet, UNetConfig

trt = pytest.importorskip("tensorrt_rtx")

ROOT = Path(__file__).resolve().parents[2]
VARIANT = {"resolution": 64, "frames": 2, "guided": True}  # as conftest.py builds it


def files(folder) -> set[str]:
    return {file.name for file in folder.rglob("*") if not file.name.startswith(".")}


# --- a build that succeeds ---


def test_what_is_there_afterwards(built, model):
    manifest, _, folder = built
    path = Path(manifest["path"])
    assert path.parent == folder and files(folder) == {path.name, path.with_suffix(".json").name}
    stored = json.loads(path.with_suffix(".json").read_text())
    assert {**stored, "path": str(path)} == manifest
    assert {name: stored[name] for name in VARIANT} == VARIANT
    assert stored["fingerprint"] == model.fingerprint and stored["network"]["block_out_channels"] == list(model.config.block_out_channels)
    assert (stored["tensorrt_rtx"], stored["precision"], stored["targets"], stored["parity"]) == (trt.__version__, "fp16", ["8.9", "12.0"], {})
    content = path.read_bytes()
    assert stored["plan_bytes"] == len(content) and stored["header"] == content[:64].hex()
    assert stored["sha256"] == hashlib.sha256(content).hexdigest()
    weights_bytes = sum(tensor.numel() for tensor in model.tensors().values()) * 2
    assert 0.9 < stored["weights_bytes"] / weights_bytes < 1.1
    assert 0 < stored["activation_bytes"] < 200e6
    assert stored["peak_host_bytes"] > 50e6 and set(stored["seconds"]) == {"export", "plan", "total"}


def test_progress_goes_from_nothing_to_all(built):
    _, heard, _ = built
    assert {total for _, total, _ in heard} == {100}
    assert list(dict.fromkeys(stage for _, _, stage in heard)) == ["export network", "compile engine", "build engine"]
    done = [done for done, _, _ in heard]
    assert done == sorted(done) and done[0] == 0 and done[-1] == 100
    assert len(set(done)) > 15


def test_check_accepts_it_and_names_what_differs(built):  # F41
    manifest, _, _ = built
    assert engine_builder.check(manifest["path"]) == (True, "")
    assert engine_builder.check(manifest["path"], **VARIANT) == (True, "")
    for want, words in (({"resolution": 512}, "resolution"), ({"fingerprint": "x"}, "checkpoint"), ({"version": "9.9"}, "TensorRT-RTX release")):
        ok, reason = engine_builder.check(manifest["path"], **want)
        assert not ok and words in reason
    other = manifests.Gpu("NVIDIA GeForce RTX 3090", "8.6")
    assert "8.9, 12.0" in engine_builder.check(manifest["path"], gpu=other)[1]


def test_the_library_itself_looks_at_the_header(built, tmp_path):  # F42
    manifest, _, _ = built
    copy = tmp_path / "copy.plan"
    shutil.copy(manifest["path"], copy)
    content = bytearray(copy.read_bytes())
    content[0] ^= 1
    copy.write_bytes(content)
    copy.with_suffix(".json").write_text(json.dumps({**manifest, "header": content[:64].hex()}))  # even if the manifest says so
    ok, reason = engine_builder.check(copy)
    assert not ok and "damaged" in reason


@pytest.mark.parametrize("cut", [0, 40, 5000])
def test_a_cut_plan_is_refused_and_stays(built, tmp_path, cut):  # F42
    manifest, _, _ = built
    copy = tmp_path / Path(manifest["path"]).name
    copy.write_bytes(Path(manifest["path"]).read_bytes()[:cut])
    shutil.copy(Path(manifest["path"]).with_suffix(".json"), tmp_path)
    ok, reason = engine_builder.check(copy)
    assert not ok and copy.name in reason
    assert copy.stat().st_size == cut


def test_asked_again_nothing_is_built(built, model, monkeypatch):
    manifest, _, folder = built
    monkeypatch.setattr(builder, "_run", lambda *_: pytest.fail("built again"))
    again = engine_builder.build(model, folder, **VARIANT, targets="12.0, 8.9")
    assert again == manifest
    assert [engine.path.name for engine in engine_builder.list_engines(folder)] == [manifest["plan"]]
    assert engine_builder.find_engine(manifest["plan"], folder).identity == manifests.identity(manifest)


def test_a_truncated_engine_is_built_again(built, model, monkeypatch, tmp_path, caplog):
    manifest, _, folder = built
    shutil.copytree(folder, tmp_path / "copy")
    plan = tmp_path / "copy" / manifest["plan"]
    plan.write_bytes(plan.read_bytes()[:1000])
    monkeypatch.setattr(builder, "_run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
        engine_builder.build(model, tmp_path / "copy", **VARIANT, targets=["8.9", "12.0"])
    assert "truncated" in caplog.text


def test_a_name_tells_the_variant(model):
    source = builder._Source(model)
    want = builder._wanted(source, 512, 16, True, "portable", False)
    name = builder._file_name("some folder/LatentSync 1.6: mine.safetensors", want)
    assert name == f"LatentSync-1.6-mine_512_16_guided_portable_{manifests.identity(want)}.plan"
    assert "_unguided_sm86-89_" in builder._file_name("x", {**want, "guided": False, "targets": ["8.6", "8.9"]})


# --- what is refused before any work (F43, F46) ---


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"frames": 25}, "1 to 24 frames"),
        ({"frames": 0}, "1 to 24 frames"),
        ({"resolution": 500}, "multiple of 64"),
        ({"resolution": 0}, "multiple of 64"),
        ({"targets": ["9.0"]}, "does not build this network for compute capability 9.0"),
        ({"targets": "this GPU"}, "cannot build for this GPU"),
    ],
)
def test_impossible_wishes(model, tmp_path, changes, words):
    if "targets" in changes and torch.cuda.is_available():
        pytest.skip("there may be a GPU to build for")
    with pytest.raises(EngineError, match=words):
        engine_builder.build(model, tmp_path / "engines", **{**VARIANT, **changes})
    assert not (tmp_path / "engines").exists()


def test_no_room_on_the_disk(model, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(builder.shutil, "disk_usage", lambda folder: usage(10**12, 10**12, 10**6))
    with pytest.raises(DiskSpaceError, match=r"0\.0 GB are free"):
        engine_builder.build(model, tmp_path, **VARIANT)
    assert files(tmp_path) == set()


def test_a_folder_that_cannot_be_written_to(model, tmp_path):
    (tmp_path / "engines").write_text("a file where the folder should be")
    with pytest.raises(EngineError, match="cannot build an engine in"):
        engine_builder.build(model, tmp_path / "engines", **VARIANT)
    assert (tmp_path / "engines").is_file()


def test_a_disk_that_fills_up(model, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(builder.weight_file, "write", full)
    with pytest.raises(EngineError, match="No space left on device"):
        engine_builder.build(model, tmp_path, **VARIANT)
    assert files(tmp_path) == set() and not list(tmp_path.glob(".build-*"))


def test_no_room_in_memory(model, tmp_path, monkeypatch):
    monkeypatch.setattr(builder, "_free_memory", lambda: 10**6)
    with pytest.raises(EngineError, match=r"needs 1\.\d GB of memory"):
        engine_builder.build(model, tmp_path, **VARIANT)
    assert files(tmp_path) == set()


def test_the_full_network_needs_less_than_seven_gigabytes():
    source = type("Model", (), {"name": "x", "fingerprint": "x", "config": UNetConfig(), "tensors": dict})()
    assert 2.5e9 < builder._Source(source).size < 2.6e9
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "_free_memory", lambda: 7 * 10**9)
        builder._check_memory(builder._Source(source))


def test_without_the_packages_it_says_which(model, tmp_path, monkeypatch):  # F46
    monkeypatch.setattr(engines, "installed_version", lambda: None)
    with pytest.raises(DependencyError, match="pip install tensorrt-rtx"):
        engine_builder.build(model, tmp_path, **VARIANT)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(DependencyError, match="pip install onnxscript"):
        engine_builder.build(model, tmp_path, **VARIANT)


# --- a build that does not end well ---


def scripted(monkeypatch, body: str):
    """Every step runs `body` (Python) instead of the real work, in its own process, with the real messages."""
    start = f"import sys, time, json, os, threading\nsys.path.insert(0, {str(ROOT / 'engine_builder')!r})\n"
    start += "import child; say = child._voice(); threading.Thread(target=child._stop_with_parent, daemon=True).start()\n"
    real = process.Step.__init__

    def init(self, *arguments):
        real(self, *arguments)
        self.command = [sys.executable, "-c", start + body]

    monkeypatch.setattr(process.Step, "__init__", init)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("say(error='no kernel for node 7', kind='BuildError'); os._exit(1)", "no kernel for node 7"),
        ("say(log='first'); say(log='layer 12: out of range'); os._exit(2)", "layer 12: out of range. The process ended with 2"),
        ("sys.stderr.write('Traceback\\nValueError: weird\\n'); os._exit(1)", "ValueError: weird"),
        ("say(log='allocating'); os.kill(os.getpid(), 9)", "allocating. The process was ended from outside, signal 9 (for lack of memory"),
        ("os._exit(0)", "it said nothing"),
        ("print('plain output', flush=True); os._exit(5)", "plain output"),
    ],
)
def test_the_last_words_of_a_build_that_fails(model, tmp_path, monkeypatch, body, words):  # F43
    scripted(monkeypatch, body)
    with pytest.raises(EngineError) as error:
        engine_builder.build(model, tmp_path, **VARIANT)
    assert words in str(error.value)
    assert files(tmp_path) == set() and not list(tmp_path.glob(".build-*"))


def test_a_missing_package_in_the_process_keeps_its_kind(model, tmp_path, monkeypatch):
    scripted(monkeypatch, "say(error='needs onnx', kind='DependencyError'); os._exit(1)")
    with pytest.raises(DependencyError, match="needs onnx"):
        engine_builder.build(model, tmp_path, **VARIANT)


class Cancelled(BaseException):
    """As ComfyUI's interrupt."""


@pytest.mark.parametrize("at", ["export", "plan"])
def test_cancelled_it_is_gone_at_once(model, tmp_path, monkeypatch, at):
    if at == "plan":
        monkeypatch.setattr(builder, "_run", only_plan)
    scripted(monkeypatch, "say(progress=0.5); time.sleep(3600)")
    children = []

    def progress(done, total, **_):
        children[:] = psutil.Process().children() or children
        if done >= {"export": 17, "plan": 60}[at]:
            raise Cancelled

    with pytest.raises(Cancelled):
        engine_builder.build(model, tmp_path, **VARIANT, progress=progress)
    assert children and not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    assert files(tmp_path) == set() and not list(tmp_path.glob(".build-*"))


def only_plan(work, source, want, progress):
    with process.Step("plan", work, {}, lambda fraction: progress(int(35 + 65 * fraction), 100)) as step:
        return step.result()


def test_cancelled_while_it_waits_for_another_build(model, tmp_path):
    def progress(*_, **__):
        raise Cancelled

    with storage.locked(tmp_path / builder.BUILD_LOCK), pytest.raises(Cancelled):
        engine_builder.build(model, tmp_path, **VARIANT, progress=progress)


def test_what_a_killed_build_left_goes_with_the_next(model, tmp_path, monkeypatch):
    left = tmp_path / ".build-feedbeef0000"
    left.mkdir()
    (left / "weights.bin").write_bytes(b"x")
    mine = tmp_path / "my own engine.plan"
    mine.write_bytes(b"not ours")
    scripted(monkeypatch, "os._exit(1)")
    with pytest.raises(EngineError):
        engine_builder.build(model, tmp_path, **VARIANT)
    assert not left.exists() and mine.read_bytes() == b"not ours"


def test_the_process_ends_when_its_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    body = (
        f"import sys, threading, time; sys.path.insert(0, {str(ROOT / 'engine_builder')!r}); import child;"
        "threading.Thread(target=child._stop_with_parent, daemon=True).start(); time.sleep(3600)"
    )
    script.write_text(
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {body!r}], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(3600)\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    gone, alive = psutil.wait_procs([child], timeout=60)
    for process_ in alive:
        process_.kill()
    assert gone


# --- the pack under any name, weights from anywhere ---


def test_a_network_in_memory_has_the_fingerprint_of_its_file(model):
    network = model.load_unet()
    source = builder._Source(network)
    assert source.config == model.config
    assert source.fingerprint == builder._Source(network.half()).fingerprint
    with torch.no_grad():
        network.conv_in.bias[0] += 1
    assert source.fingerprint != builder._Source(network).fingerprint


def test_the_builders_process_needs_no_pytorch():
    code = (
        "import sys; sys.path.insert(0, 'engine_builder'); import child; child._module('engine_builder.plan');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_it_works_from_a_folder_whose_name_is_no_identifier(tmp_path):
    """As ComfyUI imports a pack: under a name made from its path, out of any folder."""
    place = tmp_path / "custom nodes" / "latentsync-rtx (1)"
    place.parent.mkdir()
    place.symlink_to(ROOT)
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('/x/{place.name}', {str(place / '__init__.py')!r}, submodule_search_locations=[{str(place)!r}])\n"
        "package = importlib.util.module_from_spec(spec); sys.modules[spec.name] = package; spec.loader.exec_module(package)\n"
        "process = importlib.import_module(spec.name + '.engine_builder.process')\n"
        "from pathlib import Path\n"
        f"with process.Step('export', Path({str(tmp_path)!r}), {{'network': {{'block_out_channels': [32], 'layers_per_block': 1}}, 'resolution': 64,"
        " 'frames': 1, 'guided': False, 'role': 'whole'}, lambda fraction: None) as step:\n"
        "    assert step.result()['opset'] == 23\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "graph.onnx").is_file()


def test_a_listener_is_asked_several_times_a_second(model, tmp_path, monkeypatch):
    """Whatever the process does: it says nothing here for a while."""
    scripted(monkeypatch, "time.sleep(3); os._exit(1)")
    heard = []
    with pytest.raises(EngineError):
        engine_builder.build(model, tmp_path, **VARIANT, progress=lambda *_, **__: heard.append(time.monotonic()))
    assert len(heard) > 8


def test_a_pair_for_block_caching(tmp_path, monkeypatch):
    """Two real builds of a network of two levels: the whole one that leaves its deep features, and the outer stages that take them."""
    network, heard = LatentSyncUNet(UNetConfig(block_out_channels=(32, 64), layers_per_block=1)), []
    variant = {"resolution": 32, "frames": 1, "guided": False, "targets": ["8.9"], "caching": True}
    manifest = engine_builder.build(network, tmp_path, **variant, progress=lambda done, total, *, stage="", preview=None: heard.append(done))
    assert heard == sorted(heard) and (heard[0], heard[-1]) == (0, 100)
    deep = engines.read(manifest["path"])
    shallow = engines.partner(deep)
    assert (deep.manifest["role"], shallow.manifest["role"]) == ("deep", "shallow") and "shallow" in shallow.path.name
    assert engine_builder.list_engines(tmp_path) == [deep]
    for engine in (deep, shallow):
        ok, reason = engine_builder.check(engine.path, resolution=32, frames=1)
        assert ok, reason
    assert shallow.manifest["weights_bytes"] < 0.5 * deep.manifest["weights_bytes"]
    assert engine_builder.check(shallow.path, role="whole") == (False, f"engine {shallow.path.name}: its role is shallow, needed is whole. {manifests.REBUILD}")
    monkeypatch.setattr(builder, "Step", None)
    assert engine_builder.build(network, tmp_path, **variant)["path"] == manifest["path"], "both are there: nothing is built"
