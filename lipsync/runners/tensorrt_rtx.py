"""The network as a TensorRT-RTX engine. No other module of `lipsync/` knows the library, which is imported when an engine is loaded."""
import logging
import mmap
import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ..errors import DependencyError, EngineError
from ..gpu import on, stream
from ..progress import unchecked
from ..unet import UNetConfig, deep_shape
from . import engines, parity, storage
from .base import Runner, RunnerSpec, Session
from .engines import Engine
from .graphs import recorded, rehearse
from .manifest import REBUILD, SHALLOW, WHOLE, Gpu, refusal
from .streams import Lane

log = logging.getLogger(__name__)

INPUTS, OUTPUT, FEATURES = ("sample", "timestep", "audio"), "noise", "deep"


class RtxRunner(Runner):
    """Runs one engine with one execution context, in buffers that are bound once a load.

    `unload` gives back the weights, the scratch memory and the buffers; engine and context stay (they took the time, and no GPU memory to
    speak of). `close` gives those back as well.

    engine: one that `engines.find_engine` or `engine_builder.build` gave; it is checked before it is loaded. A deep one whose shallow partner
    is beside it `caches`; the partner is loaded when it is first needed. reference: gives a runner of the same weights in PyTorch, for the
    comparison on the first load on a GPU. device: a CUDA device.
    """

    def __init__(
        self,
        engine: Engine,
        reference: Callable[[], Runner] | None = None,
        device: torch.device | str | None = None,
        *,
        gpu: Gpu | None = None,
        library=None,
    ):
        """gpu, library: found out when None; tests put doubles here."""
        manifest, side = engine.manifest, engine.manifest["resolution"] // 8
        self.engine, self.reference, self.gpu, self._library = engine, reference, gpu, library
        self.spec = RunnerSpec(
            "tensorrt_rtx",
            torch.device(device or "cuda"),
            torch.float16,
            frames=manifest["frames"],
            size=(side, side),
            batch=2 if manifest["guided"] else 1,
        )
        self.loads = 0  # how often the weights were loaded: a captured graph is of no use after the next time
        self._runtime = self._plan = self._context = self._logger = self._cache = None
        self._buffers: dict[str, Tensor] = {}
        self._scratch: Tensor | None = None
        self._lane: Lane | None = None
        self.role = manifest["role"]
        self._partner: RtxRunner | None = None
        partner = engines.partner(engine)
        if partner:
            self._partner = RtxRunner(partner, reference, device, gpu=gpu, library=library)

    @property
    def caches(self) -> bool:
        return self._partner is not None

    @property
    def loaded(self) -> bool:
        return bool(self._buffers)

    @property
    def size_bytes(self) -> int:
        return (self.needed_bytes if self.loaded else 0) + (self._partner.size_bytes if self._partner else 0)

    @property
    def needed_bytes(self) -> int:
        """Of the GPU's memory when loaded: weights and scratch."""
        return (self.engine.manifest.get("weights_bytes") or self.engine.manifest["plan_bytes"]) + self._scratch_bytes

    @property
    def capturable(self) -> bool:
        """Streamed weights are copied in the middle of a run, which a graph cannot hold."""
        return not self.engine.manifest["weight_streaming"]

    def load(self) -> None:
        """Raises EngineError for an engine that must not or cannot run here, with what is wrong; nothing of it stays loaded then."""
        if self.loaded:
            return
        gpu = self._gpu()
        self._check(gpu)
        expected = None
        if gpu.key not in self.engine.manifest.get("parity", {}):
            expected = self._expected()  # before the engine takes the memory
        try:
            with on(self.spec.device):
                self._load()
            if expected is not None:
                self._verify(gpu, expected)
        except BaseException:
            self.close()
            raise

    def unload(self) -> None:
        if self._partner:
            self._partner.unload()
        if not self.loaded:
            return
        self._lane.synchronize()  # nothing may be running when its memory goes
        self._buffers, self._scratch = {}, None
        if not self.capturable:  # streamed weights belong to the engine itself
            self.close()
        elif not self._plan.unload_weights():
            self.close()
            log.warning("%s: could not unload the weights (%s); the engine was closed instead.", self.engine.path.name, self._reason())
        if self.spec.device.type == "cuda":
            torch.cuda.empty_cache()

    def close(self) -> None:
        """Give back everything; the runner can be loaded again."""
        if self._partner:
            self._partner.close()
        if self._lane:
            self._lane.synchronize()
        self._buffers, self._scratch, self._cache = {}, None, None
        self._context = None  # each before what it was made from
        self._plan = None
        self._runtime = self._lane = None

    @torch.no_grad()
    def predict(
        self, sample: Tensor, timestep: Tensor, audio: Tensor, check: Callable[[], None] = unchecked, deep: Tensor | None = None, reuse: bool = False
    ) -> Tensor:
        if reuse and self.role != SHALLOW:
            return self._partner.predict(sample, timestep, audio, check, deep, reuse)
        self.load()
        given = dict(zip(INPUTS, (sample, timestep.reshape(1), audio), strict=True)) | ({FEATURES: deep} if reuse else {})
        for name, tensor in given.items():
            if tensor.shape != self._buffers[name].shape:
                raise EngineError(
                    f"this engine is {self.engine.variant}: its {name} is {list(self._buffers[name].shape)}, not {list(tensor.shape)}."
                )
        with on(self.spec.device), self._lane as stream:
            for name, tensor in given.items():
                self._buffers[name].copy_(tensor, non_blocking=True)
            if not self._context.execute_async_v3(stream):
                raise EngineError(f"{self.engine.path.name} failed to run: {self._reason()}.")
        self._keep_cache()
        if deep is not None and not reuse:
            deep.copy_(self._buffers[FEATURES])
        return self._buffers[OUTPUT]

    def deep_features(self, rows: int, frames: int, size: tuple[int, int]) -> Tensor:
        return torch.zeros(self._deep_shape(rows), dtype=self.spec.dtype, device=self.spec.device)

    def _deep_shape(self, rows: int) -> tuple[int, ...]:
        return deep_shape(UNetConfig(**self.engine.manifest["network"]), rows, self.spec.frames, self.spec.size)

    def open(self, timesteps: Tensor, **shape) -> "RtxSession":
        self.load()
        if shape.get("cached") and self._partner:
            self._partner.load()
        return RtxSession(self, timesteps, **shape)

    # --- loading ---

    @property
    def _scratch_bytes(self) -> int:
        return self._plan.device_memory_size_v2 if self._plan else self.engine.manifest.get("activation_bytes") or 0

    def _gpu(self) -> Gpu:
        if self.gpu is None:
            from .choice import gpu_of

            self.gpu = gpu_of(self.spec.device)
        if self.gpu is None:
            raise EngineError(f"{self.engine.path.name} needs an NVIDIA GPU, and there is none here: use the torch back end.")
        return self.gpu

    def _check(self, gpu: Gpu) -> None:
        self._library = self._library or library()
        ok, reason = engines.check(
            self.engine.path,
            gpu=gpu,
            version=self._library.__version__,
            verdict=lambda header: header_verdict(header, self._library, on_gpu=True),
        )
        if not ok:
            raise EngineError(reason)
        before, self.engine = self.engine, engines.read(self.engine.path)
        if self.engine.manifest.get("sha256") != before.manifest.get("sha256"):  # built again: its weights do not belong into the old plan
            self.close()

    def _load(self) -> None:
        with self.engine.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
            if self._plan is None:
                self._deserialize(contents)
            if self._context is None:
                self._create_context()
            if self.capturable and not self._plan.load_weights(contents):
                raise EngineError(f"cannot load the weights of {self.engine.path.name}: {self._reason()}.")
        self.loads += 1
        self._bind()
        log.info("%s loaded: %s, %.2f GB.", self.engine.path.name, self.spec.text, self.needed_bytes / 1e9)

    def _deserialize(self, contents: mmap.mmap) -> None:
        self._logger = _logger(self._library)
        self._runtime = self._made(self._library.Runtime(self._logger), "runtime")
        self._runtime.defer_weights_loading = self.capturable
        self._plan = self._made(self._runtime.deserialize_cuda_engine(contents), "engine")
        if not self.capturable:
            self._plan.weight_streaming_budget_v2 = self._plan.get_weight_streaming_automatic_budget()

    def _create_context(self) -> None:
        config = self._made(self._plan.create_runtime_config(), "runtime configuration")
        config.set_execution_context_allocation_strategy(self._library.ExecutionContextAllocationStrategy.USER_MANAGED)
        config.cuda_graph_strategy = self._library.CudaGraphStrategy.DISABLED  # the session captures the whole step, not only this
        self._cache = self._made(config.create_runtime_cache(), "runtime cache")
        self._cache_is_new = not self._read_cache()
        if not config.set_runtime_cache(self._cache):
            log.debug("the runtime cache was not accepted: %s", self._reason())
        self._context = self._made(self._plan.create_execution_context(config), "execution context")
        self._lane = Lane(self.spec.device)

    def _bind(self) -> None:
        """Scratch, inputs and output from PyTorch's allocator, where whoever counts memory sees them."""
        spec = self.spec
        expected = {
            "sample": (spec.batch, 13, spec.frames, *spec.size),
            "timestep": (1,),
            "audio": (spec.batch, spec.frames, 50, 384),
            OUTPUT: (spec.batch, 4, spec.frames, *spec.size),
        }
        if self.role != WHOLE:
            expected[FEATURES] = self._deep_shape(spec.batch)
        names = [self._plan.get_tensor_name(index) for index in range(self._plan.num_io_tensors)]
        found = {name: tuple(self._plan.get_tensor_shape(name)) for name in names}
        if found != expected:
            raise EngineError(f"{self.engine.path.name} takes {found}, where its manifest promises {expected}. {REBUILD}")
        size = self._scratch_bytes
        self._scratch = torch.empty(max(size, 1), dtype=torch.uint8, device=spec.device)
        self._context.set_device_memory(self._scratch.data_ptr(), size)
        buffers = {}
        for name, shape in expected.items():
            buffers[name] = torch.zeros(shape, dtype=torch.int64 if name == "timestep" else spec.dtype, device=spec.device)
            if not self._context.set_tensor_address(name, buffers[name].data_ptr()):
                raise EngineError(f"{self.engine.path.name} does not take an address for {name}: {self._reason()}.")
        self._buffers = buffers

    def _made(self, thing, what: str):
        if thing is None:
            raise EngineError(f"TensorRT-RTX gave no {what} for {self.engine.path.name}: {self._reason()}.")
        return thing

    def _reason(self) -> str:
        return (self._logger and self._logger.last) or "the library gave no reason"

    # --- comparison with PyTorch ---

    def _expected(self) -> list[Tensor]:
        if self.reference is None:
            raise EngineError(f"{self.engine.path.name} was never compared with PyTorch on this GPU, and there is no checkpoint to do so.")
        log.info("%s: first time on %s, comparing with PyTorch.", self.engine.path.name, self.gpu.name)
        reference = self.reference()
        try:
            return self._answers(reference)
        finally:
            reference.unload()

    def _answers(self, runner: Runner) -> list[Tensor]:
        return parity.answers(runner, self.spec, self.role, None if self.role == WHOLE else self._deep_shape(self.spec.batch))

    def _verify(self, gpu: Gpu, expected: list[Tensor]) -> None:
        verdict = parity.compare(self._answers(self), expected)
        try:
            self.engine = engines.record_parity(self.engine, gpu, verdict)
        except OSError as error:  # in a read-only folder it is compared each time
            log.warning("cannot keep the comparison beside %s: %s", self.engine.path, error)
        if not verdict["passed"]:
            raise EngineError(f"engine {self.engine.path.name}: {refusal(verdict, gpu.key)}")
        log.info("%s computes what PyTorch does: cosine %.7f.", self.engine.path.name, verdict["cosine"])

    # --- the result of compiling for this GPU, which takes up to half a minute ---

    @property
    def _cache_path(self) -> Path:
        card = re.sub(r"[^\w.]+", "-", self.gpu.key)
        return self.engine.path.with_name(f"{self.engine.path.stem}_{card}_{self._library.__version__}.jit")

    def _read_cache(self) -> bool:
        try:
            blob = self._cache_path.read_bytes()
        except OSError:
            return False
        if blob and self._cache.deserialize(blob):
            return True
        log.info("%s is of another driver or damaged: compiling again.", self._cache_path.name)
        return False

    def _keep_cache(self) -> None:
        """After the first run everything is compiled. That a cache cannot be written is no reason to stop."""
        if not self._cache_is_new or self._lane.capturing:
            return
        self._cache_is_new = False
        self._lane.synchronize()
        blob = self._cache.serialize()
        if blob is None:
            log.debug("no runtime cache: %s", self._reason())
            return
        try:
            with storage.locked(self._cache_path.with_name(engines.LOCK)):
                storage.write(self._cache_path, memoryview(blob))
        except OSError as error:
            log.warning("cannot keep %s (%s): the next start compiles again.", self._cache_path, error)


