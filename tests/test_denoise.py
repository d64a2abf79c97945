"""The denoising loop against the reference implementation's latents, and what must not change a result."""
import dataclasses
import time
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from latentsync_rtx.bench.stubs import StubRunner
from latentsync_rtx.lipsync import mapped, mask
from latentsync_rtx.lipsync.denoise import base_noise, clip_blocks, denoise, denoise_clip
from latentsync_rtx.lipsync.errors import LatentSyncError, ShapeError
from latentsync_rtx.lipsync.journal import Journal
from latentsync_rtx.lipsync.runners import Runner, RunnerSpec, TorchRunner
from latentsync_rtx.lipsync.spool import Spool
from latentsync_rtx.lipsync.timeline import Timeline
from latentsync_rtx.lipsync.unet import LatentSyncUNet, UNetConfig
from latentsync_rtx.tests.data.golden import recipe
from safetensors.torch import load_file

GOLDEN = Path(__file__).resolve().parent / "data" / "golden"
SOME = {20: slice(32, 37), 8: slice(16, 37), 4: slice(0, 37)}  # of the reference's blocks 0..15, 16..31, 32..36, by steps: for time


@pytest.fixture(scope="module")
def runner():
    net = LatentSyncUNet(UNetConfig(**recipe.TINY))
    net.load_state_dict(recipe.seeded_parameters(net.named_parameters(), 11) | dict(net.named_buffers()))
    return TorchRunner(net, device="cpu")


@pytest.fixture(scope="module")
def golden():
    return load_file(GOLDEN / "denoise.safetensors")


def inputs(frames=slice(None), **changes):
    """Inputs of `denoise` for some frames of the reference's case."""
    given = recipe.denoise_inputs(11)
    return {name: value if name in ("base_noise", "latent_keep") else value[frames] for name, value in given.items()} | changes


class FixedRunner(Runner):
    """An engine's manners: one shape only, and an output buffer that every call overwrites."""

    def __init__(self, inner, frames=16, batch=2):
        self.inner, self.calls = inner, 0
        self.spec = RunnerSpec("fixed", torch.device("cpu"), torch.float32, frames=frames, size=(16, 16), batch=batch)
        self.output = torch.empty(batch, 4, frames, 16, 16)

    def load(self):
        self.inner.load()

    def unload(self):
        self.inner.unload()

    @property
    def size_bytes(self):
        return self.inner.size_bytes

    def predict(self, sample, timestep, audio, check=lambda: None):
        assert sample.shape == (self.spec.batch, 13, self.spec.frames, 16, 16) and sample.is_contiguous()
        assert audio.shape == (self.spec.batch, self.spec.frames, 50, 384) and audio.is_contiguous()
        self.calls += 1
        return self.output.copy_(self.inner.predict(sample, timestep, audio, check))


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize(("steps", "guidance"), recipe.DENOISE_CASES)
def test_agrees_with_the_reference(runner, golden, steps, guidance):
    """Blocks of 16, and a rest of 5 by itself."""
    result = denoise(runner, **inputs(SOME[steps]), steps=steps, guidance=guidance)
    expected = golden[f"ddim{steps}_g{guidance}"][SOME[steps]]
    assert result.dtype == torch.float32
    assert distance(result, expected) < 1e-5


@pytest.mark.slow
def test_agrees_with_the_reference_over_20_steps_of_all_frames(runner, golden):
    assert distance(denoise(runner, **inputs(), steps=20, guidance=1.5), golden["ddim20_g1.5"]) < 1e-5


def test_the_same_whatever_the_plan_order_or_neighbours(runner):
    """Blocks in another order, or by themselves, give the same frames: no state goes from one to the next."""
    given = inputs(slice(0, 8))
    first, second = np.arange(0, 5), np.arange(5, 8)
    whole = denoise(runner, **given, steps=2, guidance=1.5, blocks=[first, second])
    assert torch.equal(denoise(runner, **given, steps=2, guidance=1.5, blocks=[second, first]), whole)
    alone = denoise(runner, **inputs(slice(5, 8)), steps=2, guidance=1.5)
    torch.testing.assert_close(whole[5:], alone, rtol=1e-5, atol=1e-5)
    assert distance(denoise(runner, **given, steps=2, guidance=1.5), whole) > 1e-3  # one block of 8 is another thing


def test_base_noise_is_the_same_on_every_machine():
    noise = base_noise(7, 64, 64)
    assert noise.shape == (4, 64, 64)
    assert torch.equal(noise, base_noise(7, 64, 64))
    assert not torch.equal(noise, base_noise(8, 64, 64))
    torch.testing.assert_close(noise.flatten()[:3], torch.tensor([-0.8201, 0.3956, 0.8989]), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("batch", "guidance", "calls"), [(2, 1.5, 3), (1, 1.5, 6), (2, 1.0, 2), (1, 1.0, 3)])
