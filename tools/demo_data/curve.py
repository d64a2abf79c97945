"""Draws the log of a training as a picture: python -m demo_data.curve LOG.jsonl OUT.svg, from tools/."""
import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT, EDGE = 720, 260, 48


def curve(lines: list[dict]) -> str:
    """An SVG: loss of the network (log scale, left) and the correlation of the mouth with held-out speech (right) over minutes."""
    loss = [(row["seconds"] / 60, row["loss"]) for row in lines if row.get("phase") == "unet"]
    seen = [row for row in lines if row.get("phase") == "examine"]
    first, last = (min(t for t, _ in loss), max(t for t, _ in loss)) if loss else (0, 1)
    low, high = (math.log10(min(v for _, v in loss)), math.log10(max(v for _, v in loss))) if loss else (0, 1)

    def x(minute):
        return EDGE + (minute - first) / max(last - first, 1e-9) * (WIDTH - 2 * EDGE)

    def y(share):
        return HEIGHT - EDGE / 2 - share * (HEIGHT - EDGE)

    def line(points, colour):
        path = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in points)
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'

    def text(at_x, at_y, words, colour="#555", anchor="start"):
        return f'<text x="{at_x}" y="{at_y}" fill="{colour}" text-anchor="{anchor}" font-family="sans-serif" font-size="12">{words}</text>'

    parts = [line([(t, (math.log10(v) - low) / max(high - low, 1e-9)) for t, v in loss], "#888")]
    for name, colour in (("r", "#1a7f37"), ("shuffled", "#c0392b")):
        parts.append(line([(row["seconds"] / 60, max(0.0, row[name])) for row in seen], colour))
    parts += [
        text(EDGE, 14, f"loss {10**high:.2f} .. {10**low:.3f} (log scale)", "#888"),
        text(WIDTH - EDGE, 14, "r with the speech given", "#1a7f37", "end"),
        text(WIDTH - EDGE, 30, "r with other speech", "#c0392b", "end"),
        *(text(WIDTH - EDGE + 6, y(v) + 4, f"{v:g}") for v in (0, 0.5, 1)),
        *(text(x(t), HEIGHT - 4, f"{t:.0f} min", anchor="middle") for t in range(math.ceil(first), math.floor(last) + 1)),
    ]
    box = f'<rect x="{EDGE}" y="{EDGE / 2}" width="{WIDTH - 2 * EDGE}" height="{HEIGHT - EDGE}" fill="none" stroke="#ccc"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">{box}{"".join(parts)}</svg>\n'


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    Path(sys.argv[2]).write_text(curve([json.loads(row) for row in Path(sys.argv[1]).read_text().splitlines()]))
