"""Writing clips: what comes out is what went in, and a file is there only when it is whole."""
import errno
import itertools
import logging
import os
import stat
import subprocess
import sys
import threading
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from latentsync_rtx.lipsync.clip import ClipWriter, Look, open_clip, write
from latentsync_rtx.lipsync.errors import LatentSyncError, MediaError, ShapeError

FAST = {"preset": "ultrafast"}


def smooth(count=6, width=96, height=64) -> np.ndarray:
    """Saturated colours that change slowly, so that 4:2:0 and the coder lose little."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    frames = [np.stack([200 * x + 30, 200 * y + 20, 200 * (1 - x) * (0.5 + k / count / 2) + 20], -1) for k in range(count)]
    return np.stack(frames).astype(np.uint8)


@pytest.mark.parametrize("suffix", ["mp4", "m4v", "mov", "mkv", "MP4"])
def test_frames_come_back(tmp_path, media, suffix):
    path = tmp_path / f"out.{suffix}"
    with ClipWriter(path, 64, 48, Fraction(30000, 1001), **FAST) as writer:
        for k in range(70):
            writer.write(media.picture(k))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    clip = open_clip(path)
    assert (clip.width, clip.height, clip.rate, clip.frame_count) == (64, 48, Fraction(30000, 1001), 70)
    assert media.numbers(clip.frames()) == list(range(70))
    stream = media.facts(path)["video"]
    assert (stream.codec, stream.pix_fmt, stream.start) == ("h264", "yuv420p", 0)
    assert path.stat().st_size > 0 and stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444


@pytest.mark.parametrize("count", [1, 2, 12, 16, 17, 25, 300])
def test_as_many_out_as_in(tmp_path, media, count):  # F13
    audio = {"waveform": torch.zeros(1, 1, 16000 * count // 25), "sample_rate": 16000}
    with ClipWriter(tmp_path / "a.mp4", 64, 48, 25, audio, **FAST) as writer:
        for k in range(count):
            writer.write(media.picture(k))
    clip = open_clip(tmp_path / "a.mp4")
    assert clip.frame_count == count and media.numbers(clip.frames()) == list(range(count))
    facts = media.facts(tmp_path / "a.mp4")
    for kind in ("video", "audio"):
        assert facts[kind].seconds == pytest.approx(count / 25, abs=1e-3)


@pytest.mark.parametrize("look", [
    Look(), Look(2, 2, 2), Look(6, 6, 6), Look(5, 5, 6), Look(9, 9, 16), Look(1, 1, 13), Look(2, 2, 2, Fraction(16, 11)),
])
def test_colours_survive_under_every_look(tmp_path, look):
    frames = smooth()
    with ClipWriter(tmp_path / "a.mp4", 96, 64, 25, look=look, crf=4) as writer:
        for frame in frames:
            writer.write(frame)
    clip = open_clip(tmp_path / "a.mp4")
    assert clip.look == look
    error = np.stack(list(clip.frames())).astype(int) - frames
    assert np.abs(error.mean((0, 1, 2))).max() < 1.8 and np.abs(error).mean() < 2  # reading is about a level dark


@pytest.mark.parametrize("tags", [
    {}, {"colorspace": 6}, {"colorspace": 1, "color_primaries": 1, "color_trc": 1}, {"colorspace": 6, "color_range": 2},
])
def test_decode_then_encode_keeps_colours(tmp_path, media, tags):
    frames = smooth()
    source = media.make_clip(tmp_path / "a.mp4", 6, size=(96, 64), pictures=frames, tags=tags, options={"qp": "4"})
    clip = open_clip(source)
    with ClipWriter(tmp_path / "b.mp4", clip.width, clip.height, clip.rate, look=clip.look, crf=4) as writer:
        for frame in clip.frames():
            writer.write(frame)
    with av.open(str(source)) as first, av.open(str(tmp_path / "b.mp4")) as second:  # as any player would see them: the numbers in the file
        for a, b in zip(first.decode(video=0), second.decode(video=0), strict=True):
            if tags.get("color_range") == 2:
                continue
            assert int(a.colorspace) == int(b.colorspace)
            for plane in range(3):
                levels = [np.frombuffer(frame.planes[plane], np.uint8).astype(int) for frame in (a, b)]
                assert abs((levels[0] - levels[1]).mean()) < 1.5
    again = open_clip(tmp_path / "b.mp4")
    difference = np.stack(list(again.frames())).astype(int) - np.stack(list(clip.frames()))
    assert np.abs(difference.mean((0, 1, 2))).max() < 1.5


def test_bt709_by_default(tmp_path, media):
    with ClipWriter(tmp_path / "a.mp4", 64, 48, 25, **FAST) as writer:
        writer.write(media.picture(1))
    assert open_clip(tmp_path / "a.mp4").look == Look(1, 1, 1)
    assert b"nclx\0\1\0\1\0\1" in (tmp_path / "a.mp4").read_bytes()  # players of Apple's read the container, not the stream


@pytest.mark.parametrize("size", [(321, 241), (33, 48), (64, 49), (1, 1)])
def test_odd_sides_are_padded_by_the_encoder_only(tmp_path, caplog, size):  # F26
    frame = np.zeros((size[1], size[0], 3), np.uint8)
    frame[-1:], frame[:, -1:] = 250, 250  # a bright edge: padding repeats it, and does not blend it with black
    with caplog.at_level(logging.WARNING), ClipWriter(tmp_path / "a.mp4", *size, 25, crf=2, **FAST) as writer:
        writer.write(frame)
        assert frame.shape == (size[1], size[0], 3)
    even = (size[0] + size[0] % 2, size[1] + size[1] % 2)
    assert f"{even[0]}x{even[1]}" in caplog.text
    clip = open_clip(tmp_path / "a.mp4")
    assert (clip.width, clip.height) == even
    last = next(clip.frames())[-1, -1]
    assert last.min() > 200


def test_even_sides_are_not_mentioned(tmp_path, caplog, media):
    with caplog.at_level(logging.WARNING), ClipWriter(tmp_path / "a.mp4", 64, 48, 25, **FAST) as writer:
        writer.write(media.picture(0))
    assert not caplog.records


@pytest.mark.parametrize("name", [
    "a b/clip (1).mp4", "it's.mp4", 'a "quoted" clip.mp4', "видео/唇形 同步.mp4", "100%d%.mp4", "it: a clip.mp4", "-i.mp4",
])
def test_names_of_files(tmp_path, media, name, monkeypatch):  # F27, F31
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    with ClipWriter(name, 64, 48, 25, **FAST) as writer:
        writer.write(media.picture(3))
    assert media.numbers(open_clip(tmp_path / name).frames()) == [3]


class Stop(BaseException):
    """Any reason to stop: ComfyUI's interrupt, Ctrl-C."""


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt, ValueError, MediaError])
@pytest.mark.parametrize("written", [0, 1, 100])
def test_nothing_is_left_after_an_error(tmp_path, media, error, written):  # F28, F49
    (tmp_path / "a.mp4").write_text("what was here before")
    threads = threading.active_count()
    audio = {"waveform": torch.zeros(1, 1, 64000), "sample_rate": 16000}
    with pytest.raises(error), ClipWriter(tmp_path / "a.mp4", 64, 48, 25, audio, **FAST) as writer:
        for k in range(written):
            writer.write(media.picture(k))
        raise error
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]
    assert (tmp_path / "a.mp4").read_text() == "what was here before"
    assert threading.active_count() == threads


