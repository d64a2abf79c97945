"""Crops to latents and back through every kind of VAE a user may have."""
import json
import os
import subprocess
import sys
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from latentsync_rtx.bench.stubs import LinearVAE
from latentsync_rtx.lipsync import timeline, vae
from latentsync_rtx.lipsync.errors import ModelFileError, NumericError, ShapeError
from latentsync_rtx.lipsync.mask import keep_mask
from latentsync_rtx.lipsync.spool import Spool
from safetensors.torch import load_file, save_file

from .test_folders import COMFYUI, ROOT

# Stable Diffusion's VAE, an eighth as wide
LDM_SIZES = dict(double_z=True, z_channels=4, resolution=256, in_channels=3, out_ch=3, ch=32, ch_mult=[1, 1, 2, 2], num_res_blocks=1,
                 attn_resolutions=[], dropout=0.0)  # fmt: skip


def pictures(count, side=64, seed=0):
    """Smooth colour pictures, float [N,side,side,3] in 0..1."""
    small = torch.rand(count, 3, 3, 3, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(small, size=(side, side), mode="bilinear").movedim(1, -1).contiguous()


@pytest.fixture(scope="module")
def kl():
    """A small AutoencoderKL with the SD VAE's four levels, seeded."""
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    types = dict(down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4)
    return diffusers.AutoencoderKL(block_out_channels=(32, 32, 64, 64), layers_per_block=2, latent_channels=4, **types).eval()


class ComfyLike:
    """The parts of ComfyUI's VAE that matter: a posterior that `encode` draws from as long as `sample` is set."""

    def __init__(self, model, sample):
        class Regularizer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.sample = sample

            def forward(self, moments):
                mean, log_variance = moments.chunk(2, 1)
                return mean + torch.randn_like(mean) * (log_variance / 2).exp() * self.sample, None

        self.model, self.first_stage_model = model, SimpleNamespace(regularization=Regularizer())

    @torch.no_grad()
    def encode(self, pixels):
        parts = [self.model.encode(part.movedim(-1, 1) * 2 - 1).latent_dist.parameters for part in pixels.split(2)]
        return torch.cat([self.first_stage_model.regularization(part)[0] for part in parts])


# --- conventions ---


def test_encode_scales_the_mode_and_decode_undoes_it(kl):
    wrapped = vae.DiffusersVAE(kl)
    images = pictures(3)
    latents = vae.encode(wrapped, images)
    with torch.no_grad():
        wanted = kl.encode(images.movedim(-1, 1) * 2 - 1).latent_dist.mode()
        back = kl.decode(wanted).sample.clamp(-1, 1)
    assert latents.shape == (3, 4, 8, 8) and torch.allclose(latents, wanted * 0.18215, atol=1e-5)
    assert torch.allclose(vae.decode(wrapped, latents), back, atol=1e-4)


def test_the_batch_changes_nothing(kl):
    images = pictures(5)
    one, many = vae.DiffusersVAE(kl, batch=1), vae.DiffusersVAE(kl, batch=8)
    assert torch.allclose(vae.encode(one, images), vae.encode(many, images), atol=1e-5)
    latents = vae.encode(many, images)
    assert torch.allclose(vae.decode(one, latents), vae.decode(many, latents), atol=1e-4)


@pytest.mark.parametrize("sample", [True, False], ids=["old ComfyUI", "new ComfyUI"])
def test_the_mode_is_taken_from_a_comfyui_vae_which_stays_as_it_is(kl, sample):
    comfy = ComfyLike(kl, sample)
    images = pictures(5)
    state = torch.random.get_rng_state()
    latents = vae.encode(comfy, images)
    assert torch.equal(latents, vae.encode(comfy, images))
    assert torch.allclose(latents, vae.encode(vae.DiffusersVAE(kl), images), atol=1e-5)
    torch.random.set_rng_state(state)
    assert torch.equal(comfy.encode(images[:2]), comfy.encode(images[:2])) is not sample  # no hook is left
    with pytest.raises(RuntimeError):
        vae.encode(comfy, pictures(2)[..., :3].half())  # the model is float32
    assert torch.equal(comfy.encode(images[:2]), comfy.encode(images[:2])) is not sample


def test_samples_come_from_the_generator_in_order_whatever_the_batch(kl):
    images = pictures(5)
    draw = lambda coder: vae.encode(coder, images, posterior="sample", generator=torch.Generator().manual_seed(4))  # noqa: E731
    first = draw(vae.DiffusersVAE(kl, batch=1))
    assert torch.allclose(first, draw(vae.DiffusersVAE(kl, batch=8)), atol=1e-5)
    assert torch.allclose(first, draw(ComfyLike(kl, False)), atol=1e-5)
    assert not torch.allclose(first, vae.encode(vae.DiffusersVAE(kl), images), atol=1e-3)
    with torch.no_grad():  # as the reference draws: the whole batch at once
        wanted = kl.encode(images.movedim(-1, 1) * 2 - 1).latent_dist.sample(torch.Generator().manual_seed(4))
    assert torch.allclose(first, wanted * 0.18215, atol=1e-5)


def test_any_other_object_with_encode_and_decode_works():
    class Other:
        def encode(self, pixels):
            return LinearVAE().encode(pixels)

        def decode(self, latents):
            return LinearVAE().decode(latents)

    images = pictures(2)
    back = vae.decode(Other(), vae.encode(Other(), images))
    assert back.shape == (2, 3, 64, 64) and (back.movedim(1, -1) / 2 + 0.5 - images).abs().mean() < 0.03


def test_the_demo_vae_roughly_keeps_colours():
    for images in (pictures(2, side=256), torch.full((1, 64, 64, 3), 0.3), torch.tensor([0.9, 0.1, 0.5]).expand(1, 64, 64, 3)):
        latents = vae.encode(LinearVAE(), images)
        assert latents.shape[1:] == (4, images.shape[1] // 8, images.shape[2] // 8)
        assert (vae.decode(LinearVAE(), latents).movedim(1, -1) / 2 + 0.5 - images).abs().mean() < 0.02


# --- refusals ---


@pytest.mark.parametrize("shape", [(1, 60, 64, 3), (1, 64, 64, 4), (64, 64, 3)])
def test_shapes_that_do_not_fit_are_refused(shape):
    with pytest.raises(ShapeError, match=str(shape[-2])):
        vae.encode(LinearVAE(), torch.zeros(shape))


def test_a_vae_of_another_family_is_refused():
    flux = SimpleNamespace(encode=lambda x: torch.zeros(len(x), 16, 8, 8), decode=lambda z: torch.zeros(len(z), 32, 32, 3))
    with pytest.raises(ShapeError, match=r"SD 1\.5 VAE"):
        vae.encode(flux, pictures(1))
    with pytest.raises(ShapeError, match=r"SD 1\.5 VAE"):
        vae.decode(flux, torch.randn(1, 4, 8, 8))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda images: images[2].fill_(float("nan")), "crops 2 decode to NaN"),
        (lambda images: images[2:].fill_(0.0), "crops 2, 3 decode to one flat colour"),
        (lambda images: images[1, ..., 0].fill_(float("inf")), "crops 1 decode to NaN or infinity"),
    ],
)
def test_a_broken_decode_is_named(spoil, says):  # F36
    def decode(latents):
        images = LinearVAE().decode(latents)
        spoil(images)
        return images

    broken = SimpleNamespace(decode=decode, vae_dtype=torch.float16)
    with pytest.raises(NumericError, match=rf"{says}.*float16.*float32"):
        vae.decode(broken, torch.randn(4, 4, 8, 8))


