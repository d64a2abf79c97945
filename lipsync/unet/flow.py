"""What travels through the network beside the pictures."""
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..progress import unchecked


@dataclass(frozen=True)
class Heard:
    """Audio as the network needs it, the same at every step: keys and values of each cross-attention.

    Each is [(rows - silent) * frames, tokens, width]. The first `silent` of `rows` rows hear nothing (audio tokens all zero): the
    unconditional half of guidance.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    rows: int
    silent: int = 0

    def copy_(self, other: "Heard") -> None:
        """Take over another's values, in place: a captured CUDA graph keeps reading these tensors."""
        for mine, theirs in zip(self.keys + self.values, other.keys + other.values, strict=True):
            mine.copy_(theirs)


@dataclass(frozen=True)
class Flow:
    """One evaluation: every layer is called as `layer(pictures, flow)` and finds its own share here by its `slot`."""

    frames: int
    shifts: Tensor  # [rows or 1, sum of resnet widths], see `LatentSyncUNet.embed`
    heard: Heard
    check: Callable[[], None] = unchecked  # called between layers; raises to stop

    @property
    def silent(self) -> int:
        """How many of the pictures, the leading ones, hear nothing."""
        return self.heard.silent * self.frames