def test_the_file_appears_at_the_end_under_its_name(tmp_path, media):
    (tmp_path / "a.mp4").write_text("the old one")
    with ClipWriter(tmp_path / "a.mp4", 64, 48, 25, **FAST) as writer:
        writer.write(media.picture(0))
        partial = {p.name for p in tmp_path.iterdir()} - {"a.mp4"}
        assert len(partial) == 1 and partial.pop().endswith(".part")
        assert (tmp_path / "a.mp4").read_text() == "the old one"
    assert media.numbers(open_clip(tmp_path / "a.mp4").frames()) == [0]


def test_two_writers_of_one_name(tmp_path, media):  # F30
    with ClipWriter(tmp_path / "a.mp4", 64, 48, 25, **FAST) as first, ClipWriter(tmp_path / "a.mp4", 64, 48, 25, **FAST) as second:
        for k in range(5):
            first.write(media.picture(k))
            second.write(media.picture(k + 100))
    assert media.numbers(open_clip(tmp_path / "a.mp4").frames()) == list(range(5))  # the last to end
    assert len(list(tmp_path.iterdir())) == 1


def test_no_frames_no_file(tmp_path):
    with pytest.raises(MediaError, match="no frames"), ClipWriter(tmp_path / "a.mp4", 64, 48, 25):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_made_or_the_reason_is_given(tmp_path, media):  # F28
    with ClipWriter(tmp_path / "new" / "folder" / "a.mp4", 64, 48, 25, **FAST) as writer:
        writer.write(media.picture(0))
    (tmp_path / "file").touch()
    with pytest.raises(MediaError, match=r"cannot write .*a\.mp4: .*is a file"), ClipWriter(tmp_path / "file" / "a.mp4", 64, 48, 25):
        pass
    (tmp_path / "b.mp4").mkdir()
    with pytest.raises(MediaError, match=r"cannot write .*b\.mp4"), ClipWriter(tmp_path / "b.mp4", 64, 48, 25, **FAST) as writer:
        writer.write(media.picture(0))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.mp4", "file", "new"]


