"""A TensorRT-RTX that needs no RTX card: doubles of the real bindings' classes, whose context reads the addresses it was given and evaluates
the network there, on a CPU or on any CUDA device."""
import contextlib
import copy
import ctypes
import functools
import json
from pathlib import Path
from typing import ClassVar
from unittest.mock import create_autospec, patch

import torch
from latentsync_rtx.lipsync.runners import TorchRunner, engines, tensorrt_rtx
from latentsync_rtx.lipsync.runners import manifest as manifests
from latentsync_rtx.lipsync.runners.manifest import Gpu
from latentsync_rtx.lipsync.unet import LatentSyncUNet, deep_shape
from latentsync_rtx.tests.runners.bindings import stubs

VERSION = "1.7.1.116"
CARD = Gpu("NVIDIA GeForce RTX 4090", "8.9", "13.0")
NUMPY_TYPES = {torch.float16: "<f2", torch.int64: "<i8"}
FRAMES, SIDE = 4, 4  # of the blocks and latents of tests
PARITY = {CARD.key: {"passed": True, "cosine": 1.0, "largest_error": 0.0}}
CYCLES = 20_000_000  # of a GPU: some 10 ms


def write_engine(folder: Path, **fields) -> engines.Engine:
    """An engine in `folder` that passes every check but the library's own: bytes for a plan, and a manifest with `fields`."""
    manifest = {
        "format": manifests.FORMAT,
        "model": "test",
        "fingerprint": "f00d",
        "network": {"block_out_channels": [32, 32, 64, 64]},
        "export_revision": manifests.EXPORT_REVISION,
        "resolution": 64,
        "frames": 4,
        "guided": True,
        "precision": "fp16",
        "role": manifests.WHOLE,
        "tensorrt_rtx": VERSION,
        "targets": "portable",
        "gpu": None,
        "weight_streaming": False,
        "weights_bytes": 1000,
        "activation_bytes": 4096,
        "parity": {},
        **fields,
    }
    path = folder / f"test_{manifests.identity(manifest)}.plan"
    content = b"vtrt\0\0\0\0" + bytes(range(256)) * 4
    content = content[:-12] + manifests.identity(manifest).encode()  # no two are the same
    manifest = {"header": content[: manifests.HEADER_BYTES].hex(), "plan_bytes": len(content), **manifest, "plan": path.name}
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.with_suffix(".json").write_text(json.dumps(manifest))
    return engines.read(path)


