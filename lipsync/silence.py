"""What the mouth does while nobody speaks."""
from dataclasses import replace

import numpy as np

from .audio import THRESHOLD_DB, AudioFeatures, speech_gain
from .timeline import Timeline

SILENCES = ("off", "rest", "keep")


def with_silence(plan: Timeline, features: AudioFeatures, silence: str = "off", threshold_db: float = THRESHOLD_DB) -> Timeline:
    """`plan` with silence treated as told. Silence is what is quieter than `threshold_db`; the change fades over 0.2 s on either side.

    "off": the mouth follows whatever there is, as in the reference. "rest": it hears perfect silence instead of noise, breath and echo,
    and rests as far as the model knows how to. "keep": it is the clip's own; nothing is drawn there, so such frames also cost nothing.
    """
    check_silence(silence)
    if silence == "off":
        return plan
    gain = speech_gain(features, np.arange(len(plan)), plan.rate, threshold_db=threshold_db)
    if silence == "rest":
        return replace(plan, heard=gain)
    return replace(plan, speaking=plan.speaking & (gain > 0), shown=gain)


def check_silence(silence: str) -> None:
    """Raises ValueError for what is none of SILENCES."""
    if silence not in SILENCES:
        raise ValueError(f"silence is one of {', '.join(SILENCES)}, not {silence!r}")
