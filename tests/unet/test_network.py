"""The network against the reference implementation's tensors (`tests/data/golden`), and the equivalences its speed rests on."""
import json
from pathlib import Path

import pytest
import torch
from latentsync_rtx.lipsync.errors import ShapeError
from latentsync_rtx.lipsync.unet import LatentSyncUNet, UNetConfig
from latentsync_rtx.lipsync.unet.attention import MotionModule, SpatialTransformer
from latentsync_rtx.lipsync.unet.blocks import Resnet
from latentsync_rtx.tests.data.golden import recipe
from safetensors.torch import load_file

GOLDEN = Path(__file__).resolve().parent.parent / "data" / "golden"


@pytest.fixture(scope="module")
def weights():
    net = LatentSyncUNet(UNetConfig(**recipe.TINY))
    return recipe.seeded_parameters(net.named_parameters(), 11)


@pytest.fixture
def net(weights):
    net = LatentSyncUNet(UNetConfig(**recipe.TINY))
    net.load_state_dict(weights | dict(net.named_buffers()))
    return net.eval()


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


def random_inputs(rows=1, frames=3, size=8):
    generator = torch.Generator().manual_seed(3)
    sample = torch.randn(rows, 13, frames, size, size, generator=generator)
    return sample, torch.randn(rows, frames, 50, 384, generator=generator)


def test_full_network_has_exactly_the_checkpoints_keys_and_shapes():
    with torch.device("meta"):
        net = LatentSyncUNet(UNetConfig())
    expected = json.loads((GOLDEN / "unet_full_state_dict.json").read_text())
    assert {key: list(value.shape) for key, value in net.state_dict().items()} == expected
    assert sum(parameter.numel() for parameter in net.parameters()) == pytest.approx(1.267e9, rel=1e-3)


def test_a_state_dict_with_a_key_missing_or_reshaped_is_refused(net):
    state = net.state_dict()
    with pytest.raises(RuntimeError, match=r"conv_in\.bias"):
        net.load_state_dict({key: value for key, value in state.items() if key != "conv_in.bias"})
    with pytest.raises(RuntimeError, match="size mismatch"):
        net.load_state_dict(state | {"conv_in.bias": torch.zeros(5)})


@pytest.mark.parametrize("case", recipe.UNET_CASES)
@torch.no_grad()
def test_agrees_with_the_reference(net, case):
    sample, timestep, audio = recipe.unet_inputs(11)[case]
    assert distance(net(sample, timestep, audio), load_file(GOLDEN / "unet_tiny.safetensors")[case]) < 1e-5


@torch.no_grad()
def test_guidance_in_one_call_equals_a_batch_of_two(net):
    sample, audio = random_inputs()
    pair = net(torch.cat([sample, sample]), 700, torch.cat([torch.zeros_like(audio), audio]))
    assert distance(net(sample, 700, audio, guided=True), pair) < 1e-5
    assert distance(pair[:1], pair[1:]) > 1e-2  # the audio matters


@torch.no_grad()
def test_rows_are_independent_and_may_have_their_own_timesteps(net):
    sample, audio = random_inputs(rows=2)
    both = net(sample, torch.tensor([900, 20]), audio)
    alone = torch.cat([net(sample[i : i + 1], timestep, audio[i : i + 1]) for i, timestep in enumerate((900, 20))])
    assert distance(both, alone) < 1e-5
    guided = net(sample, torch.tensor([900, 20]), audio, guided=True)
    assert distance(guided[2:], both) < 1e-5


