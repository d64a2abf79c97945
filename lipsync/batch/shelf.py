"""Models that stay loaded from job to job."""
from collections import OrderedDict
from collections.abc import Callable

from .. import face, pipeline
from ..pipeline import Checked, Parts
from ..runners.base import Runner

LISTENERS = 2  # encoders and detectors kept: 40 MB each


class Shelf:
    """The models of the last jobs: one network and one VAE, and two of the small ones.

    given: parts to use whatever a job says. Preparing and drawing may ask at the same time: they ask for different things.
    """

    def __init__(self, given: Parts | None = None):
        self.given = given or Parts()
        self._kept: dict[str, OrderedDict] = {kind: OrderedDict() for kind in ("encoder", "detector", "runner", "vae")}

    def before(self, checked: Checked) -> Parts:
        """The encoder and the detector."""
        job, model = checked.job, checked.model
        return Parts(
            encoder=self.given.encoder or self._get("encoder", model.fingerprint, model.load_whisper, LISTENERS),
            detector=self.given.detector or self._get("detector", job.detector, lambda: face.load_detector(job.detector), LISTENERS),
        )

    def network(self, checked: Checked) -> Parts:
        """The runner, loaded, and the VAE. One that has to go for it goes first: a GPU may not hold both."""
        job, model = checked.job, checked.model
        key = (model.name if model.is_demo else None, job.vae, str(checked.device))
        vae = self.given.vae or self._get("vae", key, lambda: pipeline.load_vae(checked))
        runner = self.given.runner or self._runner(checked)
        runner.load()
        return Parts(runner=runner, vae=vae)

    def close(self) -> None:
        """Give the device's memory back."""
        for runner in self._kept["runner"].values():
            runner.unload()
        for kept in self._kept.values():
            kept.clear()

    def _runner(self, checked: Checked) -> Runner:
        job, kept = checked.job, self._kept["runner"]
        key = (checked.model.fingerprint, job.backend, str(checked.device), checked.side, job.recipe.cached)
        if key not in kept:
            runner = pipeline.find_runner(checked)  # loads nothing
            for old in kept.values():
                if old.key != runner.key:  # two resolutions may well be one network
                    old.unload()
            kept.clear()
            kept[key] = runner
        return kept[key]

    def _get(self, kind: str, key, make: Callable, limit: int = 1):
        kept = self._kept[kind]
        while key not in kept and len(kept) >= limit:
            kept.popitem(last=False)
        if key not in kept:
            kept[key] = make()
        kept.move_to_end(key)
        return kept[key]
