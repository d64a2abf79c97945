"""Fetching model files from Hugging Face, only when the user asks: to a partial name, resumed when broken off, checked, then renamed."""
import hashlib
import json
import logging
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from . import folders
from .errors import ModelFileError
from .progress import Progress, silent
from .spool import require_space, size_text

log = logging.getLogger(__name__)

ENDPOINT = "https://huggingface.co"  # HF_ENDPOINT names a mirror
PIECE = 1 << 20  # bytes
TIMEOUT = 10.0  # seconds without a byte before the transfer counts as broken off
ATTEMPTS = 5  # broken-off transfers in a row without a new byte before giving up
PAUSE = 1.0  # seconds before the next attempt
TELL_EVERY = 0.1  # seconds between calls of progress: network pieces are small and many


@dataclass(frozen=True)
class Remote:
    """A file of a Hugging Face repository, the name it gets in the models folder of `kind`, and about how many bytes it has (0: unknown)."""

    repo: str
    file: str
    kind: str
    name: str
    size: int = 0

    @property
    def address(self) -> str:
        """Where it is fetched from."""
        return f"{(os.environ.get('HF_ENDPOINT') or ENDPOINT).rstrip('/')}/{self.repo}/resolve/main/{self.file}"

    @property
    def target(self) -> Path:
        return folders.paths(self.kind)[0] / self.name


DEFAULT_CHECKPOINT = "LatentSync-1.6/latentsync_unet.pt"
CHECKPOINTS = {
    DEFAULT_CHECKPOINT: Remote("ByteDance/LatentSync-1.6", "latentsync_unet.pt", folders.KIND, DEFAULT_CHECKPOINT, 5_000_000_000),
    "LatentSync-1.5/latentsync_unet.pt": Remote(
        "ByteDance/LatentSync-1.5", "latentsync_unet.pt", folders.KIND, "LatentSync-1.5/latentsync_unet.pt", 5_000_000_000
    ),
}
WHISPER = Remote("ByteDance/LatentSync-1.6", "whisper/tiny.pt", folders.KIND, "whisper/tiny.pt", 76_000_000)
VAE = Remote("stabilityai/sd-vae-ft-mse", "diffusion_pytorch_model.safetensors", "vae", "sd-vae-ft-mse.safetensors", 335_000_000)


def download(name: str | None = None, progress: Progress = silent, *, endpoint: str | None = None) -> list[Path]:
    """Fetch what is missing of a whole model: the checkpoint `name` (default LatentSync 1.6), Whisper tiny and the VAE.

    Nothing is fetched that is there already, wherever `weights` finds it, nor for a demo, which has all it needs. Returns the files
    fetched. Raises ModelFileError with the address and the place to put the file by hand, DiskSpaceError before the first byte, and what
    `progress` raises; a transfer that was broken off goes on from where it stopped, now or next time.
    """
    return [fetch(remote, progress, endpoint=endpoint) for remote in missing(name)]


def missing(name: str | None = None) -> list[Remote]:
    """What `download` would fetch: the files of a whole model that are nowhere. Raises ModelFileError for a checkpoint that is not there and
    has no known source."""
    from . import weights  # which imports this module

    wanted, name = [], name or DEFAULT_CHECKPOINT
    if name in weights.demo.BUNDLED:
        return []
    if folders.find(name) is None:
        if name not in CHECKPOINTS:
            raise ModelFileError(f"{name!r} is not there and cannot be downloaded; these can: {', '.join(CHECKPOINTS)}.")
        wanted.append(CHECKPOINTS[name])
    for find, remote in ((weights.find_whisper, WHISPER), (weights.find_vae, VAE)):
        try:
            find()
        except ModelFileError:
            wanted.append(remote)
    return wanted


def offer(remotes: list[Remote]) -> str:
    """For messages: which files, how large, from where, to where, and that they can be fetched."""
    files = "; ".join(f"{one.target.name} ({size_text(one.size)}) from {one.address} to {one.target}" for one in remotes)
    total = size_text(sum(one.size for one in remotes))
    return f"turn on 'download' (--download on the command line) to fetch what is missing, {total}, or put it there by hand: {files}"


