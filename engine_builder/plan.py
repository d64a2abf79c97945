"""An ONNX graph compiled to a TensorRT-RTX plan. Runs in a process of its own, and imports neither PyTorch nor the network."""
import hashlib
import mmap
import re
import threading
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tensorrt_rtx as trt

PORTABLE, THIS_GPU = "portable", "gpu"  # as in lipsync/runners/manifest.py, which this process does without
HEADER_BYTES = 64
TRIM_SECONDS = 1.0
NO_DRIVER = "cudaError 35"  # follows every other error on a machine without a GPU, and is not what went wrong


class BuildError(Exception):
    """The builder gave up; the text is its own last message."""


def build(
    graph: Path,
    weights: Path,
    places: dict[str, tuple[int, int]],
    plan: Path,
    *,
    targets: str | list[str],
    weight_streaming: bool,
    report: Callable[[float], None],
    say: Callable[[str], None],
) -> dict:
    """Write `plan`; what the manifest says about it. `report` hears fractions, `say` the builder's messages. Raises BuildError."""
    logger = Log(say)
    builder = _made(trt.Builder(logger), logger)
    network = _made(builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)), logger)
    parser = _made(trt.OnnxParser(network, logger), logger)
    with _mapped(weights) as start:
        if not parser.load_model_proto(graph.read_bytes(), str(graph)):
            raise BuildError(_parser_error(parser, logger))
        for name, (offset, length) in places.items():
            if not parser.load_initializer(name, start + offset, length):
                raise BuildError(f"the graph has no weight {name!r} of {length} bytes. {_parser_error(parser, logger)}")
        if not parser.parse_model_proto():
            raise BuildError(_parser_error(parser, logger))
        _allow_any_attention(network)
        config = _made(builder.create_builder_config(), logger)
        config.progress_monitor = monitor = Monitor(report)
        _aim(config, targets)
        if weight_streaming:
            config.set_flag(trt.BuilderFlag.WEIGHT_STREAMING)
        with plan.open("wb") as file:
            writer = Writer(file)
            if not builder.build_serialized_network_to_stream(network, config, writer) or writer.failure:
                raise BuildError(str(writer.failure or logger.last or "the builder gave no reason"))
        del monitor
    report(1.0)
    return {
        "tensorrt_rtx": trt.__version__,
        "header": writer.header.hex(),
        "sha256": writer.digest.hexdigest(),
        "plan_bytes": writer.size,
        "activation_bytes": logger.sizes.get("Activation"),
        "weights_bytes": logger.sizes.get("Weights"),
    }


class Log(trt.ILogger):
    """Keeps the last error, and the sizes that the builder reports nowhere else."""

    def __init__(self, say: Callable[[str], None]):
        super().__init__()
        self.say, self.last, self.sizes = say, "", {}

    def log(self, severity, message) -> None:
        if severity <= trt.ILogger.ERROR and not (self.last and NO_DRIVER in message):
            self.last = message
        if severity <= trt.ILogger.WARNING:
            self.say(message)
        elif match := re.match(r"Total (Activation|Weights) Memory: (\d+) bytes", message):
            self.sizes[match[1]] = int(match[2])


class Monitor(trt.IProgressMonitor):
    """Phases within phases as one fraction. Called from the builder's threads, where nothing may be raised."""

    def __init__(self, report: Callable[[float], None]):
        super().__init__()
        self.report, self.phases, self.best, self.lock = report, {}, 0.0, threading.Lock()

    def phase_start(self, phase_name, parent_phase, num_steps) -> None:
        with self.lock:
            done, width = self._span(parent_phase)
            self.phases[phase_name] = [done, width, max(1, num_steps), 0]

    def step_complete(self, phase_name, step) -> bool:
        with self.lock:
            if phase_name in self.phases:
                self.phases[phase_name][3] = step + 1
                done, _ = self._span(phase_name)
                if done > self.best + 0.01:
                    self.best = done
                    self.report(min(done, 1.0))
        return True

    def phase_finish(self, phase_name) -> None:
        with self.lock:
            self.phases.pop(phase_name, None)

    def _span(self, phase) -> tuple[float, float]:
        """Where the step in hand of a phase begins, and how wide it is."""
        if phase not in self.phases:
            return 0.0, 1.0
        start, width, steps, step = self.phases[phase]
        return start + width * step / steps, width / steps


class Writer(trt.IStreamWriter):
    """Sends the plan to a file as it comes: the whole of it is never in memory twice."""

    def __init__(self, file):
        super().__init__()
        self.file, self.digest, self.size, self.header, self.failure = file, hashlib.sha256(), 0, b"", None

    def write(self, data) -> int:
        try:
            self.file.write(data)
        except OSError as error:  # raising would cross the builder's own code
            self.failure = error
            return 0
        self.header += bytes(data[: HEADER_BYTES - len(self.header)])
        self.digest.update(data)
        self.size += len(data)
        return len(data)


def _allow_any_attention(network) -> None:
    """Let attention without a kernel of its own (small heads, few frames, some cards) be put together from others, instead of failing."""
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer  # `get_layer` knows no better
            layer.attention.decomposable = True


def _aim(config, targets: str | list[str]) -> None:
    if targets == PORTABLE:
        return  # the library's default: compute capability 8.0 and newer
    names = ["CURRENT"] if targets == THIS_GPU else ["SM" + target.replace(".", "") for target in targets]
    config.num_compute_capabilities = len(names)
    for index, name in enumerate(names):
        if not hasattr(trt.ComputeCapability, name) or not config.set_compute_capability(getattr(trt.ComputeCapability, name), index):
            raise BuildError(f"TensorRT-RTX {trt.__version__} does not build for {name}")


@contextmanager
def _mapped(path: Path):
    """The address of a file's contents. Pages that were read are given back every second: the builder copies what it needs, and without
    that the whole file would stay in its memory."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
        stop = threading.Event()

        def trim() -> None:
            while not stop.wait(TRIM_SECONDS):
                contents.madvise(mmap.MADV_DONTNEED)

        thread = threading.Thread(target=trim, daemon=True)
        if hasattr(mmap, "MADV_DONTNEED"):
            thread.start()
        view = np.frombuffer(contents, np.uint8)
        try:
            yield view.ctypes.data
        finally:
            stop.set()
            if thread.is_alive():
                thread.join()
            del view


def _made(thing, logger: Log):
    if thing is None:
        raise BuildError(logger.last or "TensorRT-RTX gave nothing, and no reason")
    return thing


def _parser_error(parser, logger: Log) -> str:
    errors = [parser.get_error(index).desc() for index in range(parser.num_errors)]
    return "; ".join(errors) or logger.last or "the graph was not accepted"
