"""SyncNet (Chung and Zisserman 2016, "Out of time"): how far a mouth is behind its speech, by a trained network.

It is the one whose weights are called `syncnet_v2.model`, which LatentSync's own evaluation uses too and keeps in `auxiliary/`. One half
looks at five frames of a face, the other listens to the 0.2 s that belong to them; both give 1024 numbers, near each other where they fit.
"""
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from .. import folders
from ..checkpoint import Uninitialised, read_checkpoint
from ..errors import ModelFileError
from ..face.detector import square_crop
from .sounds import Offset

FILE = "syncnet_v2.model"
SOURCE = "auxiliary/syncnet_v2.model of ByteDance/LatentSync on Hugging Face, or http://www.robots.ox.ac.uk/~vgg/software/lipsync/data/"
RATE = Fraction(25)
SIDE = 224  # px of its pictures
SPAN, STEPS = 5, 4  # frames of a look; cepstra of a frame
SHIFTS = 15  # frames, either way
BATCH = 16  # looks at once
SPREAD = 0.4  # of a face's size, around it: the crop of its authors' pipeline
WIDTH = 1024  # numbers that a look or a sound becomes


class SyncNet(nn.Module):
    """The network with the names and shapes of the published weights."""

    def __init__(self):
        super().__init__()
        self.netcnnaud = nn.Sequential(
            *_layer(nn.Conv2d(1, 64, 3, padding=1)), nn.MaxPool2d(1, 1),
            *_layer(nn.Conv2d(64, 192, 3, padding=1)), nn.MaxPool2d(3, (1, 2)),
            *_layer(nn.Conv2d(192, 384, 3, padding=1)),
            *_layer(nn.Conv2d(384, 256, 3, padding=1)),
            *_layer(nn.Conv2d(256, 256, 3, padding=1)), nn.MaxPool2d(3, 2),
            *_layer(nn.Conv2d(256, 512, (5, 4))),
        )
        self.netfcaud, self.netfclip = _head(), _head()
        flat, pool = (0, 1, 1), nn.MaxPool3d
        self.netcnnlip = nn.Sequential(
            *_layer(nn.Conv3d(3, 96, (5, 7, 7), (1, 2, 2))), pool((1, 3, 3), (1, 2, 2)),
            *_layer(nn.Conv3d(96, 256, (1, 5, 5), (1, 2, 2), flat)), pool((1, 3, 3), (1, 2, 2), flat),
            *_layer(nn.Conv3d(256, 256, (1, 3, 3), padding=flat)),
            *_layer(nn.Conv3d(256, 256, (1, 3, 3), padding=flat)),
            *_layer(nn.Conv3d(256, 256, (1, 3, 3), padding=flat)), pool((1, 3, 3), (1, 2, 2)),
            *_layer(nn.Conv3d(256, 512, (1, 6, 6))),
        )

    def look(self, frames: Tensor) -> Tensor:
        """BGR 0..255, float32 [N,3,5,224,224] -> [N,1024]."""
        return self.netfclip(self.netcnnlip(frames).flatten(1))

    def listen(self, cepstra: Tensor) -> Tensor:
        """float32 [N,1,13,20] -> [N,1024]."""
        return self.netfcaud(self.netcnnaud(cepstra).flatten(1))


def _layer(convolution: nn.Module) -> list[nn.Module]:
    norm = nn.BatchNorm2d if isinstance(convolution, nn.Conv2d) else nn.BatchNorm3d
    return [convolution, norm(convolution.out_channels), nn.ReLU(inplace=True)]


def _head() -> nn.Sequential:
    return nn.Sequential(nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, WIDTH))


def load_syncnet(device: torch.device | str = "cpu") -> SyncNet | str:
    """SyncNet with its weights, or one sentence that says which file is missing and where it goes. Raises ModelFileError for a wrong file."""
    file = folders.find(f"auxiliary/{FILE}") or folders.find(FILE)
    return read_syncnet(file, device) if file else f"its weights {FILE} are missing: put the file into {folders.paths()[0] / 'auxiliary'} ({SOURCE})"