@torch.no_grad()
def test_fused_weights_give_the_same_and_follow_the_parameters(net, weights):
    sample, audio = random_inputs(size=16)  # at size 8 the last level's norms are over one pixel: nothing but rounding
    plain = net(sample, 500, audio)
    guided = net(sample, 500, audio, guided=True)
    keys = list(net.state_dict())
    net.fuse()
    attention = net.mid_block.attentions[0].transformer_blocks[0].attn1
    assert attention.to_v.weight.untyped_storage().data_ptr() == attention.to_q.weight.untyped_storage().data_ptr()  # no second copy
    assert list(net.state_dict()) == keys
    assert distance(net(sample, 500, audio), plain) < 5e-6
    assert distance(net(sample, 500, audio, guided=True), guided) < 5e-6

    doubled = {key: value * 2 if "to_q" in key or key.endswith("bias") else value for key, value in net.state_dict().items()}
    net.load_state_dict(doubled)
    changed = net(sample, 500, audio)
    assert distance(changed, plain) > 1e-4
    net.load_state_dict(weights | dict(net.named_buffers()), assign=True)
    assert distance(net(sample, 500, audio), plain) < 1e-6
    net.load_state_dict(doubled, assign=True)
    net.fuse()
    assert distance(net(sample, 500, audio), changed) < 5e-6
    assert distance(net.double()(sample.double(), 500, audio.double()).float(), changed) < 1e-5


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("silent", [0, 1])
@pytest.mark.parametrize("layers", [2, 1], ids=["LatentSync's levels", "the demo's levels"])
@torch.no_grad()
def test_deep_features_are_all_that_the_outer_stages_need(layers, silent, fused):
    """To the bit: leaving them changes nothing, and taking them back gives what computing them gives. Only the outer stages are evaluated."""
    torch.manual_seed(0)
    net = LatentSyncUNet(UNetConfig(**{**recipe.TINY, "layers_per_block": layers})).eval()
    if fused:
        net.fuse()
    sample, audio = random_inputs(size=16)
    shifts, heard = net.embed(torch.tensor([700])), net.listen(audio, silent=silent)
    deep = net.deep_features(1 + silent, 3, (16, 16), dtype=sample.dtype, device=sample.device)
    whole = net.evaluate(sample, shifts, heard)
    assert torch.equal(net.evaluate(sample, shifts, heard, deep=deep), whole)
    kept, evaluated = deep.clone(), []
    for module in (*net.modules(),):
        if isinstance(module, Resnet):
            module.register_forward_hook(lambda *_: evaluated.append(1))
    assert torch.equal(net.evaluate(sample, shifts, heard, deep=deep, reuse=True), whole)
    assert len(evaluated) == 3  # one on the way down, two on the way up
    assert torch.equal(deep, kept), "what is kept must outlive its use"
    net.evaluate(sample * 0.5, shifts, heard, deep=deep)
    assert distance(net.evaluate(sample, shifts, heard, deep=deep, reuse=True), whole) > 1e-3, "other deep features give another answer"


@pytest.mark.parametrize(
    ("sample", "audio", "says"),
    [
        ((1, 13, 25, 8, 8), (1, 25, 50, 384), "1 to 24 frames"),
        ((1, 13, 0, 8, 8), (1, 0, 50, 384), "1 to 24 frames"),
        ((1, 12, 2, 8, 8), (1, 2, 50, 384), r"\[B,13,F,h,w\]"),
        ((13, 2, 8, 8), (2, 50, 384), r"\[B,13,F,h,w\]"),
        ((1, 13, 2, 12, 8), (1, 2, 50, 384), "multiples of 8"),
        ((1, 13, 2, 8, 8), (1, 2, 50, 768), r"\[1, 2, 50, 384\]"),
        ((1, 13, 2, 8, 8), (1, 3, 50, 384), r"\[1, 2, 50, 384\]"),
        ((2, 13, 2, 8, 8), (1, 2, 50, 384), r"\[2, 2, 50, 384\]"),
    ],
)
def test_wrong_shapes_are_refused_before_any_work(sample, audio, says):
    with torch.device("meta"):  # nothing can be computed here, only refused
        net = LatentSyncUNet(UNetConfig(**recipe.TINY))
    with pytest.raises(ShapeError, match=says):
        net(torch.empty(sample), 1, torch.empty(audio))


@torch.no_grad()
def test_a_check_stops_the_network_between_layers(net):
    sample, audio = random_inputs()
    calls = 0

    def check():
        nonlocal calls
        calls += 1
        if calls == 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        net(sample, 1, audio, check=check)


@torch.no_grad()
def test_pictures_stay_channels_last_from_end_to_end(net):
    sample, audio = random_inputs(frames=2, size=16)  # at size 8 the smallest picture is a pixel, contiguous either way
    pictures = []
    for module in net.modules():
        if type(module) in (torch.nn.Conv2d, Resnet, SpatialTransformer, MotionModule):
            module.register_forward_hook(lambda _, inputs, output: pictures.extend([inputs[0], output]))
    net.to(memory_format=torch.channels_last)(sample, 1, audio)
    assert len(pictures) > 100
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in pictures)
