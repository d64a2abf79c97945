"""Measurements as lines for people, as JSON in a file, and two such files side by side. Rows are `measure.Row` as dicts."""
import json
import math
import os
import tempfile
from pathlib import Path

from ..lipsync.errors import LatentSyncError, MediaError
from ..lipsync.runners import storage

NOISE = "1 - cosine"  # of rows that hold rounding errors: how many times larger one is than another says nothing


class Report:
    """What goes into the file of --json, None for nowhere: `content` as it is when the `with` ends, be it by Ctrl-C or an error. Without any row
    the file stays as it was.

    Raises MediaError at once when the file cannot be written, or is not one that a report may replace.
    """

    def __init__(self, path: Path | None):
        self.path = path
        self.rows: list[dict] = []
        self.content: dict = {"machine": {}, "rows": self.rows}
        if path is not None:
            check_target(path)

    @property
    def left(self) -> str:
        """After a stop, for people."""
        return f"what was measured before is in {self.path}" if self.path and self.rows else "nothing was left behind"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.path is not None and self.rows:
            self._save()

    def _save(self) -> None:
        """Whole or not at all. Raises MediaError when it cannot be written."""
        try:
            storage.write(self.path.resolve(), (json.dumps(self.content, indent=1) + "\n").encode())
        except OSError as error:
            raise MediaError(f"cannot write {self.path}: {error.strerror or error}.") from error


def check_target(path: Path) -> None:
    """Raises MediaError unless a report can be written to `path`: a new name, an empty file, or measurements that were written before."""
    parent = path.absolute().parent
    if not parent.is_dir():
        raise MediaError(f"cannot write {path}: there is no folder {parent}. Create it, or choose another place.")
    if path.is_dir():
        raise MediaError(f"cannot write {path}: it is a folder. Give the name of a file.")
    if path.exists() and not _is_ours(path):
        raise MediaError(f"will not write {path}: it is there, and holds no measurements of `bench`. Give another name, or remove it yourself.")
    try:
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(0, "it is write-protected")
        tempfile.TemporaryFile(dir=path.resolve().parent).close()
    except OSError as error:
        raise MediaError(f"cannot write {path}: {error.strerror or error}. Choose another place.") from error


def _is_ours(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:  # not all of a film
            start = file.read(64).lstrip()
        return not path.stat().st_size or (start.startswith(b"{") and {"machine", "rows"} <= json.loads(path.read_bytes()).keys())
    except (OSError, ValueError, RecursionError):
        return False


def read(path: Path) -> dict:
    """The facts of the "machine", the "settings" (none in older files) and the "rows" by name. Raises LatentSyncError
    that says what about the file is no measurement."""
    try:
        measured = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is no JSON: {error}"
        raise LatentSyncError(f"cannot compare {path}: {why}. Write measurements with `bench --json FILE`.") from error
    machine, rows = (measured.get(name) if isinstance(measured, dict) else None for name in ("machine", "rows"))
    if not isinstance(machine, dict) or not isinstance(rows, list):
        raise LatentSyncError(f"cannot compare {path}: it holds no measurements, an object with machine and rows. Write some with `bench --json FILE`.")
    for number, row in enumerate(rows, 1):
        if why := _wrong(row):
            raise LatentSyncError(f"cannot compare {path}: {why} in row {number}. Measure again with `bench --json FILE`.")
    settings = measured.get("settings")
    return {"machine": machine, "settings": settings if isinstance(settings, dict) else {}, "rows": {row["name"]: row for row in rows}}


def _wrong(row) -> str:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str) or not isinstance(row.get("unit"), str):
        return "there is no name or no unit"
    value = row.get("value")
    known = isinstance(value, int | float) and not isinstance(value, bool) and not (isinstance(value, int) and abs(value) > 2**63)
    return "" if known else f"the value of {row['name']!r} is {json.dumps(value)[:40]}, no number,"


def comparison(before: dict, after: dict) -> str:
    """Two of `read`, a line for each row of either. A ratio only of what can be one."""
    lines = [f"{label}: {', '.join(f'{name} {fact}' for name, fact in one['machine'].items())}" for label, one in (("before", before), ("after", after))]
    pairs = {name: (before["settings"].get(name), after["settings"].get(name)) for name in {**before["settings"], **after["settings"]}}
    if apart := [f"{name} {first} / {second}" for name, (first, second) in pairs.items() if first != second]:
        lines.append(f"NOT THE SAME WORK: {', '.join(apart)}")
    for name in [*before["rows"], *(name for name in after["rows"] if name not in before["rows"])]:
        pair = [one["rows"].get(name) for one in (before, after)]
        numbers = [number(row["value"]) if row else "-" for row in pair]
        units = list(dict.fromkeys(row["unit"] for row in pair if row))
        unit = units[0] if len(units) == 1 else " / ".join(unit or "-" for unit in units)
        lines.append(f"{name:66} {numbers[0]:>10} {numbers[1]:>10} {unit:3} {_ratio(name, *pair)}".rstrip())
    if not before["rows"].keys() & after["rows"].keys():
        lines.append("The two files have no row in common: there is nothing to compare.")
    return "\n".join(lines)


def _ratio(name: str, before: dict | None, after: dict | None) -> str:
    if before is None or after is None or not before["value"]:
        return ""
    if before["unit"] != after["unit"]:
        return "other units"
    ratio = after["value"] / before["value"]
    return f"x {ratio:.3f}" if math.isfinite(ratio) and not (NOISE in name and not before["unit"]) else ""


def line(row: dict, limited: bool) -> str:
    """A row for people. limited: this is the machine that the limits are for; what must be 0 must be 0 on every one."""
    limits = [row[key] for key in ("reach", "stretch") if row[key] is not None and (limited or row[key] == 0)]
    against = f"({'<=' if row['value'] <= limits[0] else 'OVER'} {', '.join(f'{limit:g}' for limit in limits)})" if limits else ""
    return f"{row['name']:66} {number(row['value']):>10} {row['unit']:3} {against:12} {row['note']}".rstrip()


def broken(rows: list[dict]) -> list[dict]:
    """Those that must be 0, whatever the machine, and are not."""
    return [row for row in rows if row["reach"] == 0 and row["value"] != 0]


def number(value: float) -> str:
    return f"{value:.1e}" if value and abs(value) < 1e-2 else f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) < 1000 else f"{value:.0f}"
