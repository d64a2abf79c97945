"""What an engine is, and whether it may be used: pure questions about plain dicts.

A manifest is the JSON file beside a plan. Its keys:
  format            of the manifest itself, 1
  plan              file name of the plan
  model             name of the checkpoint, for people; `fingerprint`: which weights they were
  network           the sizes, as `UNetConfig` has them
  export_revision   of the code that turned the network into a graph
  resolution        px of the face crops; `frames`: of a block; `guided`: a batch of two, else of one
  precision         of weights and inputs, "fp16"
  role              "whole"; or one of a pair for block caching: "deep", which is the whole network and leaves the deep features,
                    and "shallow", the outer levels alone, which takes them (see `LatentSyncUNet.evaluate`)
  tensorrt_rtx      the exact release that built the plan, the only one that can read it
  targets           "portable" (8.0 and newer), a list of compute capabilities, or "gpu": the one card in `gpu` {name, capability}
  weight_streaming  whether weights may stay in host memory
  header            the plan's first 64 bytes, hex; `sha256`, `plan_bytes`: of the whole plan
  weights_bytes, activation_bytes   what it takes of a GPU's memory
  seconds, peak_host_bytes          what building it took
  parity            GPU -> verdict of the comparison with PyTorch there: {passed, cosine, largest_error, driver}
"""
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..errors import EngineError

FORMAT = 1
EXPORT_REVISION = 2  # raise it with every change of engine_builder/graph.py that changes what an engine computes
HEADER_BYTES = 64  # of a plan: all that its validity check needs
PORTABLE, THIS_GPU = "portable", "gpu"
# Compute capabilities that TensorRT-RTX 1.7 builds this network for. It knows 7.5 (Turing) too, but its compiler gives up there.
SUPPORTED = ("8.0", "8.6", "8.9", "12.0", "12.1")
REBUILD = "Build the engine again: node 'LatentSync Build Engine', or `build-engine` on the command line."
CACHING = "Build one that does (`caching` in LatentSync Build Engine, `build-engine --caching`), or choose another profile."
WHOLE, DEEP, SHALLOW = "whole", "deep", "shallow"  # roles
MIN_COSINE = 0.9999  # between engine and PyTorch, below which an engine is refused

# What makes two builds the same build. In words for messages, which name the field that differs.
IDENTITY = {
    "fingerprint": "checkpoint",
    "network": "network",
    "export_revision": "export revision",
    "resolution": "resolution",
    "frames": "frames",
    "guided": "guided",
    "precision": "precision",
    "role": "role",
    "tensorrt_rtx": "TensorRT-RTX release",
    "targets": "targets",
    "gpu": "GPU",
    "weight_streaming": "weight streaming",
}
# What kind of value each key has, where it is there.
NUMBER, NOTHING = (int, float), type(None)
KINDS = {
    "fingerprint": str, "network": dict, "export_revision": int, "resolution": int, "frames": int, "guided": bool, "precision": str, "role": str,
    "tensorrt_rtx": str, "targets": (str, list), "gpu": (dict, NOTHING), "weight_streaming": bool, "plan": str, "header": str, "plan_bytes": int,
    "model": str, "sha256": str, "weights_bytes": (int, NOTHING), "activation_bytes": (int, NOTHING), "peak_host_bytes": (int, NOTHING),
    "seconds": dict, "parity": dict,
}  # fmt: skip
VERDICT_KINDS = {"passed": bool, "cosine": NUMBER, "largest_error": NUMBER}


@dataclass(frozen=True)
class Gpu:
    """A card: its name, compute capability ("8.9") and the driver's CUDA version ("13.0"; not part of its identity)."""

    name: str
    capability: str
    driver: str = ""

    @property
    def key(self) -> str:
        return f"{self.name}, compute capability {self.capability}"


def identity(manifest: Mapping) -> str:
    """Twelve hex digits that two manifests share exactly when they describe the same build."""
    fields = {name: manifest.get(name) for name in IDENTITY}
    if fields["role"] in (None, WHOLE):  # as it was before there were roles
        del fields["role"]
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:12]