def test_nan_from_before_the_vae_is_not_blamed_on_it():  # F36
    latents = torch.randn(4, 4, 8, 8)
    latents[3, 0, 0, 0] = float("nan")
    with pytest.raises(NumericError, match=r"latents of crops 3 are NaN.*denoising"):
        vae.decode(LinearVAE(), latents)
    with pytest.raises(NumericError, match="encoded 1 crops to NaN"):
        vae.encode(SimpleNamespace(encode=lambda x: torch.full((1, 4, 8, 8), float("nan"))), pictures(1))


# --- crops ---


def track_of(found, side=64):
    """A face track with random crops for the frames in `found`."""
    found = np.asarray(found, bool)
    crops = Spool((side, side, 3))
    crops.append((pictures(int(found.sum()), side).numpy() * 255).astype(np.uint8))
    rows = np.where(found, np.cumsum(found) - 1, -1)
    return SimpleNamespace(resolution=side, found=found, crop_row=rows, crops=crops)


@pytest.mark.parametrize(("device", "at_once"), [("cuda", 16), ("cpu", 1), (None, 1)])  # F49: on a CPU one crop can take seconds
def test_crops_are_decoded_block_by_block_and_kept_pixels_are_put_back(tmp_path, device, at_once):
    found = np.ones(40, bool)
    found[[3, 17, 18]] = False
    track = track_of(found)
    plan = timeline.build(40, Fraction(25), 2.0)  # 50 frames: the last ten run backwards
    redrawn = plan.redrawn(found)
    latents = torch.randn(len(redrawn), 4, 8, 8) * 3
    sizes, calls = [], []
    demo = LinearVAE()
    counting = SimpleNamespace(decode=lambda z: (sizes.append(len(z)), demo.decode(z))[1], device=device)
    progress = lambda done, total, *, stage="", preview=None: calls.append((done, total, stage, preview))  # noqa: E731
    crops = vae.decode_crops(counting, latents, track, plan, spool_folder=tmp_path, progress=progress)
    assert crops.timeline is plan and crops.resolution == 64 and len(crops.images) == len(redrawn)
    assert max(sizes) == at_once and sum(sizes) == len(redrawn)
    assert calls[-1][:3] == (len(redrawn), len(redrawn), "decode") and calls[-1][3].shape == (64, 64, 3)
    images, keep = crops.images.read(slice(0, len(redrawn))), keep_mask(64)
    originals = track.crops.read(track.crop_row[plan.source[redrawn]])
    assert (images[:, keep == 1] == originals[:, keep == 1]).all()
    decoded = demo.decode(latents).numpy() * 255
    assert np.abs(images[:, keep == 0] - decoded[:, keep == 0]).max() <= 0.51
    edge = (keep > 0) & (keep < 1)
    mixed = decoded * (1 - keep)[..., None] + originals * keep[..., None]
    assert edge.any() and np.abs(images[:, edge] - mixed[:, edge]).max() <= 0.51


