"""RtxRunner between two runs: memory, the comparison with PyTorch, what the library refuses, what was compiled for the card."""
import json
import logging

import pytest
import torch
from latentsync_rtx.lipsync.denoise import denoise
from latentsync_rtx.lipsync.errors import EngineError
from latentsync_rtx.lipsync.runners import engines, tensorrt_rtx
from latentsync_rtx.lipsync.runners.manifest import MIN_COSINE
from latentsync_rtx.lipsync.runners.tensorrt_rtx import RtxRunner
from latentsync_rtx.tests.runners.doubles import CARD, FRAMES, VERSION, Library, assert_computes_the_network, inputs, job

# --- memory (F45) ---


def test_loading_and_freeing_thirty_times_takes_nothing(make, unet, device):
    runner = make()
    runner.load()
    runner.predict(*inputs(device))  # libraries of the double's network take their workspaces once
    runner.unload()
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    for _ in range(30):
        runner.load()
        assert runner.loaded and runner.size_bytes == 1000 + 4096
        runner.predict(*inputs(device))
        runner.unload()
        assert not runner.loaded and runner.size_bytes == 0
    double = runner.double
    assert (double.deserialized, len(double.contexts), double.weight_loads) == (1, 1, 31)  # the slow parts once
    assert not double.engine.weights_loaded
    assert device.type == "cpu" or torch.cuda.memory_allocated(device) == before
    assert_computes_the_network(runner, unet, device)


def test_buffers_are_bound_once_a_load(make, device):
    runner = make()
    for seed in range(5):
        runner.predict(*inputs(device, seed=seed))
    assert runner.double.contexts[0].set_tensor_address.call_count == 4
    assert runner.double.contexts[0].set_device_memory.call_count == 1


def test_freed_in_the_middle_of_a_job_it_loads_again(make, unet):
    runner, given = make(), job(3 * FRAMES)
    expected = denoise(make(), **given)
    freed = []

    def free_once(done, total, **_):
        if done == 4 and not freed:
            freed.append(True)
            runner.unload()

    torch.testing.assert_close(denoise(runner, **given, progress=free_once), expected, rtol=1e-3, atol=1e-3)
    assert runner.double.weight_loads == 2


def test_weights_that_cannot_be_unloaded_go_with_the_engine(make, unet, device):
    runner = make({"gives": {"unload_weights": False}, "says": "busy"})
    runner.load()
    runner.unload()
    assert runner.size_bytes == 0
    runner.double.contexts.clear()
    assert_computes_the_network(runner, unet, device)
    assert runner.double.deserialized == 2


def test_weights_of_a_plan_that_was_built_again_do_not_go_into_the_old_one(make, unet, device):
    runner = make(sha256="one")
    runner.predict(*inputs(device))
    runner.unload()
    make(sha256="another")  # the same identity: the same file
    runner.double.contexts.clear()
    assert_computes_the_network(runner, unet, device)
    assert runner.double.deserialized == 2


def test_streamed_weights_have_a_budget_and_go_with_the_engine(make, unet, device):
    runner = make(weight_streaming=True)
    assert_computes_the_network(runner, unet, device)
    assert runner.double.engine.weight_streaming_budget_v2 == 777 and runner.double.weight_loads == 0
    denoise(runner, **job(3 * FRAMES))  # without a graph, which could not hold the copies
    assert runner.double.contexts[0].execute_async_v3.call_count == 3 + 3 * 3
    runner.unload()
    assert runner.size_bytes == 0 and runner._plan is None


# --- the comparison with PyTorch (F48) ---


def test_the_first_load_on_a_card_compares_and_remembers(make, unet, tmp_path, device):
    runner = make(parity={})
    runner.load()
    verdict = engines.read(runner.engine.path).manifest["parity"][CARD.key]
    assert verdict["passed"] and verdict["cosine"] > 0.99999 and verdict["driver"] == CARD.driver
    runs = runner.double.runs
    assert runs == 2
    again = RtxRunner(engines.read(runner.engine.path), None, device, gpu=CARD, library=Library(runner.engine, unet))
    again.load()
    assert again._library.runs == 0


def test_an_engine_that_computes_something_else_is_refused_with_the_figure(make, device):
    runner = make({"error": 0.3}, parity={})
    with pytest.raises(EngineError, match=r"cosine 0\.\d+ where 0.9999 is needed"):
        runner.load()
    assert not runner.loaded and runner.size_bytes == 0
    verdict = engines.read(runner.engine.path).manifest["parity"][CARD.key]
    assert not verdict["passed"] and verdict["cosine"] < MIN_COSINE
    loads = runner.double.weight_loads
    with pytest.raises(EngineError, match="other numbers than PyTorch"):  # and from then on before it is loaded
        runner.predict(*inputs(device))
    assert runner.double.weight_loads == loads


