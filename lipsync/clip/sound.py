"""Sound of media files: read as AUDIO, encoded beside the pictures, or copied packet by packet so that not a bit changes."""
import contextlib
import io
import logging
import os
from collections.abc import Iterator
from fractions import Fraction

import av
import numpy as np
import torch

from .. import mapped
from ..errors import AudioError, MediaError, ShapeError
from ..folders import temp_dir
from ..sound import INTEGER
from .media import Media, picture_stream, reason, sound_stream

log = logging.getLogger(__name__)

_GAP = 0.015  # seconds between two packets: less than any coder's packet, more than the jitter of timestamps in milliseconds
_OFFSET = 0.01  # seconds between the starts of sound and pictures that nobody sees
_LONGEST_OFFSET = 60.0  # seconds: more is a broken clock
_SILENCE = 600.0  # seconds: a longer gap is a broken clock too
_RESET = 0.2  # seconds backwards between two packets: recordings joined end to end, each with a clock of its own
_BELIEVED = 600.0  # seconds: headers promise anything; longer sound makes its room as it comes
_MANY_CHANNELS = 8  # from here on PyAV (to 18 at least) reads past the end of a planar frame's list of planes, and the process dies
_RELEASE = 1 << 18  # samples between two releases of a waveform in a file
_AAC_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000)
_LAYOUTS = {1: "mono", 2: "stereo", 3: "3.0", 4: "4.0", 5: "5.0", 6: "5.1", 7: "6.1(back)", 8: "7.1"}
# What players take in each container, by FFmpeg's codec names.
_MP4 = {"aac", "mp3", "ac3", "eac3", "alac", "opus", "flac"}
_COPYABLE = {
    "mp4": _MP4,
    "mov": {"aac", "mp3", "ac3", "eac3", "alac", "pcm_s16le", "pcm_s24le", "pcm_s16be", "pcm_s24be", "pcm_s32le", "pcm_f32le"},
    "matroska": {*_MP4, "vorbis", "dts", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le"},
}


def read_audio(source: "str | os.PathLike | io.BytesIO | Media") -> dict | None:
    """The first sound track as ComfyUI's AUDIO {"waveform": float32 [1, channels, samples], "sample_rate": int}; None when there is none.

    Sample 0 is the moment of the first picture, when the file has pictures: a track that starts later gets silence in front, one that
    starts earlier is cut, and holes are filled with silence, so the sound stays where it belongs. A long one is in a file (see `mapped`).
    Raises MediaError.
    """
    media = Media.of(source)
    with media.open() as container:
        stream = sound_stream(container)
        if stream is None:
            return None
        start = _start_of_pictures(container)
        rate, track, begun, end = 0, None, 0.0, None
        for frame in _interleaved(_in_one_format(_decoded(media, container, stream))):
            rate = frame.sample_rate
            samples = _as_float(frame)
            time = frame.time if frame.time is not None else end or 0.0
            if track is None:
                begun = time
                track = _Samples(len(samples), round(min(_duration(container, stream), _BELIEVED) * rate))
                lead = begun - start if start is not None else 0.0
                if _OFFSET < lead < _LONGEST_OFFSET:
                    track.skip(round(lead * rate))
            elif _GAP < time - end < _SILENCE:
                track.skip(round((time - end) * rate))
            track.append(samples)
            end = time + samples.shape[1] / rate
    if track is None:
        log.warning("%s has a sound track without sound", media.name)
        return None
    waveform = track.whole()
    if -_LONGEST_OFFSET < lead < -_OFFSET:
        waveform = waveform[..., round(-lead * rate):]
    return {"waveform": waveform, "sample_rate": rate}


class _Samples:
    """A waveform that grows, float32 [channels, samples]; `expected` is about how long it will be."""

    def __init__(self, channels: int, expected: int):
        self._buffer = mapped.zeros((channels, max(expected, 1)), folder=temp_dir())
        self._length = 0

    def skip(self, count: int) -> None:
        """Silence."""
        self._make_room(count)
        self._length += count

    def append(self, samples: np.ndarray) -> None:
        self._make_room(samples.shape[1])
        self._buffer[:, self._length:self._length + samples.shape[1]] = torch.from_numpy(np.ascontiguousarray(samples))
        if self._length // _RELEASE != (self._length + samples.shape[1]) // _RELEASE:
            mapped.release(self._buffer)
        self._length += samples.shape[1]

    def whole(self) -> torch.Tensor:
        """[1, channels, samples]"""
        return self._buffer[None, :, :self._length]

    def _make_room(self, count: int) -> None:
        size = self._buffer.shape[1]
        if self._length + count <= size:
            return
        larger = mapped.zeros((len(self._buffer), max(self._length + count, 2 * size)), folder=temp_dir())
        for part in range(0, self._length, _RELEASE):
            larger[:, part:min(part + _RELEASE, size)] = self._buffer[:, part:part + _RELEASE]
            mapped.release(self._buffer)
            mapped.release(larger)
        self._buffer = larger


def _duration(container, stream) -> float:
    """Seconds, about; a minute when the file does not say."""
    if stream.duration:
        return float(stream.duration * stream.time_base) + 1
    return container.duration / av.time_base + 1 if container.duration else 60.0


def _start_of_pictures(container) -> float | None:
    """Seconds on the container's clock of the first picture."""
    stream = picture_stream(container)
    return None if stream is None or stream.start_time is None else float(stream.start_time * stream.time_base)


def _decoded(media: Media, container, stream) -> Iterator[av.AudioFrame]:
    damaged = 0
    try:
        for packet in container.demux(stream):
            try:
                yield from packet.decode()
            except av.FFmpegError:
                damaged += 1
    except (av.FFmpegError, OSError) as error:
        log.warning("%s: the sound ends early: %s", media.name, reason(error))
    if damaged:
        log.warning("%s: %d packets of sound cannot be decoded, silence stands in", media.name, damaged)


def _in_one_format(frames: Iterator[av.AudioFrame]) -> Iterator[av.AudioFrame]:
    """A track may change its rate or channels midway (broadcasts do): all of it as it began."""
    first = convert = None
    for frame in frames:
        if first is None:
            first = (frame.sample_rate, len(frame.layout.channels), frame.layout.name)
        if (frame.sample_rate, len(frame.layout.channels)) == first[:2]:
            yield frame
        else:
            convert = convert or av.AudioResampler("fltp", first[2], first[0])
            yield from convert.resample(frame)


def _interleaved(frames: Iterator[av.AudioFrame]) -> Iterator[av.AudioFrame]:
    """Frames of many channels, channel beside channel; not a sample changes. See _MANY_CHANNELS."""
    converters = {}
    for frame in frames:
        if not frame.format.is_planar or len(frame.layout.channels) < _MANY_CHANNELS:
            yield frame
            continue
        kind = frame.format.packed.name, frame.layout.name, frame.sample_rate
        if kind not in converters:
            converters[kind] = av.AudioResampler(*kind)
        yield from converters[kind].resample(frame)


def _as_float(frame: av.AudioFrame) -> np.ndarray:
    """float32 [channels, samples], full scale 1."""
    samples = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, len(frame.layout.channels)).T
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - 128) / 128
    if samples.dtype.kind == "i":
        return samples.astype(np.float32) / -float(np.iinfo(samples.dtype).min)
    return samples.astype(np.float32)


