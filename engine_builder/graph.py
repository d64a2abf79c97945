"""The network as an ONNX graph, without ever holding a weight.

The network is traced on the meta device, where tensors have shapes and no contents; the graph's weights are references into a file that
`weight_file.py` writes in the meantime. That, and leaving out the pattern rewriter that `torch.onnx.export` runs by default (it compares
every node with every rule: nine tenths of the usual time), brings the export of the full network from two minutes and 9 GB to 20 seconds
and 1 GB. TensorRT-RTX does those rewrites itself.
"""
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..lipsync import ops
from ..lipsync.checkpoint import Uninitialised
from ..lipsync.errors import DependencyError, EngineError
from ..lipsync.runners.manifest import DEEP, SHALLOW, WHOLE
from ..lipsync.unet import LatentSyncUNet, UNetConfig, deep_shape
from . import weight_file

OPSET = 23  # the first with Attention as one operator
INPUTS, OUTPUT, FEATURES = ("sample", "timestep", "audio"), "noise", "deep"
ROOT = "network."  # what the tracer puts before the names of weights
TABLE = "time_embedding.table"
TIMESTEPS = 1000  # of the training schedule


def export(
    config: UNetConfig,
    folder: Path,
    *,
    resolution: int,
    frames: int,
    batch: int,
    dtype: torch.dtype = torch.float16,
    role: str = WHOLE,
    report: Callable[[float], None] = lambda fraction: None,
) -> Path:
    """Write `folder`/graph.onnx; its weights are expected in `weight_file.NAME` beside it.

    sample [batch,13,frames,r/8,r/8], timestep int64 [1], audio [batch,frames,50,384] -> noise [batch,4,frames,r/8,r/8], of `dtype`.
    role: see manifest.py. The deep features [batch*frames,C,r/8,r/8], "deep", are an output too, or an input.
    """
    try:
        import onnx_ir
        from onnxscript import optimizer
    except ImportError as error:
        raise DependencyError(f"an engine is built from an ONNX file, which needs onnx and onnxscript: pip install {error.name}") from error
    with torch.device("meta"), Uninitialised():
        network = LatentSyncUNet(config).eval().requires_grad_(False).to("meta", dtype)
        inputs = example(config, resolution=resolution, frames=frames, batch=batch, dtype=dtype)
        if role == SHALLOW:
            inputs += (torch.zeros(deep_shape(config, batch, frames, inputs[0].shape[-2:]), dtype=dtype),)
    places = weight_file.layout(network.state_dict())
    waves = _tabulate_waves(network, dtype)
    with torch.no_grad(), _group_norm_as_operator():
        traced = torch.export.export(EVALUATIONS[role](network), inputs, strict=False)
        report(0.3)
        program = torch.onnx.export(
            traced,
            dynamo=True,
            opset_version=OPSET,
            optimize=False,
            verbose=False,
            input_names=[*INPUTS, *[FEATURES] * (role == SHALLOW)],
            output_names=[OUTPUT, *[FEATURES] * (role == DEEP)],
            custom_translation_table={torch.ops.aten.chunk.default: _chunk},
        )
    report(0.9)
    model = program.model
    weights = {name: value for name, value in model.graph.initializers.items() if name.startswith(ROOT)}
    for value in weights.values():
        value.dtype, value.shape, value.const_value = value.const_value.dtype, value.const_value.shape, None  # nothing to fold into others
    weights.pop(ROOT + TABLE).const_value = onnx_ir.tensor(waves.numpy())
    optimizer.fold_constants(model)
    optimizer.remove_unused_nodes(model)
    for name, value in weights.items():
        if name not in model.graph.initializers:  # of the levels that this role leaves out
            continue
        offset, length = places[name.removeprefix(ROOT)]
        value.const_value = onnx_ir.ExternalTensor(
            weight_file.NAME, offset, length, value.dtype, shape=value.shape, name=name, base_dir=folder
        )
    path = folder / "graph.onnx"
    path.write_bytes(onnx_ir.serde.serialize_model(model).SerializeToString())
    return path


