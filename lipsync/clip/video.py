"""A media file as a clip. All goes by timestamps: an index of all packets, made once without decoding, says which pictures there are and
when each is shown; `frames_at` then gives exactly the promised frames, whatever the decoder makes of a damaged file."""
import contextlib
import io
import itertools
import logging
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
from av.sidedata.sidedata import Type as SideData
from av.video.reformatter import VideoReformatter

from ..errors import MediaError
from ..folders import temp_dir
from ..spool import Spool, free_space
from .base import STANDARD_RATES, Clip, as_rate, count_frames
from .colour import look_of, to_rgb
from .media import Media, picture_stream, reason, sound_stream

log = logging.getLogger(__name__)

_STEADY = 0.4  # of a frame: timestamps that stray less from k/rate are a constant rate (whole milliseconds stray by 0.12 at 240 fps)
_ROUNDED = 0.1  # of a frame: what rounding explains, where a rate that people use and the measured one differ by next to nothing
_EPSILON = 0.004  # seconds: how late a timestamp may be and still count for a tick; a quarter of a frame at most
_BROKEN_CLOCK = 600  # seconds between two pictures: a counter that wrapped around or was reset, not a clip
_RESET = 0.2  # seconds backwards between two packets as they are stored: recordings joined end to end, each with a clock of its own
_WORTH_A_SEEK = 24  # frames that are sooner decoded than sought past
_MOST_THREADS = 8  # each holds a frame
_SPILL_MEMORY = 64 << 20
_SPILL_BYTES = 4 << 30  # the most that reading backwards keeps in its temporary file, and at most half of what is free there


@dataclass(frozen=True)
class _Index:
    """The pictures of a stream, in the order of presentation."""
    times: np.ndarray  # float64 [n] seconds from the first picture
    stamps: np.ndarray | None  # int64 [n] in the stream's time base; None: the file has no usable timestamps, pictures are counted
    keys: np.ndarray  # int64: ordinals of pictures that decoding can start from
    last_duration: float  # seconds that the last picture stays, 0 when unknown
    begin: float = 0.0  # seconds on the file's clock of the first picture
    tick: float = 1e-6  # seconds that the clock counts in

    def part(self, start: float, duration: float) -> tuple[int, int]:
        """[first, last) of the pictures in `duration` seconds (0: all) from `start` on the file's clock; times in between round down, as
        in ComfyUI."""
        edges = np.searchsorted(self.times, np.array([start, start + duration]) - self.begin - 0.999 * self.tick, side="right")
        return int(edges[0]) if start else 0, int(edges[1]) if duration else len(self.times)


