"""One runner for each network and back end in the process, whoever asks, and however often a graph is queued.

What travels between nodes is a `PooledRunner`: a few strings that find the same runner again after it was cached, copied, dropped or
pickled. The runner itself lives here; when its memory was given away, it loads again on use.
"""
import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoint import Uninitialised
from ..errors import EngineError, LatentSyncError
from ..progress import unchecked
from ..unet import LatentSyncUNet, UNetConfig
from . import engines
from .base import Runner, RunnerSpec, Session
from .choice import AUTO, RTX, choose_for
from .engines import Engine
from .torch import TorchRunner

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TorchRecipe:
    """A model in PyTorch. model: a LatentSyncModel."""

    model: object
    device: str
    dtype: torch.dtype | None = None
    caches = True

    @property
    def key(self) -> tuple[str, ...]:
        return ("torch", self.model.fingerprint, self.device, str(self.dtype))

    @property
    def needed_bytes(self) -> int:
        """Of the device's memory when loaded, about."""
        return _parameters(self.model.config) * self.make().spec.dtype.itemsize

    def make(self) -> Runner:
        device = torch.device(self.device)
        return TorchRunner(lambda: self.model.load_unet(device=device, dtype=self.dtype), device, self.dtype, model=self.model)


@dataclass(frozen=True)
class EngineRecipe:
    """A model as an engine in the engine folder. build: the plan's sha256, which tells a plan that was built again from the one before."""

    plan: Path
    identity: str
    model: object
    device: str
    build: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        return (RTX, self.identity, self.device, self.build)

    @property
    def needed_bytes(self) -> int:
        manifest = self._engine().manifest
        return (manifest.get("weights_bytes") or manifest["plan_bytes"]) + (manifest.get("activation_bytes") or 0)

    @property
    def caches(self) -> bool:
        return engines.partner(self._engine()) is not None

    def make(self) -> Runner:
        from .tensorrt_rtx import RtxRunner

        return RtxRunner(self._engine(), TorchRecipe(self.model, self.device).make, self.device)

    def _engine(self) -> Engine:
        engine = engines.read(self.plan)
        if engine.identity != self.identity:
            raise EngineError(f"{self.plan} is another engine than the one that was chosen: choose it again.")
        return engine


Recipe = TorchRecipe | EngineRecipe


class Pool:
    """Recipes' runners. Safe to ask from several threads; a runner itself serves one at a time."""

    def __init__(self):
        self._runners: dict[tuple[str, ...], Runner] = {}
        self._instead: dict[tuple[str, ...], Recipe] = {}  # of an engine that turned out not to run here
        self._failures: dict[tuple[str, ...], str] = {}  # and why
        self._lock = threading.RLock()

    def runner(self, recipe: Recipe, fallback: Recipe | None = None) -> Runner:
        """The loaded runner of `recipe`. If it cannot run here, that of `fallback`, with one line in the log; else its error."""
        with self._lock:
            recipe = self._instead.get(recipe.key, recipe) if fallback else recipe
            try:
                return self._loaded(recipe)
            except LatentSyncError as error:
                if fallback is None or recipe == fallback:
                    raise
                log.warning("PyTorch runs the network: %s", error)
                self._instead[recipe.key], self._failures[recipe.key] = fallback, str(error)
                return self._loaded(fallback)

    def existing(self, recipe: Recipe) -> Runner | None:
        """The runner if there is one, loaded or not."""
        with self._lock:
            return self._runners.get(self.current(recipe).key)

    def current(self, recipe: Recipe) -> Recipe:
        """The recipe, or what runs in place of it."""
        with self._lock:
            return self._instead.get(recipe.key, recipe)

    def failure(self, recipe: Recipe) -> str:
        """Why another recipe runs in place of this one; "" while it does not."""
        return self._failures.get(recipe.key, "")

    def forget(self, keep: tuple[str, ...] | None = None) -> None:
        """Unload and drop every runner but that of the key `keep`."""
        with self._lock:
            for key in [key for key in self._runners if key != keep]:
                _give_back(self._runners.pop(key))
            if keep is None:
                self._instead.clear()
                self._failures.clear()

    def _loaded(self, recipe: Recipe) -> Runner:
        runner = self._runners.get(recipe.key)
        if runner is None:
            # An execution context holds over a GB of host memory also when its weights are unloaded: keep one.
            for key in [key for key in self._runners if key[0] == RTX and recipe.key[0] == RTX]:
                _give_back(self._runners.pop(key))
            runner = self._runners[recipe.key] = recipe.make()
        try:
            runner.load()
        except BaseException:
            self._runners.pop(recipe.key)
            raise
        return runner


@functools.lru_cache
def _parameters(config: UNetConfig) -> int:
    with torch.device("meta"), Uninitialised():
        return sum(tensor.numel() for tensor in LatentSyncUNet(config).state_dict().values())


def _give_back(runner: Runner) -> None:
    getattr(runner, "close", runner.unload)()


POOL = Pool()


@dataclass(frozen=True)
class PooledRunner(Runner):
    """What the socket LATENTSYNC_RUNNER carries: a runner by description. Light, comparable, picklable; loads on first use.

    reason: why this back end, for people.
    """

    recipe: Recipe
    fallback: Recipe | None = None
    reason: str = field(default="", compare=False)

    @property
    def key(self) -> tuple[str, ...]:
        return self.recipe.key

    @property
    def model(self):
        return self.recipe.model

    @property
    def caches(self) -> bool:
        return POOL.current(self.recipe).caches

    @property
    def engine_identity(self) -> str:
        return getattr(self.recipe, "identity", "")

    @property
    def spec(self) -> RunnerSpec:
        """Loads an engine: only then is it known whether it runs here, or PyTorch instead."""
        if self.fallback is None:
            return (POOL.existing(self.recipe) or self.recipe.make()).spec
        return POOL.runner(self.recipe, self.fallback).spec

    @property
    def size_bytes(self) -> int:
        runner = POOL.existing(self.recipe)
        return runner.size_bytes if runner else 0

    @property
    def needed_bytes(self) -> int:
        """Of the device's memory when loaded, about; known before."""
        return self.size_bytes or self.recipe.needed_bytes

    @property
    def device(self) -> torch.device:
        return torch.device(self.recipe.device)

    def load(self) -> None:
        POOL.runner(self.recipe, self.fallback)

    def unload(self) -> None:
        runner = POOL.existing(self.recipe)
        if runner:
            runner.unload()

    def predict(self, sample: Tensor, timestep: Tensor, audio: Tensor, check: Callable[[], None] = unchecked) -> Tensor:
        return POOL.runner(self.recipe, self.fallback).predict(sample, timestep, audio, check)

    def open(self, timesteps: Tensor, **shape) -> Session:
        return POOL.runner(self.recipe, self.fallback).open(timesteps, **shape)


def runner_for(
    model,
    backend: str = AUTO,
    *,
    engine: Engine | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    folder: Path | None = None,
    **want,
) -> PooledRunner:
    """The runner of a LatentSyncModel on this machine, chosen as `choice.choose_for` says. Loads nothing. Raises EngineError."""
    device = str(torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
    choice = choose_for(model, backend, engine=engine, device=device, folder=folder, **want)
    plain = TorchRecipe(model, device, dtype)
    if choice.backend != RTX:
        return PooledRunner(plain, reason=choice.reason)
    recipe = EngineRecipe(choice.engine.path, choice.engine.identity, model, device, choice.engine.manifest.get("sha256", ""))
    return PooledRunner(recipe, plain if backend == AUTO else None, choice.reason)
