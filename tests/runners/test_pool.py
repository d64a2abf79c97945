"""The pool: one runner per network, found again by whoever has its description, and replaced by PyTorch where an engine does not run."""
import copy
import logging
import pickle
import threading

import pytest
import torch
from latentsync_rtx.lipsync import weights
from latentsync_rtx.lipsync.errors import EngineError
from latentsync_rtx.lipsync.runners import TorchRunner, choice, engines, pool
from latentsync_rtx.lipsync.runners.pool import POOL, EngineRecipe, PooledRunner, TorchRecipe, runner_for
from latentsync_rtx.tests.runners import doubles
from latentsync_rtx.tests.runners.doubles import CARD, VERSION, Library, write_engine


@pytest.fixture(autouse=True)
def empty():
    POOL.forget()
    yield
    POOL.forget()


@pytest.fixture
def model():
    return weights.find_model(weights.DEMO)


def predict(runner, rows=1, frames=2, side=8):
    generator = torch.Generator().manual_seed(3)
    sample = torch.randn(rows, 13, frames, side, side, generator=generator)
    audio = torch.randn(rows, frames, 50, 384, generator=generator)
    spec = runner.spec
    return runner.predict(sample.to(spec.device, spec.dtype), torch.tensor([300]), audio.to(spec.device, spec.dtype)).clone()


def test_it_is_a_runner_and_loads_on_use(model):
    runner = runner_for(model, "torch", device="cpu")
    assert runner.size_bytes == 0
    assert (runner.spec.backend, runner.spec.device.type, runner.spec.dtype) == ("torch", "cpu", torch.float32)
    assert runner.size_bytes == 0  # asking what it is loads nothing
    expected = TorchRunner(model.load_unet(), "cpu")
    torch.testing.assert_close(predict(runner), predict(expected))
    assert runner.size_bytes == runner.needed_bytes == expected.size_bytes > 0


def test_needed_memory_is_known_before(model):
    runner = runner_for(model, "torch", device="cpu")
    before = runner.needed_bytes
    runner.load()
    assert before == runner.size_bytes


def test_every_copy_finds_the_same_runner(model):
    first = runner_for(model, "torch", device="cpu")
    first.load()
    loaded = POOL.existing(first.recipe)
    others = [runner_for(weights.find_model(weights.DEMO), "torch", device="cpu"), pickle.loads(pickle.dumps(first)), copy.deepcopy(first)]
    del first
    for other in others:
        assert POOL.existing(other.recipe) is loaded
        other.load()
        assert POOL.existing(other.recipe) is loaded
    assert len({other.key for other in others}) == 1


