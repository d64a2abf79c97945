"""Whole jobs, as the command line runs them, on clips and sounds that used to break this kind of software. Networks are stubs."""
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from latentsync_rtx import commands
from latentsync_rtx.commands import run as run_command
from latentsync_rtx.lipsync import pipeline, spool, weights
from latentsync_rtx.lipsync.clip import open_clip, read_audio, write
from latentsync_rtx.lipsync.errors import AudioError, DiskSpaceError, FaceError, LatentSyncError, MediaError, NumericError

from . import small_jobs
from .small_jobs import StubRunner, film, frames_of, job, listen_until, mouth, parts, picture, speech

pytestmark = pytest.mark.usefixtures("own_folders")


def run(made, runner=None, progress=pipeline.silent):
    return pipeline.run(made, progress, parts(runner))


def same(a: np.ndarray, b: np.ndarray, off: float = 3) -> bool:
    """Whether two pictures are one, up to the encoder."""
    return np.abs(a.astype(int) - b).mean() < off


# --- faces ---


def test_one_black_frame_passes_through_and_is_named(tmp_path):  # F01
    result = run(job(tmp_path, 50, black=(25,)))
    before, after = frames_of(tmp_path / "clip.mp4"), frames_of(result.path)
    assert len(after) == 50
    assert after[25].max() < 8
    assert not any(same(a[40:80, 60:100], b[40:80, 60:100]) for k, (a, b) in enumerate(zip(after, before, strict=True)) if k != 25)
    assert "49 of 50 frames" in result.summary and "No face in frames 25" in result.summary


def test_after_a_gap_the_mouth_is_in_its_time(tmp_path):  # F02: 30 frames without a face; a burst of sound 20 frames after the gap
    made = job(tmp_path, 90, black=range(30, 60), audio=speech(tmp_path / "burst.wav", 3.6, ((3.2, 3.6),)))
    after = frames_of(run(made).path)
    grey = np.array([mouth(frame) for frame in after])
    assert all(frame.max() < 8 for frame in after[30:60])
    assert same(after[60][40:80, 60:100], after[62][40:80, 60:100]), "no smear on the first frame after the gap"
    assert np.ptp(grey[[*range(5, 30), *range(60, 76)]]) < 3
    assert (grey[81:89] < grey[70] - 20).all()


def test_a_shot_without_a_person_is_one_line(tmp_path, caplog):  # F03
    caplog.set_level("INFO")
    result = run(job(tmp_path, 60, black=range(20, 40)))
    assert "in 2 runs" in result.summary and "No face in frames 20-39" in result.summary
    assert sum("No face in frames" in record.message for record in caplog.records) == 1


def test_no_face_at_all_stops_before_the_network(tmp_path):  # F06
    runner = StubRunner()
    with pytest.raises(FaceError, match=r"no usable face in the 20 frames of .*clip\.mp4"):
        run(job(tmp_path, 20, black=range(20)), runner)
    assert runner.calls == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.mp4", "speech.wav"]


# --- length and sync ---


@pytest.mark.parametrize("count", [1, 12, 16, 17, 25, 300])
def test_as_many_frames_out_as_in(tmp_path, count):  # F13
    made = job(tmp_path, count)
    assert open_clip(run(made).path).frame_count == count
    assert len(frames_of(made.out)) == count


def test_ten_seconds_of_both_are_250_frames_forwards(tmp_path):  # F14
    result = run(job(tmp_path, 250, seconds=10.0))
    after = frames_of(result.path)
    assert len(after) == 250
    assert all(same(a[:20], b[:20]) for a, b in zip(after[-4:], frames_of(tmp_path / "clip.mp4")[-4:], strict=True))


@pytest.mark.parametrize(
    ("length", "extend", "order"),
    [
        ("audio", "ping-pong", [*range(10), *range(8, -1, -1), *range(1, 7)]),
        ("audio", "loop", [*range(10), *range(10), *range(5)]),
        ("audio", "hold", [*range(10), *[9] * 15]),
        ("video", "ping-pong", list(range(10))),
        ("shortest", "loop", list(range(10))),
    ],
)
def test_a_clip_shorter_than_its_speech(tmp_path, length, extend, order):  # F16
    after = frames_of(run(job(tmp_path, 10, seconds=1.0, length=length, extend=extend)).path)
    assert len(after) == len(order)
    for frame, number in zip(after, order, strict=True):
        assert same(frame[:20], picture(number)[:20])


def test_a_speech_shorter_than_its_clip(tmp_path):  # F16
    made = job(tmp_path, 30, seconds=0.4)
    assert len(frames_of(run(made).path)) == 10
    after, before = frames_of(run(replace(made, length="video")).path), frames_of(made.video)
    assert len(after) == 30
    assert [same(a[40:80, 60:100], b[40:80, 60:100]) for a, b in zip(after, before, strict=True)] == [False] * 10 + [True] * 20


