"""A media file, on disk or in memory, that can be opened any number of times, and the sentences for those that cannot."""
import hashlib
import io
import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import av

from ..errors import MediaError

_LFS_POINTER = b"version https://git-lfs"
_LENIENT = {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}  # PyAV 19 has no such option
# Formats whose files name other files, hosts or programs. A clip comes from strangers; it is read, and nothing that it points to.
_REFERRING = {"hls", "applehttp", "concat", "dash", "webm_dash_manifest", "imf", "sdp", "rtp", "rtsp", "avisynth", "vapoursynth", "lavfi", "tty"}
_ATTACHED_PICTURE = 0x400  # AV_DISPOSITION_ATTACHED_PIC: the cover of a song is not a clip


@dataclass(frozen=True)
class Media:
    """Where the bytes are: `path`, or `data` for a file in memory."""
    name: str
    path: str | None = None
    data: bytes | None = None
    stamp: str = ""  # path, size and time of change when it was first looked at

    @classmethod
    def of(cls, source: "str | os.PathLike | io.BytesIO | Media") -> "Media":
        """MediaError "cannot open ...: ..." for what is plainly no media file, before anything heavy."""
        if isinstance(source, Media):
            return source
        if isinstance(source, io.BytesIO):
            media = cls("the clip in memory", data=source.getvalue())
        elif isinstance(source, (str, os.PathLike)):
            path = os.path.abspath(os.fspath(source))  # "it: a clip.mp4" by itself would read as a protocol
            media = cls(str(source), path, stamp=_stamp(path))
        else:
            raise MediaError(f"cannot open a {type(source).__name__} as a clip: give a path, a BytesIO, or an IMAGE tensor")
        media._require_media()
        return media

    def open(self) -> av.container.InputContainer:
        """A fresh container, with its own position. Metadata in unknown encodings is no reason to fail."""
        try:
            media = self.path if self.data is None else io.BytesIO(self.data)
            return av.open(media, container_options={"format_whitelist": _formats()}, **_LENIENT)
        except av.ArgumentError as error:
            raise self.cannot_open("it is a playlist or a script, which names other files; give the video or sound file itself") from error
        except (av.FFmpegError, OSError, ValueError) as error:
            raise self.cannot_open(f"{reason(error)}. Is it a video or sound file, and complete?") from error

    def cannot_open(self, why: str) -> MediaError:
        return MediaError(f"cannot open {self.name}: {why}")

    @cached_property
    def fingerprint(self) -> str:
        """Of the content in memory, or of the path, size and time of change on disk."""
        return hashlib.sha256(os.fsencode(self.stamp) if self.data is None else self.data).hexdigest()

    def _require_media(self) -> None:
        if self.path is not None and os.path.isdir(self.path):
            raise self.cannot_open("it is a folder")
        if self.path is not None and os.path.exists(self.path) and not os.path.isfile(self.path):
            raise self.cannot_open("it is a device or a pipe; give a file")
        try:
            head = _head(self.path) if self.path is not None else (self.data or b"")[:64]
        except (OSError, ValueError) as error:
            raise self.cannot_open(reason(error)) from error
        if not head:
            raise self.cannot_open("it is empty (0 bytes)")
        if head.startswith(_LFS_POINTER):
            raise self.cannot_open("it is a Git LFS pointer, not the media itself; run `git lfs pull` where it came from")


@lru_cache(maxsize=1)
def _formats() -> str:
    """For FFmpeg: what may be read."""
    return ",".join(sorted(av.formats_available - _REFERRING))


def _stamp(path: str) -> str:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # said by `_require_media`
        return path
    return f"{path}|{status.st_size}|{status.st_mtime_ns}"


def _head(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(64)


def reason(error: BaseException) -> str:
    """FFmpeg's or the system's own words, without numbers and names of internals."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def picture_stream(container: av.container.InputContainer) -> av.VideoStream | None:
    """The first stream of moving pictures, cover pictures passed over."""
    for stream in container.streams.video:
        disposition = getattr(stream.disposition, "value", stream.disposition)
        if not int(disposition) & _ATTACHED_PICTURE and stream.codec_context is not None:
            return stream
    return None


def sound_stream(container: av.container.InputContainer) -> av.AudioStream | None:
    """The first stream of sound that this FFmpeg can decode."""
    return next((stream for stream in container.streams.audio if stream.codec_context is not None), None)
