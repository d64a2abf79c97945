"""Sound: read as it is, in its place in time; written beside the pictures unchanged, exactly as long as they are."""
import io
import logging
from fractions import Fraction

import av
import numpy as np
import pytest
import torch
from latentsync_rtx.lipsync import mapped
from latentsync_rtx.lipsync.clip import ClipWriter, copies_sound, open_clip, read_audio, sound
from latentsync_rtx.lipsync.errors import AudioError, MediaError, ShapeError


def write(path, frames=25, rate=25, size=(64, 48), **options):
    picture = np.full((size[1], size[0], 3), 120, np.uint8)
    with ClipWriter(path, *size, rate, preset="ultrafast", **options) as writer:
        for _ in range(frames):
            writer.write(picture)
    return path


def packets(path) -> list[bytes]:
    with av.open(str(path)) as container:
        return [bytes(packet) for packet in container.demux(audio=0) if packet.size]


def sound_seconds(path) -> float:
    """As players see it, from the header."""
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        return float(stream.duration * stream.time_base)


def wav(path, samples: np.ndarray, rate: int, codec="pcm_s16le", form="s16"):
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(samples)]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        packed = np.ascontiguousarray(samples.T).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packed, format=form, layout=layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def same_tones(first: torch.Tensor, second: torch.Tensor) -> bool:
    """After a lossy coder: equal but for a 50th of the signal's power, when shifted by up to a millisecond, a tick of Matroska."""
    count = min(first.shape[-1], second.shape[-1]) - 48
    first, second = first[..., 24:24 + count], second[..., :count + 48]
    return min(((first - second[..., n:n + count]) ** 2).mean() for n in range(49)) < 0.02 * (first ** 2).mean()


@pytest.mark.parametrize(("codec", "form", "dtype"), [
    ("pcm_s16le", "s16", np.int16), ("pcm_u8", "u8", np.uint8), ("pcm_s32le", "s32", np.int32), ("pcm_f32le", "flt", np.float32),
    ("pcm_f64le", "dbl", np.float64),
])
@pytest.mark.parametrize("channels", [1, 2, 6])
def test_samples_are_read_exactly(tmp_path, media, codec, form, dtype, channels):
    tone = media.tone(0.25, 8000, channels)
    scale = {"s16": 2 ** 15, "s32": 2 ** 31, "u8": 2 ** 7}.get(form, 1)
    stored = (tone.astype(np.float64) * scale + (128 if form == "u8" else 0)).astype(dtype)
    audio = read_audio(wav(tmp_path / "a.wav", stored, 8000, codec, form))
    assert audio["sample_rate"] == 8000 and audio["waveform"].dtype == torch.float32 and audio["waveform"].shape == (1, channels, 2000)
    assert np.abs(audio["waveform"][0].numpy() - tone).max() <= 1 / scale if scale > 1 else np.array_equal(audio["waveform"][0], tone)


def test_no_sound(tmp_path, media):  # F20
    path = media.make_clip(tmp_path / "a.mp4", 3)
    assert read_audio(path) is None
    with pytest.raises(MediaError, match="no sound"):
        write(tmp_path / "out.mp4", audio=path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_sound_keeps_its_place_beside_the_pictures(tmp_path, media, suffix):  # F22
    """The sound track starts 0.3 s after the pictures: the first 0.3 s are silent; or before: it is cut."""
    late = read_audio(media.make_clip(tmp_path / f"late.{suffix}", 25, sound=0.6, sound_pts=round(0.3 * 44100)))["waveform"]
    loud = (late[0].abs().amax(0) > 0.05).nonzero()[0].item() / 44100
    assert abs(loud - 0.3) < 0.03
    times = [k + 10 for k in range(25)]
    early = read_audio(media.make_clip(tmp_path / f"early.{suffix}", 25, sound=1.4, times=times, ticks=Fraction(1, 25)))["waveform"]
    assert abs(early.shape[-1] / 44100 - 1.0) < 0.06


def test_a_hole_is_filled_with_silence(tmp_path, media):
    path = media.make_clip(tmp_path / "a.mkv", 50, sound=2.0, sound_codec="flac")
    with av.open(str(path)) as source, av.open(str(tmp_path / "hole.mkv"), "w") as target:
        streams = {stream.index: target.add_stream_from_template(stream) for stream in source.streams}
        for packet in source.demux():
            if packet.size and not (packet.stream.type == "audio" and 0.8 < packet.pts * packet.time_base < 1.2):
                packet.stream = streams[packet.stream.index]
                target.mux(packet)
    whole, holed = read_audio(path)["waveform"], read_audio(tmp_path / "hole.mkv")["waveform"]
    assert abs(whole.shape[-1] - holed.shape[-1]) < 200
    assert holed[..., int(.9 * 44100):int(1.1 * 44100)].abs().max() < 1e-3
    assert same_tones(whole[..., int(1.4 * 44100):], holed[..., int(1.4 * 44100):])


def test_damaged_sound_is_passed_over(tmp_path, media, caplog):
    path = media.make_clip(tmp_path / "a.mp4", 25, sound=1.0)
    with av.open(str(path)) as container:
        places = [(packet.pos, packet.size) for packet in container.demux(audio=0) if packet.size]
    data = bytearray(path.read_bytes())
    position, size = places[20]
    data[position:position + size] = b"\xff" * size
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        audio = read_audio(path)
    assert abs(audio["waveform"].shape[-1] - 44100) < 3 * 1024


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 44100, 48000, 96000])
@pytest.mark.parametrize("channels", [1, 2, 6, 8])
def test_audio_keeps_its_rate_and_channels(tmp_path, media, rate, channels):  # F19
    waveform = torch.from_numpy(media.tone(1.0, rate, channels))[None]
    audio = read_audio(write(tmp_path / "a.mp4", audio={"waveform": waveform, "sample_rate": rate}))
    assert audio["sample_rate"] == rate and audio["waveform"].shape[:2] == (1, channels)
    low = channels - 1 if channels >= 6 else channels  # the last of 5.1 in AAC order is low-passed in our tone's range
    assert same_tones(waveform[:, :min(low, 3)], audio["waveform"][:, :min(low, 3)])
    assert sound_seconds(tmp_path / "a.mp4") == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("rate", [4000, 18900, 37800, 192000])
