"""Engines: `build` makes one from a model's weights, `check` says whether a plan may be used.

The step that runs the builder imports this package without PyTorch, so nothing is imported here before it is asked for.
"""
import importlib

_PUBLIC = {"build": "builder", "check": "builder", "summary": "builder", "PORTABLE": "builder", "THIS_GPU": "builder", "list_engines": "builder", "find_engine": "builder", "Engine": "builder"}
__all__ = [*_PUBLIC]  # noqa: PLE0604


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
