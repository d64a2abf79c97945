"""The fast VAE against its owners' own code, in both layouts, and when it must stand back."""
from types import SimpleNamespace

import pytest
import torch
from latentsync_rtx.bench.plain_vae import PlainVAE
from latentsync_rtx.lipsync import ops, vae_fast
from torch import nn

WIDTHS = (32, 32, 64, 64)


def seeded(model):
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, mean=1.0 if "norm" in name and name.endswith("weight") else 0.0, std=0.2)
    return model.eval().requires_grad_(False)


def stable_diffusion():
    model = seeded(PlainVAE(WIDTHS))
    return SimpleNamespace(first_stage_model=model), model.encode, model.decode


def diffusers():
    kl = pytest.importorskip("diffusers").AutoencoderKL
    types = dict(down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4)
    model = seeded(kl(block_out_channels=WIDTHS, layers_per_block=2, latent_channels=4, **types))
    return SimpleNamespace(model=model), lambda x: model.encode(x).latent_dist.parameters, lambda z: model.decode(z).sample


@pytest.fixture
def everywhere(monkeypatch):
    """The fast form also on the CPU, where its operations are plain; counts its convolutions."""
    count = []
    monkeypatch.setattr(ops, "accelerates", lambda x: True)
    convolved = ops.convolved
    monkeypatch.setattr(ops, "convolved", lambda *arguments: (count.append(1), convolved(*arguments))[1])
    return count


@pytest.mark.parametrize("layout", [stable_diffusion, diffusers])
@torch.no_grad()
def test_both_layouts_give_what_their_own_code_gives(everywhere, layout):
    vae, encode, decode = layout()
    pixels, latents = torch.rand(2, 3, 64, 32) * 2 - 1, torch.randn(2, 4, 8, 4)
    moments, pictures = encode(pixels), decode(latents)
    with vae_fast.accelerated(vae):
        torch.testing.assert_close(encode(pixels), moments, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(decode(latents), pictures, rtol=1e-4, atol=1e-4)
    assert len(everywhere) == 10 + 14  # resnets of the encoder and decoder, each once


@torch.no_grad()
def test_it_is_lent_for_the_time_of_a_call_only(everywhere):
    vae, encode, _ = stable_diffusion()
    with pytest.raises(KeyboardInterrupt), vae_fast.accelerated(vae):
        raise KeyboardInterrupt
    encode(torch.rand(1, 3, 32, 32))
    assert not everywhere and "forward" not in vars(vae.first_stage_model.encoder)


@torch.no_grad()
def test_on_the_cpu_and_for_unknown_vaes_the_owners_code_runs(monkeypatch):
    vae, encode, _ = stable_diffusion()
    monkeypatch.setattr(vae_fast, "steps", lambda coder: pytest.fail("not on the CPU"))
    with vae_fast.accelerated(vae):
        encode(torch.rand(1, 3, 32, 32))
    with vae_fast.accelerated(SimpleNamespace(encode=None)):
        pass
    monkeypatch.undo()
    assert vae_fast.steps(nn.Sequential(nn.Conv2d(3, 3, 1))) is None
    tanh = PlainVAE(WIDTHS).decoder
    tanh.tanh_out = True
    assert vae_fast.steps(tanh) is None