def fetch(remote: Remote, progress: Progress = silent, *, endpoint: str | None = None) -> Path:
    """One file. Raises as `download`."""
    address = remote.address if endpoint is None else f"{endpoint.rstrip('/')}/{remote.repo}/resolve/main/{remote.file}"
    target = remote.target
    log.info("downloading %s to %s", address, target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        transfer = _Transfer(address, target.with_name(target.name + ".part"), progress, f"download {target.name}")
        transfer.run()
        transfer.check()
        source = {"repo": remote.repo, "file": remote.file, "revision": transfer.revision, "size": transfer.total}
        _source_file(target).write_text(json.dumps(source, indent=1), encoding="utf-8")
        os.replace(transfer.part, target)
    except (OSError, HTTPException, _Broken) as error:
        by_hand = f"Try again (it goes on where it stopped), or download it by hand from {address} to {target}."
        raise ModelFileError(f"cannot download {target.name}: {_reason(error)}. {by_hand}") from error
    return target


def source_of(path: Path) -> str | None:
    """The repository that `fetch` got the file at `path` from; None when it did not, or the file was replaced since."""
    try:
        source = json.loads(_source_file(path).read_text(encoding="utf-8"))
        return source["repo"] if path.stat().st_size == source["size"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _source_file(target: Path) -> Path:
    return target.with_name(target.name + ".source.json")


class _Broken(Exception):
    """The transfer ended before the file did, or brought another file."""


class _Transfer:
    """One file on its way. part: where it grows. total: its size, sha256: its checksum, revision: its commit, as the server says."""

    def __init__(self, address: str, part: Path, progress: Progress, stage: str):
        self.address, self.part, self.progress, self.stage = address, part, progress, stage
        self.total: int | None = None
        self.sha256: str | None = None
        self.revision: str | None = None
        self.digest = hashlib.sha256()
        self.have = 0
        self.told = 0.0  # when progress was last called

    def run(self) -> None:
        """Until the file is whole: every attempt goes on where the last one broke off."""
        self._take_up()
        failures = 0
        while self.total is None or self.have < self.total:
            before = self.have
            try:
                self._attempt()
            except (TimeoutError, ConnectionError, ssl.SSLError, HTTPException, urllib.error.URLError) as error:
                if isinstance(error, urllib.error.HTTPError):
                    raise
                log.warning("%s broke off at %s bytes: %s", self.address, f"{self.have:,}", _reason(error))
                last = error
            else:
                last = _Broken(f"the server ended the transfer at {self.have:,} of {self.total or 0:,} bytes")
            failures = failures + 1 if self.have == before else 0
            if failures >= ATTEMPTS:
                raise last
            if self.total is None or self.have < self.total:
                self._wait()

    def check(self) -> None:
        """Refuse, and remove, a file of another size or checksum than the server announced."""
        wrong = f"{self.have:,} bytes instead of {self.total:,}" if self.have != self.total else ""
        if not wrong and self.sha256 and self.digest.hexdigest() != self.sha256:
            wrong = "its SHA-256 is not the announced one"
        if wrong:
            self.part.unlink()
            raise _Broken(f"what arrived is damaged ({wrong}) and was removed")

    def _take_up(self) -> None:
        if self.part.is_file():
            with self.part.open("rb") as file:
                while piece := file.read(PIECE):
                    self._count(piece)

    def _attempt(self) -> None:
        request = urllib.request.Request(self.address, headers={"User-Agent": "latentsync-rtx", "Accept-Encoding": "identity"})
        if self.have:
            request.add_header("Range", f"bytes={self.have}-")
        try:
            with urllib.request.build_opener(_Redirects(self._announced)).open(request, timeout=TIMEOUT) as response:
                self._announced(response.headers)
                self._sizes(response)
                require_space(self.part.parent, self.total - self.have)
                self._receive(response)
        except urllib.error.HTTPError as error:
            if error.code != 416 or not self.have:
                raise
            self.total = _total(error.headers.get("Content-Range"))  # nothing after `have`: the part is whole, or of another file
            if self.total != self.have:
                self._start_over()

    def _sizes(self, response) -> None:
        if response.status == 206:
            self.total = _total(response.headers.get("Content-Range")) or self.have + int(response.headers["Content-Length"])
        else:  # the whole file, whatever was asked for
            self._start_over()
            length = response.headers.get("Content-Length")
            if length is None:
                raise _Broken("the server does not say how large the file is")
            self.total = int(length)

    def _receive(self, response) -> None:
        with self.part.open("ab" if self.have else "wb") as file:
            while self.have < self.total and (piece := response.read1(PIECE)):
                file.write(piece)
                self._count(piece)

    def _count(self, piece: bytes) -> None:
        self.digest.update(piece)
        self.have += len(piece)
        self._tell()

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self.told >= TELL_EVERY or self.have == self.total:
            self.told = now
            self.progress(self.have, max(self.have, self.total or 0), stage=self.stage)

    def _start_over(self) -> None:
        self.have, self.total, self.digest = 0, None, hashlib.sha256()

    def _announced(self, headers) -> None:
        """Hugging Face tells commit and checksum in the first answer, before it redirects to where the bytes are."""
        etag = (headers.get("X-Linked-ETag") or "").strip('"')
        self.sha256 = self.sha256 or (etag if re.fullmatch(r"[0-9a-f]{64}", etag) else None)
        self.revision = self.revision or headers.get("X-Repo-Commit")

    def _wait(self) -> None:
        until = time.monotonic() + PAUSE
        while time.monotonic() < until:
            time.sleep(0.05)
            self._tell()


class _Redirects(urllib.request.HTTPRedirectHandler):
    def __init__(self, announced: Callable):
        self.announced = announced

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        self.announced(headers)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _total(content_range: str | None) -> int | None:
    """'bytes 5-9/10' -> 10."""
    total = (content_range or "").rpartition("/")[2]
    return int(total) if total.isdigit() else None


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    return str(getattr(error, "reason", "") or error or type(error).__name__)