def test_latents_of_another_job_are_refused():
    track = track_of(np.ones(10, bool))
    plan = timeline.build(10, Fraction(25), 0.4)
    for shape in ((9, 4, 8, 8), (10, 4, 16, 16), (10, 16, 8, 8)):
        with pytest.raises(ShapeError, match=r"\[10, 4, 8, 8\]"):
            vae.decode_crops(LinearVAE(), torch.zeros(shape), track, plan)


def test_messages_of_a_long_job_count_crops_from_its_start():  # F36
    track = track_of(np.ones(40, bool))
    latents = torch.randn(40, 4, 8, 8)
    latents[37] = float("nan")
    with pytest.raises(NumericError, match="crops 37 "):
        vae.decode_crops(LinearVAE(), latents, track, timeline.build(40, Fraction(25), 1.6))


def test_a_cancelled_decode_leaves_no_file(tmp_path, monkeypatch):  # F30, F49
    class Stop(Exception):
        pass

    def stop(done, total, *, stage="", preview=None):
        if done >= 32:
            raise Stop

    monkeypatch.setattr(vae, "Spool", lambda shape, folder: Spool(shape, folder=folder, memory_limit_bytes=0))
    track, plan = track_of(np.ones(40, bool)), timeline.build(40, Fraction(25), 1.6)
    with pytest.raises(Stop):
        vae.decode_crops(LinearVAE(), torch.randn(40, 4, 8, 8), track, plan, spool_folder=tmp_path, progress=stop)
    assert list(tmp_path.iterdir()) == []


# --- files ---


def test_a_diffusers_folder_and_its_single_file_load(kl, tmp_path):
    kl.save_pretrained(tmp_path / "sd-vae")
    images, wanted = pictures(2), vae.encode(vae.DiffusersVAE(kl), pictures(2))
    for path in (tmp_path / "sd-vae", tmp_path / "sd-vae/diffusion_pytorch_model.safetensors"):
        loaded = vae.DiffusersVAE.load(path)
        assert torch.allclose(vae.encode(loaded, images), wanted, atol=1e-5)
        assert torch.allclose(vae.decode(loaded, wanted), vae.decode(vae.DiffusersVAE(kl), wanted), atol=1e-4)


