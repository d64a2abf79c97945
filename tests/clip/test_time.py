"""Frame k of a clip is what the file shows at k/rate: any rate, constant or not, wherever its clock starts."""
from fractions import Fraction

import av
import numpy as np
import pytest
from latentsync_rtx.lipsync.clip import open_clip
from latentsync_rtx.lipsync.errors import MediaError

NTSC = Fraction(30000, 1001)


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "mov", "ts", "avi"])
@pytest.mark.parametrize("rate", [8, 12.5, 16, Fraction(24000, 1001), 24, 25, NTSC, 30, 50, Fraction(60000, 1001), 60, 120])
def test_a_constant_rate_is_told_exactly(tmp_path, media, suffix, rate):  # F23
    count = 3 * round(float(rate))
    clip = open_clip(media.make_clip(tmp_path / f"a.{suffix}", count, rate=rate))
    assert (clip.rate, clip.frame_count) == (Fraction(rate), count)
    assert media.numbers(clip.frames_at([0, 1, count // 2, count - 1])) == [0, 1, count // 2, count - 1]


@pytest.mark.parametrize("rate", [16, Fraction(24000, 1001), 24, NTSC, 30, 50, 60])
@pytest.mark.parametrize("work", [25, 24, NTSC])
def test_retiming_shows_what_is_on_screen(tmp_path, media, rate, work):  # F23
    seconds = 4
    count = int(seconds * Fraction(rate))
    clip = open_clip(media.make_clip(tmp_path / "a.mp4", count, rate=rate), rate=work)
    assert clip.rate == work and abs(clip.frame_count - count / Fraction(rate) * work) <= Fraction(1, 2)
    seen = media.numbers(clip.frames())
    shown = [min(count - 1, int(k / clip.rate * rate)) for k in range(clip.frame_count)]
    assert seen == shown


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_no_drift_over_ten_minutes(tmp_path, media, suffix):  # F23: under one frame a minute; here under one in all
    count = 18000
    path = media.make_clip(tmp_path / f"a.{suffix}", count, rate=NTSC, size=(16, 16), options={"preset": "ultrafast", "g": "300"})
    clip = open_clip(path)
    assert (clip.rate, clip.frame_count) == (NTSC, count)
    clip = open_clip(path, rate=25)
    assert clip.frame_count == round(count / NTSC * 25)
    probes = [0, 1500, 7500, 15000]
    assert media.numbers(clip.frames_at(probes)) == [int(k / Fraction(25) * NTSC) for k in probes]


def test_variable_rate_goes_by_timestamps(tmp_path, media):  # F24
    """A phone: 30 fps at first, then dim light, 15 fps, then a hiccup of half a second, then 30 again; timestamps jitter by 2 ms."""
    steps = [33] * 30 + [66] * 15 + [500] + [33] * 30
    jitter = np.random.default_rng(1).integers(-2, 3, len(steps))
    times = (np.cumsum([0, *steps[:-1]]) + jitter - jitter[0]).tolist()
    path = media.make_clip(tmp_path / "phone.mkv", len(steps), rate=30, times=times, ticks=Fraction(1, 1000))
    for rate in (None, 25, 60):
        clip = open_clip(path, rate=rate)
        assert clip.rate in ((rate,) if rate else (30, NTSC))
        seen = media.numbers(clip.frames())
        assert len(seen) == clip.frame_count and abs(clip.frame_count - sum(steps) / 1000 * clip.rate) <= 1
        for k, shown in enumerate(seen):
            now = 1000 * k / clip.rate
            assert times[shown] <= now + 5 and (shown + 1 == len(times) or times[shown + 1] > now - 5)


def test_a_dropped_frame_does_not_pull_the_rest_forward(tmp_path, media):  # F24
    times = [k for k in range(200) if k != 90]
    clip = open_clip(media.make_clip(tmp_path / "a.mp4", 199, times=times, ticks=Fraction(1, 25)))
    assert (clip.rate, clip.frame_count) == (25, 200)
    assert media.numbers(clip.frames()) == [*range(90), 89, *range(90, 199)]


@pytest.mark.parametrize(("suffix", "start"), [("mkv", 7.5), ("ts", 3600), ("ts", 0.04), ("mp4", 12), ("flv", 3)])
def test_a_clock_that_starts_late(tmp_path, media, suffix, start):
    times = [round(start * 25) + k for k in range(30)]
    clip = open_clip(media.make_clip(tmp_path / f"a.{suffix}", 30, times=times, ticks=Fraction(1, 25), options={"g": "10"}))
    assert (clip.rate, clip.frame_count) == (25, 30)
    assert media.numbers(clip.frames()) == list(range(30))
    assert media.numbers(clip.frames_at([25, 11, 12, 3])) == [25, 11, 12, 3]


def test_an_edit_list_that_cuts_the_head(tmp_path, media):
    """Editors trim without encoding again: the first frames are in the file but not in the film."""
    path = media.make_clip(tmp_path / "a.mp4", 40, options={"bf": "0"})
    data = bytearray(path.read_bytes())
    start = data.find(b"elst") + 4 + 4 + 4 + 4  # flags, count, duration; then the media time, in ticks of 1/12800 s
    data[start:start + 4] = (10 * 512).to_bytes(4, "big")
    path.write_bytes(data)
    clip = open_clip(path)
    seen = media.numbers(clip.frames())
    assert len(seen) == clip.frame_count == 30
    assert seen == list(range(10, 40))


def test_a_broken_clock_is_not_believed(tmp_path, media):
    """Two recordings one after the other, the clock of the second a day later: 20 frames, not two million."""
    a, b = media.make_clip(tmp_path / "a.ts", 10), media.make_clip(
        tmp_path / "b.ts", 10, times=range(80_000 * 25, 80_000 * 25 + 10), ticks=Fraction(1, 25), first=10)
    (tmp_path / "both.ts").write_bytes(a.read_bytes() + b.read_bytes())
    clip = open_clip(tmp_path / "both.ts")
    assert clip.frame_count == 20
    assert media.numbers(clip.frames()) == list(range(20))


@pytest.mark.parametrize("count", [1, 2, 12, 16, 17, 25])
def test_short_clips(tmp_path, media, count):  # F13
    clip = open_clip(media.make_clip(tmp_path / "a.mp4", count))
    assert (clip.rate, clip.frame_count) == (25, count)
    assert media.numbers(clip.frames()) == list(range(count))


def test_a_slide_show(tmp_path, media):
    """Two pictures, five seconds each, are not two frames a ten-seconds at a rate of 0.2."""
    path = media.make_clip(tmp_path / "a.mkv", 3, times=[0, 5000, 10000], ticks=Fraction(1, 1000), rate=1, codec="ffv1", pix_fmt="bgr0")
    clip = open_clip(path, rate=25)
    assert media.numbers(clip.frames_at([0, 124, 125, 249])) == [0, 0, 1, 1]
    assert open_clip(path).frame_count >= 2


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts", "avi"])
@pytest.mark.parametrize(("start", "duration", "shown"), [(0.4, 0.8, (10, 30)), (0, 0.2, (0, 5)), (1.6, 0, (40, 50)), (0.41, 9, (11, 50)), (0, 0, (0, 50))])
def test_only_a_part(tmp_path, media, suffix, start, duration, shown):
    """The pictures that ComfyUI's own trim keeps, `int(time / tick)` on the file's clock."""
    path = media.make_clip(tmp_path / f"a.{suffix}", 50, options={"bf": "0"} if suffix == "avi" else None)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        begin, end = (int(time / stream.time_base) for time in (start, start + duration))
        stamps = sorted(packet.pts for packet in container.demux(stream) if packet.size and packet.pts is not None)
    kept = [k for k, stamp in enumerate(stamps) if stamp >= begin and (not duration or stamp < end)] if start or duration else list(range(50))
    clip = open_clip(path, start=start, duration=duration)
    assert media.numbers(clip.frames()) == kept
    assert clip.frame_count == len(kept) and clip.rate == 25
    if suffix == "mp4" and start != 0.41:  # clocks that start at 0, and a time that is a frame's
        assert kept == list(range(*shown))
    assert media.numbers(clip.frames_at(range(clip.frame_count - 1, -1, -1))) == kept[::-1]


def test_a_part_at_another_rate_and_of_a_variable_one(tmp_path, media):
    path = media.make_clip(tmp_path / "a.mp4", 60, rate=30)
    assert media.numbers(open_clip(path, 25, start=1.0, duration=0.5).frames()) == [30 + k * 6 // 5 for k in range(13)]  # 12.5 frames
    times = np.cumsum([0, *[40, 120, 40, 80, 200] * 8])[:40]
    path = media.make_clip(tmp_path / "b.mp4", 40, times=times.tolist(), ticks=Fraction(1, 1000))
    whole, part = open_clip(path, 25), open_clip(path, 25, start=0.96, duration=0.96)
    assert media.numbers(part.frames()) == media.numbers(whole.frames_at(range(24, 48)))
    assert len({open_clip(path).fingerprint, whole.fingerprint, part.fingerprint}) == 3


def test_a_part_of_a_file_without_a_clock(tmp_path, media):
    """H.264 with B-frames in AVI: its pictures are counted."""
    path = media.make_clip(tmp_path / "a.avi", 50)
    assert media.numbers(open_clip(path, start=0.4, duration=0.8).frames()) == list(range(10, 30))


def test_a_part_that_is_not_there(tmp_path, media):
    path = media.make_clip(tmp_path / "a.mp4", 10)
    with pytest.raises(MediaError, match=r"a\.mp4 has no pictures from second 5 on for 2 s"):
        open_clip(path, start=5, duration=2)
