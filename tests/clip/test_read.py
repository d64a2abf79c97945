"""Reading clips: the right pictures, upright, in the right colours, or a sentence that says why not."""
import io
import logging
import os
import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from latentsync_rtx.lipsync.clip import Look, as_rate, open_clip, read_audio
from latentsync_rtx.lipsync.errors import MediaError, ShapeError

DEMO = Path(__file__).resolve().parents[3] / "shared" / "media" / "demo1_video.mp4"


def test_every_frame_in_order(tmp_path, media):
    clip = open_clip(media.make_clip(tmp_path / "a.mp4", 40))
    assert (clip.width, clip.height, clip.rate, clip.frame_count, clip.duration, clip.has_audio) == (64, 48, 25, 40, 1.6, False)
    frames = list(clip.frames())
    assert media.numbers(frames) == list(range(40))
    assert frames[0].shape == (48, 64, 3) and frames[0].dtype == np.uint8 and frames[0].flags.c_contiguous and frames[0].flags.writeable
    assert media.numbers(clip.frames(37)) == [37, 38, 39]


@pytest.mark.parametrize("how", [0, 90, 180, 270, "mirror", "flip"])
def test_rotation_metadata_is_applied(tmp_path, media, how):  # F11
    upright = [media.picture(k, 48, 64) if how in (90, 270) else media.picture(k, 64, 48) for k in range(1, 4)]
    undo = {0: np.array, 90: np.rot90, 180: lambda p: np.rot90(p, 2), 270: lambda p: np.rot90(p, -1), "mirror": np.fliplr,
            "flip": np.flipud}
    path = media.make_clip(tmp_path / "phone.mp4", 3, pictures=[np.ascontiguousarray(undo[how](p)) for p in upright])
    media.turn(path, how)
    clip = open_clip(path)
    assert (clip.height, clip.width) == upright[0].shape[:2]
    assert media.numbers(clip.frames()) == [1, 2, 3]
    assert media.numbers(clip.frames_at([2, 1, 0])) == [3, 2, 1]


