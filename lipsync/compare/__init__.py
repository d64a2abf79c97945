"""How near two clips are to each other, and whether their mouths are in time: see docs/validate.md for what each number means."""
from .compare import DETECTORS, compare_clips, detector_for
from .report import Comparison
from .sounds import sound_of

__all__ = ["DETECTORS", "Comparison", "compare_clips", "detector_for", "sound_of"]
