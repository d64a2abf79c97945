"""The weights of a graph in one file beside it: raw values of one dtype, in an order that follows from the names alone."""
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

NAME = "weights.bin"
ALIGNMENT = 256  # bytes


def layout(tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> dict[str, tuple[int, int]]:
    """name -> (offset, length) in bytes, in the order of the names. dtype: of the file, by default the tensors' own."""
    places, offset = {}, 0
    for name in sorted(tensors):
        length = tensors[name].numel() * (dtype or tensors[name].dtype).itemsize
        places[name] = (offset, length)
        offset += -(-length // ALIGNMENT) * ALIGNMENT
    return places


def size_of(places: Mapping[str, tuple[int, int]]) -> int:
    return max(offset + length for offset, length in places.values())


@torch.inference_mode()
def write(
    path: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float16, report: Callable[[float], None] = lambda fraction: None
) -> None:
    """Write `tensors` to `path` as `dtype`, one at a time: memory holds no more than one of them. `report` hears after each."""
    places = layout(tensors, dtype)
    total = size_of(places)
    with path.open("wb") as file:
        for name, (offset, length) in places.items():
            file.seek(offset)
            file.write(memoryview(tensors[name].detach().to("cpu", dtype).contiguous().flatten().view(torch.uint8).numpy()))
            report((offset + length) / total)