@pytest.mark.skipif(sys.platform != "linux", reason="no folder that is read-only for everybody")
def test_a_read_only_folder(tmp_path):  # F28
    folder = tmp_path
    if os.geteuid() == 0:  # root writes everywhere but in the kernel's own folders
        folder = type(tmp_path)("/proc/self")
    else:
        tmp_path.chmod(0o500)
    with pytest.raises(MediaError, match=r"cannot write .*a\.mp4: "), ClipWriter(folder / "a.mp4", 64, 48, 25):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="no way to make a full disk")
@pytest.mark.parametrize("limit", [0, 2000, 60_000, 200_000])
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_full_disk(tmp_path, limit, suffix):  # F28
    import resource

    rng = np.random.default_rng(0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        why = pytest.raises(MediaError, match=r"cannot write .*a\.m.*: \w+")
        with why, ClipWriter(tmp_path / f"a.{suffix}", 320, 240, 25, **FAST) as writer:
            for _ in range(60):
                writer.write(rng.integers(0, 256, (240, 320, 3), dtype=np.uint8))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux only")
def test_an_error_while_the_file_is_finished(tmp_path, media, monkeypatch):  # F28
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(write.os, "replace", full)
    with pytest.raises(MediaError, match="No space left on device"), ClipWriter(tmp_path / "a.mp4", 64, 48, 25, **FAST) as writer:
        writer.write(media.picture(0))
    assert list(tmp_path.iterdir()) == []


def test_an_encoder_that_fails_midway_is_heard_of(tmp_path, media, monkeypatch):  # F28
    real, seen = write.to_yuv, itertools.count()

    def failing(*arguments):
        if next(seen) == 3:
            raise av.error.ExternalError(1, "the encoder has lost its mind")
        return real(*arguments)

    monkeypatch.setattr(write, "to_yuv", failing)
    wrote = 0
    with pytest.raises(MediaError, match="lost its mind"), ClipWriter(tmp_path / "a.mp4", 64, 48, 25, **FAST) as writer:
        for k in range(1000):
            writer.write(media.picture(k))
            wrote += 1
    assert 3 <= wrote < 20
    assert list(tmp_path.iterdir()) == []


def test_sizes_and_names_that_cannot_be(tmp_path, media):
    for suffix in ("", ".avi", ".webm", ".txt"):
        with pytest.raises(MediaError, match="cannot write"):
            ClipWriter(tmp_path / f"a{suffix}", 64, 48, 25)
    with pytest.raises(ShapeError):
        ClipWriter(tmp_path / "a.mp4", 0, 48, 25)
    with pytest.raises(MediaError, match="rate"):
        ClipWriter(tmp_path / "a.mp4", 64, 48, 0)
    with pytest.raises(MediaError, match="cannot write"), ClipWriter(tmp_path / "a.mp4", 40000, 40000, 25):
        pass
    for shape, dtype in [((64, 48, 3), np.uint8), ((48, 64, 4), np.uint8), ((48, 64, 3), np.float32), ((48, 64), np.uint8)]:
        frame = np.zeros(shape, dtype)
        with pytest.raises(ShapeError, match="48, 64"), ClipWriter(tmp_path / "a.mp4", 64, 48, 25, **FAST) as writer:
            writer.write(frame)
    assert list(tmp_path.iterdir()) == []


def test_frames_are_copied_and_may_be_views(tmp_path, media):
    buffer = np.zeros((48, 64, 4), np.uint8)
    with ClipWriter(tmp_path / "a.mp4", 64, 48, 25, **FAST) as writer:
        for k in range(30):
            buffer[..., :3] = media.picture(k)
            writer.write(buffer[..., :3])
            buffer[:] = 0
    assert media.numbers(open_clip(tmp_path / "a.mp4").frames()) == list(range(30))


def interrupted_after(monkeypatch, owner, name):
    """Ctrl-C arrives just after the first call of a method, in whoever called it."""
    original, calls = getattr(owner, name), []

    def method(self, *given):
        result = original(self, *given)
        if not calls:
            calls.append(name)
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, name, method)


