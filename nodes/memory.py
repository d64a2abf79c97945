"""Runners as ComfyUI's memory management sees them: it makes room before one loads, counts it, and takes its memory back when it must."""
import logging

import comfy.model_management as management
import torch

log = logging.getLogger(__name__)


class LatentSyncRunner:
    """What ComfyUI names in its log, and watches to know whether it is still there."""


class RunnerPatcher:
    """The part of ComfyUI's `ModelPatcher` that its memory management uses, for a runner: all of it loads, or none."""

    parent = None
    clone_base_uuid = None  # of newer releases: no copies for several GPUs
    is_multigpu_base_clone = False

    def __init__(self, runner):
        """runner: a PooledRunner."""
        self.runner, self.model = runner, LatentSyncRunner()
        self.load_device = runner.device
        self.offload_device = torch.device("cpu")

    def model_size(self) -> int:
        return self.runner.needed_bytes

    def loaded_size(self) -> int:
        return self.runner.size_bytes

    def current_loaded_device(self) -> torch.device:
        return self.load_device if self.loaded_size() else self.offload_device

    def model_dtype(self) -> torch.dtype:
        return torch.float16

    def model_patches_to(self, device_or_dtype) -> None:
        """There are no patches."""

    def model_patches_models(self) -> list:
        return []

    def lowvram_patch_counter(self) -> int:
        return 0

    def is_clone(self, other) -> bool:
        return getattr(other, "model", None) is self.model

    def clone_has_same_weights(self, clone) -> bool:
        return self.is_clone(clone)

    def is_dynamic(self) -> bool:
        return False

    def partially_load(self, device_to, extra_memory=0, force_patch_weights=False) -> int:
        before = self.loaded_size()
        self.runner.load()
        return self.loaded_size() - before

    def partially_unload(self, device_to, memory_to_free=0, *_, **__) -> int:
        before = self.loaded_size()
        self.runner.unload()
        return before - self.loaded_size()

    def detach(self, unpatch_all=True):
        if unpatch_all:
            self.runner.unload()
        return self.model


_patchers: dict[tuple, RunnerPatcher] = {}  # ComfyUI only keeps weak references


def load(runner, working_bytes: int = 0) -> None:
    """Load a PooledRunner as ComfyUI loads its own models: what is in the way is unloaded first.

    working_bytes: what the run needs beside it. Runners that are not pooled load by themselves.
    """
    if not hasattr(runner, "key"):
        runner.load()
        return
    patcher = _patchers.setdefault(runner.key, RunnerPatcher(runner))
    patcher.runner = runner
    management.load_models_gpu([patcher], memory_required=working_bytes)


def release(runner) -> None:
    """Give the runner's memory back; it loads again on use."""
    runner.unload()