def test_a_runner_of_one_shape_gives_the_same(runner, batch, guidance, calls):
    """F44: a short tail and guidance 1.0 on an engine of one shape: padded by its last frame, cropped; two blocks in a batch of two."""
    fixed = FixedRunner(runner, frames=4, batch=batch)
    result = denoise(fixed, **inputs(slice(0, 9)), steps=2, guidance=guidance)  # blocks of 4, 4, 1
    assert fixed.calls == calls * 2
    expected = denoise(runner, **inputs(slice(0, 8)), steps=2, guidance=guidance, blocks=[np.arange(4), np.arange(4, 8)])
    assert distance(result[:8], expected) < 1e-5
    repeated = denoise(runner, **inputs([8, 8, 8, 8]), steps=2, guidance=guidance)
    torch.testing.assert_close(result[8], repeated[0], rtol=1e-4, atol=1e-4)


def test_a_runner_of_another_size_says_what_it_is(runner):
    fixed = FixedRunner(runner)
    fixed.spec = dataclasses.replace(fixed.spec, size=(64, 64))
    with pytest.raises(ShapeError, match=r"fixed on cpu, 512 px, 16 frames, batch 2.*128 x 128"):
        denoise(fixed, **inputs(), steps=2)
    assert fixed.calls == 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"audio": torch.zeros(3, 50, 768)}, r"audio must be \[3, 50, 384\]"),
        ({"masked_latents": torch.zeros(2, 4, 16, 16)}, r"masked_latents must be \[3, 4, 16, 16\]"),
        ({"reference_latents": torch.zeros(3, 4, 8, 8)}, "reference_latents"),
        ({"latent_keep": torch.zeros(1, 16, 16)}, "latent_keep"),
        ({"base_noise": torch.zeros(1, 16, 16)}, "base_noise"),
        ({"blocks": [[0, 1]]}, "each of the 3 frames"),
        ({"blocks": [[0, 1], [1, 2]]}, "each of the 3 frames"),
    ],
)
def test_wrong_shapes_are_refused_before_any_work(changes, says):
    def loader():
        raise AssertionError("the network was loaded")

    with pytest.raises(ShapeError, match=says):
        denoise(TorchRunner(loader, device="cpu"), **inputs(slice(0, 3), **changes), steps=2)


def test_impossible_settings_are_refused(runner):
    with pytest.raises(LatentSyncError, match="0 denoising steps"):
        denoise(runner, **inputs(slice(0, 2)), steps=0)
    with pytest.raises(LatentSyncError, match="euler"):
        denoise(runner, **inputs(slice(0, 2)), sampler="euler")


def test_progress_counts_steps(runner):
    seen = []

    def listen(done, total, *, stage="", preview=None):
        seen.append((done, total, stage))

    denoise(runner, **inputs(slice(0, 3)), steps=2, blocks=[[0, 1], [2]], progress=listen)
    counts = [done for done, _, _ in seen]
    assert counts == sorted(counts) and set(counts) == {0, 1, 2, 3, 4}
    assert {(total, stage) for _, total, stage in seen} == {(4, "denoise")}


def test_cancel_stops_in_the_middle_of_a_step_and_the_next_run_is_clean(runner, monkeypatch):
    """F49. The listener is asked within a step: on a CPU a step of the full network takes a minute."""
    monkeypatch.setattr("latentsync_rtx.lipsync.denoise.CHECK_SECONDS", 0)
    expected = denoise(runner, **inputs(slice(0, 2)), steps=2)
    calls = 0

    def cancel(done, total, *, stage="", preview=None):
        nonlocal calls
        calls += 1
        if done == 1 and calls > 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        denoise(runner, **inputs(slice(0, 2)), steps=2, progress=cancel)
    assert torch.equal(denoise(runner, **inputs(slice(0, 2)), steps=2), expected)


class AveragingVAE:
    """A VAE whose latents can be foretold: the mean colour of each 8x8 cell, and its first channel again."""

    def encode(self, pixels):
        cells = torch.nn.functional.avg_pool2d(pixels.movedim(-1, 1), 8)
        return torch.cat([cells, cells[:, :1]], 1)


class DrawingVAE(AveragingVAE):
    """Its posterior is as wide as it is anywhere."""

    def moments(self, pixels):
        return torch.cat([self.encode(pixels), torch.zeros(len(pixels), 4, 8, 8)], 1)


