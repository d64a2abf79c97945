"""Writing a clip as it is made: one encode, one file, and no file unless it is whole."""
import contextlib
import errno
import glob
import io
import logging
import os
import queue
import secrets
import tempfile
import threading
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from ..ahead import WAIT_SECONDS
from ..errors import MediaError, ShapeError
from .base import as_rate
from .colour import Look, tag, to_yuv
from .media import Media, reason
from .sound import CopiedSound, EncodedSound, read_audio

log = logging.getLogger(__name__)

_FORMATS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}
_IN_HARDWARE = ("h264_nvenc", "h264_videotoolbox", "h264_mf", "h264_amf", "h264_qsv")
ENCODERS = ("libx264", *_IN_HARDWARE, "libopenh264", "mpeg4")  # best picture for its size first; hardware has to prove that it is there
_STALE_SECONDS = 86400
# In small pictures x264's macroblock tree reads memory that nobody wrote (seen below 544 px of width, with MALLOC_PERTURB_): one clip, many files.
_SMALL, _REPEATABLE = 640, {"x264-params": "mbtree=0"}
_WAITING_FRAMES = 4  # that encoding may lag behind before `write` waits


class ClipWriter:
    """Writes frames, and sound beside them, to `path` (.mp4, .m4v, .mov, .mkv) as H.264 4:2:0 and AAC.

        with ClipWriter(path, width, height, clip.rate, audio=clip_audio, look=clip.look) as writer:
            for frame in ...: writer.write(frame)

    rate        frames a second, exact; frame k is shown at k/rate
    audio       AUDIO {"waveform": [1,C,T], "sample_rate"}: AAC at its own rate and channels. A media file (path, BytesIO): its sound track
                copied bit for bit where the container takes it, else encoded. As long as the pictures in the end: cut, and an AUDIO that
                is shorter is filled up with silence. None: a silent film.
    lossless    an AUDIO, or a track that the container does not take, is written as FLAC (in .mov ALAC): exact up to 24 bits
    crf         quality, 0 (lossless) to 51; 18 is hard to tell from the source
    look        colour tags and pixel shape of the source (`clip.look`); BT.709 by default
    encoder     "auto" takes the first that works of ENCODERS; a name prefers that one

    Until all is well the file has another name in the same folder; it appears under its own at the end of the `with`, and after an
    error of any kind, Ctrl-C too, nothing is left and what was there before stays. `write` turns a frame into YUV;
    encoding runs in a thread of its own, a few frames behind. Raises MediaError with the reason, from `write` or from the end of the
    `with`; ShapeError for a frame of another size.
    """

    def __init__(self, path, width: int, height: int, rate, audio=None, crf: float = 18, *,
                 look: Look | None = None, encoder: str = "auto", preset: str = "medium", lossless: bool = False):
        self.path = Path(path).absolute()
        self.format = _format_of(self.path, crf)
        if min(width, height) < 1:
            raise ShapeError(f"a clip of {width}x{height} pixels cannot be written")
        self.width, self.height, self.rate = int(width), int(height), as_rate(rate)
        self.frames_written = 0
        self._audio = Media.of(audio) if isinstance(audio, (str, os.PathLike, io.BytesIO)) else audio
        self._crf, self._preset, self._encoder, self._look, self._lossless = crf, preset, encoder, look or Look(), lossless
        self._partial = self.path.with_name(f"{self.path.stem[:40]}.{secrets.token_hex(4)}.part")  # the name may be as long as names may be
        self._container = self._sound = self._error = None
        self._abandoned = self._finished = False
        self._waiting: queue.Queue = queue.Queue(_WAITING_FRAMES)
        self._ended = threading.Event()  # is_alive() is wrong after a join that Ctrl-C cut short
        self._thread = threading.Thread(target=self._work, name=f"encode {self.path.name}", daemon=True)

    def __enter__(self) -> "ClipWriter":
        try:
            if self.path.parent.is_file():
                raise MediaError(f"cannot write {self.path}: {self.path.parent} is a file, not a folder")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._remove_stale()
            self._partial.open("xb").close()  # the system's own words when the folder cannot be written
            self._open()
            self._thread.start()
        except BaseException as error:
            self._abandoned = True  # if the thread runs already, it has no work and no need to be waited for
            self._waiting.put(None)
            self._discard()
            if isinstance(error, (av.FFmpegError, OSError, ValueError)) and not isinstance(error, ShapeError):
                raise self._cannot(error) from error
            raise
        return self

    def write(self, frame: np.ndarray) -> None:
        """Append one frame, uint8 RGB [height, width, 3]; it is copied."""
        if frame.dtype != np.uint8 or frame.shape != (self.height, self.width, 3):
            raise ShapeError(f"this clip takes frames uint8 [{self.height}, {self.width}, 3], not {frame.dtype} {list(frame.shape)}")
        self._raise_error()
        if self._thread.ident is None or self._ended.is_set():
            raise ValueError("a ClipWriter writes inside its `with` block only")
        odd = (self.height % 2, self.width % 2)
        if any(odd):
            frame = np.pad(frame, ((0, odd[0]), (0, odd[1]), (0, 0)), mode="edge")
        try:
            picture = to_yuv(self._convert, av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24"), self._look, "yuv420p")
        except (av.FFmpegError, OSError, ValueError) as error:
            raise self._cannot(error) from error
        self._put(picture)
        self.frames_written += 1

    def __exit__(self, kind, error, trace) -> None:
        if kind is None:
            self.close()
        else:
            self._abandon()

    def close(self) -> None:
        """Finish the file and give it its name. The `with` does it; a second time does nothing."""
        if self._finished:
            return
        try:
            self._stop()
            self._raise_error()
            if not self.frames_written:
                raise MediaError(f"cannot write {self.path}: it got no frames")
            try:
                os.replace(self._partial, self.path)
            except OSError as error:
                raise self._cannot(error) from error
        except BaseException:
            self._abandon()
            raise
        self._finished = True
        log.info("wrote %s: %d frames", self.path, self.frames_written)

    def _cannot(self, error: BaseException) -> MediaError:
        return MediaError(f"cannot write {self.path}: {reason(error)}")

    def _raise_error(self) -> None:
        if self._error is not None:
            known = isinstance(self._error, MediaError) or not isinstance(self._error, Exception)
            raise self._error if known else self._cannot(self._error) from self._error

    def _put(self, item) -> None:
        """Hand something to the thread, unless it has ended."""
        while not self._ended.is_set():
            with contextlib.suppress(queue.Full):
                return self._waiting.put(item, timeout=WAIT_SECONDS)

    def _stop(self) -> None:
        if self._thread.ident is None:  # never started
            return
        self._put(None)
        while not self._ended.wait(WAIT_SECONDS):
            pass

    def _abandon(self) -> None:
        self._abandoned = True
        self._stop()
        self._discard()

    def _discard(self) -> None:
        """The file goes first, where the system lets an open one go: closing then fails at once instead of moving a gigabyte of film."""
        with contextlib.suppress(OSError):
            self._partial.unlink(missing_ok=True)
        with contextlib.suppress(av.FFmpegError, OSError):
            self._close_files()
        with contextlib.suppress(OSError):
            self._partial.unlink(missing_ok=True)

    def _remove_stale(self) -> None:
        """What processes that were killed left of earlier tries, a day ago or more."""
        for path in partials(self.path):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink()

    def _close_files(self) -> None:
        container, self._container = self._container, None
        try:
            if container is not None:
                container.close()
        finally:
            if self._sound is not None:
                self._sound.close()

    def _open(self) -> None:
        size = (self.width + self.width % 2, self.height + self.height % 2)
        if size != (self.width, self.height):
            log.warning("H.264 needs even sides: %s is written as %dx%d, the last row or column of %dx%d doubled",
                        self.path.name, *size, self.width, self.height)
        name = choose_encoder(self._encoder, *size, self.rate)
        if not name.startswith(("libx264", "h264", "libopenh264")):
            log.warning("this PyAV has no H.264 encoder: %s is written as %s", self.path.name, name)
        movie = {"movflags": "+faststart"} if self.format != "matroska" else {}
        self._container = av.open(str(self._partial), "w", format=self.format, options=movie)
        self._stream = self._container.add_stream(name, rate=self.rate)
        _set_up(self._stream, name, *size, self._crf, self._preset)
        tag(self._stream.codec_context, self._look)
        self._stream.codec_context.open()
        self._convert = VideoReformatter()
        if isinstance(self._audio, Media):
            if CopiedSound.possible(self._audio, self.format):
                self._sound = CopiedSound(self._container, self._audio)
            else:
                self._sound = EncodedSound(self._container, read_audio(self._audio), self._lossless)
        elif self._audio is not None:
            self._sound = EncodedSound(self._container, self._audio, self._lossless)

    def _work(self) -> None:
        """The encoding thread. After an error it only empties the queue, so that `write` never waits for nobody."""
        count = 0
        try:
            while (picture := self._waiting.get()) is not None:
                if self._error is None and not self._abandoned:
                    count = self._tried(self._encode, picture, count) or count
            if self._error is None and not self._abandoned:
                self._tried(self._finish, count)
        finally:
            self._ended.set()

    def _tried(self, work, *given):
        """What `work` gives; whatever it raises is told to the writer."""
        try:
            return work(*given)
        except BaseException as error:
            self._error = error

    def _encode(self, picture: av.VideoFrame, count: int) -> int:
        """-> how many there are now."""
        picture.pts, picture.time_base = count, 1 / self.rate
        self._mux_pictures(self._stream.encode(picture))
        if self._sound is not None:
            self._container.mux(self._sound.until((count + 1) / self.rate))
        return count + 1

    def _finish(self, count: int) -> None:
        self._mux_pictures(self._stream.encode(None))
        if self._sound is not None and count:
            self._container.mux(self._sound.finish(count / self.rate))
        self._close_files()

    def _mux_pictures(self, packets) -> None:
        for packet in packets:
            packet.duration = packet.duration or round(1 / self.rate / packet.time_base)  # else the last frame has none
            self._container.mux(packet)


def partials(path: str | os.PathLike) -> list[Path]:
    """What clips that are being written to `path`, or were when their process was killed, are called."""
    path = Path(path)
    return list(path.parent.glob(f"{glob.escape(path.stem[:40])}.{'[0-9a-f]' * 8}.part"))


def check_target(path: str | os.PathLike, crf: float = 18, encoder: str = "auto") -> None:
    """Raises MediaError unless a clip can be written to `path`: a known kind of file, in a folder that is there and takes new files. For
    whoever has long work to do before."""
    path = Path(path).absolute()
    check_format(path, crf, encoder)
    if not path.parent.is_dir():
        raise MediaError(f"the folder of {path} does not exist: create it, or choose another place")
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise MediaError(f"cannot write {path}: {reason(error)}") from error


def check_format(path: str | os.PathLike, crf: float = 18, encoder: str = "auto") -> None:
    """The part of `check_target` that looks at no disk."""
    _format_of(Path(path), crf)
    _require_known(encoder)


def _format_of(path: Path, crf: float) -> str:
    name = _FORMATS.get(path.suffix.lower())
    if name is None:
        raise MediaError(f"cannot write {path.name}: name it {', '.join(_FORMATS)}, not {path.suffix or 'without a suffix'}")
    if not 0 <= crf <= 51:
        raise MediaError(f"cannot write {path.name} at crf {crf:g}: 0 (lossless) to 51 is possible, 18 is usual")
    return name


def _require_known(encoder: str) -> None:
    if encoder != "auto" and encoder not in ENCODERS:
        raise MediaError(f"there is no encoder {encoder!r}: choose auto, {', '.join(ENCODERS)}")


def copies_sound(source: str | os.PathLike | io.BytesIO, path: str | os.PathLike) -> bool:
    """Whether the sound track of the file `source` can go into a clip at `path` bit for bit."""
    return CopiedSound.possible(Media.of(source), _FORMATS.get(Path(path).suffix.lower(), "mp4"))


def choose_encoder(wanted: str, width: int, height: int, rate: Fraction) -> str:
    """The encoder to use: `wanted` if it works here, else the first of ENCODERS that does. MediaError when none does."""
    _require_known(wanted)
    for name in ([wanted] if wanted != "auto" else []) + list(ENCODERS):
        try:
            context = av.CodecContext.create(name, "w")
            if name in _IN_HARDWARE:
                context.width, context.height, context.pix_fmt = width, height, "yuv420p"
                context.framerate, context.time_base = rate, 1 / rate
                context.open()
            return name
        except (av.FFmpegError, ValueError, OSError) as error:
            log.log(logging.WARNING if name == wanted else logging.DEBUG, "encoder %s does not work here: %s", name, reason(error))
    raise MediaError(f"this PyAV ({av.__version__}) has no video encoder of {', '.join(ENCODERS)}: install PyAV from PyPI (pip install av)")


def _set_up(stream: av.VideoStream, name: str, width: int, height: int, crf: float, preset: str) -> None:
    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
    if name == "libx264":
        stream.codec_context.thread_type = "FRAME"  # PyAV's default, slices, gives another file every few runs
        stream.codec_context.options = {"crf": f"{crf:g}", "preset": preset, **(_REPEATABLE if width < _SMALL else {})}
    elif name == "h264_nvenc":
        stream.codec_context.options = {"rc": "vbr", "cq": f"{crf:g}", "preset": "p5"}
    else:  # by bits: 0.2 a pixel at crf 18, halved by every 6 more, as x264's scale goes
        stream.bit_rate = int(0.2 * 2 ** ((18 - crf) / 6) * width * height * float(stream.codec_context.framerate))
