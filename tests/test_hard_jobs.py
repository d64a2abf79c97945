"""Whole jobs on clips that break things: what was found by hunting, kept."""
import os
import shutil
import threading
from dataclasses import replace
from fractions import Fraction

import av
import numpy as np
import pytest
from latentsync_rtx.lipsync import folders, pipeline
from latentsync_rtx.lipsync.clip import open_clip

from .clip.conftest import make_clip, turn
from .small_jobs import film, frames_of, job, mouth, parts, picture, speech, write_film


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("LATENTSYNC_JOBS", str(tmp_path / "jobs"))
    monkeypatch.setattr(folders, "temp_dir", lambda: tmp_path / "temp")


def run(made, runner=None):
    return pipeline.run(made, parts=parts(runner))


def near(a, b, off=3):
    return np.abs(a.astype(int) - b).mean() < off


def test_a_phones_clip_comes_out_upright(tmp_path):  # F11
    upright = [picture(k, 120, 160) for k in range(10)]
    path = write_film(tmp_path / "phone.mp4", [np.rot90(frame).copy() for frame in upright])
    turn(path, 90)
    after = frames_of(run(job(tmp_path, 10, video=path)).path)
    assert after[0].shape == (160, 120, 3)
    assert all(near(frame[:30], expected[:30]) for frame, expected in zip(after, upright, strict=True))
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert not next(container.decode(video=0)).side_data.get("DISPLAYMATRIX")
    assert [round(mouth(frame)) for frame in after] != [round(mouth(frame)) for frame in upright]


@pytest.mark.parametrize("size", [(161, 121), (121, 161), (321, 64)])
def test_odd_sizes_are_padded_by_the_encoder_and_nobody_else(tmp_path, size):  # F26
    width, height = size
    with av.open(str(tmp_path / "odd.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "bgr0"
        for k in range(6):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(k, width, height), format="rgb24").reformat(format="bgr0")))
        container.mux(stream.encode(None))
    after = frames_of(run(job(tmp_path, 6, video=tmp_path / "odd.mkv")).path)
    assert after[0].shape == (height + height % 2, width + width % 2, 3)
    assert all(near(frame[: height // 6, :width], picture(k, width, height)[: height // 6]) for k, frame in enumerate(after))


def test_a_still_picture_speaks(tmp_path):
    picture_file = tmp_path / "face.png"
    with av.open(str(picture_file), "w", format="image2") as container:
        stream = container.add_stream("png", rate=1)
        stream.width, stream.height, stream.pix_fmt = 160, 120, "rgb24"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(), format="rgb24")))
        container.mux(stream.encode(None))
    made = job(tmp_path, 5, video=picture_file, audio=speech(tmp_path / "two.wav", 2.0, ((1.0, 2.0),)))
    after = frames_of(run(made).path)
    assert len(after) == 50 and all(near(frame[:20], picture()[:20]) for frame in after)
    assert mouth(after[10]) > mouth(after[40]) + 20


def test_the_result_may_take_the_clips_place(tmp_path):
    made = job(tmp_path, 20)
    before = frames_of(made.video)
    run(replace(made, out=made.video))
    after = frames_of(made.video)
    assert len(after) == 20 and not near(after[5][40:80, 60:100], before[5][40:80, 60:100]) and near(after[5][:20], before[5][:20])


def test_one_file_is_clip_and_speech_and_its_sound_is_copied(tmp_path):  # bit for bit, F19
    made = job(tmp_path, 25)
    talking = film(tmp_path / "talking.mp4", 25, audio=str(made.audio))
    run(replace(made, video=talking, audio=talking))

    def packets(path):
        with av.open(str(path)) as container:
            return [bytes(packet) for packet in container.demux(audio=0) if packet.size]

    assert packets(made.out) == packets(talking) != []


