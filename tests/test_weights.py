"""Checkpoints: found, told apart, refused with a reason, loaded whole; and the demo model only by name."""
import logging
import pickle
import struct

import pytest
import torch
from latentsync_rtx.lipsync import weights
from latentsync_rtx.lipsync.audio import extract
from latentsync_rtx.lipsync.errors import ModelFileError
from safetensors.torch import save_file

from .model_files import save_unet, save_whisper, unet_state


@pytest.fixture
def models(tmp_path, monkeypatch):
    """An empty models folder."""
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    (tmp_path / "models/latentsync").mkdir(parents=True)
    return tmp_path / "models"


@pytest.fixture(scope="module")
def state():
    return unet_state()


def outputs(network):
    generator = torch.Generator().manual_seed(3)
    sample, audio = torch.randn(1, 13, 2, 8, 8, generator=generator), torch.randn(1, 2, 50, 384, generator=generator)
    with torch.no_grad():
        return network(sample, torch.tensor([500]), audio)


# --- finding and loading ---


def test_a_pt_and_a_safetensors_load_the_same_network(models, state):
    save_unet(models / "latentsync/a.pt", state)
    save_file(state, models / "latentsync/b.safetensors")
    assert weights.list_models() == ["a.pt", "b.safetensors", weights.DEMO]
    first, second = weights.find_model("a.pt"), weights.find_model("b.safetensors")
    assert first.fingerprint == second.fingerprint and not first.is_demo
    assert (first.global_step, second.global_step) == (1234, None)
    assert first.config.block_out_channels == (32, 32, 64, 64)
    for model in (first, second):
        network = model.load_unet()
        assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
        assert not network.training and not any(parameter.requires_grad for parameter in network.parameters())


def test_loading_casts_and_leaves_nothing_behind_on_the_meta_device(models, state):
    save_unet(models / "latentsync/a.pt", state)
    network = weights.find_model("a.pt").load_unet(torch.bfloat16)
    tensors = [*network.parameters(), *network.buffers()]
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16} and {tensor.device.type for tensor in tensors} == {"cpu"}


def test_a_loaded_network_does_not_depend_on_its_file(models, state):
    path = save_unet(models / "latentsync/a.pt", state)
    network = weights.find_model("a.pt").load_unet()
    path.write_bytes(b"")  # would be a bus error in a memory map
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())


def test_other_things_in_the_folder_are_not_offered(models, state):
    save_unet(models / "latentsync/sub/a.pt", state)
    for name in ("whisper/tiny.pt", "tiny.pt", "engines/x.pt", "face/y.pt", "auxiliary/syncnet_v2.pt", "stable_syncnet.pt"):
        (models / "latentsync" / name).parent.mkdir(exist_ok=True)
        (models / "latentsync" / name).write_bytes(b"x")
    assert weights.list_models() == ["sub/a.pt", weights.DEMO]


def test_a_changed_file_is_looked_at_again(models, state):
    save_unet(models / "latentsync/a.pt", state)
    before = weights.find_model("a.pt").fingerprint
    save_unet(models / "latentsync/a.pt", unet_state(seed=1), step=77777)
    assert weights.find_model("a.pt").fingerprint != before


def test_any_tensor_changes_the_fingerprint(models, state):
    save_unet(models / "latentsync/a.pt", state)
    names = ["conv_in.bias", "mid_block.resnets.1.conv2.weight", "up_blocks.3.motion_modules.2.temporal_transformer.proj_out.bias"]
    for at, name in enumerate(names):
        save_unet(models / f"latentsync/{at}.pt", {**state, name: state[name] + 0.5})
    assert len({weights.find_model(name).fingerprint for name in ("a.pt", "0.pt", "1.pt", "2.pt")}) == 4


def test_the_handle_is_plain_data(models, state):
    save_unet(models / "latentsync/a.pt", state)
    model = weights.find_model("a.pt")
    assert pickle.loads(pickle.dumps(model)) == model and hash(model)


# --- F37: 1.5 or 1.6 ---


