"""RtxRunner on doubles that evaluate the network at the addresses they are given: on a CPU, and with `-m gpu` on real streams."""
import gc
import json
import logging

import pytest
import torch
from latentsync_rtx.lipsync.denoise import denoise
from latentsync_rtx.lipsync.errors import EngineError, ShapeError
from latentsync_rtx.lipsync.runners import TorchRunner, engines, tensorrt_rtx
from latentsync_rtx.lipsync.runners.manifest import DEEP, MIN_COSINE, SHALLOW
from latentsync_rtx.lipsync.runners.streams import Lane
from latentsync_rtx.lipsync.runners.tensorrt_rtx import RtxRunner
from latentsync_rtx.lipsync.unet import LatentSyncUNet, UNetConfig
from latentsync_rtx.tests.runners import doubles
from latentsync_rtx.tests.runners.doubles import CARD, Library, write_engine

FRAMES, SIDE = 4, 4
PARITY = {CARD.key: {"passed": True, "cosine": 1.0, "largest_error": 0.0}}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device(request.param)


@pytest.fixture(scope="module")
def unet(device):
    torch.manual_seed(0)
    return LatentSyncUNet(UNetConfig(block_out_channels=(32, 32), layers_per_block=1)).to(device).eval().requires_grad_(False)


@pytest.fixture(autouse=True)
def lanes():
    with doubles.late_lanes():
        yield


@pytest.fixture
def make(tmp_path, unet, device):
    """make(**fields of the manifest) -> a runner that passed its comparison before; `library` holds options of the double, `pair` gives the
    engine a shallow partner."""

    def make(library: dict | None = None, runner=RtxRunner, pair=False, **fields):
        fields = {"frames": FRAMES, "resolution": 8 * SIDE, "parity": PARITY, **fields}
        if pair:
            write_engine(tmp_path, **fields, role=SHALLOW)
            fields["role"] = DEEP
        engine = write_engine(tmp_path, **fields)
        double = Library(engine, unet, **(library or {}))
        made = runner(engine, reference(unet), device, gpu=CARD, library=double)
        made.double = double
        return made

    return make


def reference(unet):
    """The network in PyTorch. Its own copy: a runner takes a network over."""
    import copy

    return lambda: TorchRunner(copy.deepcopy(unet), next(unet.parameters()).device, torch.float32, graph=False)