def test_a_variable_rate(tmp_path):  # F24: 20 pictures, each later one twice as long
    times = [*range(0, 10 * 40, 40), *range(400, 400 + 10 * 80, 80)]
    frames = [picture(k) for k in range(20)]
    size = frames[0].shape[1::-1]
    path = make_clip(tmp_path / "vfr.mp4", 20, size=size, times=times, ticks=Fraction(1, 1000), pictures=frames, options={"qp": "4"})
    after = frames_of(run(job(tmp_path, 1, video=path, length="video", audio=speech(tmp_path / "long.wav", 2.0))).path)
    shown = [*range(10), *np.arange(10, 20).repeat(2)]
    assert len(after) in (29, 30), "how long the last one stays is the muxer's guess"
    assert all(near(frame[:20], frames[k][:20]) for frame, k in zip(after, shown, strict=False))


@pytest.mark.parametrize(("rate", "work_rate"), [(16, 25), (24, None), ("30000/1001", None), (50, 25), (60, None), (12, None)])
def test_rates(tmp_path, rate, work_rate):  # F23
    rate = Fraction(rate)
    path = film(tmp_path / "rated.mp4", int(2 * rate), rate=rate)
    run(job(tmp_path, 1, video=path, work_rate=work_rate, length="video", audio=speech(tmp_path / "long.wav", 2.2)))
    result = open_clip(tmp_path / "out.mp4")
    assert result.rate == (work_rate or rate)
    assert abs(result.duration - float(int(2 * rate) / rate)) <= 0.5 / float(result.rate) + 1e-6


def test_the_face_comes_and_goes_all_the_time(tmp_path):  # F01, F02: runs of one and two frames, back and forth
    black = [k for k in range(30) if k % 3 == 2]
    made = job(tmp_path, 30, seconds=2.0, black=black)
    after = frames_of(run(made).path)
    order = [*range(30), *range(28, 8, -1)]
    assert len(after) == len(order)
    assert [frame.max() < 8 for frame in after] == [k in black for k in order]


def test_the_same_job_twice_at_once(tmp_path):  # F30: they share finished blocks, and who is done first takes them away
    made = [job(tmp_path, 60), None]
    made[1] = replace(made[0], out=tmp_path / "second.mp4")
    threads = [threading.Thread(target=run, args=(one,)) for one in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(*pair) for pair in zip(frames_of(made[0].out), frames_of(made[1].out), strict=True))


def test_a_clip_that_ends_in_the_middle_of_a_download(tmp_path):
    whole = film(tmp_path / "whole.mkv", 40)
    data = whole.read_bytes()
    (tmp_path / "cut.mkv").write_bytes(data[: len(data) * 2 // 3])
    made = job(tmp_path, 1, video=tmp_path / "cut.mkv", audio=speech(tmp_path / "long.wav", 1.6), length="video")
    count = open_clip(made.video).frame_count
    assert 10 < count < 40
    assert len(frames_of(run(made).path)) == count


def test_a_clip_replaced_by_another_after_the_cancel(tmp_path):
    """The same name, size and time: what counts is what is in it."""
    made = job(tmp_path, 40)
    stamp = made.video.stat()
    seen = []

    def stop(done, total, *, stage="", preview=None):
        seen.append(stage)
        if seen.count("decode") == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipeline.run(made, stop, parts())
    other = film(tmp_path / "other.mp4", 40, black=(3,))
    data = other.read_bytes().ljust(stamp.st_size, b"\0")[: max(stamp.st_size, other.stat().st_size)]
    made.video.write_bytes(data)
    os.utime(made.video, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    resumed = frames_of(run(made).path)
    clean = frames_of(run(replace(made, resume=False, out=tmp_path / "clean.mp4")).path)
    assert all(np.array_equal(*pair) for pair in zip(resumed, clean, strict=True))


def test_a_speech_of_minutes_over_a_second_of_film(tmp_path):  # F16, F15
    made = job(tmp_path, 25, seconds=65.0, steps=1, guidance=1.0)
    after = run(made).path
    assert open_clip(after).frame_count == 1625
    grey = np.array([mouth(frame) for frame in frames_of(after)])
    steady = grey[10:-10]
    assert np.ptp(steady) < 6, "no jump at 20, 30, 40 and 60 s"


def test_temporary_folders_that_are_gone_are_made_again(tmp_path):
    made = job(tmp_path, 20)
    run(made)
    shutil.rmtree(tmp_path / "temp", ignore_errors=True)
    shutil.rmtree(tmp_path / "jobs", ignore_errors=True)
    assert run(made).path.is_file()