def encoders():
    return [thread for thread in threading.enumerate() if thread.name.startswith("encode ")]


def wait_for_no(threads, seconds=5.0):
    end = time.monotonic() + seconds
    while threads() and time.monotonic() < end:
        time.sleep(0.01)
    return not threads()


def test_ctrl_c_while_the_encoder_starts_leaves_nothing(tmp_path, monkeypatch):  # F30
    interrupted_after(monkeypatch, threading.Thread, "start")
    with pytest.raises(KeyboardInterrupt), ClipWriter(tmp_path / "out.mp4", 64, 48, 25):
        pytest.fail("the writer did not open")
    assert wait_for_no(encoders) and not list(tmp_path.iterdir())


def test_ctrl_c_while_the_film_is_finished_waits_for_the_encoder(tmp_path, monkeypatch):
    """Closing the file under a thread that writes into it would end the process."""
    closed, finish = [], ClipWriter._finish

    def slowly(writer, count):
        time.sleep(0.5)
        closed.append(writer._container is None)
        finish(writer, count)

    monkeypatch.setattr(ClipWriter, "_finish", slowly)
    writer = ClipWriter(tmp_path / "out.mp4", 64, 48, 25)
    with pytest.raises(KeyboardInterrupt), writer:
        writer.write(np.zeros((48, 64, 3), np.uint8))
        interrupted_after(monkeypatch, type(writer._ended), "wait")
    assert closed == [False] and wait_for_no(encoders) and not list(tmp_path.iterdir())


def test_whatever_ends_the_encoder_is_told(tmp_path, monkeypatch):
    def stop(writer, picture, count):
        raise SystemExit("told to")

    monkeypatch.setattr(ClipWriter, "_encode", stop)
    with pytest.raises(SystemExit), ClipWriter(tmp_path / "out.mp4", 64, 48, 25) as writer:
        for _ in range(20):
            writer.write(np.zeros((48, 64, 3), np.uint8))
    assert wait_for_no(encoders) and not list(tmp_path.iterdir())


def test_without_libx264_another_encoder_is_found(tmp_path, media, monkeypatch, caplog):
    monkeypatch.setattr(write, "ENCODERS", ("no_such_encoder", "h264_nvenc", "mpeg4"))
    with caplog.at_level(logging.WARNING), ClipWriter(tmp_path / "a.mp4", 64, 48, 25) as writer:
        for k in range(10):
            writer.write(media.picture(k))
    name = media.facts(tmp_path / "a.mp4")["video"].codec
    assert name == "h264" or "written as mpeg4" in caplog.text
    assert media.numbers(open_clip(tmp_path / "a.mp4").frames()) == list(range(10))