def variant(manifest: Mapping) -> str:
    """For messages: '512/16/guided', or '512/16/guided/deep'."""
    role = "" if manifest["role"] == WHOLE else f"/{manifest['role']}"
    return f"{manifest['resolution']}/{manifest['frames']}/{'guided' if manifest['guided'] else 'unguided'}{role}"


def normalised_targets(targets: str | Iterable | None) -> str | list[str]:
    """"portable", "gpu", or a sorted list of capabilities, from any usual spelling: 8.9, "8.9", "sm89", (8, 9), "8.6,8.9", "this GPU".

    Raises EngineError for what TensorRT-RTX does not build this network for.
    """
    if targets is None or targets == PORTABLE:
        return PORTABLE
    if isinstance(targets, str):
        if targets.strip().lower() in (THIS_GPU, "this", "this gpu", "this_gpu", "current"):
            return THIS_GPU
        targets = targets.replace(";", ",").split(",")
    elif isinstance(targets, (int, float)) or (isinstance(targets, tuple) and [*map(type, targets)] == [int, int]):
        targets = [targets]
    wanted = [_capability(target) for target in targets]
    if wanted in ([PORTABLE], [THIS_GPU]):
        return wanted[0]
    unknown = [target for target in wanted if target not in SUPPORTED]
    if unknown or not wanted:
        raise EngineError(
            f"TensorRT-RTX does not build this network for compute capability {', '.join(unknown) or '(none given)'}: "
            f"choose {PORTABLE!r}, {THIS_GPU!r}, or some of {', '.join(SUPPORTED)}."
        )
    return sorted(set(wanted), key=lambda text: [int(part) for part in text.split(".")])


def _capability(target) -> str:
    if isinstance(target, tuple):
        return ".".join(map(str, target))
    text = str(target).strip().lower().removeprefix("sm").lstrip("_")
    return f"{text[:-1]}.{text[-1]}" if text.isdigit() and len(text) > 1 else text


def covers(manifest: Mapping, gpu: Gpu) -> bool:
    """Whether the plan was built for a card like this."""
    targets = manifest["targets"]
    if targets == THIS_GPU:
        return manifest.get("gpu") == {"name": gpu.name, "capability": gpu.capability}
    if targets == PORTABLE:
        return gpu.capability in SUPPORTED
    return gpu.capability in targets


def unsupported(gpu: Gpu | None) -> str | None:
    """Why TensorRT-RTX cannot run the network on this card at all, or None."""
    if gpu is None:
        return "there is no NVIDIA GPU here"
    if gpu.capability not in SUPPORTED:
        return f"TensorRT-RTX does not support this GPU ({gpu.key})"
    return None


def parsed(text: str) -> dict:
    """The manifest in `text`. Raises EngineError when it is none."""
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"it is not JSON ({error})") from error
    if isinstance(manifest, dict):
        manifest.setdefault("role", WHOLE)
    needed = {*IDENTITY, "format", "plan", "header", "plan_bytes"}
    if not isinstance(manifest, dict) or needed - manifest.keys():
        missing = ", ".join(sorted(needed - set(manifest))) if isinstance(manifest, dict) else "everything"
        raise EngineError(f"it is no manifest of an engine: it lacks {missing}")
    if manifest["format"] != FORMAT:
        raise EngineError(f"it has format {manifest['format']!r}, this version of the pack reads format {FORMAT}")
    if spoilt := _spoilt(manifest):
        raise EngineError(f"it is damaged: {spoilt} cannot be {manifest[spoilt]!r:.80}")
    return manifest