def example(config: UNetConfig, *, resolution: int, frames: int, batch: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs of the right shapes. Raises EngineError for a resolution or frame count that the network does not take."""
    side = resolution // 8
    if resolution % 8 or side % config.multiple or side < config.multiple:
        raise EngineError(f"an engine's resolution must be a multiple of {8 * config.multiple} px (512 or 256, usually), got {resolution}.")
    if not 1 <= frames <= config.max_frames:
        raise EngineError(f"an engine takes 1 to {config.max_frames} frames at once, got {frames}; 16 is what the network was trained on.")
    sample = torch.zeros(batch, config.in_channels, frames, side, side, dtype=dtype)
    audio = torch.zeros(batch, frames, config.audio_tokens, config.audio_width, dtype=dtype)
    return sample, torch.zeros(1, dtype=torch.int64), audio


class _Evaluation(nn.Module):
    """The network under a name of its own, with the arguments that the graph has."""

    def __init__(self, network: LatentSyncUNet):
        super().__init__()
        self.network = network

    def forward(self, sample: Tensor, timestep: Tensor, audio: Tensor) -> Tensor:
        return self.network(sample, timestep, audio)


class _Deep(_Evaluation):
    """The same, and the deep features."""

    def forward(self, sample: Tensor, timestep: Tensor, audio: Tensor) -> tuple[Tensor, Tensor]:
        features = _Features()
        return self.network(sample, timestep, audio, deep=features), features.value


class _Features:
    """What is left here is not copied."""

    def copy_(self, value: Tensor) -> None:
        self.value = value


class _Shallow(_Evaluation):
    """The outer levels alone, on deep features that are given."""

    def forward(self, sample: Tensor, timestep: Tensor, audio: Tensor, deep: Tensor) -> Tensor:
        return self.network(sample, timestep, audio, deep=deep, reuse=True)


EVALUATIONS = {WHOLE: _Evaluation, DEEP: _Deep, SHALLOW: _Shallow}


def _tabulate_waves(network: LatentSyncUNet, dtype: torch.dtype) -> Tensor:
    """The network looks the waves of its time embedding up in a buffer, whose contents are given back: [1000, width].

    They are of angles up to 999, where a kernel made for speed has no exact cosine.
    """
    embedding = network.time_embedding
    with torch.device("cpu"), Uninitialised():
        waves = type(embedding)(embedding.linear_1.in_features).to(dtype).waves(torch.arange(TIMESTEPS))
    embedding.register_buffer("table", waves.to("meta"))
    embedding.waves = lambda timesteps: embedding.table.index_select(0, timesteps)
    return waves.detach()


@contextmanager
def _group_norm_as_operator() -> Iterator[None]:
    """Ours is spelled out in reductions: three times the nodes, and 0.17 GB more scratch memory in the full engine."""
    ours, ops.group_norm = ops.group_norm, _group_norm
    try:
        yield
    finally:
        ops.group_norm = ours


def _group_norm(x: Tensor, norm: nn.GroupNorm, *, frames: int = 1, shift: Tensor | None = None, silu: bool = False) -> Tensor:
    """GroupNormalization takes its statistics in float32 whatever the dtype, as ours does."""
    if shift is not None:
        x = (x.unflatten(0, (-1, frames)) + shift[:, None, :, None, None]).flatten(0, 1)
    if frames > 1:
        x = x.unflatten(0, (-1, frames)).transpose(1, 2)
    y = F.group_norm(x, norm.num_groups, norm.weight, norm.bias, norm.eps)
    y = F.silu(y) if silu else y
    return y.transpose(1, 2).flatten(0, 1) if frames > 1 else y


def _chunk(x, chunks: int, dim: int = 0):
    """`Tensor.chunk`; by default it becomes a sequence, which TensorRT-RTX does not have."""
    from onnxscript import opset23 as op

    return op.Split(x, axis=dim, num_outputs=chunks)


def weights_of(path: Path) -> list[str]:
    """The names of the weights that an exported graph refers to."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    return [tensor.name.removeprefix(ROOT) for tensor in graph.initializer if tensor.external_data]


def weight_names(places: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """The graph's names of the weights -> their (offset, length) in the weight file."""
    return {ROOT + name: place for name, place in places.items()}
