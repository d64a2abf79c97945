"""What a comparison found: as numbers for machines, as a few lines for people, as pictures."""
import math

import numpy as np

from . import plot, sounds
from .pictures import psnr

FORMAT = 1
# One number a frame of each, NaN where it is not known. error: mean squared error of colours in 0..1; opening: in distances between the
# eyes; drift, face_size: px.
SERIES = (
    "ssim", "error", "lpips", "mouth_ssim", "mouth_error", "mouth_lpips", "opening_a", "opening_b", "drift", "lip_drift", "face_size"
)
DIGITS = 6


class Comparison:
    """series: SERIES -> float64 [frames]. envelopes: of the speech of "a" and "b", or None. offsets: of "a" and "b", by "envelope" and
    "syncnet", each a `sounds.Offset` or None. boxes: of the faces, float64 [frames,4]. notes: sentences for people. missing: (what was not
    measured, why). detector: its name, or None. engine: whose verdict is told. pairs: see `Pairs`. pictures: the `Strip`.
    """

    def __init__(self, a, b, pairs, detector: str | None, engine=None):
        self.a, self.b, self.pairs, self.detector, self.engine = a, b, pairs, detector, engine
        self.series = {name: np.full(len(pairs), np.nan) for name in SERIES}
        self.boxes = {name: np.full((len(pairs), 4), np.nan) for name in "ab"}
        self.envelopes: dict[str, np.ndarray | None] = {"a": None, "b": None}
        self.offsets: dict[str, dict] = {name: {"envelope": None, "syncnet": None} for name in "ab"}
        self.notes: list[str] = list(pairs.notes)
        self.missing: list[tuple[str, str]] = []
        self.pictures = None

    def lack(self, what: str, why: str) -> None:
        """`what` was not measured, because."""
        self.missing.append((what, why))

    def without_face(self, name: str) -> int:
        """Frames of "a" or "b" in which no face was found."""
        return int(np.isnan(self.boxes[name][:, 0]).sum())

    def offset(self, name: str) -> "sounds.Offset | None":
        """Of "a" or "b": SyncNet's if there is one, else the correlation's."""
        return self.offsets[name]["syncnet"] or self.offsets[name]["envelope"]

    def psnr(self, series: str = "error") -> float:
        """dB of the mean squared error of all frames together ("error" of the whole frame, "mouth_error"); infinity for the same pictures."""
        known = self.series[series][np.isfinite(self.series[series])]
        return psnr(float(known.mean())) if len(known) else math.nan

    def mean(self, series: str) -> float:
        known = self.series[series][np.isfinite(self.series[series])]
        return float(known.mean()) if len(known) else math.nan

    def mouths_alike(self) -> float:
        """Pearson's r of the two mouths' openings; NaN where it is unknown, which `missing` explains."""
        a, b = self.series["opening_a"], self.series["opening_b"]
        return math.nan if sounds.why_no_correlation(a, b) else sounds.correlation(a, b)

    def plot(self) -> np.ndarray:
        """uint8 RGB [H,1280,3]: mouths and speech, likeness and drift over time."""
        return plot.draw(self)

    def strip(self) -> np.ndarray:
        """uint8 RGB [H,1280,3]: both clips and their mouths, side by side at evenly spread moments."""
        return self.pictures.draw(float(self.pairs.rate))

    def json(self) -> dict:
        """For `json.dumps`: no NaN (null instead), no infinity (the string "Infinity" instead, which Python's `float` and JavaScript's
        `Number` read). docs/validate.md has the keys."""
        series, pairs = self.series, self.pairs
        size = series["drift"] / series["face_size"], series["lip_drift"] / series["face_size"]
        found = {
            "format": FORMAT,
            "a": _clip(self.a),
            "b": _clip(self.b),
            "compared": {"frames": len(pairs), "rate": str(pairs.rate), "seconds": pairs.seconds, "resized": pairs.resized},
            "full_frame": self._likeness(""),
            "mouth": {"frames": int(np.isfinite(series["mouth_ssim"]).sum()), **self._likeness("mouth_")},
            "faces": {
                "detector": self.detector,
                "frames_without_face": {name: self.without_face(name) if self.detector else None for name in "ab"},
            },
            "landmark_drift": {
                "pixels": _spread(series["drift"]),
                "of_face_size": _spread(size[0]),
                "lips_pixels": _spread(series["lip_drift"]),
                "lips_of_face_size": _spread(size[1]),
            },
            "mouth_opening": {
                "a": _spread(series["opening_a"]),
                "b": _spread(series["opening_b"]),
                "correlation": self.mouths_alike(),
                "difference": _spread(np.abs(series["opening_a"] - series["opening_b"])),
            },
            "av_offset": {name: self._offset(name) for name in "ab"},
            "engine": self._engine(),
            "notes": self.notes,
            "missing": [{"what": what, "why": why} for what, why in self.missing],
            "per_frame": {name: values.tolist() for name, values in {**series, **self._heard()}.items() if np.isfinite(values).any()},
        }
        return safe(found)

    def summary(self) -> str:
        """For people, a fact a line."""
        pairs = self.pairs
        lines = [f"A: {_name(self.a)}, B: {_name(self.b)}; {len(pairs)} frames, {pairs.seconds:.2f} s at {float(pairs.rate):g} frames a second"]
        for title, prefix in (("whole frame", ""), ("mouth", "mouth_")):
            alike, distance = self.series[f"{prefix}ssim"], self.mean(f"{prefix}lpips")
            if np.isfinite(alike).any():
                text = f"{title}: SSIM {np.nanmean(alike):.4f} (worst {np.nanmin(alike):.4f}), PSNR {_decibel(self.psnr(f'{prefix}error'))}"
                lines.append(text + (f", LPIPS {distance:.4f}" if math.isfinite(distance) else ""))
        if math.isfinite(self.mean("drift")):
            relative = self.mean("drift") / self.mean("face_size")
            lips = f"; lips {self.mean('lip_drift'):.2f} px" if math.isfinite(self.mean("lip_drift")) else ""
            lines.append(f"landmark drift: {self.mean('drift'):.2f} px, {relative:.2%} of the face's size{lips}")
        if self._mouths:
            alike = self.mouths_alike()
            told = "whether they move alike is unknown" if math.isnan(alike) else f"they correlate by {alike:.2f}"
            lines.append(f"mouth opening: A {self.mean('opening_a'):.3f}, B {self.mean('opening_b'):.3f} on average; {told}")
        for name in "ab":
            if self.offset(name):
                lines.append(f"A/V offset of {name.upper()}: {_told(self.offset(name))}")
        if self.engine is not None:
            lines.append(_engine_line(self.engine))
        lines += self.notes
        return "\n".join(lines + [f"not measured: {what}: {why}." for what, why in self.missing])

    @property
    def _mouths(self) -> bool:
        return bool((np.isfinite(self.series["opening_a"]) & np.isfinite(self.series["opening_b"])).any())

    def _likeness(self, prefix: str) -> dict:
        decibels = np.array([psnr(error) for error in self.series[f"{prefix}error"].tolist()])
        worst = float(np.nanmin(decibels)) if (~np.isnan(decibels)).any() else math.nan
        values = self.series[f"{prefix}lpips"]
        return {
            "ssim": _spread(self.series[f"{prefix}ssim"]),
            "psnr_db": {"pooled": self.psnr(f"{prefix}error"), "worst": worst},
            "lpips": _spread(values) if np.isfinite(values).any() else None,
        }

    def _heard(self) -> dict:
        return {f"envelope_{name}": values for name, values in self.envelopes.items() if values is not None}

    def _offset(self, name: str) -> dict | None:
        best = self.offset(name)
        if best is None:
            return None
        return {**_offset_numbers(best), "all": {how: _offset_numbers(told) for how, told in self.offsets[name].items() if told}}

    def _engine(self) -> dict | None:
        return None if self.engine is None else {"name": self.engine.path.name, "parity": self.engine.manifest.get("parity", {})}


def _offset_numbers(told) -> dict:
    numbers = {"method": told.method, "frames": told.frames, "rate": str(told.rate), "seconds": told.seconds}
    return {**numbers, "score": told.score, "score_at_zero": told.at_zero, "confidence": told.confidence}


def _told(offset) -> str:
    late = "in time" if not offset.frames else f"the mouth comes {abs(offset.frames)} frames {'late' if offset.frames > 0 else 'early'}"
    score = f"distance {offset.score:.2f}, confidence {offset.confidence:.2f}" if offset.confidence is not None else f"r = {offset.score:.2f}"
    return f"{offset.frames:+d} frames, {offset.seconds:+.3f} s ({late}), by {offset.method} ({score})"


def _engine_line(engine) -> str:
    verdicts = engine.manifest.get("parity", {})
    if not verdicts:
        return f"engine {engine.path.name}: not yet compared with PyTorch on any GPU; its first load does that"
    told = [f"{'agrees' if one['passed'] else 'DIFFERS'} on {gpu}, cosine {one['cosine']:.6f}" for gpu, one in verdicts.items()]
    return f"engine {engine.path.name} against PyTorch: {'; '.join(told)}"


def _clip(clip) -> dict:
    return {
        "name": clip.name, "width": clip.width, "height": clip.height, "rate": str(clip.rate), "frames": clip.frame_count, "seconds": clip.duration
    }


def _name(clip) -> str:
    return clip.name.replace("\\", "/").rsplit("/", 1)[-1]


def _spread(values: np.ndarray) -> dict:
    known = values[np.isfinite(values)]
    return {"mean": known.mean(), "min": known.min(), "max": known.max()} if len(known) else {"mean": None, "min": None, "max": None}


def _decibel(value: float) -> str:
    return "infinite (the same pictures)" if math.isinf(value) else f"{value:.2f} dB"


def safe(value):
    """`value` as `Comparison.json` promises."""
    if isinstance(value, dict):
        return {key: safe(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [safe(one) for one in value]
    if isinstance(value, (float, np.floating)):
        value = float(value)
        return None if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity") if math.isinf(value) else round(value, DIGITS)
    return value