def _spoilt(manifest: Mapping) -> str | None:
    """The first key whose value no build writes: the file was edited, or damaged."""
    for name, kind in KINDS.items():
        if name in manifest and not isinstance(manifest[name], kind):
            return name
    targets, gpu = manifest["targets"], manifest["gpu"] or {}
    if isinstance(targets, list) and not all(isinstance(target, str) for target in targets):
        return "targets"
    if manifest["role"] not in (WHOLE, DEEP, SHALLOW):
        return "role"
    if targets == THIS_GPU and not {"name", "capability"} <= gpu.keys():
        return "gpu"
    verdicts = manifest.get("parity", {}).values()
    if not all(isinstance(one, dict) and all(isinstance(one.get(name), kind) for name, kind in VERDICT_KINDS.items()) for one in verdicts):
        return "parity"
    return None


def wrong_file(header: bytes, size: int) -> str | None:
    """What a file that should be a plan is instead, told by its first 64 bytes; None when it might be one."""
    if not size:
        return "is empty (0 bytes)"
    if size < HEADER_BYTES:
        return f"is only {size} bytes long: no plan"
    if header.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not a plan: run `git lfs pull`"
    if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in header):
        return "is a text file, not a plan"
    if header[:1] == b"\x08" and b"pytorch" in header:
        return "is an ONNX model, not a plan"
    return None


def judge(
    manifest: Mapping, *, header: bytes, size: int, want: Mapping | None = None, version: str | None = None, gpu: Gpu | None = None
) -> tuple[bool, str]:
    """(ok, reason): whether the plan with this first 64 bytes and size is the one described, and is what is wanted here.

    want: IDENTITY fields -> the values needed. version: of the TensorRT-RTX installed; None when none is. gpu: the card; None when there is
    none, which is no reason to refuse.
    """
    fault = next(_faults(manifest, header, size, {**(want or {}), "export_revision": EXPORT_REVISION, "tensorrt_rtx": version}, gpu), None)
    return fault is None, fault or ""


def _faults(manifest: Mapping, header: bytes, size: int, want: Mapping, gpu: Gpu | None) -> Iterator[str]:
    """What is wrong, the most telling first."""
    if wrong := wrong_file(header, size):
        yield f"it {wrong}."
    if size != manifest["plan_bytes"]:
        cut = "truncated" if size < manifest["plan_bytes"] else "not the plan that was built"
        yield f"it is {cut}: expected {manifest['plan_bytes']:,} bytes, found {size:,}. {REBUILD}"
    if header.hex() != manifest["header"]:
        yield f"its header is not the one in its manifest: another file took its place. {REBUILD}"
    if differing := differences(manifest, want):
        yield f"{'; '.join(differing)}. {REBUILD}"
    if gpu is None:
        return
    if unsupported(gpu):
        yield f"{unsupported(gpu)}."
    if not covers(manifest, gpu):
        yield f"it was built for {targets_text(manifest)}, not for this GPU ({gpu.key}). {REBUILD}"
    verdict = manifest.get("parity", {}).get(gpu.key)
    if verdict and not verdict["passed"]:
        yield refusal(verdict, gpu.key)


def differences(manifest: Mapping, want: Mapping) -> list[str]:
    """One line for each field whose value is not the wanted one. Raises KeyError for a field that engines do not have."""
    found = [(IDENTITY[name], manifest[name], value) for name, value in want.items() if value is not None]
    return [f"its {word} is {_text(is_)}, needed is {_text(needed)}" for word, is_, needed in found if is_ != needed]


def refusal(verdict: Mapping, gpu_key: str) -> str:
    return (
        f"on {gpu_key}, it computed other numbers than PyTorch: cosine {verdict['cosine']:.6f} where {MIN_COSINE} is needed, largest "
        f"error {verdict['largest_error']:.3g}. Use the torch back end on this GPU, or update the driver and build the engine again."
    )


def targets_text(manifest: Mapping) -> str:
    targets = manifest["targets"]
    if targets == THIS_GPU:
        return f"{manifest['gpu']['name']} only"
    return "compute capability 8.0 and newer" if targets == PORTABLE else f"compute capability {', '.join(targets)}"


def _text(value) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
