"""The track in a few numbers, for a page that draws it: of one size for any length."""
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .track import FaceTrack

MOST = 400  # entries of a list; a page draws fewer pixels


def outline(track: "FaceTrack") -> dict:
    """For JSON: frames, rate (frames a second), width and height (px), summary (for people); gaps [[first, last], ...] without a face; cuts
    and runs, the frames where they begin; boxes [[frame, x0, y0, x1, y1], ...] of evenly spread frames, places in 0..1 of the picture."""
    found = np.flatnonzero(track.found)
    some = found[np.linspace(0, len(found) - 1, min(MOST, len(found))).astype(int)] if len(found) else found
    sides = [track.clip.width, track.clip.height] * 2
    runs = np.flatnonzero(track.found & (np.diff(track.run_ids, prepend=-1) != 0))
    return {
        "frames": len(track),
        "rate": float(track.clip.rate),
        "width": track.clip.width,
        "height": track.clip.height,
        "summary": track.summary(),
        "gaps": _longest(track.gaps()),
        "cuts": np.flatnonzero(track.cuts)[:MOST].tolist(),
        "runs": runs[:MOST].tolist(),
        "boxes": [[int(frame), *(round(float(place), 4) for place in track.boxes[frame] / sides)] for frame in some],
    }


def _longest(gaps: list[tuple[int, int]]) -> list[list[int]]:
    kept = sorted(gaps, key=lambda gap: gap[0] - gap[1])[:MOST]
    return [list(gap) for gap in sorted(kept)]