class VideoClip(Clip):
    """See `open_clip`. Opening decodes the first picture, so that a file that cannot be read is refused at once."""

    def __init__(self, source: str | os.PathLike | io.BytesIO, rate: Fraction | None = None, start: float = 0.0, duration: float = 0.0):
        self.media = Media.of(source)
        self.name = self.media.name
        with self.media.open() as container:
            stream = picture_stream(container)
            self.has_audio = sound_stream(container) is not None
            if stream is None:
                raise self.media.cannot_open(f"it has {'sound but ' * self.has_audio}no pictures that FFmpeg can decode")
            first = self._first_picture(container, stream)
            self._turn = _turn_of(first)
            self.look = look_of(stream, first, self._turn.transposed)
            self._size = (first.width, first.height)
            known = [Fraction(value) for value in (stream.average_rate, stream.guessed_rate, stream.base_rate) if value]
        self.width, self.height = reversed(self._size) if self._turn.transposed else self._size
        self._index = self._make_index(known)
        self._part = self._index.part(start, duration)
        if self._part[0] >= self._part[1]:
            raise MediaError(f"{self.name} has no pictures from second {start:g} on{f' for {duration:g} s' if duration else ''}")
        self._present(rate, known)

    @property
    def fingerprint(self) -> str:
        return f"{self.media.fingerprint}@{self.rate}[{self._part[0]}:{self._part[1]}]"

    @property
    def begin(self) -> float:
        """Seconds from the file's first picture to the first of the part that is shown."""
        return float(self._index.times[self._part[0]])

    def frames_at(self, indices: Sequence[int], folder: str | Path | None = None) -> Iterator[np.ndarray]:
        return self._read(self._shown[self._checked(indices)], folder)

    def _first_picture(self, container, stream) -> av.VideoFrame:
        with contextlib.closing(_decoded(container, stream)) as frames:
            first = next(frames, None)
        if first is None and "webp" in container.format.name:
            raise self.media.cannot_open("FFmpeg cannot decode animated WebP; make it a GIF, an APNG or a film")
        if first is None:
            raise self.media.cannot_open("none of its pictures can be decoded")
        return first

    def _make_index(self, known: list[Fraction]) -> _Index:
        stamps, keys, durations, stored = [], [], {}, []
        with self.media.open() as container:
            stream = picture_stream(container)
            ticks, reordered = stream.time_base, stream.codec_context.has_b_frames
            try:
                for packet in container.demux(stream):
                    if packet.size == 0 or packet.is_discard:  # the end; or cut off by an edit list: the decoder drops it too
                        continue
                    stamps.append(packet.pts)
                    stored.append(packet.dts)
                    durations[packet.pts] = packet.duration or 0
                    if packet.is_keyframe:
                        keys.append(len(stamps) - 1)
            except (av.FFmpegError, OSError) as error:
                log.warning("%s is damaged after %d frames (%s): what follows is left out", self.name, len(stamps), reason(error))
        order = np.unique(np.array([stamp for stamp in stamps if stamp is not None], np.int64))
        broken = not len(order) or len(order) < 0.9 * len(stamps) or np.diff(order).max(initial=0) * ticks > _BROKEN_CLOCK
        stored = np.array([stamp for stamp in stored if stamp is not None], np.int64)
        joined = np.diff(stored).min(initial=0) * ticks < -_RESET
        if broken or joined or (reordered and not self._in_order()):
            log.info("%s has no usable timestamps: its frames are counted", self.name)
            return _Index(np.arange(max(1, len(stamps))) / float(next(iter(known), 25)), None, np.zeros(1, np.int64), 0.0)
        ordinals = np.searchsorted(order, np.array([stamps[key] for key in keys if stamps[key] is not None], np.int64))
        last = durations[int(order[-1])]
        times, begin = (order - order[0]) * float(ticks), float(order[0] * ticks)
        return _Index(times, order, np.unique(np.append(ordinals, 0)), float(last * ticks), begin, float(ticks))

    def _in_order(self) -> bool:
        """Pictures come out of a decoder as they are shown. When their timestamps do not ascend, these are the order of storage (H.264 with
        B-frames in AVI): no clock."""
        with self.media.open() as container, contextlib.closing(_decoded(container, picture_stream(container))) as frames:
            stamps = [frame.pts for frame in itertools.islice(frames, 24) if frame.pts is not None]
        return stamps == sorted(stamps)

    def _present(self, rate: Fraction | None, known: list[Fraction]) -> None:
        """Sets rate and frame_count, and which picture each presented frame shows."""
        first, last = self._part
        times = self._index.times[first:last] - self._index.times[first]
        steady = _steady_rate(times, known)
        interval = float(np.median(np.diff(times))) if len(times) > 1 else 0.04
        self.rate = rate or steady or _usual_rate(interval, times)
        if steady is not None:
            ratio = steady / self.rate
            self.frame_count = count_frames(len(times) / steady, self.rate)
            self._shown = first + np.minimum(np.arange(self.frame_count) * ratio.numerator // ratio.denominator, len(times) - 1)
            return
        log.info("%s has a variable frame rate: shown at %s frames a second by its timestamps", self.name, self.rate)
        whole = last == len(self._index.times)
        stays = (self._index.last_duration if whole else self._index.times[last] - self._index.times[last - 1]) or interval
        self.frame_count = count_frames(float(times[-1] + stays), self.rate)
        ticks = np.arange(self.frame_count) / float(self.rate) + min(_EPSILON, interval / 4)
        self._shown = first + np.maximum(np.searchsorted(times, ticks, side="right") - 1, 0)

    def _read(self, ordinals: np.ndarray, folder) -> Iterator[np.ndarray]:
        with contextlib.closing(_Decoder(self.media, self._index)) as decoder:
            convert = VideoReformatter()
            for first, last, backwards in _stretches(ordinals):
                if backwards:
                    yield from self._backwards(decoder, convert, ordinals[first:last], folder)
                else:
                    for ordinal in ordinals[first:last].tolist():
                        yield self._picture(convert, decoder.at(ordinal))

    def _backwards(self, decoder: "_Decoder", convert, ordinals: np.ndarray, folder) -> Iterator[np.ndarray]:
        """Descending ordinals, a group of pictures at a time: decoded forwards into a spool, given backwards. Of a group that is larger
        than a spool may grow, the last part first: it is decoded again for each part."""
        folder = folder or temp_dir()
        room = max(4, min(_SPILL_BYTES, free_space(folder) // 2) // (self.width * self.height * 3))
        while len(ordinals):
            key = self._index.keys[np.searchsorted(self._index.keys, ordinals[0], side="right") - 1]
            part = ordinals[:room]
            part = part[part >= key]
            forwards = np.unique(part)
            with Spool((self.height, self.width, 3), folder=folder, memory_limit_bytes=_SPILL_MEMORY) as spool:
                for ordinal in forwards.tolist():
                    spool.append(self._picture(convert, decoder.at(ordinal)))
                for row in np.searchsorted(forwards, part).tolist():
                    yield spool.read(row)
            ordinals = ordinals[len(part):]

    def _picture(self, convert: VideoReformatter, frame: av.VideoFrame) -> np.ndarray:
        return self._turn.apply(to_rgb(convert, frame, *self._size))


class _Decoder:
    """Decodes one stream; `at` goes forwards cheaply and seeks otherwise."""

    def __init__(self, media: Media, index: _Index):
        self._media, self._index = media, index
        self._container = self._frames = None
        self._held: tuple[int, av.VideoFrame] | None = None  # the newest picture that is not after the asked one
        self._next: tuple[int, av.VideoFrame] | None = None  # the one after it, when it had to be looked at
        self._stand_ins = 0

    def at(self, ordinal: int) -> av.VideoFrame:
        """Picture `ordinal`; when it cannot be decoded, the one before it, or the first that can."""
        if self._must_seek(ordinal):
            self._seek(ordinal)
        while self._held is None or self._held[0] < ordinal:
            if self._next is None:
                self._next = next(self._frames, None)
            if self._next is None or (self._next[0] > ordinal and self._held is not None):
                break
            self._held, self._next = self._next, None
        if self._held is None:
            raise self._media.cannot_open("its pictures can no longer be decoded: was it changed while in use?")
        if self._held[0] != ordinal:
            self._stand_ins += 1
            if self._stand_ins == 1:
                log.warning("%s is damaged: frame %d cannot be decoded, its neighbour stands in", self._media.name, ordinal)
        return self._held[1]

    def close(self) -> None:
        if self._stand_ins > 1:
            log.warning("%s: %d frames in all could not be decoded", self._media.name, self._stand_ins)
        self._stop()

    def _stop(self) -> None:
        if self._frames is not None:
            self._frames.close()
        if self._container is not None:
            self._container.close()
        self._container = self._frames = self._held = self._next = None

    def _must_seek(self, ordinal: int) -> bool:
        if self._container is None:
            return True
        if self._held is None:
            return False
        if ordinal < self._held[0]:  # unless that is the stand-in for what cannot be decoded at the place it started from
            return self._held[0] != self._first or ordinal < self._asked_from
        key = self._key(ordinal)
        return self._index.stamps is not None and self._index.keys[key] > self._held[0] + _WORTH_A_SEEK

    def _key(self, ordinal: int) -> int:
        return int(np.searchsorted(self._index.keys, ordinal, side="right")) - 1

    def _seek(self, ordinal: int) -> None:
        """Start at the key picture before `ordinal`, or further back when the file's own index leads past it."""
        key, back = self._key(ordinal), 1
        self._asked_from = ordinal
        while key > 0 and self._index.stamps is not None:
            if self._start(int(self._index.stamps[self._index.keys[key]])) and self._held[0] <= ordinal:
                return
            key, back = key - back, back * 2
        self._start(None)

    def _start(self, stamp: int | None) -> bool:
        if self._frames is not None:
            self._frames.close()
        if self._container is None or stamp is None:
            self._stop()
            self._container = self._media.open()
        self._held = self._next = None
        stream = picture_stream(self._container)
        if stamp is not None:
            try:
                self._container.seek(stamp, stream=stream, backward=True)
            except (av.FFmpegError, OSError):
                return False
        self._frames = self._numbered(_decoded(self._container, stream))
        self._held = next(self._frames, None)
        self._first = self._held[0] if self._held else -1
        return self._held is not None

    def _numbered(self, frames: Iterator[av.VideoFrame]) -> Iterator[tuple[int, av.VideoFrame]]:
        """Each picture with its ordinal, ascending; what comes out of order is left out."""
        stamps, previous, count = self._index.stamps, -1, len(self._index.times)
        with contextlib.closing(frames):
            for frame in frames:
                counted = stamps is None or frame.pts is None
                ordinal = previous + 1 if counted else int(np.searchsorted(stamps, frame.pts, side="right")) - 1
                if previous < ordinal < count:
                    previous = ordinal
                    yield ordinal, frame


def _decoded(container, stream) -> Iterator[av.VideoFrame]:
    """All pictures that can be decoded from here on; damaged packets are passed over."""
    context = stream.codec_context
    if not context.is_open:
        context.thread_type, context.thread_count = "AUTO", min(_MOST_THREADS, os.cpu_count() or 1)
    try:
        for packet in container.demux(stream):
            with contextlib.suppress(av.FFmpegError):
                yield from packet.decode()
    except (av.FFmpegError, OSError):  # the file itself ends in ruins: give what the decoder still holds
        with contextlib.suppress(av.FFmpegError):
            yield from context.decode(None)
    finally:
        # Brings the decoder's threads to rest while the interpreter is free. Where PyAV logs through Python (torchvision's import makes it),
        # a thread that has an error to report waits for the interpreter, which freeing the decoder would hold until that thread ends.
        context.flush_buffers()


def _stretches(ordinals: np.ndarray) -> Iterator[tuple[int, int, bool]]:
    """[first, last) of stretches that only ascend or only descend (True); equal neighbours belong to either."""
    steps = np.sign(np.diff(ordinals)).tolist()
    first = 0
    while first < len(ordinals):
        last, direction = first + 1, 0
        while last < len(ordinals) and steps[last - 1] in (0, direction or steps[last - 1]):
            direction = direction or steps[last - 1]
            last += 1
        yield first, last, direction < 0
        first = last


def _steady_rate(times: np.ndarray, known: list[Fraction]) -> Fraction | None:
    """The constant rate that these timestamps follow, or None."""
    if len(times) == 1 or times[-1] <= 0:
        return next(iter(known), Fraction(25)) if len(times) == 1 else None
    measured = (len(times) - 1) / times[-1]
    near = [rate for rate in STANDARD_RATES if abs(float(rate) - measured) < 0.01 * measured]
    measured = Fraction(measured).limit_denominator(1001)
    count = np.arange(len(times))
    best, stray = None, _STEADY

    def strays(rate: Fraction) -> float:
        return round(float(np.abs(times * float(rate) - count).max()), 3)

    for rate in [*near, *known, measured]:
        if 0 < rate <= 1000 and strays(rate) < stray:
            best, stray = rate, strays(rate)
    if best is not None and strays(usual := as_rate(float(best))) < _ROUNDED:
        return usual  # 1750/73 is 23.976 in a short file that counts milliseconds
    return best


def _usual_rate(interval: float, times: np.ndarray) -> Fraction:
    """What to show a variable rate at: that of its usual interval, in 1..120, as a rate that people use when one is near."""
    usual = 1 / interval if interval > 0 else len(times) / max(float(times[-1]), 1e-3)
    usual = min(120.0, max(1.0, usual))
    nearest = min(STANDARD_RATES, key=lambda rate: abs(float(rate) - usual))
    return nearest if abs(float(nearest) - usual) < 0.02 * usual else Fraction(usual).limit_denominator(100)


@dataclass(frozen=True)
class _Turn:
    """One of the eight ways to lay a picture: transpose, then mirror."""
    transposed: bool = False
    mirrored: bool = False  # left-right, after transposing
    flipped: bool = False  # top-bottom, after transposing

    def apply(self, picture: np.ndarray) -> np.ndarray:
        if self.transposed:
            picture = cv2.transpose(picture)
        if self.mirrored or self.flipped:
            picture = cv2.flip(picture, -1 if self.mirrored and self.flipped else 1 if self.mirrored else 0)
        return np.ascontiguousarray(picture)


def _turn_of(frame: av.VideoFrame) -> _Turn:
    """The display matrix, to the nearest quarter turn: it maps stored (x, y) to shown (a x + c y, b x + d y), in 16.16 fixed point."""
    data = frame.side_data.get(SideData.DISPLAYMATRIX)
    if data is None:
        return _Turn()
    a, b, _, c, d = struct.unpack("=9i", bytes(data))[:5]
    if abs(a) + abs(d) >= abs(b) + abs(c):
        return _Turn(False, a < 0, d < 0)
    return _Turn(True, c < 0, b < 0)
