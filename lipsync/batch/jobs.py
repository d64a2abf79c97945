"""Jobs files: one JSON object a line, with the fields of `pipeline.Job`."""
import difflib
import hashlib
import json
import math
import os
import sys
import types
import typing
from dataclasses import MISSING, dataclass, fields
from fractions import Fraction
from pathlib import Path

from .. import weights
from ..clip import as_rate
from ..errors import JobsFileError, LatentSyncError, MediaError
from ..pipeline import Job, check_settings

STDIN = "-"
SHOWN = 10  # wrong lines that a message lists
HINTS = typing.get_type_hints(Job)
REQUIRED = [field.name for field in fields(Job) if field.default is MISSING]
WORDS = {
    Path: "a path",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Fraction: "a fraction such as '30000/1001'",
    type(None): "null",
}


@dataclass(frozen=True)
class Entry:
    """A line of a jobs file. line: its number, from 1. given: its object, with absolute paths; `job_of(given)` is `job` again."""

    line: int
    job: Job
    given: dict

    def key(self) -> str:
        """Changes when anything that the result depends on does: the settings, the input files (by size and time of change), the weights."""
        try:
            network = weights.find_model(self.job.model).fingerprint
        except LatentSyncError:
            network = None
        vae = [self.job.vae] if self.job.vae else []
        files = [[str(path), *_stamp(path)] for path in (self.job.video, self.job.audio, *vae)]
        return hashlib.blake2b(json.dumps([self.given, files, network], sort_keys=True).encode(), digest_size=16).hexdigest()


def read_jobs(source: str | Path) -> list[Entry]:
    """All jobs of a file, or of standard input for "-"; relative paths are relative to the file's folder (the current one).

    Every line is looked at before anything is done. Raises JobsFileError that lists the wrong ones by number.
    """
    name, folder = ("standard input", Path.cwd()) if str(source) == STDIN else (str(source), Path(source).absolute().parent)
    try:
        data = sys.stdin.buffer.read() if str(source) == STDIN else Path(source).read_bytes()
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise JobsFileError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from error
    entries, wrong = [], []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            given = _object(line)
            job = job_of(given, folder)
            check_settings(job)
            entries.append(Entry(number, job, portable(job, given)))
        except (LatentSyncError, ValueError) as error:
            wrong.append(f"line {number}: {error}")
    wrong += _clashes(entries)
    if wrong:
        more = f"\n  and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise JobsFileError(f"{name} is not a list of jobs, so none was begun:\n  " + "\n  ".join(wrong[:SHOWN]) + more)
    if not entries:
        raise JobsFileError(f'{name} has no jobs: write one JSON object a line, such as {{"video": "a.mp4", "audio": "a.wav", "out": "b.mp4"}}')
    return entries


def job_of(given: dict, folder: Path = Path()) -> Job:
    """A line's object as a job. Raises JobsFileError for a field that is missing, unknown or of the wrong type."""
    missing = [name for name in REQUIRED if given.get(name) is None]
    if missing:
        raise JobsFileError(f"{missing[0]!r} is missing: a job needs {', '.join(REQUIRED)}")
    for name in given:
        if name not in HINTS:
            near = difflib.get_close_matches(name, HINTS, 1)
            raise JobsFileError(f"there is no field {name!r}" + (f"; did you mean {near[0]!r}?" if near else f": use {', '.join(HINTS)}"))
    return Job(**{name: _value(name, value, folder) for name, value in given.items()})


def portable(job: Job, given: dict) -> dict:
    """`given` with the paths that it led to."""
    return {name: str(getattr(job, name)) if Path in _types(name) and value is not None else value for name, value in given.items()}


def _object(line: str) -> dict:
    try:
        given = json.loads(line)
    except json.JSONDecodeError as error:
        raise JobsFileError(f"it is no JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(given, dict):
        raise JobsFileError(f"it is no JSON object, but {type(given).__name__}")
    return given


def _types(name: str) -> tuple[type, ...]:
    hint = HINTS[name]
    return typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) else (hint,)


def _value(name: str, value, folder: Path):
    allowed = _types(name)
    if type(value) in allowed:  # bool is no int here
        if isinstance(value, float) and not math.isfinite(value):
            raise JobsFileError(f"{name} is {value}, which is no number")
        return value
    if isinstance(value, str) and value and Path in allowed:
        return Path(os.path.normpath(folder.absolute() / Path(value).expanduser()))
    if type(value) in (int, float, str) and Fraction in allowed:
        try:
            return as_rate(value)
        except MediaError as error:
            raise JobsFileError(f"{name}: {error}") from error
    if type(value) is int and float in allowed:
        return float(value)
    wanted = " or ".join(WORDS[kind] for kind in allowed if kind in WORDS)
    raise JobsFileError(f"{name} is {wanted}, not {json.dumps(value)}")


def _clashes(entries: list[Entry]) -> list[str]:
    """Results that would overwrite each other, or something that is read."""
    outs: dict[str, int] = {}
    wrong = []
    for entry in entries:
        first = outs.setdefault(_same(entry.job.out), entry.line)
        if first != entry.line:
            wrong.append(f"line {entry.line}: {entry.job.out} is what line {first} writes, too: give each job an out of its own")
    for entry in entries:
        for path in (entry.job.video, entry.job.audio):
            writer = outs.get(_same(path))
            if writer == entry.line:
                wrong.append(f"line {entry.line}: {path} would be overwritten by its own result")
            elif writer is not None:
                wrong.append(f"line {entry.line}: {path} is what line {writer} writes: jobs overlap, so put this one into a later batch")
    return wrong


def _same(path: Path) -> str:
    return os.path.normcase(os.path.realpath(path))


def _stamp(path: str | Path) -> tuple[int, int] | tuple[()]:
    try:
        status = Path(path).stat()
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns
