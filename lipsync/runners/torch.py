"""The network in PyTorch, on any device that PyTorch has."""
import logging
import weakref
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..gpu import free_memory, on, stream
from ..progress import unchecked
from ..unet import LatentSyncUNet
from .base import Runner, RunnerSpec, Session
from .graphs import recorded, rehearse

log = logging.getLogger(__name__)

SPARE = 2_000_000_000  # bytes that must stay free beside a graph's, for the VAE that encodes the next block


class TorchRunner(Runner):
    """Runs a `LatentSyncUNet`, which it takes over: `load` moves it to the device and dtype, `unload` back to the CPU.

    unet: the network, or a function that gives it; in that case `unload` forgets it, and `load` asks again.
    device: None takes the GPU if there is one. dtype: None is float16 on a GPU, float32 elsewhere.
    graph: let sessions capture their step in a CUDA graph. model: the LatentSyncModel that the network is of, where there is one.
    """

    caches = True

    def __init__(
        self,
        unet: LatentSyncUNet | Callable[[], LatentSyncUNet],
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        graph: bool = True,
        model=None,
    ):
        device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        dtype = dtype or (torch.float32 if device.type == "cpu" else torch.float16)
        self._loader = None if isinstance(unet, LatentSyncUNet) else unet
        self._unet = None if self._loader else unet
        self._loaded = False
        self.loads = 0  # how often it was loaded: weights have other addresses each time
        self.model = model
        self.graphs: weakref.WeakSet = weakref.WeakSet()  # replays that somebody can still call
        self.pool = None  # of their memory, which they share: they run one after another
        self.graph = graph and device.type == "cuda"
        self.spec = RunnerSpec("torch", device, dtype, max_frames=unet.config.max_frames if self._unet else RunnerSpec.max_frames)

    @property
    def unet(self) -> LatentSyncUNet:
        """The loaded network."""
        self.load()
        return self._unet

    @property
    def loaded(self) -> bool:
        return self._loaded

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._unet.state_dict().values()) if self._loaded else 0

    # Weights may have been made in inference mode or not; only in inference mode may both be moved.
    @torch.inference_mode()
    def load(self) -> None:
        if self._loaded:
            return
        unet = self._unet or self._loader()
        unet.eval().requires_grad_(False).to(self.spec.device, self.spec.dtype).to(memory_format=torch.channels_last)
        unet.fuse()
        self._unet, self._loaded, self.loads = unet, True, self.loads + 1
        log.debug("network loaded: %s, %s, %.2f GB", self.spec.text, self.spec.dtype, self.size_bytes / 1e9)

    @torch.inference_mode()
    def unload(self) -> None:
        if not self._loaded:
            return
        self._loaded = False
        if self._loader:
            self._unet = None
        else:
            self._unet.to("cpu")
        if self.spec.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.no_grad()
    def predict(
        self, sample: Tensor, timestep: Tensor, audio: Tensor, check: Callable[[], None] = unchecked, deep: Tensor | None = None, reuse: bool = False
    ) -> Tensor:
        sample, audio = (tensor.to(self.spec.device, self.spec.dtype) for tensor in (sample, audio))
        return self.unet(sample, timestep, audio, check=check, deep=deep, reuse=reuse)

    def deep_features(self, rows: int, frames: int, size: tuple[int, int]) -> Tensor:
        return self.unet.deep_features(rows, frames, size, dtype=self.spec.dtype, device=self.spec.device)

    def open(self, timesteps: Tensor, **shape) -> "TorchSession":
        self.load()
        return TorchSession(self, timesteps, **shape)


class TorchSession(Session):
    """One block. Time embeddings are computed once for all, the audio's keys and values once a block, the half without audio costs no
    cross-attention, and both halves share what comes before the first one. On a GPU with room for it the whole step becomes one CUDA graph,
    and each kind of step (without guidance, with reused deep features) one of its own; they share the buffers.
    """

    def __init__(
        self, runner: TorchRunner, timesteps: Tensor, *, frames: int, size: tuple[int, int], guided: bool, lanes: int | None = None, cached: bool = False
    ):
        spec = runner.spec
        spec.expect(frames, size)
        self.runner, self.guided, self.lanes, self.frames = runner, guided, 1, frames
        # Channels last, as the network reads it.
        self._sample = torch.zeros(1, frames, *size, 13, dtype=spec.dtype, device=spec.device).permute(0, 4, 1, 2, 3)
        self.sample = self._sample[None]
        self.audio = torch.zeros(1, frames, 50, 384, dtype=spec.dtype, device=spec.device)
        self.shifts = runner.unet.embed(timesteps.to(spec.device))
        self.heard = runner.unet.listen(self.audio, silent=int(guided))
        self._heard_alone = replace(self.heard, rows=1, silent=0)  # the same tensors
        self._deep = runner.deep_features(1 + guided, frames, size) if cached else None

    def listen(self) -> None:
        self.heard.copy_(self.runner.unet.listen(self.audio, silent=int(self.guided)))

    def noise(self, index: Tensor, check: Callable[[], None] = unchecked, *, guided: bool | None = None, reuse: bool = False) -> Tensor:
        heard = self.heard if guided in (None, self.guided) else self._heard_alone
        deep = None if self._deep is None else self._deep[-heard.rows * self.frames :]
        return self._split(self.runner.unet.evaluate(self._sample, self.shifts.index_select(0, index), heard, check, deep, reuse))

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        if not self.runner.graph:
            return step
        # cuDNN's benchmark mode is left alone: it gains nothing here, and its choice may differ from run to run (docs/performance.md).
        runner, device = self.runner, self.runner.spec.device
        with on(device):
            side = stream(device)
            torch.cuda.empty_cache()
            held = torch.cuda.memory_reserved()
            rehearse(step, side)
            needed = torch.cuda.memory_reserved() - held
            torch.cuda.empty_cache()  # the graph has a pool of its own: do not keep what these steps needed beside it
            if free_memory(device) < needed + SPARE:
                log.info("little memory left on %s: no CUDA graph, which would keep %.1f GB to itself", device, needed / 1e9)
                return step
            if not runner.graphs:  # PyTorch does not open a pool again whose graphs are all gone, if anything is left in it
                runner.pool = torch.cuda.graph_pool_handle()
            replay = recorded(runner, step, side, runner.pool)
            runner.graphs.add(replay)
        return replay
