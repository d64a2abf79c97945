"""Weight files read with care: memory-mapped, never unpickled into code, and told apart from the many things that only look like one."""
import json
import logging
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

from .errors import ModelFileError

log = logging.getLogger(__name__)

LFS_MARK = b"version https://git-lfs.github.com/spec/"
ZIP_MARK = b"PK\x03\x04"
HEADER_LIMIT = 100 << 20  # bytes; safetensors' own limit
ITEM_BYTES = {"Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1}


class Uninitialised(TorchFunctionMode):
    """A context for making modules whose weights come from elsewhere: no random numbers are drawn, so the global generator stays as it
    was, and tables are made on the CPU even under `torch.device("meta")`: there, both would import half of PyTorch's compiler (5 s)."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        if func is torch.arange:
            kwargs = {"device": "cpu", **kwargs}
        return func(*args, **kwargs)


def read_checkpoint(path: str | Path, *, what: str, source: str) -> dict:
    """The contents of a `.safetensors` file (name -> tensor) or a PyTorch file (whatever dict it holds), on the CPU.

    Tensors are memory-mapped where the format allows: nothing is read until it is used. `what` and `source` complete the messages: what
    the file is for, and where to get a good one. Raises ModelFileError for a file that is missing, empty, truncated (with the expected
    and the found size), a Git LFS pointer, text, or another format.
    """
    path = Path(path)
    check_file(path, what=what, source=source)
    try:
        if path.suffix.lower() == ".safetensors":
            from safetensors.torch import load_file

            contents = load_file(path)
        else:
            contents = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # both libraries raise whatever the damage makes them trip over
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelFileError(f"cannot read {what} {path}: {reason[0]} To replace it: {source}.") from error
    if not isinstance(contents, dict):
        raise ModelFileError(f"{path} holds a {type(contents).__name__}, not the named tensors of {what}: {source}.")
    return contents


def check_file(path: Path, *, what: str, source: str) -> None:
    """The cheap half of `read_checkpoint`: refuse by the first bytes and the size, without reading the weights."""
    if not path.is_file():
        raise ModelFileError(f"{what} is missing: no file {path}. Put it into {path.parent}: {source}.")
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(1024)
    if not size:
        raise ModelFileError(f"{what} {path} is empty (0 bytes), an interrupted download perhaps: {source}.")
    if head.startswith(LFS_MARK):
        raise ModelFileError(
            f"{path} is a Git LFS pointer: expected {_pointed_size(head)}, found {size}. Run `git lfs pull` there, or {source}."
        )
    if path.suffix.lower() == ".safetensors":
        _check_safetensors(path, size, what, source)
    elif _is_text(head):
        first = head.decode("utf-8").strip().splitlines()[0][:60]
        raise ModelFileError(f"{path} is a text file (it begins {first!r}), not {what}, a saved web page perhaps: {source}.")
    elif head.startswith(ZIP_MARK) and not zipfile.is_zipfile(path):
        expected = _expected_zip_size(path)
        raise ModelFileError(f"{what} {path} is truncated: {_sizes(expected, size, at_least=True)}. Download it again: {source}.")


def _check_safetensors(path: Path, size: int, what: str, source: str) -> None:
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
        raw = file.read(length) if 2 <= length <= HEADER_LIMIT else b""
    if not raw.startswith(b"{"):
        raise ModelFileError(f"{path} is not in the safetensors format that its name promises, so it is not {what}: {source}.")
    try:
        header = json.loads(raw)
        expected = 8 + length + max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        expected = 8 + length  # cut inside the header, or a broken one: `load_file` has the last word
    if size < expected:
        raise ModelFileError(f"{what} {path} is truncated: {_sizes(expected, size)}. Download it again: {source}.")


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return bool(text.strip()) and all(character.isprintable() or character in "\r\n\t" for character in text)


def _pointed_size(head: bytes) -> str:
    sizes = [line[5:].strip() for line in head.split(b"\n") if line.startswith(b"size ")]
    return f"{int(sizes[0]):,} bytes" if sizes and sizes[0].isdigit() else "of unknown size"


def _sizes(expected: int | None, found: int, at_least: bool = False) -> str:
    if expected is None or expected <= found:
        return f"its end is missing, found {found:,} bytes"
    return f"expected {'at least ' if at_least else ''}{expected:,} bytes, found {found:,}"


def _expected_zip_size(path: Path) -> int | None:
    """Bytes of tensors that a cut-off PyTorch file should hold: its table of contents, a pickle, stands first. None if that is cut too."""
    try:
        with path.open("rb") as file:
            name, extra = struct.unpack("<HH", file.read(30)[26:30])
            file.seek(30 + name + extra)
            inventory = _Inventory(file)
            inventory.load()
            return sum(inventory.storages.values()) or None
    except Exception as error:  # any damage: the message then goes without the expected size
        log.debug("no table of contents in %s: %s", path, error)
        return None


class _Inert:
    """Stands in for whatever a pickle wants to make; does nothing."""

    def __init__(self, *_):
        pass

    def __call__(self, *_):
        return self

    def __setitem__(self, *_):
        pass

    def __setstate__(self, _):
        pass


class _Inventory(pickle.Unpickler):
    """Reads the table of contents of a PyTorch file for the sizes of its storages. Runs nothing: every name becomes an inert object."""

    def __init__(self, file):
        super().__init__(file)
        self.storages: dict[str, int] = {}  # key -> bytes

    def find_class(self, module, name):
        if name.endswith("Storage"):
            return name.removesuffix("Storage")
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else _Inert()

    def persistent_load(self, pid):
        _, kind, key, _, count = pid
        self.storages[key] = int(count) * ITEM_BYTES.get(kind, 1)
        return _Inert()
