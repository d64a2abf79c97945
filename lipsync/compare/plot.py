"""The comparison over time, in one picture: mouths and speech, likeness, drift."""
import math

import numpy as np

from . import canvas
from .canvas import FAINT, GRID, LINE, MARGIN, PANEL, SOUND, WIDTH, A, B, Page

AXIS = 52  # px left of a panel, for its numbers
TALL, MOUTHS_TALL, BETWEEN = 120, 190, 40  # px: of a panel, of the mouths', and between two
SPAN = WIDTH - 2 * MARGIN - AXIS
FULL, MOUTH = (190, 140, 255), (120, 210, 140)  # of what is measured on the whole frame and on the mouth


def draw(result) -> np.ndarray:
    """uint8 RGB [H,WIDTH,3] of a `Comparison`."""
    series, lines = result.series, result.summary().splitlines()
    lines = [part for line in lines for part in _wrapped(line)]
    panels = [
        ("SSIM (1 = the same)", TALL, [("whole frame", series["ssim"], FULL), ("mouth", series["mouth_ssim"], MOUTH)], (None, 1.0), None),
        ("landmark drift, px", TALL, [("all landmarks", series["drift"], FULL), ("lips", series["lip_drift"], MOUTH)], (0.0, None), None),
    ]
    loud = next((one for one in result.envelopes.values() if one is not None), None)
    mouths = [("mouth of A", series["opening_a"], A), ("mouth of B", series["opening_b"], B)]
    panels.insert(0, ("mouth opening, in distances between the eyes", MOUTHS_TALL, mouths, (0.0, None), loud))
    panels = [panel for panel in panels if any(np.isfinite(values).any() for _, values, _ in panel[2])]
    page = Page(2 * MARGIN + LINE * len(lines) + sum(tall + BETWEEN for _, tall, *_ in panels) + LINE)
    y = MARGIN
    for text in lines:
        page.text(text, MARGIN, y)
        y += LINE
    for title, tall, curves, limits, sound in panels:
        y += BETWEEN
        _panel(page, y, tall, title, curves, limits, sound, result.pairs.seconds)
        y += tall
    _times(page, y, result.pairs.seconds)
    return page.picture()


def _panel(page, y, tall, title, curves, limits, sound, seconds):
    left = MARGIN + AXIS
    page.box(left, y, SPAN, tall, PANEL)
    known = np.concatenate([values[np.isfinite(values)] for _, values, _ in curves])
    low, high, step = _scale(float(known.min()), float(known.max()), *limits)
    for value in np.arange(math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6) + 1) * step:
        row = y + tall - 1 - round((value - low) / (high - low) * (tall - 1))
        page.box(left, row, SPAN, 1, GRID)
        page.text(f"{value:.4g}", left - 8, row - 8, FAINT, 12, right=True)
    for second in _ticks(seconds):
        page.box(left + round(second / seconds * (SPAN - 1)), y, 1, tall, GRID)
    legend = [(name, colour) for name, values, colour in curves if np.isfinite(values).any()]
    if sound is not None and np.nanmax(sound, initial=0) > 0:
        xs, heights = _thinned(np.nan_to_num(sound / np.nanmax(sound)))
        points = np.stack([left + xs, y + (tall - 1) * (1 - 0.9 * heights)], 1)
        page.fill(np.concatenate([[[left, y + tall - 1]], points, [[left + SPAN - 1, y + tall - 1]]]), SOUND)
        legend.append(("loudness of the speech", SOUND))
    for _, values, colour in curves:
        xs, heights = _thinned(values)
        heights = y + (tall - 1) * (1 - (heights - low) / (high - low))
        edges = np.flatnonzero(np.diff(np.r_[0, np.isfinite(heights).astype(int), 0]))
        for start, end in edges.reshape(-1, 2):  # a gap where nothing is known
            points = np.stack([left + xs[start:end], heights[start:end]], 1)
            page.line(points if len(points) > 1 else points + np.array([[-1.5, 0], [1.5, 0]]), colour, 2)
    x = left
    page.text(title, x, y - LINE + 2)
    x += canvas.text_width(title) + 28
    for name, colour in legend:
        page.box(round(x), y - LINE + 7, 18, 6, colour)
        page.text(name, x + 25, y - LINE + 2, FAINT)
        x += 25 + canvas.text_width(name) + 22


def _thinned(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(places in px from the left, values): of more frames than two a pixel, the least and the most of each pixel."""
    count = len(values)
    if count <= 2 * SPAN:
        return (np.linspace(0, SPAN - 1, count) if count > 1 else np.array([SPAN / 2])), values
    groups = np.array_split(values, SPAN)
    ends = [(np.nanmin(group), np.nanmax(group)) if np.isfinite(group).any() else (np.nan, np.nan) for group in groups]
    return np.repeat(np.arange(SPAN), 2), np.array(ends).reshape(-1)


def _scale(low: float, high: float, bottom: float | None, top: float | None) -> tuple[float, float, float]:
    """(from, to, step) of an axis that holds low..high, with ends that are given and about four round steps."""
    low, high = low if bottom is None else bottom, high if top is None else top
    room = max(high - low, 1e-3)
    step = 10 ** math.floor(math.log10(room / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if room / (step * factor) <= 5)
    low = low if bottom is not None else math.floor(low / step) * step
    high = high if top is not None else math.ceil(high / step) * step
    return low, high if high > low else low + step, step


def _ticks(seconds: float) -> list[float]:
    step = next((step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300) if seconds / step <= 12), seconds / 12)
    return [k * step for k in range(int(seconds / step + 1e-6) + 1)]


def _times(page, y, seconds):
    for second in _ticks(seconds):
        text = f"{second:g} s"
        x = MARGIN + AXIS + second / seconds * (SPAN - 1)
        page.text(text, min(x - canvas.text_width(text, 12) / 2, WIDTH - MARGIN - canvas.text_width(text, 12)), y + 4, FAINT, 12)


def _wrapped(line: str) -> list[str]:
    """A line in lines that fit the page."""
    lines = [""]
    for word in line.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and canvas.text_width(longer) > WIDTH - 2 * MARGIN:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