def read_syncnet(file: Path, device: torch.device | str = "cpu") -> SyncNet:
    """The network in `file`. Raises ModelFileError unless every tensor fits."""
    state = read_checkpoint(file, what="SyncNet", source=SOURCE)
    with Uninitialised():
        network = SyncNet()
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise ModelFileError(f"{file} is not SyncNet: {' '.join(str(error).split())[:300]} ... Get {SOURCE}.") from error
    return network.eval().requires_grad_(False).to(device)


def face_crop(frame: np.ndarray, box: np.ndarray) -> np.ndarray:
    """What SyncNet looks at: uint8 RGB [224,224,3]. A square of 1 + SPREAD times the size of the face's `box` (x0 y0 x1 y1), a fifth of a
    size lower than its middle, as in the pipeline of the network's authors; black beyond the frame (theirs: grey)."""
    size = float(max(box[2] - box[0], box[3] - box[1]))
    centre = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2 + SPREAD / 2 * size
    return square_crop(frame, centre, (1 + SPREAD) * size, 0.0, SIDE)[0]


@torch.inference_mode()
def offset(
    network: SyncNet, crops: Iterable[np.ndarray | None], cepstra: np.ndarray, device: torch.device | str = "cpu", check: Callable = lambda: None
) -> Offset | str:
    """How late the mouth is, from crops at 25 frames a second (None: no face) and the speech's `mfcc`; or why that cannot be told.

    For each shift, the mean distance between looks and sounds over all looks that have both; the shift with the smallest is the offset.
    Its authors fill up the ends with zeros, which pulls at short clips; here they are left out.
    """
    heard = len(cepstra) // STEPS - SPAN + 1  # windows of sound
    cepstra = torch.from_numpy(cepstra.T.copy())
    sums, counts = torch.zeros(2 * SHIFTS + 1, dtype=torch.float64), torch.zeros(2 * SHIFTS + 1)
    for first, looks, seen in _looks(crops):
        check()
        wanted = range(max(0, first - SHIFTS), min(heard, first + len(seen) + SHIFTS))
        if not wanted or not seen.any():
            continue
        sounds = torch.stack([cepstra[None, :, STEPS * k : STEPS * (k + SPAN)] for k in wanted])
        sounds = network.listen(sounds.to(device))
        faces = network.look(looks.to(device).float())
        for row, place in enumerate(np.flatnonzero(seen).tolist()):
            low, high = max(wanted.start, first + place - SHIFTS), min(wanted.stop, first + place + SHIFTS + 1)
            if low < high:
                near = nn.functional.pairwise_distance(faces[row], sounds[low - wanted.start : high - wanted.start]).cpu().double()
                shift = slice(low - first - place + SHIFTS, high - first - place + SHIFTS)
                sums[shift] += near
                counts[shift] += 1
    if counts[SHIFTS] < SPAN or (counts == 0).any():
        return f"{int(counts[SHIFTS])} looks of {SPAN} frames with a face and sound are too few"
    means = sums / counts
    best = int(means.argmin())
    return Offset("SyncNet", SHIFTS - best, RATE, means[best].item(), means[SHIFTS].item(), (means.median() - means[best]).item())


def _looks(crops: Iterable[np.ndarray | None]) -> Iterator[tuple[int, Tensor, np.ndarray]]:
    """(number of the first, uint8 [n,3,5,224,224] of those that are whole, which of the batch those are: bool [BATCH])."""
    window, looks, seen, first = deque(maxlen=SPAN), [], [], 0
    for crop in crops:
        window.append(None if crop is None else torch.from_numpy(crop[..., ::-1].copy()).permute(2, 0, 1))
        if len(window) < SPAN:
            continue
        seen.append(all(one is not None for one in window))
        if seen[-1]:
            looks.append(torch.stack(list(window), 1))
        if len(seen) == BATCH:
            yield first, _stacked(looks), np.array(seen)
            first, looks, seen = first + BATCH, [], []
    if seen:
        yield first, _stacked(looks), np.array(seen)


def _stacked(looks):
    return torch.stack(looks) if looks else torch.empty(0)