def inputs(device, rows=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randn(rows, 13, FRAMES, SIDE, SIDE, generator=generator)
    audio = torch.randn(rows, FRAMES, 50, 384, generator=generator)
    return sample.half().to(device), torch.tensor([400 + seed]).to(device), audio.half().to(device)


def assert_computes_the_network(runner, unet, device):
    """Three different calls, the inputs still being computed when they are handed over, and the answers read at once."""
    for seed in (1, 2, 3):
        sample, timestep, audio = inputs(device, rows=runner.spec.batch, seed=seed)
        late = [torch.zeros_like(sample), torch.zeros_like(timestep), torch.zeros_like(audio)]
        if device.type == "cuda":
            torch.cuda._sleep(doubles.CYCLES)
        for tensor, value in zip(late, (sample, timestep, audio), strict=True):
            tensor.copy_(value)
        found = runner.predict(*late).clone()
        for tensor in late:
            tensor.zero_()  # the caller's buffers are the caller's
        expected = unet(sample.float(), timestep, audio.float())
        torch.testing.assert_close(found.float(), expected, rtol=2e-3, atol=2e-3)


def test_predict_is_the_network(make, unet, device):
    assert_computes_the_network(make(), unet, device)


def test_an_unguided_engine_takes_one_row(make, unet, device):
    assert_computes_the_network(make(guided=False), unet, device)


# --- block caching: the whole network and its outer levels as two engines ---


def test_a_pair_leaves_and_takes_deep_features(make, unet, device):
    runner = make(pair=True)
    assert runner.caches and not make().caches
    sample, timestep, audio = inputs(device)
    deep = runner.deep_features(2, FRAMES, (SIDE, SIDE))
    expected = unet.deep_features(2, FRAMES, (SIDE, SIDE), dtype=torch.float32, device=device)
    noise = runner.predict(sample, timestep, audio, deep=deep)
    torch.testing.assert_close(noise.float(), unet(sample.float(), timestep, audio.float(), deep=expected), rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(deep.float(), expected.contiguous(), rtol=2e-3, atol=2e-3)
    assert runner.double.deserialized == 1, "the partner is not loaded before it is needed"
    noise = runner.predict(sample * 0.5, timestep, audio, deep=deep, reuse=True)
    reused = unet(sample.float() * 0.5, timestep, audio.float(), deep=expected, reuse=True)
    torch.testing.assert_close(noise.float(), reused, rtol=2e-3, atol=2e-3)
    assert (reused - unet(sample.float() * 0.5, timestep, audio.float())).abs().max() > 0.01
    assert runner.double.roles_run == [DEEP, SHALLOW]
    runner.unload()
    assert runner.size_bytes == 0 and not any(context.engine.weights_loaded for context in runner.double.contexts)


@pytest.mark.parametrize("guided", [True, False], ids=["batch of two", "one row at a time"])
def test_profiles_with_block_caching_run_on_a_pair(make, unet, device, guided):
    """Both halves of guidance keep their own deep features, also where an engine takes one after the other."""
    runner, given = make(pair=True, guided=guided), denoise_inputs()
    found = denoise(runner, **given, profile="approx-cache2", guidance=1.5)
    evaluations = 3 if device.type == "cuda" else 2 * 10  # to warm up twice and to be recorded, or in each of two blocks
    calls = evaluations * (1 if guided else 2)
    assert (runner.double.roles_run.count(DEEP), runner.double.roles_run.count(SHALLOW)) == (calls, calls)
    expected = denoise(reference(unet)(), **given, profile="approx-cache2", guidance=1.5, blocks=torch.arange(2 * FRAMES).view(2, -1).numpy())
    assert ((found - expected).norm() / expected.norm()).item() < 5e-3
    assert ((denoise(runner, **given, guidance=1.5) - expected).norm() / expected.norm()).item() > 1e-4


def test_a_partner_that_computes_something_else_is_refused(make, unet):
    runner = make({"error": 0.0}, pair=True, parity={})
    runner.load()
    assert runner.engine.manifest["parity"][CARD.key]["passed"]
    runner.double.error = 0.5
    with pytest.raises(EngineError, match="it computed other numbers than PyTorch"):
        runner.open(torch.tensor([1]), frames=FRAMES, size=(SIDE, SIDE), guided=True, cached=True)


def denoise_inputs(frames=2 * FRAMES):
    generator = torch.Generator().manual_seed(4)
    masked, crops = torch.randn(2, frames, 4, SIDE, SIDE, generator=generator)
    audio, noise = torch.randn(frames, 50, 384, generator=generator), torch.randn(4, SIDE, SIDE, generator=generator)
    return dict(masked_latents=masked, reference_latents=crops, audio=audio, latent_keep=torch.zeros(SIDE, SIDE), base_noise=noise)


# --- the doubles must notice what goes wrong on a card ---


class SwapsAddresses(RtxRunner):
    def _bind(self):
        super()._bind()
        self._spare = torch.zeros_like(self._buffers["noise"])
        self._context.set_tensor_address("noise", self._spare.data_ptr())


class KeepsOldInputs(RtxRunner):
    def predict(self, sample, timestep, audio, check=lambda: None):
        if getattr(self, "_once", False):
            sample, timestep, audio = (self._buffers[name] for name in ("sample", "timestep", "audio"))
        self._once = True
        return super().predict(sample, timestep, audio, check)


class NoWaitAfter(Lane):
    def __exit__(self, *error):
        self.context.__exit__(*error)


class NoWaitBefore(Lane):
    def __enter__(self):
        self.outer = torch.cuda.current_stream(self.device)
        self.context = torch.cuda.stream(self.stream)
        self.context.__enter__()
        return self.stream.cuda_stream


class NeverWaits(doubles.LateLane):
    def __exit__(self, *_):
        pass


@pytest.mark.parametrize("broken", [SwapsAddresses, KeepsOldInputs])
def test_wrong_addresses_and_stale_buffers_are_seen(make, unet, device, broken):
    with pytest.raises(AssertionError):
        assert_computes_the_network(make(runner=broken), unet, device)


@pytest.mark.parametrize("broken", [NoWaitAfter, NoWaitBefore, NeverWaits])
def test_a_missing_wait_is_seen(make, unet, device, broken, monkeypatch):
    if (device.type == "cpu") != (broken is NeverWaits):
        pytest.skip("of the other device")
    monkeypatch.setattr(tensorrt_rtx, "Lane", broken)
    with pytest.raises(AssertionError):
        assert_computes_the_network(make(), unet, device)


def test_a_second_context_is_seen(make):
    runner = make()
    runner.load()
    with pytest.raises(AssertionError, match="second context"):
        runner._create_context()


# --- blocks: guidance, tails, two at a time (F44) ---


def job(frames, seed=5):
    generator = torch.Generator().manual_seed(seed)
    shape = (frames, 4, SIDE, SIDE)
    return {
        "masked_latents": torch.randn(shape, generator=generator),
        "reference_latents": torch.randn(shape, generator=generator),
        "audio": torch.randn(frames, 50, 384, generator=generator),
        "latent_keep": (torch.randn(SIDE, SIDE, generator=generator) > 0).float(),
        "base_noise": torch.randn(shape[1:], generator=generator),
        "steps": 3,
    }


@pytest.mark.parametrize("guidance", [1.5, 1.0])
@pytest.mark.parametrize("guided", [True, False])
def test_a_job_with_a_tail_equals_pytorch(make, unet, guidance, guided):
    runner, frames = make(guided=guided), 2 * FRAMES + 3  # F44: a tail of three frames; two full blocks: worth a capture
    plain = reference(unet)()
    expected = torch.cat(
        [
            denoise(plain, **_block(job(frames), slice(start, start + FRAMES)), guidance=guidance)
            for start in range(0, 2 * FRAMES, FRAMES)
        ]
    )
    found = denoise(runner, **job(frames), guidance=guidance)
    assert found.shape == (frames, 4, SIDE, SIDE)
    torch.testing.assert_close(found[: 2 * FRAMES], expected, rtol=0.02, atol=0.02)
    padded = _block(job(frames), [8, 9, 10, 10])  # the tail repeats its last frame
    torch.testing.assert_close(found[2 * FRAMES :], denoise(plain, **padded, guidance=guidance)[:3], rtol=0.02, atol=0.02)


def _block(given, frames):
    whole = ("latent_keep", "base_noise", "steps")
    return {name: value if name in whole else value[frames] for name, value in given.items()}


def test_without_guidance_a_guided_engine_runs_two_blocks_a_call(make, device):
    runner = make()
    denoise(runner, **job(4 * FRAMES), guidance=1.0)
    calls = runner.double.contexts[0].execute_async_v3.call_count
    assert calls == (2 * 3 if device.type == "cpu" else 3)  # on a GPU: two to warm up, one to capture, and the graph from then on


def test_another_resolution_is_refused_with_the_engines_variant(make):
    given = job(FRAMES)
    for name in ("masked_latents", "reference_latents", "latent_keep", "base_noise"):
        given[name] = torch.nn.functional.pad(given[name], (0, 4, 0, 4))
    runner = make()
    with pytest.raises(ShapeError, match="32 px, 4 frames"):  # F44
        denoise(runner, **given)
    assert not runner.loaded


def test_a_wrong_batch_is_refused(make, device):
    with pytest.raises(EngineError, match="32/4/guided"):
        make().predict(*inputs(device, rows=1))


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
    assert "4090" in kept.name and doubles.VERSION in kept.name
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


# --- on real streams ---


@pytest.mark.gpu
def test_captured_steps_equal_eager_ones(make, device, monkeypatch):
    """Also those of the next jobs, whose graphs are recorded while Python tidies up as often as it can."""
    if device.type != "cuda":
        pytest.skip("graphs are CUDA's")
    runner, often = make(), gc.get_threshold()
    gc.set_threshold(1)
    try:
        captured = [denoise(runner, **job(4 * FRAMES)) for _ in range(3)]
    finally:
        gc.set_threshold(*often)
    assert runner.double.runs == 3 * 3, "two steps to warm up and one to record, in each job"
    monkeypatch.setattr(tensorrt_rtx.RtxSession, "capture", lambda session, step: step)
    eager = denoise(runner, **job(4 * FRAMES))
    assert runner.double.runs == 3 * 3 + 4 * 3
    for found in captured:
        torch.testing.assert_close(found, eager, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_nothing_is_allocated_by_a_step(make, device):
    if device.type != "cuda":
        pytest.skip("counts CUDA's allocations")
    runner, given = make(), inputs(device)
    runner.predict(*given)
    torch.cuda.synchronize()
    runner.double._queue = lambda *_: None  # the network itself is the double's business
    before = torch.cuda.memory_stats(device)["allocation.all.allocated"]
    for _ in range(10):
        runner.predict(*given)
    assert torch.cuda.memory_stats(device)["allocation.all.allocated"] == before


def test_the_manifest_stays_json(make):
    runner = make({"error": float("nan")}, parity={})
    with pytest.raises(EngineError):
        runner.load()
    json.loads(runner.engine.path.with_suffix(".json").read_text(), parse_constant=pytest.fail)