def test_rates_that_aac_has_not(tmp_path, media, rate):
    waveform = torch.from_numpy(media.tone(1.0, rate))[None]
    audio = read_audio(write(tmp_path / "a.mp4", audio={"waveform": waveform, "sample_rate": rate}))
    expected = torch.from_numpy(media.tone(1.0, audio["sample_rate"]))[None]
    assert audio["sample_rate"] == {4000: 8000, 18900: 22050, 37800: 44100, 192000: 96000}[rate]
    assert same_tones(expected, audio["waveform"])
    assert sound_seconds(tmp_path / "a.mp4") == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("make", [
    lambda tone: tone, lambda tone: tone.half(), lambda tone: tone.double(), lambda tone: (tone * 32767).short(), lambda tone: tone[0],
    lambda tone: tone.repeat(2, 1, 1), lambda tone: tone.numpy(), lambda tone: tone.requires_grad_(), lambda tone: tone.mT.contiguous().mT,
])
def test_waveforms_of_every_kind(tmp_path, media, make):  # F19
    tone = torch.from_numpy(media.tone(1.0, 16000, 2))[None]
    audio = read_audio(write(tmp_path / "a.mp4", audio={"waveform": make(tone.clone()), "sample_rate": 16000}))
    assert same_tones(tone, audio["waveform"])


def test_what_is_no_audio_is_refused_before_any_work(tmp_path):
    for audio in [{"waveform": torch.zeros(1, 2, 0), "sample_rate": 16000}, {"waveform": torch.zeros(1, 1, 1, 9), "sample_rate": 16000}]:
        with pytest.raises(ShapeError, match="waveform"), ClipWriter(tmp_path / "a.mp4", 64, 48, 25, audio=audio):
            pass
    for audio in [{}, {"waveform": torch.zeros(1, 1, 9)}, {"waveform": torch.zeros(1, 1, 9), "sample_rate": 0}, 5]:
        with pytest.raises(AudioError, match="sample_rate"), ClipWriter(tmp_path / "a.mp4", 64, 48, 25, audio=audio):
            pass
    assert list(tmp_path.iterdir()) == []


def test_odd_values_do_no_harm(tmp_path):
    wild = torch.tensor([float("nan"), float("inf"), -float("inf"), 5.0, -5.0] * 3200)[None, None]
    assert read_audio(write(tmp_path / "a.mp4", audio={"waveform": wild, "sample_rate": 16000}))["waveform"].isfinite().all()


def test_more_channels_than_aac_has(tmp_path, media, caplog):
    tone = torch.from_numpy(np.repeat(media.tone(1.0), 12, axis=0))[None]
    with caplog.at_level(logging.WARNING):
        audio = read_audio(write(tmp_path / "a.mp4", audio={"waveform": tone, "sample_rate": 16000}))
    assert "12 channels" in caplog.text and same_tones(tone[:, :1], audio["waveform"])