class Library:
    """Stands for the module `tensorrt_rtx`. One plan, or a pair, whose network is `unet` (float32, on the device that is used).

    Work is done late, as a GPU does it: on CUDA after a pause on the stream it was given, on a CPU when the lane of that number is waited
    for. `gives` maps names of create calls to what they give instead, `ILogger` speaks through `says`.
    """

    class ILogger:
        INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def __init__(self, engine: engines.Engine, unet: LatentSyncUNet, *, gives: dict | None = None, says: str = "", error: float = 0.0):
        self.__version__ = VERSION
        self.stubs = stubs()
        for name in ("EngineValidity", "EngineInvalidityDiagnostics", "ExecutionContextAllocationStrategy", "CudaGraphStrategy"):
            setattr(self, name, getattr(self.stubs, name))
        self.manifest, self.unet, self.gives, self.says, self.error = engine.manifest, unet, gives or {}, says, error
        partner = engines.partner(engine)
        self.plan, self.partner = engine.path.read_bytes(), partner
        self.plans = {self.plan, partner.path.read_bytes()} if partner else {self.plan}
        self.roles_run = []
        self.contexts, self.caches, self.runs, self.weight_loads, self.deserialized = [], [], 0, 0, 0
        self.validity, self.diagnostics = self.EngineValidity.VALID, 0
        self.compiled = b""  # what the runtime cache holds after a run

    def _made(self, name: str, thing):
        if name in self.gives:
            if self.says:
                self.logger.log(self.ILogger.ERROR, self.says)
            return self.gives[name]
        return thing

    def _double(self, kind: str):
        return create_autospec(getattr(self.stubs, kind), instance=True, spec_set=True)

    def Runtime(self, logger):
        assert isinstance(logger, self.ILogger)
        self.logger = logger
        runtime = self._double("Runtime")
        runtime.get_engine_validity.side_effect = self._validity
        runtime.deserialize_cuda_engine.side_effect = lambda blob: self._made("deserialize_cuda_engine", self._deserialize(runtime, blob))
        return self._made("Runtime", runtime)

    def _validity(self, header):
        assert len(bytes(header)) == manifests.HEADER_BYTES
        return self.validity, self.diagnostics

    def _deserialize(self, runtime, blob):
        assert bytes(blob) in self.plans
        manifest = self.manifest if bytes(blob) == self.plan else self.partner.manifest
        streamed = manifest["weight_streaming"]
        assert runtime.defer_weights_loading is not streamed, "weights must be deferred, or unloading gives nothing back"
        self.deserialized += 1
        side = manifest["resolution"] // 8
        batch, frames = 2 if manifest["guided"] else 1, manifest["frames"]
        shapes = {
            "sample": (batch, 13, frames, side, side),
            "timestep": (1,),
            "audio": (batch, frames, 50, 384),
            "noise": (batch, 4, frames, side, side),
        }
        if manifest["role"] != manifests.WHOLE:
            shapes["deep"] = deep_shape(self.unet.config, batch, frames, (side, side))
        engine = self._double("ICudaEngine")
        context = functools.partial(self._context, engine, shapes, manifest["role"])
        engine.num_io_tensors = len(shapes)
        engine.device_memory_size_v2 = manifest["activation_bytes"]
        engine.weights_loaded = streamed
        engine.get_weight_streaming_automatic_budget.return_value = 777
        engine.get_tensor_name.side_effect = lambda index: list(shapes)[index]
        engine.get_tensor_shape.side_effect = lambda name: shapes[name]
        engine.load_weights.side_effect = lambda blob: self._made("load_weights", self._load_weights(engine, blob))
        engine.unload_weights.side_effect = lambda: self._made("unload_weights", self._unload_weights(engine))
        engine.create_runtime_config.side_effect = lambda: self._made("create_runtime_config", self._config())
        engine.create_execution_context.side_effect = lambda config: self._made("create_execution_context", context(config))
        if bytes(blob) == self.plan:
            self.engine = engine
        return engine

    def _load_weights(self, engine, blob) -> bool:
        assert bytes(blob) in self.plans
        assert not engine.weights_loaded
        engine.weights_loaded = True
        self.weight_loads += 1
        return True

    def _unload_weights(self, engine) -> bool:
        assert engine.weights_loaded
        engine.weights_loaded = False
        return True

    def _config(self):
        config, cache = self._double("IRuntimeConfig"), self._double("IRuntimeCache")
        cache.deserialize.side_effect = lambda blob: bytes(blob).startswith(b"compiled")
        cache.serialize.side_effect = lambda: self.compiled or None
        config.create_runtime_cache.side_effect = lambda: self._made("create_runtime_cache", cache)
        config.set_runtime_cache.return_value = True
        self.caches.append(cache)
        return config

    def _context(self, engine, shapes, role, config):
        config.set_execution_context_allocation_strategy.assert_called_once_with(self.ExecutionContextAllocationStrategy.USER_MANAGED)
        assert not any(other.engine is engine for other in self.contexts), "a second context of one engine: 1.4 GiB of host memory"
        context = self._double("IExecutionContext")
        context.engine = engine
        addresses, scratch = {}, []

        def set_address(name, memory) -> bool:
            addresses[name] = memory
            return True

        def set_scratch(memory, size) -> None:
            assert memory % (256 if next(self.unet.parameters()).is_cuda else 64) == 0  # PyTorch aligns to 64 on a CPU
            assert size >= engine.device_memory_size_v2
            scratch[:] = [memory]

        def execute(stream_handle) -> bool:
            if "execute_async_v3" in self.gives:
                return self._made("execute_async_v3", True)
            assert engine.weights_loaded and scratch and set(addresses) == set(shapes)
            self._queue(stream_handle, dict(addresses), shapes, role)
            return True

        context.set_tensor_address.side_effect = set_address
        context.set_device_memory.side_effect = set_scratch
        context.execute_async_v3.side_effect = execute
        self.contexts.append(context)
        return context

    def _queue(self, stream: int, addresses: dict[str, int], *what) -> None:
        device = next(self.unet.parameters()).device
        if device.type == "cpu":
            LateLane.queues[stream].append(lambda: self._evaluate(addresses, device, *what))
            return
        assert stream != 0, "the default stream makes TensorRT synchronise the whole device"
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device)):
            torch.cuda._sleep(CYCLES)
            self._evaluate(addresses, device, *what)

    def _evaluate(self, addresses: dict[str, int], device: torch.device, shapes: dict[str, tuple], role: str) -> None:
        tensors = {
            name: at_address(addresses[name], shape, torch.int64 if name == "timestep" else torch.float16, device)
            for name, shape in shapes.items()
        }
        deep = {} if role == manifests.WHOLE else {"deep": tensors["deep"].float(), "reuse": role == manifests.SHALLOW}
        with torch.no_grad():
            noise = self.unet(tensors["sample"].float(), tensors["timestep"], tensors["audio"].float(), **deep)
        if role == manifests.DEEP:
            tensors["deep"].copy_(deep["deep"])
        if device.type == "cuda":
            torch.cuda._sleep(CYCLES)  # again, as launching all this may have taken the host longer than the first pause lasted
        if self.error:
            noise = noise + self.error * torch.roll(noise, 1, -1)
        tensors["noise"].copy_(noise)
        self.runs += 1
        self.roles_run.append(role)
        self.compiled = b"compiled for this card"


