"""Engines: `build` makes one from a model's weights, `check` says whether a plan may be used.

The step that runs the builder imports this package without PyTorch, so nothing is imported here before it is asked for.
"""
import importlib

__all__ = ["PORTABLE", "THIS_GPU", "Engine", "build", "check", "find_engine", "list_engines", "summary"]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(".builder", __name__), name)