def test_the_old_names_of_its_attention_load(kl, tmp_path):
    """stabilityai/sd-vae-ft-mse is still published with them."""
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    state = {}
    for name, value in kl.state_dict().items():
        new = next((key for key in old if f"attentions.0.{key}." in name), None)
        state[name.replace(new, old[new]) if new else name] = value.contiguous()
    assert sum("proj_attn" in name for name in state) == 4
    save_file(state, tmp_path / "old.safetensors")
    loaded = vae.DiffusersVAE.load(tmp_path / "old.safetensors")
    assert torch.allclose(vae.encode(loaded, pictures(1)), vae.encode(vae.DiffusersVAE(kl), pictures(1)), atol=1e-6)


@pytest.mark.skipif(COMFYUI is None, reason="no ComfyUI here (COMFYUI_PATH or .cache/comfyui)")
def test_comfyui_and_diffusers_agree_on_a_file_in_stable_diffusions_layout(tmp_path):
    """A real comfy.sd.VAE writes the file, encodes through us and decodes; the wrapper loads the file and does the same."""
    pytest.importorskip("diffusers")
    save_file({"images": pictures(3)}, tmp_path / "in.safetensors")
    script = (
        "import sys; comfy_path, folder, tests, sizes = sys.argv[1:5]; sys.path.insert(0, comfy_path); sys.argv[1:] = ['--cpu']\n"
        "import comfy.options; comfy.options.enable_args_parsing()\n"
        "import json, torch, comfy.sd; from safetensors.torch import load_file, save_file\n"
        "torch.set_grad_enabled(False); torch.manual_seed(0); config = {'params': {'ddconfig': json.loads(sizes), 'embed_dim': 4}}\n"
        "vae = comfy.sd.VAE(sd={}, config=config)\n"
        "for parameter in vae.first_stage_model.parameters():\n"
        "    torch.nn.init.normal_(parameter, 0.0, 0.7 / parameter[0].numel() ** 0.5 if parameter.ndim > 1 else 0.5)\n"
        "sys.path.insert(0, tests); import conftest; from latentsync_rtx.lipsync import vae as stage\n"
        "images = load_file(folder + '/in.safetensors')['images']; latents = stage.encode(vae, images)\n"
        "generator = torch.Generator().manual_seed(4); drawn = stage.encode(vae, images, posterior='sample', generator=generator)\n"
        "save_file({'latents': latents, 'drawn': drawn, 'decoded': stage.decode(vae, latents).contiguous()}, folder + '/out.safetensors')\n"
        "save_file({k: v.contiguous() for k, v in vae.first_stage_model.state_dict().items()}, folder + '/ldm.safetensors')\n"
        "torch.save({'state_dict': vae.first_stage_model.state_dict()}, folder + '/ldm.ckpt')\n"
    )
    command = [sys.executable, "-c", script, str(COMFYUI), str(tmp_path), str(ROOT / "tests"), json.dumps(LDM_SIZES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    wanted = load_file(tmp_path / "out.safetensors")
    for name in ("ldm.safetensors", "ldm.ckpt"):
        loaded = vae.DiffusersVAE.load(tmp_path / name)
        assert torch.allclose(vae.encode(loaded, pictures(3)), wanted["latents"], rtol=1e-3, atol=1e-4)
    drawn = vae.encode(loaded, pictures(3), posterior="sample", generator=torch.Generator().manual_seed(4))
    assert torch.allclose(drawn, wanted["drawn"], rtol=1e-3, atol=1e-4)
    assert torch.allclose(vae.decode(loaded, wanted["latents"]), wanted["decoded"], atol=1e-3)


def test_what_is_no_vae_is_refused(kl, tmp_path):  # F38, F39
    with pytest.raises(ModelFileError, match=r"the VAE is missing.*none\.safetensors.*sd-vae-ft-mse"):
        vae.DiffusersVAE.load(tmp_path / "none.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors")
    with pytest.raises(ModelFileError, match="no SD VAE"):
        vae.DiffusersVAE.load(tmp_path / "a.safetensors")
    state = {name: value.contiguous() for name, value in kl.state_dict().items() if name != "decoder.conv_out.bias"}
    save_file(state, tmp_path / "b.safetensors")
    with pytest.raises(ModelFileError, match=r"decoder\.conv_out\.bias"):
        vae.DiffusersVAE.load(tmp_path / "b.safetensors")