class RtxSession(Session):
    """Blocks in the engine's fixed shape; on request the whole step as one CUDA graph, the engine's kernels included."""

    runner: RtxRunner

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        if not self.runner.capturable or self.runner.spec.device.type != "cuda":
            return step
        device = self.runner.spec.device
        with on(device):
            rehearse(step, stream(device))  # the first run compiles, which cannot be recorded
            return recorded(self.runner, step, stream(device))


def library():
    """TensorRT-RTX. Raises DependencyError when it is not installed, or not for this machine."""
    try:
        import tensorrt_rtx
    except (ImportError, OSError) as error:
        raise DependencyError(f"TensorRT-RTX cannot be imported ({error}): pip install tensorrt-rtx, or use the torch back end.") from error
    return tensorrt_rtx


def header_verdict(header: bytes, trt=None, on_gpu: bool = False) -> str | None:
    """What the library says is wrong with a plan, from its first 64 bytes; None when nothing is.

    Without a GPU the library finds every plan invalid, and says more only about malformed ones.
    """
    trt = trt or library()
    logger = _logger(trt)
    runtime = trt.Runtime(logger)
    if runtime is None:
        return f"TensorRT-RTX cannot start: {logger.last or 'it gave no reason'}."
    validity, diagnostics = runtime.get_engine_validity(header)
    if validity != trt.EngineValidity.INVALID:
        return None
    bits = int(diagnostics)
    found = [words for name, words in DIAGNOSTICS.items() if bits & int(getattr(trt.EngineInvalidityDiagnostics, name, 0))]
    if found or on_gpu:
        return f"TensorRT-RTX {trt.__version__} refuses it: {'; '.join(found) or logger.last or 'it gave no reason'}. {REBUILD}"
    return None


DIAGNOSTICS = {
    "VERSION_MISMATCH": "it was built by another release",
    "UNSUPPORTED_CC": "it was not built for this GPU's compute capability",
    "OLD_CUDA_DRIVER": "the NVIDIA driver is too old",
    "OLD_CUDA_RUNTIME": "the CUDA runtime is too old",
    "INSUFFICIENT_GPU_MEMORY": "this GPU has too little memory",
    "MALFORMED_ENGINE": "it is no plan of TensorRT-RTX, or a damaged one",
    "CUDA_ERROR": "CUDA does not work",
}


def _logger(trt):
    class Log(trt.ILogger):
        """The library's messages in ours; the last error is kept for exceptions."""

        def __init__(self):
            trt.ILogger.__init__(self)
            self.last = ""

        def log(self, severity, message) -> None:
            if severity <= trt.ILogger.ERROR:
                self.last = message.strip().rstrip(".")
            log.debug("TensorRT-RTX: %s", message)

    return Log()