@pytest.mark.parametrize(("samples", "frames"), [(100, 1), (201, 1), (3000, 5)])
def test_the_shortest_sounds(tmp_path, samples, frames):  # F17
    made = job(tmp_path, 5, audio=speech(tmp_path / "short.wav", samples / small_jobs.SPEECH_RATE))
    assert len(frames_of(run(made).path)) == frames


def test_no_sound_is_said_before_any_work(tmp_path):  # F17, F20
    made = job(tmp_path, 5)
    for source in (made.video, speech(tmp_path / "empty.wav", 0)):
        with pytest.raises(AudioError, match="has no sound"):
            run(replace(made, audio=source), progress=listen_until(1, "align", AssertionError))
    assert not made.out.exists()


@pytest.mark.parametrize("rate", [25, 30, 24])
def test_a_burst_is_seen_when_it_is_heard(tmp_path, rate):  # F22, F23: at start, middle and end, to the frame, at the source's rate and at 25
    times = (0.2, 1.6, 2.92)
    sound = speech(tmp_path / "bursts.wav", 3.0, tuple((time, time + 0.08) for time in times))
    made = job(tmp_path, 3 * rate, rate=rate, audio=sound)
    for work_rate, frames_per_second in ((None, rate), (25, 25)):
        grey = np.array([mouth(frame) for frame in frames_of(run(replace(made, work_rate=work_rate)).path)])
        assert len(grey) == 3 * frames_per_second
        for second in times:
            middle = round((second + 0.04) * frames_per_second)
            near = grey[max(0, middle - 5) : middle + 6]
            assert abs(int(near.argmin()) + max(0, middle - 5) - middle) <= 1
            assert near.min() < np.median(grey) - 10


@pytest.mark.parametrize(("length", "aligned"), [("audio", 25), ("shortest", 25), ("video", 100)])
def test_only_what_is_shown_of_a_long_clip_is_aligned(tmp_path, length, aligned):
    heard = []
    made = job(tmp_path, 100, seconds=1.0, length=length, face_time=3.0)
    result = run(made, progress=lambda done, total, *, stage="", **_: heard.append((done, total)) if stage == "align" else None)
    assert heard[-1] == (aligned, aligned)
    assert f"Face found in {aligned} of {aligned} frames" in result.summary
    assert len(frames_of(result.path)) == (100 if length == "video" else 25)


def test_the_result_sounds_as_the_source_did(tmp_path):  # F19, F22: not 16 kHz mono
    made = job(tmp_path, 25, seconds=1.0)
    sounds = {}
    for rate, channels in ((48000, 2), (8000, 1), (96000, 1)):
        source = tmp_path / f"{rate}.mka"
        with av.open(str(source), "w", format="matroska") as container:
            stream = container.add_stream("pcm_s16le", rate=rate, layout={1: "mono", 2: "stereo"}[channels])
            frame = av.AudioFrame.from_ndarray(np.tile(small_jobs.bursts(1.0, rate=rate)[:, None], channels).reshape(1, -1), "s16", stream.layout.name)
            frame.sample_rate, frame.pts = rate, 0
            container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        sounds[rate] = source
        given = read_audio(source)
        kept = read_audio(run(replace(made, audio=source, lossless=True)).path)
        assert kept["sample_rate"] == rate and kept["waveform"].shape == given["waveform"].shape == (1, channels, rate)
        assert torch.equal(kept["waveform"], given["waveform"])


# --- files ---


@pytest.mark.parametrize("name", ["a b/clip (1).mp4", "it's 100%.mp4", "顔/видео.mp4"])
def test_names_of_every_kind_on_the_command_line(tmp_path, monkeypatch, capsys, name):  # F27, F31: no ffmpeg program in the path
    made = job(tmp_path, 3)
    clip = tmp_path / name
    clip.parent.mkdir(exist_ok=True)
    made.video.rename(clip)
    out = clip.with_name(f"out of {clip.name}")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(run_command, "run", lambda job, progress: pipeline.run(job, progress, parts()))
    options = ["--model", made.model, "--resolution", "256", "--steps", "2", "--device", "cpu", "--silence", "keep", "--lossless"]
    assert commands.main(["run", "--video", str(clip), "--audio", str(made.audio), "--out", str(out), *options]) == 0
    assert str(out) in capsys.readouterr().out
    assert len(frames_of(out)) == 3