def test_a_verdict_that_cannot_be_kept_still_counts(make, unet, device, monkeypatch):
    def refuse(*_):
        raise OSError("read-only")

    monkeypatch.setattr(tensorrt_rtx.engines, "record_parity", refuse)
    assert_computes_the_network(make(parity={}), unet, device)
    with pytest.raises(EngineError, match="cosine"):
        make({"error": 0.3}, parity={}).load()


def test_zeros_are_refused(make, unet):
    runner = make(parity={})
    runner.double.unet = type("Zeros", (torch.nn.Module,), {"forward": lambda self, sample, *_: sample[:, :4] * 0})()
    runner.double.unet.anything = torch.nn.Parameter(torch.zeros(1, device=runner.spec.device))
    with pytest.raises(EngineError, match=r"cosine 0\.0"):
        runner.load()


def test_without_a_checkpoint_an_unknown_engine_is_not_trusted(make):
    runner = make(parity={})
    runner.reference = None
    with pytest.raises(EngineError, match="never compared with PyTorch"):
        runner.load()


def test_the_manifest_stays_json(make):
    runner = make({"error": float("nan")}, parity={})
    with pytest.raises(EngineError):
        runner.load()
    json.loads(runner.engine.path.with_suffix(".json").read_text(), parse_constant=pytest.fail)


# --- the library's refusals (F41, F42, F43) ---


@pytest.mark.parametrize(
    ("call", "nothing"),
    [
        ("Runtime", None),
        ("deserialize_cuda_engine", None),
        ("create_runtime_config", None),
        ("create_runtime_cache", None),
        ("create_execution_context", None),
        ("load_weights", False),
        ("execute_async_v3", False),
    ],
)
def test_whatever_the_library_does_not_give_is_an_error_with_its_words(make, device, call, nothing):
    runner = make({"gives": {call: nothing}, "says": "the reason it gave"})
    with pytest.raises(EngineError, match="the reason it gave"):
        runner.predict(*inputs(device))
    assert call == "execute_async_v3" or (not runner.loaded and runner.size_bytes == 0)


def test_a_plan_that_the_library_refuses_is_not_loaded(make):
    runner = make()
    runner.double.validity, runner.double.diagnostics = runner.double.EngineValidity.INVALID, 2
    with pytest.raises(EngineError, match="not built for this GPU's compute capability"):
        runner.load()
    assert runner.double.deserialized == 0


@pytest.mark.parametrize("content", [b"", b"half", b"version https://git-lfs.github.com/spec/v1\n" + b"x" * 60, b"a text file\n" * 9])
def test_a_file_that_is_no_plan_stays_and_is_not_loaded(make, content):
    runner = make()
    runner.engine.path.write_bytes(content)
    with pytest.raises(EngineError, match=runner.engine.path.name):
        runner.load()
    assert runner.engine.path.read_bytes() == content
    assert runner.double.deserialized == 0


def test_an_engine_whose_shapes_are_not_its_manifests_is_refused(make):
    runner = make()
    runner.double.manifest = {**runner.double.manifest, "frames": 5}
    with pytest.raises(EngineError, match="where its manifest promises"):
        runner.load()
    assert runner.size_bytes == 0


def test_no_gpu(make, monkeypatch):
    runner = make()
    runner.gpu, runner.spec = None, tensorrt_rtx.RunnerSpec("tensorrt_rtx", torch.device("cpu"), torch.float16)
    with pytest.raises(EngineError, match="needs an NVIDIA GPU"):
        runner.load()


# --- what was compiled for the card ---


def cache_files(runner):
    return sorted(runner.engine.path.parent.glob("*.jit"))


def test_what_was_compiled_is_kept_after_the_first_run(make, device):
    runner = make()
    runner.load()
    assert not cache_files(runner)
    runner.predict(*inputs(device))
    (kept,) = cache_files(runner)
    assert kept.read_bytes() == b"compiled for this card"
    assert "4090" in kept.name and VERSION in kept.name
    stamp = kept.stat().st_mtime_ns
    runner.close()
    runner.double.contexts.clear()
    runner.predict(*inputs(device))
    assert runner.double.caches[-1].deserialize.call_count == 1
    assert kept.stat().st_mtime_ns == stamp


def test_a_damaged_cache_is_ignored_and_replaced(make, unet, device):
    runner = make()
    runner.predict(*inputs(device))
    (kept,) = cache_files(runner)
    kept.write_bytes(b"rubbish")
    runner.close()
    runner.double.contexts.clear()
    assert_computes_the_network(runner, unet, device)
    assert kept.read_bytes() == b"compiled for this card"


def test_a_cache_that_cannot_be_written_stops_nothing(make, unet, device, monkeypatch, caplog):
    def refuse(*_):
        raise OSError("read-only")

    monkeypatch.setattr(tensorrt_rtx.storage, "write", refuse)
    with caplog.at_level(logging.WARNING):
        assert_computes_the_network(make(), unet, device)
    assert len([record for record in caplog.records if "read-only" in record.getMessage()]) == 1
