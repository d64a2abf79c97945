"""RtxRunner on doubles that evaluate the network at the addresses they are given: on a CPU, and with `-m gpu` on real streams."""
import gc

import pytest
import torch
from latentsync_rtx.lipsync.denoise import denoise
from latentsync_rtx.lipsync.errors import EngineError, ShapeError
from latentsync_rtx.lipsync.runners import tensorrt_rtx
from latentsync_rtx.lipsync.runners.manifest import DEEP, SHALLOW
from latentsync_rtx.lipsync.runners.streams import Lane
from latentsync_rtx.lipsync.runners.tensorrt_rtx import RtxRunner
from latentsync_rtx.tests.runners import doubles
from latentsync_rtx.tests.runners.doubles import CARD, FRAMES, SIDE, assert_computes_the_network, inputs, job, reference


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
