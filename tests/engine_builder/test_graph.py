"""The exported graph computes what the network computes: onnxruntime against PyTorch."""
import copy

import numpy as np
import pytest
import torch
from latentsync_rtx.bench.networks import seeded
from latentsync_rtx.engine_builder import graph, weight_file
from latentsync_rtx.lipsync.errors import EngineError
from latentsync_rtx.lipsync.runners.manifest import DEEP, SHALLOW
from latentsync_rtx.lipsync.unet import LatentSyncUNet, UNetConfig

onnxruntime = pytest.importorskip("onnxruntime")

TINY = UNetConfig(block_out_channels=(32, 64), layers_per_block=1)  # every kind of layer, few nodes: exporting takes as long as the graph is
COSINE = {torch.float32: 0.999999, torch.float16: 0.99999}


@pytest.fixture(scope="module")
def network():
    return seeded(LatentSyncUNet(TINY), 5).eval()


def exported(folder, network, dtype, **shape):
    folder.mkdir(exist_ok=True)
    path = graph.export(network.config, folder, dtype=dtype, **shape)
    weight_file.write(folder / weight_file.NAME, network.state_dict(), dtype)
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(("dtype", "batch", "frames"), [(torch.float32, 2, 3), (torch.float16, 2, 3), (torch.float32, 1, 1)])
@torch.no_grad()
def test_the_graph_is_the_network(tmp_path, network, dtype, batch, frames):
    session = exported(tmp_path, network, dtype, resolution=64, frames=frames, batch=batch)
    generator = torch.Generator().manual_seed(1)
    sample = torch.randn(batch, 13, frames, 8, 8, generator=generator).to(dtype)
    audio = torch.randn(batch, frames, 50, 384, generator=generator).to(dtype)
    if batch == 2:
        audio[0] = 0  # the half without audio
    for step in (1, 999):
        timestep = torch.tensor([step])
        (found,) = session.run(["noise"], {"sample": sample.numpy(), "timestep": timestep.numpy(), "audio": audio.numpy()})
        expected = copy.deepcopy(network).to(dtype)(sample, timestep, audio).float()
        assert found.shape == expected.shape and found.dtype == (np.float32 if dtype == torch.float32 else np.float16)
        one, other = torch.from_numpy(found).double().flatten(), expected.double().flatten()
        assert torch.dot(one, other) / (one.norm() * other.norm()) >= COSINE[dtype]
        assert (one - other).abs().max() < (1e-5 if dtype == torch.float32 else 0.03) * other.abs().max()


@torch.no_grad()
def test_the_pair_for_block_caching(tmp_path, network):
    """The deep graph is the network and gives its deep features, the shallow one takes them and holds only its own weights."""
    shape = {"resolution": 64, "frames": 2, "batch": 2}
    deep_graph, shallow_graph = (exported(tmp_path / role, network, torch.float32, role=role, **shape) for role in (DEEP, SHALLOW))
    generator = torch.Generator().manual_seed(1)
    sample, audio = torch.randn(2, 13, 2, 8, 8, generator=generator), torch.randn(2, 2, 50, 384, generator=generator)
    features = network.deep_features(2, 2, (8, 8), dtype=torch.float32, device=sample.device)

    def inputs(scale, step):
        return {"sample": (sample * scale).numpy(), "timestep": np.array([step]), "audio": audio.numpy()}

    noise, left = deep_graph.run(["noise", "deep"], inputs(1.0, 800))
    torch.testing.assert_close(torch.from_numpy(noise), network(sample, 800, audio, deep=features), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(torch.from_numpy(left), features.contiguous(), rtol=1e-3, atol=1e-4)
    (noise,) = shallow_graph.run(["noise"], {**inputs(0.9, 600), "deep": left})
    expected = network(sample * 0.9, 600, audio, deep=features, reuse=True)
    torch.testing.assert_close(torch.from_numpy(noise), expected, rtol=1e-3, atol=1e-4)
    assert (expected - network(sample * 0.9, 600, audio)).abs().max() > 1e-2, "it is not the whole network"

    held = graph.weights_of(tmp_path / SHALLOW / "graph.onnx")
    assert any(name.startswith("up_blocks.1.resnets.1.") for name in held)
    assert not any(name.startswith(("mid_block", "up_blocks.0", "down_blocks.1")) for name in held)
    assert set(held) < set(graph.weights_of(tmp_path / DEEP / "graph.onnx")) == set(network.state_dict())


def test_the_graph_itself_is_small_and_holds_every_weight_by_reference(tmp_path, network):
    import onnx

    path = graph.export(TINY, tmp_path, resolution=64, frames=2, batch=1)
    model = onnx.load(path, load_external_data=False)
    outside = {tensor.name for tensor in model.graph.initializer if tensor.external_data}
    assert outside == set(graph.weight_names(weight_file.layout(network.state_dict())))
    assert path.stat().st_size < 4 << 20
    kinds = {node.op_type for node in model.graph.node}
    assert {"Attention", "GroupNormalization", "LayerNormalization", "Conv"} <= kinds
    assert not {"Sin", "Cos", "Exp"} & kinds  # of angles up to 999
    assert not any(kind.startswith(("Sequence", "SplitToSequence", "Loop", "If")) for kind in kinds)  # TensorRT-RTX has no sequences


def test_exporting_leaves_the_network_code_as_it_was(tmp_path):
    from latentsync_rtx.lipsync import ops

    before = ops.group_norm
    with pytest.raises(EngineError):
        graph.export(TINY, tmp_path, resolution=100, frames=2, batch=1)
    graph.export(TINY, tmp_path, resolution=64, frames=1, batch=1)
    assert ops.group_norm is before


def test_weights_land_where_the_layout_says(tmp_path):
    tensors = {"b": torch.arange(5.0), "a": torch.tensor(7.0), "c": torch.randn(3, 300).t()}
    heard = []
    weight_file.write(tmp_path / "w", tensors, torch.float16, heard.append)
    places, content = weight_file.layout(tensors, torch.float16), (tmp_path / "w").read_bytes()
    assert all(offset % 256 == 0 for offset, _ in places.values())
    for name, (offset, length) in places.items():
        values = np.frombuffer(content[offset : offset + length], np.float16)
        assert np.array_equal(values, tensors[name].half().flatten().numpy())
    assert heard[-1] == 1.0 and heard == sorted(heard)


def test_the_order_of_a_dict_changes_nothing():
    tensors = {"b": torch.zeros(5), "a": torch.zeros(2, 2)}
    assert weight_file.layout(tensors) == weight_file.layout(dict(reversed(tensors.items())))