@pytest.mark.parametrize("seconds", [0.0125, 0.4, 2.7])
@pytest.mark.parametrize("suffix", ["mp4", "mov", "mkv"])
def test_sound_is_as_long_as_the_pictures(tmp_path, media, seconds, suffix):  # F16, F17
    """Too short: silence follows. Too long: it ends with the pictures."""
    waveform = torch.from_numpy(media.tone(seconds, 44100, 2))[None]
    path = write(tmp_path / f"a.{suffix}", 30, Fraction(30000, 1001), audio={"waveform": waveform, "sample_rate": 44100})
    heard = read_audio(path)["waveform"]
    assert abs(heard.shape[-1] - 1.001 * 44100) < 1024
    if suffix != "mkv":
        assert sound_seconds(path) == pytest.approx(1.001, abs=1e-3)
    assert same_tones(torch.nn.functional.pad(waveform, (0, 44100))[..., :44100], heard[..., :44100])


@pytest.mark.parametrize(("codec", "suffix"), [
    ("aac", "mp4"), ("aac", "mov"), ("aac", "mkv"), ("mp3", "mp4"), ("flac", "mp4"), ("libopus", "mkv"), ("libopus", "mp4"), ("ac3", "mp4"),
    ("pcm_s16le", "mov"), ("pcm_s16le", "mkv"), ("alac", "mp4"),
])
def test_a_track_is_copied_bit_for_bit(tmp_path, media, codec, suffix):
    rate = 48000
    source = media.make_clip(tmp_path / "source.mkv", 50, sound=2.0, sound_codec=codec, sound_rate=rate)
    path = write(tmp_path / f"out.{suffix}", 40, audio=source)
    kept, original = packets(path), packets(source)
    assert b"".join(original).startswith(b"".join(kept))
    before, after = read_audio(source), read_audio(path)
    count = after["waveform"].shape[-1]
    assert abs(count - 1.6 * rate) < 2400 and after["sample_rate"] == rate
    # players skip a coder's run-in by the container's notes, which not every container can keep: find it again
    shift = next(n for n in range(4097) if torch.equal(before["waveform"][..., 4000:5000], after["waveform"][..., 4000 + n:5000 + n])
                 or torch.equal(before["waveform"][..., 4000 + n:5000 + n], after["waveform"][..., 4000:5000]))
    assert shift / rate < 0.03


def test_copied_sound_that_is_shorter_than_the_pictures(tmp_path, media):
    source = media.make_clip(tmp_path / "source.mp4", 25, sound=1.0)
    path = write(tmp_path / "out.mp4", 75, audio=source)
    assert packets(path) == packets(source)


@pytest.mark.parametrize("make", [str, lambda path: path, lambda path: io.BytesIO(path.read_bytes())])
def test_a_wave_file_becomes_aac_in_mp4(tmp_path, media, make):
    tone = media.tone(1.0, 16000)
    source = wav(tmp_path / "speech.wav", (tone * 32767).astype(np.int16), 16000)
    audio = read_audio(write(tmp_path / "a.mp4", audio=make(source)))
    assert audio["sample_rate"] == 16000 and same_tones(torch.from_numpy(tone)[None], audio["waveform"])


def test_broadcast_aac_is_copied_too(tmp_path, media):
    """AAC in a transport stream has other headers (ADTS) than in MP4, and its clock starts at 1.4 s."""
    source = media.make_clip(tmp_path / "source.ts", 50, sound=2.0)
    path = write(tmp_path / "out.mp4", 50, audio=source)
    assert same_tones(read_audio(source)["waveform"], read_audio(path)["waveform"])
    assert 60 < len(packets(path)) < 90


def test_sound_and_pictures_alternate_in_the_file(tmp_path, media):
    """A player that streams the file must not seek back and forth between a block of pictures and a block of sound."""
    rng = np.random.default_rng(0)
    with ClipWriter(tmp_path / "a.mp4", 64, 48, 25, preset="ultrafast",
                    audio={"waveform": torch.from_numpy(media.tone(8.0))[None], "sample_rate": 16000}) as writer:
        for _ in range(200):
            writer.write(rng.integers(0, 256, (48, 64, 3), dtype=np.uint8))
    with av.open(str(tmp_path / "a.mp4")) as container:
        places = sorted((packet.pos, packet.stream.type, packet.dts * packet.time_base) for packet in container.demux() if packet.size)
    newest = {"video": 0.0, "audio": 0.0}
    for _, kind, time in places:
        newest[kind] = float(time)
        assert abs(newest["video"] - newest["audio"]) < 1.5


