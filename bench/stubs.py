"""Parts of a job that cost next to nothing, for measuring and testing everything around them. Each depends on its inputs, so that a frame
or a sound in the wrong place shows."""
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F

from ..lipsync.face.detector import Face
from ..lipsync.runners import Runner, RunnerSpec
from ..lipsync.vae import CELL, SCALE


class StubRunner(Runner):
    """Answers with half of the noisy latent, some of the masked crop, and the mean of the frame's tokens. `calls` counts steps."""

    def __init__(self, frames: int | None = None, batch: int | None = None, warning: str | None = None):
        self.spec = RunnerSpec("stub", torch.device("cpu"), torch.float32, frames=frames, batch=batch)
        self.model = SimpleNamespace(fingerprint="stub", resolution_warning=lambda side: warning)
        self.calls = 0

    def load(self) -> None:
        pass

    def unload(self) -> None:
        pass

    size_bytes = 0

    def predict(self, sample, timestep, audio, check=lambda: None):
        self.calls += 1
        return 0.5 * sample[:, :4] + 0.1 * sample[:, 5:9] + audio.mean((2, 3))[:, None, :, None, None]


class StubEncoder(torch.nn.Module):
    """Whisper's shape; a step's states are the loudness of its mel."""

    n_ctx, n_layer, n_state = 1500, 4, 384

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv1d(1, 1, 1)

    def hidden_states(self, mel):
        steps = mel.mean(1).unflatten(1, (-1, 2)).mean(2)
        return steps[:, :, None, None].expand(-1, -1, self.n_layer + 1, self.n_state)


class StubDetector:
    """A face in the middle of every frame that is not black, half as high as the frame."""

    name, device, note = "stub", "CPU", ""

    def detect(self, frames, *, min_size=0, everywhere=True):
        return [self._faces(frame) for frame in frames]

    @staticmethod
    def _faces(frame) -> list[Face]:
        height, width = frame.shape[:2]
        if frame[height // 2 - 4 : height // 2 + 4, width // 2 - 4 : width // 2 + 4].max() < 16:
            return []
        x, y, side = width / 2, height / 2, height / 2
        points = np.array([[x - 0.2 * side, y - 0.2 * side], [x + 0.2 * side, y - 0.2 * side], [x, y + 0.1 * side]], np.float32)
        box = np.array([x - side / 2, y - side / 2, x + side / 2, y + side / 2], np.float32)
        return [Face(box, 0.99, points.round())]


class LinearVAE:
    """A VAE of fixed arithmetic behind ComfyUI's `encode` and `decode`: a latent is the mean colour of its 8 x 8 pixels and how much
    brighter their upper half is than their lower. Pictures come back blurred. Works on the device of what it is given.
    """

    dtype = torch.float32
    identity = "LinearVAE 1"  # what its results depend on, see `journal.vae_identity`

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """[N,H,W,3] in 0..1 -> unscaled latents [N,4,H/8,W/8], of the size that SD 1.5's have."""
        halves = F.avg_pool2d(pixels.float().movedim(-1, 1) * 2 - 1, (CELL // 2, CELL))
        upper, lower = halves[:, :, 0::2], halves[:, :, 1::2]
        slope = (upper - lower).mean(1, keepdim=True)
        return torch.cat([(upper + lower) / 2, slope], 1) / SCALE

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Back to pixels [N,8h,8w,3] in 0..1: colours interpolated between cells, then each cell's slope added."""
        size = (latents.shape[2] * CELL, latents.shape[3] * CELL)
        smooth = F.interpolate(latents.float() * SCALE, size=size, mode="bilinear", align_corners=False)
        rows = (torch.arange(size[0], device=latents.device) % CELL + 0.5) / CELL
        detail = smooth[:, 3:] * (0.5 - rows)[:, None]
        return ((smooth[:, :3] + detail) / 2 + 0.5).clamp(0, 1).movedim(1, -1)
