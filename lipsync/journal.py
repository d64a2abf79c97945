"""Finished blocks of jobs on disk, so that a job which died or was cancelled goes on where it stopped.

A block is filed under a hash of everything that went into it: the crops and the tokens themselves, the weights, the VAE, the noise, the
settings, the back end. So nothing has to be said about what may have changed since, and a block that is found is the block that would be
made. Latents of a minute at 512 px are 98 MB.
"""
import hashlib
import json
import logging
import os
import secrets
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

log = logging.getLogger(__name__)

REVISION = 1  # change it when the arithmetic of a block changes
SUFFIX = ".block"
KEEP_SECONDS = 7 * 86400
KEEP_BYTES = 16 << 30


class Journal:
    """The blocks of one job in `folder`, which many jobs share and which must outlive the process; it is made when first written to.

    Old files of any job go when a journal is opened: those not used for a week, and the oldest beyond 16 GiB. A folder that cannot be
    used costs a warning, not the job.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self._names: set[str] = set()
        self._usable = True
        clean(self.folder)

    def read(self, name: str, count: int) -> list[Tensor] | None:
        """The `count` tensors filed under `name`; None when there are none, or they are damaged."""
        path = self._path(name)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        try:
            tensors = _unpacked(data)
            if len(tensors) != count:
                raise ValueError(f"{len(tensors)} tensors, not {count}")
        except (ValueError, KeyError, TypeError) as error:
            log.warning("%s is damaged (%s): the block is made again", path, error)
            return None
        self._names.add(name)
        _touch(path)
        return tensors

    def write(self, name: str, tensors: Iterable[Tensor]) -> None:
        """File tensors under `name`: whole or not at all. Broken numbers are not kept."""
        tensors = [tensor.detach().cpu().contiguous() for tensor in tensors]
        if not self._usable or not all(torch.isfinite(tensor).all() for tensor in tensors):
            return
        path = self._path(name)
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                partial.write_bytes(_packed(tensors))
                os.replace(partial, path)
            finally:
                partial.unlink(missing_ok=True)
        except OSError as error:
            self._usable = False
            log.warning("this job cannot be resumed: %s cannot be written (%s)", self.folder, error.strerror or error)
            return
        self._names.add(name)

    @property
    def names(self) -> list[str]:
        """Of the blocks that this job has here."""
        return sorted(self._names)

    def adopt(self, names: Iterable[str]) -> None:
        """Blocks that another process filed for this job: they go when it is done."""
        self._names.update(names)

    def discard(self) -> None:
        """The job is done: forget its blocks."""
        for name in self._names:
            _remove(self._path(name))
        self._names.clear()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{SUFFIX}"


def name_of(*parts) -> str:
    """A name for what depends on `parts` and nothing else: arrays and tensors by their bytes, the rest by its text."""
    digest = hashlib.blake2b(f"{REVISION}".encode(), digest_size=20)
    for part in parts:
        if isinstance(part, (np.ndarray, Tensor)):
            array = part.detach().cpu().contiguous().numpy() if isinstance(part, Tensor) else np.ascontiguousarray(part)
            digest.update(f"|{array.dtype}{array.shape}|".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
        else:
            digest.update(f"|{part}|".encode())
    return digest.hexdigest()


def runner_identity(runner) -> str | None:
    """What a runner's results depend on beside its inputs, or None when that cannot be told."""
    model, spec = getattr(runner, "model", None), runner.spec
    if model is None:
        return None
    engine = getattr(runner, "engine_identity", "") if spec.backend != "torch" else torch.__version__
    card = torch.cuda.get_device_name(spec.device) if spec.device.type == "cuda" else spec.device.type
    return f"{model.fingerprint} {spec.backend} {card} {spec.dtype} {spec.frames} {spec.batch} {engine}"


def vae_identity(vae) -> str | None:
    """The same of a VAE: told by its weights, or by the `identity` of one that has none."""
    network = next((part for part in (getattr(vae, "first_stage_model", None), getattr(vae, "model", None), vae) if _is_network(part)), None)
    if network is None:
        return getattr(vae, "identity", None)
    if any(value.is_meta for value in network.state_dict().values()):  # its owner keeps the weights elsewhere just now
        return None
    some = [name_of(name, tuple(value.shape), value.flatten()[:64].float()) for name, value in sorted(network.state_dict().items())]
    precision = getattr(vae, "vae_dtype", None) or next(iter(network.state_dict().values())).dtype
    return name_of(type(network).__name__, precision, *some)


def clean(folder: Path, older_than_seconds: float = KEEP_SECONDS, at_most_bytes: int = KEEP_BYTES) -> int:
    """Remove files of journals that were not used for so long, then the oldest beyond so much. Returns the bytes given back."""
    files = []
    for path in folder.glob(f"*{SUFFIX}*"):
        try:
            status = path.stat()
            files.append((status.st_mtime, status.st_size, path))
        except OSError:  # removed by another job meanwhile
            continue
    kept, freed = 0, 0
    for changed, size, path in sorted(files, reverse=True):
        kept += size
        if time.time() - changed > older_than_seconds or kept > at_most_bytes:
            _remove(path)
            kept, freed = kept - size, freed + size
    return freed


def _is_network(part) -> bool:
    return isinstance(part, torch.nn.Module) and bool(part.state_dict())


def _packed(tensors: list[Tensor]) -> bytes:
    body = b"".join(tensor.numpy().tobytes() for tensor in tensors)
    shapes = [list(tensor.shape) for tensor in tensors]
    return json.dumps({"shapes": shapes, "crc32": zlib.crc32(body)}).encode() + b"\n" + body


def _unpacked(data: bytes) -> list[Tensor]:
    head, _, body = data.partition(b"\n")
    facts = json.loads(head)
    if zlib.crc32(body) != facts["crc32"]:
        raise ValueError("its checksum is wrong")
    values, sizes = torch.frombuffer(bytearray(body), dtype=torch.float32), [int(np.prod(shape)) for shape in facts["shapes"]]
    return [part.view(shape) for part, shape in zip(values.split(sizes), facts["shapes"], strict=True)]


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except OSError as error:
        log.debug("%s: %s", path, error)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:  # in use (Windows)
        log.debug("left %s alone: %s", path, error)