class EncodedSound:
    """AUDIO as an AAC track, or losslessly in 24 bits: FLAC, in QuickTime files ALAC. Samples are converted a second at a time; the
    waveform is never copied whole."""

    def __init__(self, container: av.container.OutputContainer, audio: dict, lossless: bool = False):
        self._samples, self._rate = _waveform_of(audio)
        channels = len(self._samples) if len(self._samples) in _LAYOUTS else 1
        if channels != len(self._samples):
            log.warning("the sound has %d channels, written as their mean: 8 at most are possible", len(self._samples))
        self._layout = _LAYOUTS[channels]
        self._done, self._convert, self._form = 0, None, "flt"  # interleaved, see _MANY_CHANNELS; the encoder takes it apart
        if lossless:
            codec, form = ("alac", "s32p") if container.format.name == "mov" else ("flac", "s32")
            self._form = "s32"
            if codec == "alac" and channels == 8:
                self._layout = "7.1(wide)"  # it knows no other eight
            self.stream = container.add_stream(codec, rate=self._rate, layout=self._layout)
            self.stream.codec_context.format = form
            return
        rate = min((rate for rate in _AAC_RATES if rate >= self._rate), default=_AAC_RATES[-1])
        if rate != self._rate:
            log.info("AAC has no %d Hz: the sound is written at %d Hz", self._rate, rate)
            self._convert = av.AudioResampler("fltp", self._layout, rate)
        # 96 kbit/s a channel is transparent at 44.1 and 48 kHz; AAC cannot fill more than about 5 bits a sample
        self.stream = container.add_stream("aac", rate=rate, layout=self._layout, bit_rate=min(96_000, 4 * rate) * channels)

    def until(self, seconds: Fraction) -> Iterator[av.Packet]:
        """The packets up to `seconds`; silence after the end of the waveform."""
        end = round(seconds * self._rate)
        while self._done < end:
            yield from self._encode(min(end, self._done + self._rate))

    def finish(self, seconds: Fraction) -> Iterator[av.Packet]:
        yield from self.until(seconds)
        for frame in self._convert.resample(None) if self._convert else ():
            yield from self.stream.encode(frame)
        yield from self.stream.encode(None)

    def close(self) -> None:
        pass

    def _encode(self, end: int) -> Iterator[av.Packet]:
        block = torch.zeros(len(self._samples), end - self._done)
        piece = self._samples[:, self._done:end]
        zero, scale = INTEGER.get(piece.dtype, (0, 1))
        block[:, :piece.shape[1]] = (piece.float() - zero) / scale
        mapped.release(self._samples)
        if len(block) not in _LAYOUTS:
            block = block.mean(0, keepdim=True)
        block = block.nan_to_num(0.0).clamp(-1, 1).contiguous().numpy()
        if self._form == "s32":
            block = (block * 2.0**23).round().clip(-(2**23), 2**23 - 1).astype(np.int32) << 8
        block = np.ascontiguousarray(block.T).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(block, format=self._form, layout=self._layout)
        frame.sample_rate, frame.pts, frame.time_base = self._rate, self._done, Fraction(1, self._rate)
        self._done = end
        for converted in self._convert.resample(frame) if self._convert else (frame,):
            yield from self.stream.encode(converted)