class LateLane:
    """Lane for a CPU: what is queued in it runs when somebody waits for it, and not before."""

    queues: ClassVar[dict[int, list]] = {}

    def __init__(self, device):
        self.number = len(self.queues) + 7
        self.queues[self.number] = []

    def __enter__(self) -> int:
        return self.number

    def __exit__(self, *_) -> None:
        self.synchronize()  # PyTorch on a CPU waits by going on later

    capturing = False

    def synchronize(self) -> None:
        while self.queues[self.number]:
            self.queues[self.number].pop(0)()


def at_address(address: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The tensor that lies there: what a real context sees, nothing of who made it."""
    if device.type == "cpu":
        count = dtype.itemsize * torch.Size(shape).numel()
        return torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=dtype).view(shape)
    described = type("Memory", (), {"__cuda_array_interface__": {"shape": shape, "typestr": NUMPY_TYPES[dtype], "data": (address, False), "version": 2}})
    return torch.as_tensor(described(), device=device)


@contextlib.contextmanager
def late_lanes():
    """Runners that load inside have a LateLane where there is no CUDA."""
    real = tensorrt_rtx.Lane
    with patch.object(tensorrt_rtx, "Lane", lambda device: real(device) if device.type == "cuda" else LateLane(device)):
        yield


# --- what tests of the runner share ---


def reference(unet):
    """The network in PyTorch. Its own copy: a runner takes a network over."""
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
            torch.cuda._sleep(CYCLES)
        for tensor, value in zip(late, (sample, timestep, audio), strict=True):
            tensor.copy_(value)
        found = runner.predict(*late).clone()
        for tensor in late:
            tensor.zero_()  # the caller's buffers are the caller's
        expected = unet(sample.float(), timestep, audio.float())
        torch.testing.assert_close(found.float(), expected, rtol=2e-3, atol=2e-3)


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
