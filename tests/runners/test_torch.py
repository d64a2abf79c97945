"""TorchRunner: the protocol, moving the weights, and the session's shortcuts against a plain call of the network."""
import pytest
import torch
from latentsync_rtx.lipsync import profiles
from latentsync_rtx.lipsync.denoise import Block, BlockDenoiser, denoise
from latentsync_rtx.lipsync.errors import ShapeError
from latentsync_rtx.lipsync.runners import Session, TorchRunner
from latentsync_rtx.lipsync.unet import LatentSyncUNet, UNetConfig

CPU = torch.device("cpu")
TIMESTEPS = torch.tensor([900, 400, 1])


def make_unet():
    torch.manual_seed(0)
    return LatentSyncUNet(UNetConfig(block_out_channels=(32, 32, 64, 64)))


@pytest.fixture(scope="module")
def unet():
    return make_unet()


def inputs(rows=1, frames=2, size=8):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 13, frames, size, size, generator=generator), torch.randn(rows, frames, 50, 384, generator=generator)


@torch.no_grad()
def test_predict_is_the_network(unet):
    sample, audio = inputs(rows=2)
    expected = make_unet()(sample, 400, audio)
    torch.testing.assert_close(TorchRunner(unet, device="cpu").predict(sample, torch.tensor([400]), audio), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("plain", [False, True], ids=["own session", "any runner's session"])
@torch.no_grad()
def test_a_session_answers_as_the_network_does(unet, guided, plain):
    runner = TorchRunner(unet, device="cpu")
    shape = {"frames": 2, "size": (16, 16), "guided": guided}
    session = Session(runner, TIMESTEPS, **shape) if plain else runner.open(TIMESTEPS, **shape)
    assert session.lanes == 1
    sample, audio = inputs(size=16)
    for index, scale in ((0, 1.0), (2, 0.5)):  # a second block in the same buffers
        session.sample[:, 0] = sample[0] * scale
        session.audio[0] = audio[0] * scale
        session.listen()
        noise = session.noise(torch.tensor([index]))
        assert noise.shape == (1 + guided, 1, 4, 2, 16, 16)
        silence = unet(sample * scale, TIMESTEPS[index], torch.zeros_like(audio))
        heard = unet(sample * scale, TIMESTEPS[index], audio * scale)
        torch.testing.assert_close(noise, torch.stack([silence, heard][1 - guided :]), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_step_without_guidance_and_one_that_reuses(unet):
    """Of one guided session: the half that hears by itself, and the halves' own deep features."""
    session = TorchRunner(unet, device="cpu").open(TIMESTEPS, frames=2, size=(16, 16), guided=True, cached=True)
    sample, audio = inputs(size=16)
    session.sample[:, 0] = sample[0]
    session.audio[0] = audio[0]
    session.listen()
    index = torch.tensor([1])
    both = session.noise(index)
    assert torch.equal(session.noise(index, reuse=True), both)
    alone = session.noise(index, guided=False)
    assert alone.shape == (1, 1, 4, 2, 16, 16)
    torch.testing.assert_close(alone, both[1:], rtol=1e-4, atol=1e-5)
    assert torch.equal(session.noise(index, guided=False, reuse=True), alone)
    session.sample.mul_(0.9)
    reused, renewed = session.noise(index, reuse=True), session.noise(index)
    assert 1e-4 < ((reused - renewed).norm() / renewed.norm()).item() < 0.5


def test_it_takes_the_dtype_it_is_given_and_says_what_it_is():
    runner = TorchRunner(make_unet(), device="cpu", dtype=torch.bfloat16)
    sample, audio = inputs()
    assert runner.predict(sample, torch.tensor([1]), audio).dtype == torch.bfloat16
    assert (runner.spec.backend, runner.spec.device, runner.spec.dtype) == ("torch", CPU, torch.bfloat16)
    assert (runner.spec.frames, runner.spec.size, runner.spec.batch, runner.spec.max_frames) == (None, None, None, 24)


def test_unload_gives_the_memory_back_and_the_runner_loads_again():
    runner = TorchRunner(make_unet(), device="cpu")
    sample, audio = inputs()
    assert runner.size_bytes == 0
    first = runner.predict(sample, torch.tensor([1]), audio)
    assert runner.size_bytes == sum(value.nbytes for value in make_unet().state_dict().values())
    runner.unload()
    runner.unload()
    assert runner.size_bytes == 0
    assert torch.equal(runner.predict(sample, torch.tensor([1]), audio), first)


def test_a_runner_with_a_loader_holds_no_network_while_unloaded():
    made = []

    def loader():
        made.append(make_unet())
        return made.pop()

    runner = TorchRunner(loader, device="cpu")
    assert runner.size_bytes == 0
    runner.load()
    assert runner.size_bytes > 0
    runner.unload()
    assert not [value for value in vars(runner).values() if isinstance(value, torch.nn.Module)]
    runner.load()
    assert runner.size_bytes > 0


@pytest.mark.parametrize("made_in_inference_mode", [False, True])
@pytest.mark.parametrize("used_in_inference_mode", [False, True])
def test_weights_move_in_and_out_of_inference_mode(made_in_inference_mode, used_in_inference_mode):
    """ComfyUI runs nodes in inference mode; the command line does not always."""
    with torch.inference_mode(made_in_inference_mode):
        runner = TorchRunner(make_unet(), device="cpu", dtype=torch.float64)
    sample, audio = inputs()
    for _ in range(2):
        with torch.inference_mode(used_in_inference_mode):
            session = runner.open(TIMESTEPS, frames=2, size=(8, 8), guided=True)
            session.sample.copy_(sample)
            session.audio.copy_(audio)
            with torch.no_grad():
                session.listen()
                assert torch.isfinite(session.noise(torch.tensor([0]))).all()
        runner.unload()


def test_blocks_longer_than_the_position_table_are_refused(unet):
    with pytest.raises(ShapeError, match=r"25 frames.*1 to 24"):
        TorchRunner(unet, device="cpu").open(TIMESTEPS, frames=25, size=(8, 8), guided=False)


@torch.no_grad()
def test_a_check_is_heard_in_the_middle_of_a_step(unet):
    """On a CPU a step of the full network takes a minute: it must be possible to stop it."""
    session = TorchRunner(unet, device="cpu").open(TIMESTEPS, frames=2, size=(8, 8), guided=False)
    heard = []
    session.noise(torch.tensor([0]), check=lambda: heard.append(None))
    assert len(heard) > 100


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("profile", profiles.PROFILES)
@torch.no_grad()
def test_captured_steps_of_a_profile_equal_the_steps(profile):
    """Two or three graphs that take turns on the same buffers, over two blocks; replaying allocates nothing."""
    runner, plan = TorchRunner(make_unet(), device="cuda", dtype=torch.float16), profiles.choose(profile).plan(1.5)
    generator = torch.Generator().manual_seed(0)
    noise, latents, audio = (torch.randn(shape, generator=generator) for shape in ((4, 16, 16), (2, 2, 4, 16, 16), (2, 50, 384)))
    blocks = [Block(*(latents * scale), audio * scale) for scale in (1.0, 0.5)]
    results = []
    for capture in (True, False):
        denoiser = BlockDenoiser(runner, plan, latent_keep=torch.ones(16, 16), noise=noise, frames=2, capture=capture)
        results.append([denoiser.run([block])[0] for block in blocks])
        if capture:
            before = torch.cuda.memory_stats()["allocation.all.allocated"]
            denoiser.run(blocks[:1])
            assert torch.cuda.memory_stats()["allocation.all.allocated"] - before < 40, "one step allocates hundreds of tensors when it is not captured"
    for captured, plain in zip(*results, strict=True):
        torch.testing.assert_close(captured, plain, rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@torch.no_grad()
def test_a_captured_step_equals_the_step():
    runner = TorchRunner(make_unet(), device="cuda", dtype=torch.float16)
    session = runner.open(TIMESTEPS, frames=2, size=(8, 8), guided=True)
    sample, audio = inputs()
    session.sample.copy_(sample)
    session.audio.copy_(audio)
    session.listen()
    index = torch.tensor([1], device="cuda")
    out = torch.zeros(2, 1, 4, 2, 8, 8, device="cuda", dtype=torch.float16)
    step = session.capture(lambda: out.copy_(session.noise(index)))
    for scale in (1.0, 0.5):
        session.sample.copy_(sample * scale)
        session.audio.copy_(audio * scale)
        session.listen()
        step()
        torch.testing.assert_close(out, session.noise(index), rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_jobs_that_are_done_leave_nothing_but_the_weights():
    """Three jobs on one runner, each with graphs of a block and of a tail, which share their memory."""
    runner, frames, random = TorchRunner(make_unet(), device="cuda", dtype=torch.float16), 2 * 16 + 2, torch.Generator().manual_seed(0)
    masked, crops = torch.randn(2, frames, 4, 16, 16, generator=random)
    audio, held, results = torch.randn(frames, 50, 384, generator=random), [], []
    for _ in range(3):
        results.append(denoise(runner, masked, crops, audio, torch.ones(16, 16), masked[0], steps=3))
        torch.cuda.empty_cache()
        held.append(torch.cuda.memory_reserved())
    assert held[0] == held[1] == held[2]
    torch.testing.assert_close(results[2], results[0])