def _waveform_of(audio: dict) -> tuple[torch.Tensor, int]:
    """[channels, samples] and the rate of an AUDIO; of a batch the first."""
    if not isinstance(audio, dict) or "waveform" not in audio or not int(audio.get("sample_rate", 0)) > 0:
        raise AudioError('sound is a dict {"waveform": [1, channels, samples], "sample_rate": Hz}, or a media file')
    waveform = torch.as_tensor(audio["waveform"]).detach()
    if waveform.ndim == 3:
        if len(waveform) > 1:
            log.warning("the AUDIO is a batch of %d: the first is written", len(waveform))
        waveform = waveform[0]
    elif waveform.ndim == 1:
        waveform = waveform[None]
    if waveform.ndim != 2 or 0 in waveform.shape:
        raise ShapeError(f"a waveform is [1, channels, samples] with at least one sample, not {list(audio['waveform'].shape)}")
    return waveform, int(audio["sample_rate"])


class CopiedSound:
    """The packets of a file's sound track as they are, moved so that time 0 is the file's first picture, if any, or its own start."""

    def __init__(self, container: av.container.OutputContainer, media: Media):
        self._media = media
        self._source = media.open()
        stream = sound_stream(self._source)
        self.stream = container.add_stream_from_template(stream)
        start = _start_of_pictures(self._source)
        begin = float((stream.start_time or 0) * stream.time_base)
        start = begin if start is None or not _OFFSET < abs(begin - start) < _LONGEST_OFFSET else start
        self._ticks = stream.time_base
        self._shift = round(start / self._ticks)
        self._codec = stream.codec_context.name
        self._usual = 0  # duration of the packet before, in ticks
        self._packets = self._moved(self._source.demux(stream))
        self._next = next(self._packets, None)

    @classmethod
    def possible(cls, media: Media, container_format: str) -> bool:
        """Whether the track exists in a form that this container takes. MediaError when the file cannot be opened or has no sound."""
        with media.open() as source:
            stream = sound_stream(source)
            if stream is None:
                raise MediaError(f"{media.name} has no sound track")
            if stream.codec_context.name.removesuffix("float") not in _COPYABLE[container_format]:
                return False
            packet = next((packet for packet in source.demux(stream) if packet.size), None)
            return packet is not None and packet.pts is not None

    def until(self, seconds: Fraction) -> Iterator[av.Packet]:
        """The packets that end by `seconds`."""
        while self._next is not None and (self._next.pts + (self._next.duration or self._usual)) * self._ticks <= seconds:
            yield self._take()

    def finish(self, seconds: Fraction) -> Iterator[av.Packet]:
        """The rest up to `seconds`. The last packet ends there too: by its duration, its bits stay (of PCM, by its bits)."""
        yield from self.until(seconds)
        left = round(seconds / self._ticks) - self._next.pts if self._next is not None else 0
        if left > 0:
            yield self._cut(self._take(), left)

    def _take(self) -> av.Packet:
        packet, self._next = self._next, next(self._packets, None)
        if not packet.duration:  # Matroska leaves them out; MP4 needs the last one
            packet.duration = max(1, self._next.pts - packet.pts) if self._next is not None else self._usual
        self._usual = packet.duration
        packet.stream = self.stream
        return packet

    def _cut(self, packet: av.Packet, left: int) -> av.Packet:
        if self._codec.startswith("pcm_") and packet.duration:
            short = av.Packet(bytes(packet)[:packet.size // packet.duration * left])
            short.pts, short.dts, short.time_base, short.stream = packet.pts, packet.dts, packet.time_base, self.stream
            packet = short
        packet.duration = left
        return packet

    def close(self) -> None:
        self._source.close()

    def _moved(self, packets: Iterator[av.Packet]) -> Iterator[av.Packet]:
        last = expected = None  # the packet before: its time, and where it ends
        with contextlib.suppress(av.FFmpegError, OSError):  # a damaged end: what is there is kept
            for packet in packets:
                if not packet.size or packet.pts is None:
                    continue
                packet.pts -= self._shift
                packet.dts = packet.dts - self._shift if packet.dts is not None else packet.pts
                if expected is not None and not -_RESET < (packet.dts - expected) * self._ticks < _SILENCE:  # the clock was set anew: go on
                    jump = packet.dts - expected
                    self._shift += jump
                    packet.pts, packet.dts = packet.pts - jump, packet.dts - jump
                elif last is not None and packet.dts <= last:
                    continue
                last, usual = packet.dts, packet.duration or (packet.dts - last if last is not None else 0)
                expected = last + usual
                yield packet