def test_a_wanted_encoder_that_is_not_here(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        name = write.choose_encoder("h264_qsv", 64, 48, Fraction(25))
    assert name == "h264_qsv" or "h264_qsv does not work here" in caplog.text
    with pytest.raises(MediaError, match="libx264"):
        write.choose_encoder("divx", 64, 48, Fraction(25))
    for option in ({"encoder": "divx"}, {"preset": "no such preset"}):
        with pytest.raises(LatentSyncError), ClipWriter(tmp_path / "a.mp4", 64, 48, 25, **option):
            pass
    assert list(tmp_path.iterdir()) == []


def test_without_any_encoder(monkeypatch):
    monkeypatch.setattr(write, "ENCODERS", ("no_such_encoder",))
    with pytest.raises(MediaError, match="no video encoder"):
        write.choose_encoder("auto", 64, 48, Fraction(25))


def test_crf_is_quality(tmp_path):
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (5, 64, 96, 3), dtype=np.uint8)
    sizes = []
    for crf in (10, 18, 40):
        with ClipWriter(tmp_path / "a.mp4", 96, 64, 25, crf=crf, **FAST) as writer:
            for frame in frames:
                writer.write(frame)
        sizes.append((tmp_path / "a.mp4").stat().st_size)
    assert sizes[0] > sizes[1] > 1.5 * sizes[2]


def test_the_index_comes_first(tmp_path, media):
    """So that a browser starts playing before it has the whole file."""
    with ClipWriter(tmp_path / "a.mp4", 64, 48, 25, **FAST) as writer:
        writer.write(media.picture(0))
    data = (tmp_path / "a.mp4").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")


def test_a_name_as_long_as_names_may_be(tmp_path, media):
    for name in ("x" * 251 + ".mp4", "唇" * 83 + ".mp4"):
        with ClipWriter(tmp_path / name, 64, 48, 25, **FAST) as writer:
            writer.write(media.picture(0))
        assert (tmp_path / name).is_file()


def test_closing_twice_and_writing_outside(tmp_path, media):
    writer = ClipWriter(tmp_path / "a.mp4", 64, 48, 25, **FAST)
    with pytest.raises(ValueError, match="with"):
        writer.write(media.picture(0))
    with writer:
        writer.write(media.picture(0))
        writer.close()
        assert (tmp_path / "a.mp4").is_file()
    with pytest.raises(ValueError, match="with"):
        writer.write(media.picture(0))
    assert (tmp_path / "a.mp4").is_file()


def test_what_a_killed_process_left_of_this_name_goes(tmp_path, media):  # F30
    left = [tmp_path / name for name in ("a [1].0123abcd.part", "a [1].4567cdef.part", "b.0123abcd.part", "a [1].mp4")]
    for path in left:
        path.write_bytes(b"half a film")
        os.utime(path, (0, 0))
    os.utime(left[1])  # somebody is at it
    with ClipWriter(tmp_path / "a [1].mp4", 64, 48, 25, **FAST) as writer:
        writer.write(media.picture(0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a [1].4567cdef.part", "a [1].mp4", "b.0123abcd.part"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")
def test_the_same_frames_give_the_same_file_whatever_was_in_memory(tmp_path):
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import conftest
from latentsync_rtx.lipsync.clip import ClipWriter
from latentsync_rtx.tests.small_jobs import picture
with ClipWriter(sys.argv[1], 160, 120, 25, crf=8) as writer:
    for k in range(24):
        writer.write(picture(k))
"""
    written = []
    for fill in ("1", "170"):  # glibc gives out memory full of this
        path = tmp_path / f"{fill}.mp4"
        subprocess.run([sys.executable, "-c", code, str(path)], check=True, env={**os.environ, "MALLOC_PERTURB_": fill})
        written.append(path.read_bytes())
    assert written[0] == written[1]
