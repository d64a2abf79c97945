"""LPIPS (Zhang et al. 2018) by its authors' package `lpips`, on weights that are there already: nothing is ever downloaded.

The package brings the small heads; the network under them is torchvision's AlexNet, whose file PyTorch keeps in its hub folder once
anything on this machine has used it.
"""
import warnings
from pathlib import Path

import torch
from torch import Tensor

from .. import folders
from ..checkpoint import Uninitialised, read_checkpoint
from ..errors import ModelFileError

FILE = "alexnet-owt-7be5be79.pth"  # as torchvision names it
SOURCE = "get it from https://download.pytorch.org/models/"
SMALLEST = 64  # px: AlexNet's strides leave nothing of a smaller picture


def weights_file() -> Path | None:
    """In models/latentsync/auxiliary, or in PyTorch's hub folder."""
    beside = folders.find(f"auxiliary/{FILE}")
    hub = Path(torch.hub.get_dir()) / "checkpoints" / FILE
    return beside or (hub if hub.is_file() else None)


def load_lpips(device: torch.device | str = "cpu") -> "Lpips | str":
    """LPIPS ready to measure, or one sentence that says what is missing and where it goes. Raises ModelFileError for a broken file."""
    try:
        from lpips import LPIPS
    except ImportError:
        return "the package lpips is not installed (pip install lpips)"
    file = weights_file()
    if file is None:
        return f"its weights {FILE} are missing: put the file into {folders.paths()[0] / 'auxiliary'} ({SOURCE})"
    with Uninitialised(), warnings.catch_warnings():  # torchvision's, about the arguments that lpips gives it
        warnings.simplefilter("ignore")
        network = LPIPS(net="alex", pnet_rand=True, verbose=False)  # "rand": it does not fetch AlexNet by itself
    state = read_checkpoint(file, what="LPIPS's AlexNet", source=SOURCE)
    wanted = {name: _name_in_alexnet(name) for name in network.net.state_dict()}
    missing = [there for there in wanted.values() if there not in state]
    if missing:
        raise ModelFileError(f"{file} is no AlexNet of torchvision: it lacks {', '.join(missing[:3])}. {SOURCE}.")
    try:
        network.net.load_state_dict({name: state[there] for name, there in wanted.items()})
    except RuntimeError as error:
        raise ModelFileError(f"{file} is no AlexNet of torchvision: {str(error).splitlines()[-1].strip()} {SOURCE}.") from error
    return Lpips(network.eval().requires_grad_(False).to(device))


class Lpips:
    """Called with two pictures [1,3,H,W] in 0..1, gives their distance: 0 for the same, about 0.1 for a slight and 0.7 for a gross difference."""

    def __init__(self, network):
        self._network = network

    def __call__(self, a: Tensor, b: Tensor) -> float:
        if min(a.shape[2:]) < SMALLEST:
            scale = SMALLEST / min(a.shape[2:])
            a, b = (torch.nn.functional.interpolate(x, scale_factor=scale, mode="bilinear") for x in (a, b))
        return self._network(a, b, normalize=True).item()


def _name_in_alexnet(name: str) -> str:
    """"slice2.3.weight", as lpips has it, is torchvision's "features.3.weight"."""
    _, layer, kind = name.split(".")
    return f"features.{layer}.{kind}"