@pytest.mark.parametrize(("suffix", "codec"), [("mp4", "flac"), ("mkv", "flac"), ("mov", "alac")])
@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (44100, 2), (48000, 6), (48000, 8), (96000, 2)])
def test_lossless_sound_is_the_audio_to_the_bit(tmp_path, media, suffix, codec, rate, channels):  # F19
    samples = np.random.default_rng(0).integers(-(2**23), 2**23, (channels, rate)).astype(np.float32) / 2**23
    path = write(tmp_path / f"a.{suffix}", audio={"waveform": torch.from_numpy(samples)[None], "sample_rate": rate}, lossless=True)
    assert media.facts(path)["audio"].codec == codec
    kept = read_audio(path)
    assert kept["sample_rate"] == rate and np.array_equal(kept["waveform"][0].numpy(), samples)


def test_lossless_sound_is_as_long_as_the_pictures(tmp_path):
    given = {"waveform": torch.full((1, 1, 24000), 0.5), "sample_rate": 16000}
    kept = read_audio(write(tmp_path / "a.mp4", audio=given, lossless=True))["waveform"][0, 0]
    assert len(kept) == 16000 and (kept == 0.5).all()
    kept = read_audio(write(tmp_path / "b.mp4", frames=50, audio=given, lossless=True))["waveform"][0, 0]
    assert len(kept) == 32000 and (kept[:24000] == 0.5).all() and not kept[24000:].any()


def joined(path, media):
    """Two recordings of 1.2 s end to end, the second's clock half a frame after the first's start."""
    for name, late in (("a", 0), ("b", 20)):
        media.make_clip(path.with_name(f"{name}.ts"), 30, times=[late + 40 * k for k in range(30)], ticks=Fraction(1, 1000), first=30 * (name == "b"),
                        options={"bf": "0"}, sound=1.2, sound_rate=48000)
    path.write_bytes(path.with_name("a.ts").read_bytes() + path.with_name("b.ts").read_bytes())
    return path


def test_recordings_joined_end_to_end(tmp_path, media):
    """Nothing of the second is lost, neither pictures nor sound, read or copied."""
    path = joined(tmp_path / "ab.ts", media)
    clip = open_clip(path)
    assert clip.rate == 25 and media.numbers(clip.frames()) == list(range(60))
    assert read_audio(path)["waveform"].shape[-1] / 48000 == pytest.approx(2.4, abs=0.1)
    copied = write(tmp_path / "copy.mp4", frames=75, audio=path)
    assert len(packets(copied)) == len(packets(path))
    assert sound_seconds(copied) == pytest.approx(2.4, abs=0.1)


def test_what_can_be_copied_is_told(tmp_path):
    speech = wav(tmp_path / "a.wav", np.zeros((1, 16000), np.int16), 16000)
    assert not copies_sound(speech, "out.mp4") and copies_sound(speech, "out.mkv") and copies_sound(speech, "out.mov")
    assert copies_sound(write(tmp_path / "a.mp4", audio=read_audio(speech)), "out.mp4")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.float16])
def test_integer_samples_are_written_at_their_level(tmp_path, dtype):  # F19
    wave = 0.5 * torch.sin(torch.arange(16000) / 8)
    given = {torch.uint8: (wave * 127 + 128), torch.int16: wave * 32767, torch.int32: wave * (2**31 - 1)}.get(dtype, wave).to(dtype)
    kept = read_audio(write(tmp_path / "a.mp4", audio={"waveform": given[None, None], "sample_rate": 16000}, lossless=True))["waveform"][0, 0]
    assert (kept - wave).abs().max() < 0.02


def test_a_long_track_is_read_into_a_file(tmp_path, monkeypatch):  # F32
    noise = np.random.default_rng(0).integers(-9000, 9000, (2, 700_000)).astype(np.int16)
    path = wav(tmp_path / "a.wav", noise, 48000)
    expected = read_audio(path)["waveform"]
    assert not mapped.is_mapped(expected)
    monkeypatch.setattr(mapped.zeros, "__kwdefaults__", {**mapped.zeros.__kwdefaults__, "memory_limit_bytes": 1000})
    for seconds in (60.0, 1.0):  # what the file promises: enough, and too little
        monkeypatch.setattr(sound, "_duration", lambda *_, seconds=seconds: seconds)
        waveform = read_audio(path)["waveform"]
        assert mapped.is_mapped(waveform) and torch.equal(waveform, expected)
    monkeypatch.undo()
    copy = read_audio(write(tmp_path / "b.mkv", frames=200, audio={"waveform": waveform, "sample_rate": 48000}, lossless=True))
    assert torch.equal(copy["waveform"][..., : 48000 * 8], expected[..., : 48000 * 8])
