"""Triton kernels of the operations in `ops.py`: every tensor is read and written as few times as the arithmetic allows.

For half precision on CUDA, channels last, inference only; importable only where Triton is. `ops.py` decides who runs, and its docstrings
say what each function computes. Statistics, softmax and sums are in float32.
"""
from .attention import attend_few, temporal_attention
from .norm import group_norm, layer_norm
from .picture import add, interleave, join
from .product import geglu

__all__ = ["add", "attend_few", "geglu", "group_norm", "interleave", "join", "layer_norm", "temporal_attention"]
