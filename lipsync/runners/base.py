"""The runner protocol. A `Runner` owns the network's weights on a device; a `Session` owns the buffers of one shape of work there.

A back end says what it takes (`spec`), loads, unloads and predicts; that is enough for the denoising loop. One that can do better (share
work between the halves of guidance, prepare the audio once a block, capture a step) brings a `Session` of its own.
"""
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ShapeError
from ..progress import unchecked


@dataclass(frozen=True)
class RunnerSpec:
    """What a runner takes; None: any.

    backend: "torch" or "tensorrt_rtx", for people and logs.
    device, dtype: of the tensors that `predict` takes.
    frames, size, batch: the F, (h, w) and B of `predict`, where fixed; a fixed batch is 1 or 2.
    max_frames: the longest block, where `frames` is None.
    """

    backend: str
    device: torch.device
    dtype: torch.dtype
    frames: int | None = None
    size: tuple[int, int] | None = None
    batch: int | None = None
    max_frames: int = 24

    @property
    def text(self) -> str:
        """For messages: 'tensorrt_rtx on cuda:0, 512 px, 16 frames, batch 2'."""
        fixed = [f"{self.size[0] * 8} px"] if self.size else []
        fixed += [f"{self.frames} frames"] if self.frames else []
        fixed += [f"batch {self.batch}"] if self.batch else []
        return ", ".join([f"{self.backend} on {self.device}", *fixed])

    def lanes(self, guided: bool) -> int:
        """How many blocks one evaluation takes: a batch of two without guidance is two blocks."""
        return max(1, (self.batch or 1) // (2 if guided else 1))

    def expect(self, frames: int, size: tuple[int, int]) -> None:
        """Raises ShapeError unless blocks of `frames` frames and latents of `size` can be run."""
        longest = self.frames or self.max_frames
        if not 1 <= frames <= longest:
            raise ShapeError(f"a block of {frames} frames does not fit this runner ({self.text}): it takes 1 to {longest}.")
        if self.size and tuple(size) != tuple(self.size):
            raise ShapeError(
                f"this runner is {self.text}, but the faces are {size[1] * 8} x {size[0] * 8} px: align them at {self.size[0] * 8}, "
                "or build an engine for their resolution."
            )


class Runner(ABC):
    """A network on a device. Not safe for use by two threads at once.

    model: the LatentSyncModel whose weights it runs, or None when only the weights are known. engine_identity: of an engine, see manifest.py.
    caches: whether its sessions can reuse the network's deep features.
    """

    spec: RunnerSpec
    model = None
    engine_identity = ""
    caches = False

    @abstractmethod
    def load(self) -> None:
        """Make ready to predict; nothing to do when loaded already. `predict` and `open` load by themselves."""

    @abstractmethod
    def unload(self) -> None:
        """Give the device's memory back; sessions of this runner are of no use after. It can be loaded again."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of weights held on the device now; 0 when unloaded."""

    @abstractmethod
    def predict(self, sample: Tensor, timestep: Tensor, audio: Tensor, check: Callable[[], None] = unchecked) -> Tensor:
        """sample [B,13,F,h,w], timestep int64 [1], audio [B,F,50,384], on `spec.device` -> predicted noise [B,4,F,h,w].

        `check` may be called in the middle of long work and may raise. The result may be overwritten by the next call. Runners that cache
        also take `deep`, memory of `deep_features` that the deep features are left in, and `reuse`, with which they are taken from there.
        """

    def deep_features(self, rows: int, frames: int, size: tuple[int, int]) -> Tensor:
        """Where runners cache: zeros [rows*frames, C, h, w] for deep features, of the spec's dtype and device."""
        raise NotImplementedError

    def open(
        self, timesteps: Tensor, *, frames: int, size: tuple[int, int], guided: bool, lanes: int | None = None, cached: bool = False
    ) -> "Session":
        """Buffers for blocks of `frames` frames (`spec.frames` where that is fixed) and latents of `size` (h, w). See `Session`."""
        self.load()
        return Session(self, timesteps, frames=frames, size=size, guided=guided, lanes=lanes, cached=cached)


class Session:
    """The inputs of `lanes` blocks at once, and the network's answers for them: here by `Runner.predict`, for any runner.

    With guidance the rows are the blocks without audio, then the blocks with. Whoever uses the session writes into `sample` and `audio`,
    calls `listen` after a change of audio, and asks for `noise`.

    sample [halves,lanes,13,F,h,w], audio [lanes,F,50,384], of the runner's dtype and device. `halves` is 2 where both halves of guidance
    need their own copy of the same sample, else 1.
    """

    def __init__(
        self, runner: Runner, timesteps: Tensor, *, frames: int, size: tuple[int, int], guided: bool, lanes: int | None = None, cached: bool = False
    ):
        """timesteps: int64 [S], those that `noise` will be asked at. guided: whether any of them will be. lanes: by default as many blocks
        as one evaluation takes; the halves of guidance fill the runner's batch, or the blocks must. cached: whether deep features will
        be reused, for runners that do. Raises ShapeError for what the runner does not take."""
        spec = runner.spec
        spec.expect(frames, size)
        self.runner, self.guided, self.frames = runner, guided, frames
        halves = 2 if guided else 1
        self.lanes = lanes or spec.lanes(guided)
        self.timesteps = timesteps.to(spec.device)
        self._sample = torch.zeros(halves * self.lanes, 13, frames, *size, dtype=spec.dtype, device=spec.device)
        self._audio = torch.zeros(halves * self.lanes, frames, 50, 384, dtype=spec.dtype, device=spec.device)
        self._deep = runner.deep_features(len(self._sample), frames, size) if cached else None
        self.sample = self._sample.unflatten(0, (halves, self.lanes))
        self.audio = self._audio[-self.lanes :]

    def listen(self) -> None:
        """The audio has changed: prepare what depends on nothing else."""

    def noise(self, index: Tensor, check: Callable[[], None] = unchecked, *, guided: bool | None = None, reuse: bool = False) -> Tensor:
        """The noise in `sample` at `timesteps[index]`, index int64 [1] on the device: [2 if guided else 1, lanes, 4, F, h, w].

        guided: by default as the session is; False leaves the half without audio out. reuse: take the deep features that the last call
        without it left; only where the runner `caches`.
        """
        timestep = self.timesteps.index_select(0, index)
        guided, fixed = self.guided if guided is None else guided, self.runner.spec.batch
        count = len(self._sample) if guided else max(self.lanes, fixed or 1)
        starts = range(len(self._sample) - count, len(self._sample), fixed or count)  # the rows that hear are the last ones
        answers = (self._predict(slice(start, start + (fixed or count)), timestep, check, reuse) for start in starts)
        # A runner that owns its output may overwrite it in the next call.
        noise = next(answers) if len(starts) == 1 else torch.cat([answer.clone() for answer in answers])
        return self._split(noise if guided else noise[-self.lanes :])

    def _predict(self, rows: slice, timestep: Tensor, check: Callable[[], None], reuse: bool) -> Tensor:
        if self._deep is None:
            return self.runner.predict(self._sample[rows], timestep, self._audio[rows], check)
        deep = self._deep[rows.start * self.frames : rows.stop * self.frames]
        return self.runner.predict(self._sample[rows], timestep, self._audio[rows], check, deep=deep, reuse=reuse)

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        """A faster equal of `step`, which works in place on tensors of this session and of its owner and nothing else. May run it first."""
        return step

    def _split(self, noise: Tensor) -> Tensor:
        return noise.unflatten(0, (-1, self.lanes))