def test_another_precision_is_another_runner(model):
    one, other = (runner_for(model, "torch", device="cpu", dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    assert one.key != other.key
    assert other.spec.dtype == torch.bfloat16


def test_freed_it_loads_again(model):
    runner = runner_for(model, "torch", device="cpu")
    first = predict(runner)
    for _ in range(3):
        runner.unload()
        assert runner.size_bytes == 0
        torch.testing.assert_close(predict(runner), first, rtol=0, atol=0)


def test_a_description_is_light(model):
    runner = runner_for(model, "torch", device="cpu")
    runner.load()
    assert len(pickle.dumps(runner)) < 2000


def test_asked_by_several_threads_one_is_made(model, monkeypatch):
    made = []
    real = TorchRecipe.make
    monkeypatch.setattr(TorchRecipe, "make", lambda self: made.append(1) or real(self))
    runner = runner_for(model, "torch", device="cpu")
    threads = [threading.Thread(target=runner.load) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(made) == 1


# --- engines ---


@pytest.fixture
def rtx(tmp_path, model, monkeypatch):
    """rtx(**options of the double) -> (description, double): `auto` on a card with an engine of the model."""
    monkeypatch.setattr(choice, "gpu_of", lambda device=None: CARD)
    monkeypatch.setattr(engines, "installed_version", lambda: VERSION)
    parity = {CARD.key: {"passed": True, "cosine": 1.0, "largest_error": 0.0}}

    def rtx(backend="auto", frames=2, build="one", **options):
        engine = write_engine(tmp_path, fingerprint=model.fingerprint, parity=parity, guided=False, frames=frames, sha256=build)
        double = Library(engine, model.load_unet(), **options)
        monkeypatch.setattr("latentsync_rtx.lipsync.runners.tensorrt_rtx.library", lambda: double)
        return runner_for(model, backend, device="cpu", folder=tmp_path, frames=frames), double

    with doubles.late_lanes():
        yield rtx


def test_an_engine_runs_through_the_pool(rtx, model):
    runner, double = rtx()
    assert runner.spec.backend == "tensorrt_rtx" and runner.spec.frames == 2
    found = predict(runner).float()
    torch.testing.assert_close(found, predict(TorchRunner(model.load_unet(), "cpu")), rtol=2e-3, atol=2e-3)
    assert double.runs == 1
    again = pickle.loads(pickle.dumps(runner))
    predict(again)
    assert (double.deserialized, double.runs) == (1, 2)


def test_freed_and_used_thirty_times_the_engine_stays(rtx):  # F45
    runner, double = rtx()
    for _ in range(30):
        predict(runner)
        runner.unload()
        assert runner.size_bytes == 0 and not double.engine.weights_loaded
    assert (double.deserialized, double.weight_loads, len(double.contexts)) == (1, 30, 1)


def test_one_engine_is_open_at_a_time(rtx):
    first, double = rtx()
    first.load()
    second, other = rtx(frames=3)
    second.load()
    assert POOL.existing(first.recipe) is None
    assert not double.contexts[0].engine.weights_loaded or first.size_bytes == 0
    assert second.size_bytes > 0 and other.deserialized == 1


def test_an_engine_that_does_not_run_costs_one_line_and_pytorch_runs(rtx, model, caplog):  # F47
    runner, _ = rtx(gives={"deserialize_cuda_engine": None}, says="this compute capability is not supported")
    with caplog.at_level(logging.WARNING):
        assert runner.spec.backend == "torch"
        torch.testing.assert_close(predict(runner), predict(TorchRunner(model.load_unet(), "cpu")))
        predict(pickle.loads(pickle.dumps(runner)))
        runner.unload()
        predict(runner)
    lines = [record.getMessage() for record in caplog.records if "PyTorch runs" in record.getMessage()]
    assert len(lines) == 1 and "this compute capability is not supported" in lines[0]
    assert runner.size_bytes > 0


def test_an_engine_that_was_wished_for_is_not_replaced(rtx):
    runner, _ = rtx("tensorrt_rtx", gives={"deserialize_cuda_engine": None}, says="no")
    for _ in range(2):
        with pytest.raises(EngineError, match="no"):
            runner.load()
    assert runner.size_bytes == 0


def test_an_engine_that_failed_is_tried_again_once_it_was_built_again(rtx, model):
    runner, _ = rtx(gives={"deserialize_cuda_engine": None}, says="no")
    assert runner.spec.backend == "torch"
    again, double = rtx(build="another")
    assert again.recipe.identity == runner.recipe.identity and again != runner
    assert again.spec.backend == "tensorrt_rtx" and double.deserialized == 1


def test_an_engine_that_was_built_anew_under_a_name_is_not_the_one_that_was_chosen(rtx, model):
    runner, _ = rtx("tensorrt_rtx")
    stale = PooledRunner(EngineRecipe(runner.recipe.plan, "000000000000", model, "cpu"))
    with pytest.raises(EngineError, match="choose it again"):
        stale.load()


def test_the_same_job_runs_without_any_of_it(model, monkeypatch, tmp_path, caplog):  # F46
    monkeypatch.setattr(engines, "installed_version", lambda: None)
    with caplog.at_level(logging.WARNING):
        runner = runner_for(model, "auto", device="cpu", folder=tmp_path / "none")
    assert runner.spec.backend == "torch"
    assert len(caplog.records) == 1 and "PyTorch runs the network" in caplog.text
    assert predict(runner).isfinite().all()
    assert isinstance(pool.POOL.existing(runner.recipe), TorchRunner)