class Features:
    """Tokens that tell the time they were asked for."""

    def __init__(self):
        self.asked = []

    def tokens(self, frames, fps):
        self.asked += [(int(frame), fps) for frame in frames]
        generator = torch.Generator().manual_seed(5)
        return torch.randn(1, 50, 384, generator=generator) * torch.as_tensor(np.asarray(frames), dtype=torch.float32)[:, None, None]


@dataclasses.dataclass
class Track:
    resolution: int
    found: np.ndarray
    run_ids: np.ndarray
    crops: Spool
    crop_row: np.ndarray


@pytest.fixture
def clip():
    """Six frames of 64 px, no face in the third; ten output frames, back and forth, the last one silent."""
    found = np.array([True, True, False, True, True, True])
    crops = Spool((64, 64, 3))
    crops.append(np.random.default_rng(0).integers(0, 256, (5, 64, 64, 3), dtype=np.uint8))
    track = Track(64, found, np.array([0, 0, -1, 1, 1, 1]), crops, np.array([0, 1, -1, 2, 3, 4]))
    timeline = Timeline(Fraction(25), np.array([0, 1, 2, 3, 4, 5, 4, 3, 2, 1]), np.arange(10) < 9)
    return track, timeline


def test_a_clip_is_denoised_in_runs_of_its_faces(runner, clip):
    """F02: the mouth hears its own time, whatever frames have no face; nothing reaches over the gap."""
    track, timeline = clip
    features = Features()
    result = denoise_clip(runner, AveragingVAE(), track, timeline, features, steps=2, guidance=1.5, seed=3)
    redrawn = [0, 1, 3, 4, 5, 6, 7]
    assert features.asked == [(frame, Fraction(25)) for frame in redrawn]
    assert result.shape == (7, 4, 8, 8) and result.dtype == torch.float32 and result.device.type == "cpu"

    pixels = torch.from_numpy(track.crops.read([0, 1, 2, 3, 4, 3, 2])).float() / 255
    keep = torch.from_numpy(mask.keep_mask(64))[..., None]
    expected = denoise(
        runner,
        AveragingVAE().encode(((pixels * 2 - 1) * keep + 1) / 2) * 0.18215,
        AveragingVAE().encode(pixels) * 0.18215,
        Features().tokens(redrawn, 25),
        torch.from_numpy(mask.latent_keep_mask(64)),
        base_noise(3, 8, 8),
        steps=2,
        guidance=1.5,
        blocks=[np.arange(2), np.arange(2, 7)],
    )
    assert distance(result * 0.18215, expected) < 1e-5


def test_the_reference_order_of_drawing(runner, clip):
    """posterior "sample": one generator gives the base noise, then for each block the masked crops' noise, then the crops'."""

    track, timeline = clip
    timeline = dataclasses.replace(timeline, speaking=np.arange(10) < 2)  # one block of frames 0 and 1
    result = denoise_clip(runner, DrawingVAE(), track, timeline, Features(), steps=2, seed=3, posterior="sample")
    assert not torch.equal(result, denoise_clip(runner, DrawingVAE(), track, timeline, Features(), steps=2, seed=3))

    generator = torch.Generator().manual_seed(3)
    noise, masked_noise, crop_noise = (torch.randn(shape, generator=generator) for shape in ((4, 8, 8), (2, 4, 8, 8), (2, 4, 8, 8)))
    pixels, keep = torch.from_numpy(track.crops.read([0, 1])).float() / 255, torch.from_numpy(mask.keep_mask(64))[..., None]
    expected = denoise(
        runner,
        (AveragingVAE().encode((pixels - 0.5) * keep + 0.5) + masked_noise) * 0.18215,
        (AveragingVAE().encode(pixels) + crop_noise) * 0.18215,
        Features().tokens([0, 1], 25),
        torch.from_numpy(mask.latent_keep_mask(64)),
        noise,
        steps=2,
    )
    assert distance(result * 0.18215, expected) < 1e-5


def test_a_clip_without_speech_gives_no_latents(runner, clip):
    track, timeline = clip
    timeline = dataclasses.replace(timeline, speaking=np.zeros(10, bool))
    assert denoise_clip(runner, AveragingVAE(), track, timeline, Features(), steps=2).shape == (0, 4, 8, 8)


def test_cancel_is_heard_while_crops_are_encoded(runner, clip):
    """F49: on a CPU the VAE takes seconds for a block."""

    class SlowVAE(AveragingVAE):
        def encode(self, pixels):
            encoded.append(len(pixels))
            time.sleep(0.25)
            return super().encode(pixels)

    def cancel(done, total, *, stage="", preview=None):
        if encoded:
            raise KeyboardInterrupt

    encoded = []
    with pytest.raises(KeyboardInterrupt):
        denoise_clip(runner, SlowVAE(), *clip, Features(), steps=2, progress=cancel)
    assert encoded == [1]