@pytest.mark.parametrize("size", [(321, 241), (65, 48), (64, 49), (1, 1)])
def test_odd_sizes_are_kept(tmp_path, media, size):  # F26
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (3, size[1], size[0], 3), dtype=np.uint8)
    with av.open(str(tmp_path / "odd.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = *size, "bgr0"
        for k, rgb in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(rgb, format="rgb24").reformat(format="bgr0")
            frame.pts = k
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    clip = open_clip(tmp_path / "odd.mkv")
    assert (clip.width, clip.height) == size
    assert np.array_equal(np.stack(list(clip.frames())), pictures)


@pytest.mark.parametrize(("codec", "suffix", "pix_fmt", "options"), [
    ("libx264", "mp4", "yuv420p", {"bf": "4", "g": "12"}),
    ("libx264", "ts", "yuv420p", {"bf": "3", "x264-params": "open-gop=1:keyint=10"}),
    ("libx264", "mkv", "yuv444p", None),
    ("libx264", "mov", "yuv420p10le", None),
    ("libx265", "mp4", "yuv420p", {"x265-params": "log-level=none"}),
    ("libvpx", "webm", "yuv420p", {"auto-alt-ref": "1", "lag-in-frames": "16"}),
    ("libvpx-vp9", "webm", "yuva420p", {"auto-alt-ref": "0"}),
    ("mpeg4", "avi", "yuv420p", {"bf": "2"}),
    ("mjpeg", "avi", "yuvj420p", None),
    ("prores_ks", "mov", "yuva444p10le", None),
    ("png", "mov", "rgba", None),
    ("gif", "gif", "rgb8", None),
    ("ffv1", "mkv", "gray", None),
    ("mpeg2video", "mpg", "yuv420p", None),
    ("libx264", "h264", "yuv420p", {"bf": "2"}),
    ("libx265", "hevc", "yuv420p", {"x265-params": "log-level=none"}),
    ("flv1", "flv", "yuv420p", None),
])
def test_codecs_and_containers(tmp_path, media, codec, suffix, pix_fmt, options):
    try:
        av.Codec(codec if codec != "flv1" else "flv", "w")
    except ValueError:
        pytest.skip(f"this PyAV has no {codec}")
    path = media.make_clip(tmp_path / f"a.{suffix}", 40, codec="flv" if codec == "flv1" else codec, pix_fmt=pix_fmt, options=options)
    clip = open_clip(path)
    assert clip.rate == 25 and clip.frame_count == 40
    assert media.numbers(clip.frames()) == list(range(40))
    assert media.numbers(clip.frames_at([30, 3, 4, 20, 19, 18, 39, 0])) == [30, 3, 4, 20, 19, 18, 39, 0]


@pytest.mark.parametrize("gop", [1, 5, 250])
def test_any_order(tmp_path, media, gop):
    clip = open_clip(media.make_clip(tmp_path / "a.mp4", 60, options={"g": str(gop), "keyint_min": "1", "sc_threshold": "0"}))
    ping_pong = [*range(60), *range(58, -1, -1), *range(1, 30)]
    assert media.numbers(clip.frames_at(ping_pong)) == ping_pong
    order = [*np.random.default_rng(gop).integers(0, 60, 40).tolist(), 7, 7, 7, 6, 6, 5, 5]
    assert media.numbers(clip.frames_at(order)) == order
    assert list(clip.frames_at([])) == []
    for wrong in (-1, 60):
        with pytest.raises(IndexError):
            clip.frames_at([wrong])


def test_backwards_through_a_long_group_in_bounded_room(tmp_path, media, monkeypatch):
    from latentsync_rtx.lipsync.clip import video

    rows = []
    real = video.Spool.append
    monkeypatch.setattr(video, "_SPILL_BYTES", 7 * 64 * 48 * 3)
    monkeypatch.setattr(video.Spool, "append", lambda self, row: (real(self, row), rows.append(len(self))))
    clip = open_clip(media.make_clip(tmp_path / "a.mp4", 40))
    assert media.numbers(clip.frames_at(range(39, -1, -1), tmp_path)) == list(range(39, -1, -1))
    assert max(rows) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_readers_do_not_disturb_each_other(tmp_path, media):
    memory = io.BytesIO(media.make_clip(tmp_path / "a.mp4", 30).read_bytes())
    memory.seek(17)
    clip, again = open_clip(memory), open_clip(memory)
    assert clip.fingerprint == again.fingerprint
    pairs = list(zip(clip.frames(), clip.frames(), again.frames(), strict=True))
    assert [media.numbers(trio) for trio in pairs] == [[k] * 3 for k in range(30)]
    seen = [None, None]

    def read(slot):
        seen[slot] = media.numbers(clip.frames())

    threads = [threading.Thread(target=read, args=(slot,)) for slot in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert seen == [list(range(30))] * 2
    assert memory.tell() == 17


def test_a_reader_that_stops_early_frees_the_file(tmp_path, media):
    frames = open_clip(media.make_clip(tmp_path / "a.mp4", 30)).frames()
    next(frames)
    frames.close()
    (tmp_path / "a.mp4").unlink()


@pytest.mark.parametrize("tags", [
    {}, {"colorspace": 1}, {"colorspace": 6}, {"colorspace": 5}, {"colorspace": 9},
    {"colorspace": 1, "color_range": 2}, {"colorspace": 6, "color_range": 2},
])
def test_colours_follow_the_tags(tmp_path, tags):
    """A colour is written as the YUV that H.273 gives for it; reading must give the colour back."""
    red, green, blue = colour = (200, 90, 40)
    kr, kb = {1: (.2126, .0722), 9: (.2627, .0593)}.get(tags.get("colorspace"), (.299, .114))
    luma = (kr * red + (1 - kr - kb) * green + kb * blue) / 255
    chroma = (blue / 255 - luma) / (2 - 2 * kb), (red / 255 - luma) / (2 - 2 * kr)
    full = tags.get("color_range") == 2
    levels = [round(luma * (255 if full else 219) + (0 if full else 16)), *(round(c * (255 if full else 224) + 128) for c in chroma)]
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.options = {"qp": "0"}
        for name, value in tags.items():
            setattr(stream.codec_context, name, value)
        for k in range(2):
            frame = av.VideoFrame(64, 48, "yuv420p")
            for plane, level in zip(frame.planes, levels, strict=True):
                plane.update(bytes([level]) * plane.buffer_size)
            frame.pts = k
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    clip = open_clip(tmp_path / "a.mp4")
    assert np.abs(next(clip.frames()).reshape(-1, 3).mean(0) - colour).max() <= 2.5
    assert clip.look.matrix == tags.get("colorspace", 2)


def test_pixel_shape_is_reported_not_applied(tmp_path, media):
    path = media.make_clip(tmp_path / "pal.mp4", 3, tags={"sample_aspect_ratio": Fraction(16, 11)})
    clip = open_clip(path)
    assert (clip.width, clip.height, clip.look.pixel_aspect) == (64, 48, Fraction(16, 11))
    media.turn(path, 90)
    assert open_clip(path).look.pixel_aspect == Fraction(11, 16)


def test_a_cover_picture_is_no_clip(tmp_path, media):
    with av.open(str(tmp_path / "cover.jpg"), "w") as container:
        stream = container.add_stream("mjpeg", rate=1)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(media.picture(9), format="rgb24").reformat(format="yuvj420p")))
        container.mux(stream.encode(None))
    cover = (tmp_path / "cover.jpg").read_bytes()
    with av.open(str(tmp_path / "song.flac"), "w") as container:
        stream = container.add_stream("flac", rate=16000, layout="mono")
        samples = (media.tone(0.5) * 32767).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = 16000, 0, Fraction(1, 16000)
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    flac = (tmp_path / "song.flac").read_bytes()
    mime = b"image/jpeg"
    block = b"".join(n.to_bytes(4, "big") for n in (3, len(mime))) + mime + bytes(4)
    block += b"".join(n.to_bytes(4, "big") for n in (64, 48, 24, 0, len(cover))) + cover
    info_end = 4 + 4 + 34  # "fLaC", then the stream info block
    picture = b"\x06" + len(block).to_bytes(3, "big") + block
    (tmp_path / "song.flac").write_bytes(flac[:4] + bytes([flac[4] & 0x7F]) + flac[5:info_end] + picture + flac[info_end:])
    with av.open(str(tmp_path / "song.flac")) as container:
        assert len(container.streams.video) == 1, "the test file should have a cover"
    with pytest.raises(MediaError, match=r"cannot open .*song.flac: it has sound but no pictures"):
        open_clip(tmp_path / "song.flac")
    assert read_audio(tmp_path / "song.flac")["waveform"].shape == (1, 1, 8000)


def test_a_still_picture_is_a_clip_of_one_frame(tmp_path, media):
    import cv2

    cv2.imwrite(str(tmp_path / "face.png"), media.picture(77)[..., ::-1])
    clip = open_clip(tmp_path / "face.png")
    assert clip.frame_count == 1
    assert np.array_equal(next(clip.frames()), media.picture(77))


def test_what_cannot_be_opened_is_said(tmp_path, media):  # F29
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("This is not a film.\n" * 50)
    (tmp_path / "pointer.mp4").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 12345\n")
    (tmp_path / "noise.mp4").write_bytes(np.random.default_rng(0).bytes(20000))
    whole = media.make_clip(tmp_path / "whole.mp4", 20).read_bytes()
    (tmp_path / "half.mp4").write_bytes(whole[:len(whole) // 2])
    for name, why in [("empty.mp4", "empty"), ("text.mp4", ""), ("pointer.mp4", "Git LFS pointer"), ("noise.mp4", ""), ("half.mp4", ""),
                      ("missing.mp4", "No such file"), ("", "folder")]:
        with pytest.raises(MediaError, match=f"cannot open .*{name}: .*{why}"):
            open_clip(tmp_path / name)
        with pytest.raises(MediaError, match=f"cannot open .*{name}: .*{why}"):
            read_audio(tmp_path / name)
    for name in ("empty.mp4", "text.mp4"):
        with pytest.raises(MediaError, match="cannot open the clip in memory"):
            open_clip(io.BytesIO((tmp_path / name).read_bytes()))
    with pytest.raises(MediaError, match="int"):
        open_clip(7)


@pytest.mark.parametrize("name", [
    "a b/clip (1).mp4", "it's.mp4", 'a "quoted" clip.mp4', "видео/唇形 同步.mp4", "100%d%.mp4", "it: a clip.mp4", "-i.mp4",
])
def test_names_of_files(tmp_path, media, name, monkeypatch):  # F27
    (tmp_path / name).parent.mkdir(exist_ok=True)
    media.make_clip(tmp_path / "plain.mp4", 3, sound=0.1).rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / name, str(tmp_path / name), name, Path(name)):
        assert media.numbers(open_clip(path).frames()) == [0, 1, 2]
    assert read_audio(name) is not None


def test_animated_webp_says_what_to_do(tmp_path, media):
    path = media.make_clip(tmp_path / "a.webp", 4, codec="libwebp_anim", pix_fmt="bgra")
    with pytest.raises(MediaError, match="cannot decode animated WebP; make it a GIF"):
        open_clip(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_refused_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(MediaError, match=r"cannot open .*pipe"):
        open_clip(tmp_path / "pipe.mp4")


def test_metadata_in_an_unknown_encoding(tmp_path, media):
    path = media.make_clip(tmp_path / "a.mkv", 3)
    data = path.read_bytes()
    assert b"Lavf" in data
    path.write_bytes(data.replace(b"Lavf", b"\xff\xfe\xe9\xe8"))
    assert open_clip(path).frame_count == 3


def test_a_damaged_middle_costs_only_itself(tmp_path, media, caplog):
    path = media.make_clip(tmp_path / "a.mp4", 60, options={"g": "10", "bf": "0", "qp": "10"})
    packets = []
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    for position, size in packets[20:25]:  # a key frame and four more
        data[position:position + size] = b"\xff" * size
    path.write_bytes(data)
    clip = open_clip(path)
    with caplog.at_level(logging.WARNING):
        seen = media.numbers(clip.frames())
    assert clip.frame_count == len(seen) == 60
    assert seen[:20] == list(range(20)) and seen[30:] == list(range(30, 60))
    ours = [record for record in caplog.records if record.name.startswith("latentsync")]
    assert 1 <= len(ours) <= 2 and "damaged" in ours[0].getMessage()


def test_a_damaged_start_shows_the_first_good_frame(tmp_path, media):
    path = media.make_clip(tmp_path / "a.mp4", 30, options={"g": "10", "bf": "0", "sc_threshold": "0"})
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size][:10]
    data = bytearray(path.read_bytes())
    for position, size in packets:
        data[position:position + size] = b"\xff" * size
    path.write_bytes(data)
    clip = open_clip(path)
    assert media.numbers(clip.frames()) == [10] * 10 + list(range(10, 30))
    assert media.numbers(clip.frames_at([12, 3, 2, 11])) == [12, 10, 10, 11]


def test_a_truncated_stream_ends_where_it_is_cut(tmp_path, media):
    noise = np.random.default_rng(0).integers(-30, 30, (60, 48, 64, 3))
    noisy = [(media.picture(k) + noise[k]).astype(np.uint8) for k in range(60)]
    path = media.make_clip(tmp_path / "a.mp4", 60, pictures=noisy, container_options={"movflags": "faststart"})
    data = path.read_bytes()
    path.write_bytes(data[:len(data) * 6 // 10])
    clip = open_clip(path)
    seen = media.numbers(clip.frames())
    assert len(seen) == clip.frame_count and 10 < len(seen) < 60
    assert seen[:10] == list(range(10))


def test_a_clip_whose_size_changes_midway(tmp_path, media):
    small, large = media.make_clip(tmp_path / "a.ts", 5), media.make_clip(tmp_path / "b.ts", 5, size=(128, 96), first=5, times=range(5, 10))
    (tmp_path / "both.ts").write_bytes(small.read_bytes() + large.read_bytes())
    clip = open_clip(tmp_path / "both.ts")
    frames = list(clip.frames())
    assert {frame.shape for frame in frames} == {(48, 64, 3)} and len(frames) == clip.frame_count
    assert media.number(frames[0]) == 0 and media.number(frames[-1]) == 9


def test_fragmented_mp4(tmp_path, media):
    """What browsers record and streams are made of: no index at all."""
    fragments = {"movflags": "frag_keyframe+empty_moov"}
    path = media.make_clip(tmp_path / "a.mp4", 60, sound=2.4, options={"g": "12"}, container_options=fragments)
    clip = open_clip(path)
    assert (clip.rate, clip.frame_count, clip.has_audio) == (25, 60, True)
    assert media.numbers(clip.frames()) == list(range(60))
    assert media.numbers(clip.frames_at([50, 20, 19, 59])) == [50, 20, 19, 59]


def test_pictures_after_a_track_of_something_else(tmp_path, media):
    """Sound first, then pictures: the stream's number is not its place."""
    path = media.make_clip(tmp_path / "a.mkv", 10, sound=0.4, sound_first=True)
    assert media.facts(path)["video"].index == 1
    assert media.numbers(open_clip(path).frames_at([9, 1])) == [9, 1]
    assert read_audio(path) is not None


def test_fingerprint_follows_content_and_rate(tmp_path, media):  # F50
    path = media.make_clip(tmp_path / "a.mp4", 3)
    before = open_clip(path).fingerprint
    assert before == open_clip(str(path)).fingerprint != open_clip(path, rate=30).fingerprint
    os.utime(path, ns=(1, 1))
    assert open_clip(path).fingerprint != before
    images = torch.rand(3, 8, 8, 3)
    assert open_clip(images).fingerprint == open_clip(images.clone()).fingerprint != open_clip(images, rate=30).fingerprint
    assert open_clip(images).fingerprint != open_clip(images + 0.001).fingerprint
    assert open_clip(images.half()).fingerprint != open_clip(images).fingerprint


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int32])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_of_every_kind(dtype, channels):  # F52
    levels = torch.arange(0, 256, 17).reshape(1, 4, 4, 1).expand(2, 4, 4, channels)
    images = (levels / 255).to(dtype) if dtype.is_floating_point else levels.to(dtype)
    clip = open_clip(images, rate=24)
    assert (clip.width, clip.height, clip.frame_count, clip.rate, clip.look) == (4, 4, 2, 24, Look())
    frames = list(clip.frames_at([1, 0]))
    assert all(np.array_equal(frame, levels[0, ..., :1].expand(4, 4, 3).numpy()) for frame in frames)
    assert frames[0].dtype == np.uint8 and frames[0].flags.c_contiguous
    frames[0][:] = 99
    assert not (next(clip.frames_at([1])) == 99).all()


def test_images_outside_0_to_1_and_of_other_shapes():  # F52
    frame = next(open_clip(torch.tensor([-3.0, 0.5, 7.0, float("nan"), float("inf"), 1.0]).reshape(1, 2, 3).requires_grad_()).frames())
    assert frame.shape == (1, 2, 3) and frame.ravel().tolist() == [0, 128, 255, 0, 255, 255]
    assert open_clip(np.zeros((2, 4, 4, 3), np.float32)).rate == 25
    for shape in [(4, 4), (2, 4, 4, 2), (2, 4, 4, 5), (0, 4, 4, 3), (1, 2, 3, 4, 3), (4, 4, 7)]:
        with pytest.raises(ShapeError, match=str(shape[-1])):
            open_clip(torch.zeros(shape))
    assert open_clip(open_clip(torch.zeros(1, 4, 4, 3))).frame_count == 1


def test_images_are_never_copied_whole():  # F32
    images = torch.zeros(1, 8, 8, 3).expand(1_000_000, 8, 8, 3)  # 768 MB if anybody did
    clip = open_clip(images)
    assert next(clip.frames_at([999_999])).shape == (8, 8, 3)


def test_rates():
    assert as_rate(29.97) == Fraction(30000, 1001) and as_rate(23.976) == Fraction(24000, 1001) and as_rate(25.0) == 25
    assert as_rate("30000/1001") == Fraction(30000, 1001) and as_rate(12.5) == Fraction(25, 2)
    for wrong in (0, -25, float("nan"), float("inf"), "fast", 10000, None):
        with pytest.raises(MediaError, match="rate"):
            as_rate(wrong)


@pytest.mark.skipif(not DEMO.is_file(), reason="the demo clip is not here")
def test_a_real_clip_reads_as_comfyui_reads_it():
    clip = open_clip(DEMO)
    assert (clip.width, clip.height, clip.rate, clip.frame_count, clip.has_audio) == (1080, 1920, 25, 250, True)
    with av.open(str(DEMO)) as container:
        container.streams.video[0].thread_type = "NONE"  # ComfyUI asks for threads; left in the middle of a film, these can stop the process
        for ours, frame in zip(clip.frames_at(range(8)), container.decode(video=0), strict=False):
            assert np.array_equal(ours, frame.to_ndarray(format="rgb24")) or int(av.__version__.split(".")[0]) < 17  # which ignores tags