def test_the_release_is_told_by_fingerprint_then_by_name(models, state, monkeypatch):  # F37
    for name in ("plain/unet.pt", "LatentSync-1.5/latentsync_unet.pt", "latentsync_v1.6.pt", "step_16.pt"):
        save_unet(models / "latentsync" / name, state)
    named = weights.find_model("LatentSync-1.5/latentsync_unet.pt")
    assert (named.release, named.resolution) == ("1.5", 256) and "folder's name" in named.description
    assert "trained on 256 px" in named.resolution_warning(512) and named.resolution_warning(256) is None
    assert weights.find_model("latentsync_v1.6.pt").resolution == 512
    for name in ("plain/unet.pt", "step_16.pt"):
        unknown = weights.find_model(name)
        assert unknown.release is None and unknown.resolution == 512 and "unknown release" in unknown.description
        assert "LatentSync 1.5" in unknown.resolution_warning(256)
    monkeypatch.setitem(weights.KNOWN, named.fingerprint, "1.6")  # renamed by its owner, but the values do not lie
    told = weights.find_model("LatentSync-1.5/latentsync_unet.pt")
    assert told.release == "1.6" and "fingerprint" in told.description


# --- F38, F39: missing, damaged, something else ---


def test_a_missing_checkpoint_never_becomes_random_weights(models):  # F38
    for name in ("gone.pt", None):
        with pytest.raises(ModelFileError, match=r"missing.*latentsync.*ByteDance/LatentSync-1\.6"):
            weights.find_model(name)


def test_without_a_checkpoint_the_one_to_download_can_be_chosen(models):
    assert weights.list_models() == [weights.DEMO, "LatentSync-1.6/latentsync_unet.pt"]


def test_missing_whisper_and_vae_name_file_source_and_folder(models, state):  # F38
    save_unet(models / "latentsync/a.pt", state)
    model = weights.find_model("a.pt")
    with pytest.raises(ModelFileError, match=r"whisper/tiny\.pt in .*latentsync.*ByteDance"):
        model.load_whisper()
    with pytest.raises(ModelFileError, match=r"vae-ft-mse-840000-ema-pruned.* in .*models.vae.*stabilityai/sd-vae-ft-mse"):
        model.load_vae()
    with pytest.raises(ModelFileError, match=r"mine\.safetensors"):
        weights.find_vae("mine.safetensors")


@pytest.mark.parametrize(
    "place", ["latentsync/whisper/tiny.pt", "latentsync/sub/whisper/tiny.pt", "latentsync/tiny.pt", "audio_encoders/tiny.pt"]
)
def test_whisper_is_found_where_people_keep_it(models, state, place):
    save_unet(models / "latentsync/sub/a.pt", state)
    path = save_whisper(models / place)
    assert weights.find_whisper(models / "latentsync/sub/a.pt") == path
    assert weights.find_model("sub/a.pt").load_whisper().n_state == 384


@pytest.mark.parametrize(
    "name",
    ["vae-ft-mse-840000-ema-pruned.pt", "a/vae-ft-mse-840000-ema-pruned.ckpt", "sd-vae-ft-mse/diffusion_pytorch_model.safetensors"],
)
def test_the_vae_is_found_by_its_names(models, name):
    (models / "vae" / name).parent.mkdir(parents=True)
    for other in ("ae.safetensors", name):
        (models / "vae" / other).write_bytes(b"x")
    assert weights.find_vae() == models / "vae" / name
    assert weights.find_vae("ae.safetensors") == models / "vae/ae.safetensors"


@pytest.mark.parametrize("kept", [0.2, 0.9, 0.9999])
def test_a_truncated_pt_says_what_was_expected_and_found(models, state, kept):  # F39
    path = save_unet(models / "latentsync/a.pt", state)
    whole = path.read_bytes()
    size = int(len(whole) * kept)
    path.write_bytes(whole[:size])
    weigh = sum(value.numel() * 4 for value in state.values())
    expected = rf"expected at least {weigh:,} bytes" if size < weigh else "its end is missing"
    with pytest.raises(ModelFileError, match=rf"truncated: {expected}, found {size:,}.*Download it again"):
        weights.find_model("a.pt")