# --- whole or in parts ---


class Coded:
    """Whatever depends on more than one frame or on its place in the job: tokens of the time, pictures of their number."""

    @staticmethod
    def job(frames=100, gaps=(37, 38, 80)):
        found = ~np.isin(np.arange(frames), gaps)
        crops = Spool((64, 64, 3))
        crops.append(np.random.default_rng(1).integers(0, 256, (int(found.sum()), 64, 64, 3), dtype=np.uint8))
        runs = np.where(found, np.cumsum(np.diff(found.astype(int), prepend=0) == 1) - 1, -1)
        track = Track(64, found, runs, crops, np.where(found, np.cumsum(found) - 1, -1))
        return track, Timeline(Fraction(25), np.arange(frames), np.ones(frames, bool))


def coded(runner=None, vae=None, **options):
    return denoise_clip(runner or StubRunner(), vae or AveragingVAE(), *Coded.job(), Features(), steps=2, seed=3, **options)


@pytest.mark.parametrize("cuts", [(0, 1, 2, 3, 4, 5, 6, 7, 8), (0, 3, 8), (0, 2, 5, 8)])
@pytest.mark.parametrize(("posterior", "shape"), [("mode", {}), ("sample", {}), ("mode", {"frames": 16, "batch": 2})])
def test_parts_put_together_are_the_whole(cuts, posterior, shape):
    """Blocks, noise and sound do not depend on how a job is cut, nor on which part is done where and when."""
    options = dict(posterior=posterior, guidance=1.0 if shape else 1.5)
    runner = StubRunner(**shape)
    assert len(clip_blocks(runner, *Coded.job())) == 8
    whole = coded(runner, DrawingVAE(), **options)
    parts = [coded(StubRunner(**shape), DrawingVAE(), blocks=range(first, last), **options) for first, last in pairwise(cuts)]
    assert torch.equal(torch.cat(parts), whole)
    assert len(whole) == 97


def test_a_part_is_only_its_own_work():
    runner = StubRunner()
    calls = []
    part = coded(runner, blocks=[2, 5], progress=lambda done, total, **_: calls.append((done, total)))
    assert runner.calls == 2 * 2
    assert calls[-1] == (4, 4)
    assert torch.equal(part, coded()[[*range(32, 37), *range(69, 78)]])


def test_no_part_at_all():
    assert coded(blocks=[]).shape == (0, 4, 8, 8)


@pytest.mark.parametrize("posterior", ["mode", "sample"])
def test_a_journal_changes_nothing_but_the_work(tmp_path, posterior):
    class Named(DrawingVAE):
        identity = "drawing"

    def cancel(done, total, **_):
        if done == 9:
            raise KeyboardInterrupt

    whole = coded(vae=Named(), posterior=posterior)
    first = StubRunner()
    with pytest.raises(KeyboardInterrupt):
        coded(first, Named(), posterior=posterior, journal=Journal(tmp_path), progress=cancel)
    second, counts = StubRunner(), []
    journal = Journal(tmp_path)
    result = coded(second, Named(), posterior=posterior, journal=journal, progress=lambda done, total, **_: counts.append(done))
    assert torch.equal(result, whole)
    assert second.calls == (8 - 4) * 2
    assert counts == sorted(counts) and counts[-1] == 16
    third = StubRunner()
    assert torch.equal(coded(third, Named(), posterior=posterior, journal=journal, blocks=range(3, 8)), whole[37:]), "parts share it"
    assert third.calls == 0
    other = StubRunner()
    coded(other, Named(), posterior="mode" if posterior == "sample" else "sample", journal=journal)
    assert other.calls == 16
    assert len(list(tmp_path.iterdir())) == 16


def test_latents_of_a_long_clip_are_in_a_file(tmp_path, monkeypatch):  # F32
    monkeypatch.setattr(mapped.zeros, "__kwdefaults__", {**mapped.zeros.__kwdefaults__, "memory_limit_bytes": 1000})
    result = coded(spool_folder=tmp_path)
    assert mapped.is_mapped(result)
    monkeypatch.undo()
    assert torch.equal(result, coded())


def test_the_wrong_resolution_is_said(caplog):  # F37
    coded(StubRunner(warning="LatentSync 1.5 was trained on 256 px"))
    assert [record.message for record in caplog.records] == ["LatentSync 1.5 was trained on 256 px"]
