"""TensorRT-RTX's Python bindings as a specification: names and parameters, from the installed package or from the copy in tests/data.

The copy is for machines with a GPU and without the package; `python tests/runners/bindings.py` writes it, `test_bindings.py` compares.
"""
import enum
import inspect
import json
import re
from pathlib import Path
from types import SimpleNamespace

RECORDED = Path(__file__).resolve().parents[1] / "data" / "tensorrt_rtx_bindings.json"
CLASSES = ("Runtime", "ICudaEngine", "IExecutionContext", "IRuntimeConfig", "IRuntimeCache")
ENUMS = ("EngineValidity", "EngineInvalidityDiagnostics", "ExecutionContextAllocationStrategy", "CudaGraphStrategy")


def specification() -> dict:
    """{"classes": {name: {attribute: parameters without self, or None: a property, or "...": overloaded}}, "enums": {name: {member: int}}}"""
    try:
        import tensorrt_rtx
    except ImportError:
        return json.loads(RECORDED.read_text())
    return {
        "classes": {name: _attributes(getattr(tensorrt_rtx, name)) for name in CLASSES},
        "enums": {name: {key: int(value) for key, value in getattr(tensorrt_rtx, name).__members__.items()} for name in ENUMS},
    }


def _attributes(kind: type) -> dict:
    return {name: _parameters(name, getattr(kind, name)) for name in dir(kind) if not name.startswith("_")}


def _parameters(name: str, attribute) -> list[str] | str | None:
    if not callable(attribute):
        return None
    first = attribute.__doc__.splitlines()[0]
    if "*args" in first:
        return "..."
    inside = re.fullmatch(rf"{name}\((.*)\) -> .*", first)[1]
    return [part.split(":")[0].strip() + ("=" if "=" in part else "") for part in re.split(r", (?=\w+: )", inside)[1:]]


def stubs() -> SimpleNamespace:
    """Classes and enums with these names and signatures, for `create_autospec`: the real ones tell it no parameters."""
    spec = specification()
    members = {name: type(name, (), {key: _stub(value) for key, value in attributes.items()}) for name, attributes in spec["classes"].items()}
    members |= {name: enum.IntEnum(name, values) for name, values in spec["enums"].items()}
    return SimpleNamespace(**members)


def _stub(parameters: list[str] | str | None):
    if parameters is None:
        return property(lambda self: None)

    def method(self, *args, **kwargs):
        raise NotImplementedError

    if parameters != "...":
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        method.__signature__ = inspect.Signature(
            [inspect.Parameter("self", kind)]
            + [inspect.Parameter(name.rstrip("="), kind, default=None if name.endswith("=") else inspect.Parameter.empty) for name in parameters]
        )
    return method


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(specification(), indent=1, sort_keys=True) + "\n")