@pytest.mark.parametrize("kept", [0.001, 0.5, 0.9999])
def test_a_truncated_safetensors_says_what_was_expected_and_found(models, state, kept):  # F39
    path = models / "latentsync/a.safetensors"
    save_file(state, path)
    whole = path.read_bytes()
    size = int(len(whole) * kept)
    path.write_bytes(whole[:size])
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    with pytest.raises(ModelFileError, match=rf"truncated: expected {len(whole) if size > header else header:,} bytes, found {size:,}"):
        weights.find_model("a.safetensors")


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize(
    ("contents", "says"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0a\nsize 5065741\n", r"LFS pointer: expected 5,065,741 bytes, found 7\d"),
        (b"", "empty"),
        (b"<!DOCTYPE html><html>sign in</html>", "text file|not in the safetensors format"),
        (bytes(range(256)) * 8, "cannot read|not in the safetensors format"),
    ],
)
def test_what_only_looks_like_a_checkpoint_is_named(models, suffix, contents, says):  # F39, F29
    (models / f"latentsync/a{suffix}").write_bytes(contents)
    with pytest.raises(ModelFileError, match=says):
        weights.find_model(f"a{suffix}")


def test_code_in_a_pickle_does_not_run(models, tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"state_dict": Evil()}, models / "latentsync/a.pt")
    data = (models / "latentsync/a.pt").read_bytes()
    (models / "latentsync/cut.pt").write_bytes(data[:-200])  # the table of contents of a cut file is read by ourselves
    for name in ("a.pt", "cut.pt"):
        with pytest.raises(ModelFileError):
            weights.find_model(name)
    assert not (tmp_path / "ran").exists()


def test_wrong_keys_and_shapes_are_named(models, state):
    changed = dict(state)
    changed["conv_out.bias"] = torch.zeros(7)
    changed["surplus.weight"] = torch.zeros(1)
    del changed["mid_block.resnets.0.norm1.weight"]
    save_unet(models / "latentsync/a.pt", changed)
    with pytest.raises(ModelFileError, match=r"3 tensors \(missing mid_block.*unknown surplus\.weight.*conv_out\.bias is \(7,\), not"):
        weights.find_model("a.pt")
    save_unet(models / "latentsync/b.pt", {**state, "conv_in.weight": torch.zeros(32, 4, 3, 3)})
    with pytest.raises(ModelFileError, match="another model: it takes 4 channels"):
        weights.find_model("b.pt")
    torch.save({"model": {}}, models / "latentsync/c.pt")
    with pytest.raises(ModelFileError, match="no LatentSync network"):
        weights.find_model("c.pt")
    torch.save([1, 2], models / "latentsync/d.pt")
    with pytest.raises(ModelFileError, match="holds a list"):
        weights.find_model("d.pt")


# --- the demo ---


def test_the_demo_is_chosen_by_name_and_says_what_it_is(models, caplog):
    assert weights.DEMO == "demo (synthetic faces)"
    model = weights.find_model(weights.DEMO)
    assert model.is_demo and model.path is None and "drawn faces" in model.description and model.resolution == 256
    with caplog.at_level(logging.WARNING):
        model.load_unet()
    assert "drawn faces" in caplog.text


def test_the_demo_is_the_same_every_time_and_every_part_works(models):
    model = weights.find_model(weights.DEMO)
    first = outputs(model.load_unet())
    torch.manual_seed(5)
    assert torch.equal(first, outputs(model.load_unet())) and first.std() > 0.01
    wave = torch.randn(1, 1, 8000) * 0.1
    before = torch.random.get_rng_state()
    features = extract({"waveform": wave, "sample_rate": 16000}, model.load_whisper())
    assert features.tokens(range(12), 25).shape == (12, 50, 384)
    assert torch.isfinite(features.states).all() and features.states.std() > 0.1
    assert torch.equal(before, torch.random.get_rng_state())


def test_small_networks_of_other_sizes_are_read_off_their_tensors(models):
    save_unet(models / "latentsync/a.pt", unet_state(widths=(32, 64, 64, 96), layers_per_block=1))
    config = weights.find_model("a.pt").config
    assert (config.block_out_channels, config.layers_per_block) == ((32, 64, 64, 96), 1)