def test_ctrl_c_on_the_command_line_says_how_to_go_on(tmp_path, monkeypatch, capsys):  # F49
    made = job(tmp_path, 40)
    monkeypatch.setattr(run_command, "run", lambda job, progress: pipeline.run(job, listen_until(24, "denoise"), parts()))
    assert commands.main(["run", "--video", str(made.video), "--audio", str(made.audio), "--out", str(made.out), "--model", made.model]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert not made.out.exists()


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"out": "nowhere/out.mp4"}, MediaError, r"folder of .*nowhere/out\.mp4 does not exist"),
        ({"out": "clip.mp4/out.mp4"}, MediaError, "does not exist"),
        ({"out": "out.avi"}, MediaError, r"name it \.mp4, \.m4v, \.mov, \.mkv, not \.avi"),
        ({"out": "out"}, MediaError, "without a suffix"),
        ({"out": "folder.mp4"}, MediaError, "it is a folder"),
        ({"crf": 52}, MediaError, "crf 52: 0 .* to 51"),
        ({"encoder": "xvid"}, MediaError, "no encoder 'xvid': choose auto, libx264"),
        ({"steps": 0}, LatentSyncError, "0 denoising steps"),
        ({"seed": 2**64}, LatentSyncError, "seed 18446744073709551616 is too large"),
        ({"guidance": float("nan")}, LatentSyncError, "guidance is no number"),
        ({"silence_db": float("nan")}, LatentSyncError, "silence_db is no number"),
        ({"silence": "hush"}, ValueError, "off, rest, keep"),
        ({"length": "long"}, ValueError, "audio, video, shortest"),
        ({"extend": "on"}, ValueError, "ping-pong, loop, hold"),
        ({"work_rate": -3}, MediaError, "frame rate of -3"),
        ({"model": "no such model"}, LatentSyncError, "no such model"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(tmp_path, change, error, says):  # F28, F38
    (tmp_path / "folder.mp4").mkdir()
    made = job(tmp_path, 3)
    change = {"out": tmp_path / change["out"]} if "out" in change else change
    with pytest.raises(error, match=says):
        run(replace(made, **change), progress=listen_until(1, "audio", AssertionError))


def test_a_folder_that_takes_no_files(tmp_path, monkeypatch):  # F28
    monkeypatch.setattr(write.tempfile, "TemporaryFile", lambda dir: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(MediaError, match=r"cannot write .*out\.mp4: Permission denied"):
        run(job(tmp_path, 3), progress=listen_until(1, "audio", AssertionError))


@pytest.mark.parametrize("content", [b"", b"not a film, only text", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"])
def test_what_is_no_clip_is_named_before_any_work(tmp_path, content):  # F29
    made = job(tmp_path, 3)
    made.video.write_bytes(content)
    with pytest.raises(MediaError, match=r"cannot open .*clip\.mp4: "):
        run(made, progress=listen_until(1, "audio", AssertionError))


def test_two_jobs_at_once_in_one_folder(tmp_path):  # F30
    jobs = []
    for name, black in (("a", ()), ("b", (3,))):
        (tmp_path / name).mkdir()
        jobs.append(job(tmp_path / name, 20, black=black))
    alone = [frames_of(run(made).path) for made in jobs]
    together = [threading.Thread(target=run, args=(replace(made, out=tmp_path / f"{made.out.parent.name}.mp4"),)) for made in jobs]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    for name, expected in zip("ab", alone, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(frames_of(tmp_path / f"{name}.mp4"), expected, strict=True))
    assert not list((tmp_path / "temp").glob("*")) and not list((tmp_path / "jobs").glob("*"))


def test_a_disk_that_is_too_small_is_told_before_any_work(tmp_path, monkeypatch):  # F33: the whole job's need, not each stage's in its turn
    made = job(tmp_path, 20)
    monkeypatch.setattr(spool.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 300 << 20}))
    monkeypatch.setattr("latentsync_rtx.lipsync.budget.MEMORY_LIMIT", 0)
    with pytest.raises(DiskSpaceError, match=r"needs about \d+ MB on disk"):
        run(replace(made, resolution=1024), progress=listen_until(1, "audio", AssertionError))


def test_a_broken_network_writes_no_film(tmp_path):  # F36
    class Broken(StubRunner):
        def predict(self, sample, timestep, audio, check=lambda: None):
            return super().predict(sample, timestep, audio) * float("nan")

    made = job(tmp_path, 20)
    with pytest.raises(NumericError, match="latents of crops 0 are NaN"):
        run(made, Broken())
    assert not made.out.exists()
    assert not list((tmp_path / "jobs").glob("*")), "broken numbers are not kept for a resume"


def test_the_wrong_resolution_is_told(tmp_path, caplog, monkeypatch):  # F37
    warning = "this model was trained on 512 px: mouths come out wrong at 64 px."
    monkeypatch.setattr(weights.LatentSyncModel, "resolution_warning", lambda model, side: warning)
    result = run(job(tmp_path, 3), StubRunner(warning=warning))
    assert "trained on 512 px" in result.summary
    assert [record.message for record in caplog.records].count("this model was trained on 512 px: mouths come out wrong at 64 px.") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_again_and_again_and_with_other_parts_memory_stays(tmp_path):  # F34
    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

    made = job(tmp_path, 40)
    seen = []
    for count in range(9):
        run(replace(made, resolution=128 if count % 3 == 2 else 64))
        seen.append(resident())
    assert seen[8] - seen[3] < 40  # the heap comes and goes by 20; a job that stayed would be more


# --- stopping and going on ---


@pytest.mark.parametrize("stage", ["audio", "align", "denoise", "decode", "restore"])
def test_a_cancel_stops_every_stage_and_the_next_run_is_a_clean_one(tmp_path, stage):  # F30, F49
    made = job(tmp_path, 40)
    with pytest.raises(KeyboardInterrupt):
        run(made, progress=listen_until(2, stage))
    assert not made.out.exists() and not list(tmp_path.glob("*.part")) and not list((tmp_path / "temp").glob("*"))
    again = frames_of(run(made).path)
    clean = frames_of(run(replace(made, out=tmp_path / "clean.mp4", resume=False)).path)
    assert all(np.array_equal(*pair) for pair in zip(again, clean, strict=True))


def test_a_cancelled_job_goes_on_from_its_blocks(tmp_path):
    made = job(tmp_path, 80)  # five blocks of two steps
    first, second, other = StubRunner(), StubRunner(), StubRunner()
    clean = frames_of(run(replace(made, resume=False, out=tmp_path / "clean.mp4")).path)
    with pytest.raises(KeyboardInterrupt):
        run(made, first, listen_until(8, "denoise"))
    assert len(list((tmp_path / "jobs").glob("*.block"))) == 3
    result = run(made, second)
    assert second.calls == (5 - 3) * 2
    assert all(np.array_equal(*pair) for pair in zip(frames_of(result.path), clean, strict=True))
    assert not list((tmp_path / "jobs").glob("*")), "a finished job keeps nothing"
    run(made, other)
    assert other.calls == 5 * 2


@pytest.mark.parametrize("change", [{"seed": 1}, {"steps": 3}, {"guidance": 1.0}, {"resolution": 72}, {"smooth": "off"}, "clip", "speech"])
def test_blocks_of_another_job_are_not_taken(tmp_path, change):
    made = job(tmp_path, 40)
    with pytest.raises(KeyboardInterrupt):
        run(made, progress=listen_until(2, "decode"))
    if change == "clip":  # another picture in the last block
        film(made.video, 40, black=(38,))
    elif change == "speech":
        speech(made.audio, 1.6, ((0.0, 0.3), (0.4, None)))
    elif change == {"smooth": "off"}:  # of no effect on a face that stays: the very same blocks
        change = {}
    runner = StubRunner()
    changed = replace(made, **change) if isinstance(change, dict) else made
    result = run(changed, runner)
    steps = changed.steps
    assert runner.calls == {"clip": 2 * steps, "speech": 1 * steps}.get(change if isinstance(change, str) else "", 0 if change == {} else 3 * steps)
    clean = run(replace(changed, resume=False, out=tmp_path / "clean.mp4"))
    assert all(np.array_equal(*pair) for pair in zip(frames_of(result.path), frames_of(clean.path), strict=True))


def test_a_killed_process_is_gone_on_from(tmp_path):
    """SIGKILL in the middle of the fourth block of five: no part of the job can clean up."""
    made = job(tmp_path, 80)
    code = f"""
import os, pickle, signal, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
import conftest
from latentsync_rtx.lipsync import folders, pipeline
from latentsync_rtx.tests.small_jobs import StubRunner, parts

class Dying(StubRunner):
    def predict(self, *given):
        if self.calls == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().predict(*given)

folders.temp_dir = lambda: Path({str(tmp_path / "temp")!r})
pipeline.run(pickle.loads({pickle.dumps(made)!r}), parts=parts(Dying()))
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not made.out.exists() and not list((tmp_path / "temp").glob("*"))
    runner = StubRunner()
    result = run(made, runner)
    assert runner.calls == 2 * 2
    clean = frames_of(run(replace(made, resume=False, out=tmp_path / "clean.mp4")).path)
    assert all(np.array_equal(*pair) for pair in zip(frames_of(result.path), clean, strict=True))


def test_a_folder_for_blocks_that_cannot_be_used_costs_a_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LATENTSYNC_JOBS", str(tmp_path / "file" / "jobs"))
    made = job(tmp_path, 40)
    assert run(made).path.is_file()
    assert sum("cannot be resumed" in record.message for record in caplog.records) == 1
