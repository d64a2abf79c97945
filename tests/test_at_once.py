"""Jobs that are drawn, decoded and written at the same time, as on a GPU with room for it: here on a CPU, the networks stubs."""
import errno
import threading
import time
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from latentsync_rtx.bench.stubs import LinearVAE
from latentsync_rtx.lipsync import pipeline
from latentsync_rtx.lipsync.clip import write
from latentsync_rtx.lipsync.errors import EngineError, MediaError, NumericError

from .small_jobs import StubRunner, frames_of, job, listen_until, parts, speech

pytestmark = pytest.mark.usefixtures("own_folders")


def run(made, runner=None, progress=pipeline.silent):
    return pipeline.run(made, progress, parts(runner))


def at_once(made, runner=None, progress=pipeline.silent):
    checked, given = pipeline.check(made), parts(runner)
    return pipeline.at_once(pipeline.prepare(checked, given), given, progress)


class Patient(StubRunner):
    """As slow as a network."""

    def predict(self, *given, **options):
        time.sleep(0.05)
        return super().predict(*given, **options)


def test_drawing_decoding_and_writing_at_once_make_the_same_film(tmp_path):
    made = job(tmp_path, 70, black=(20, 21), silence="keep")
    speech(made.audio, 70 / 25, loud=((0, 0.9), (1.6, None)))
    in_turn, heard = run(made).path.read_bytes(), []
    result = at_once(replace(made, out=tmp_path / "at once.mp4"), Patient(), lambda done, total, *, stage="", **_: heard.append((stage, done, total)))
    assert result.path.read_bytes() == in_turn
    told = [stage for stage, *_ in heard if stage in ("denoise", "restore")]
    assert told == sorted(told), "one stage after the other, for whoever listens"
    assert heard[-1] == ("restore", 70, 70) and ("denoise", 12, 12) in heard
    assert not list((tmp_path / "jobs").iterdir())


@pytest.mark.parametrize("way", [run, at_once])
def test_where_nothing_is_said_nothing_is_drawn(tmp_path, way):
    made, runner = job(tmp_path, 20, silence="keep"), StubRunner()
    speech(made.audio, 0.8, loud=())
    heard = []
    result = way(made, runner=runner, progress=lambda done, total, *, stage="", **_: heard.append((stage, done)))
    assert len(frames_of(result.path)) == 20 and runner.calls == 0
    assert heard[-1] == ("restore", 20)


def test_a_small_card_decodes_when_the_network_has_left(monkeypatch):
    """And a processor has no time for two things."""
    runner, free = StubRunner(), 0
    monkeypatch.setattr(pipeline.gpu, "free_memory", lambda device: free)
    for free, room in ((5e9, False), (23e9, True)):  # noqa: B007 - the stand-in reads it
        assert pipeline._has_room(torch.device("cuda"), runner) is room
    free, runner.size_bytes = 5e9, 2.8e9  # loaded already
    assert pipeline._has_room(torch.device("cuda"), runner)
    assert not pipeline._has_room(torch.device("cpu"), runner)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("way", ["at once", "in turn", "out of memory", "broken"])
def test_the_way_that_a_job_takes_and_when_its_network_leaves(tmp_path, monkeypatch, caplog, way, keep):
    class Leaving(StubRunner):
        unloads = 0

        def unload(self):
            self.unloads += 1

        def predict(self, *given, **options):
            if way == "broken":
                raise EngineError("it broke")
            return super().predict(*given, **options)

    real, taken = pipeline.at_once, []

    def recorded(*given):
        taken.append(way)
        if way == "out of memory":
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return real(*given)

    monkeypatch.setattr(pipeline, "at_once", recorded)
    monkeypatch.setattr(pipeline, "_has_room", lambda device, runner: way != "in turn")
    checked, given = pipeline.check(job(tmp_path, 20)), parts(Leaving())
    prepared = pipeline.prepare(checked, given)
    with pytest.raises(EngineError) if way == "broken" else nullcontext():
        assert len(frames_of(pipeline.complete(prepared, given, keep=keep).path)) == 20
    assert bool(taken) is (way != "in turn") and given.runner.unloads == (0 if keep else 1)
    assert ("one after the other" in caplog.text) is (way == "out of memory")


def test_a_film_that_cannot_be_written_stops_the_network(tmp_path, monkeypatch):  # F28
    made, runner = job(tmp_path, 200), Patient()

    def full(writer, picture, count):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(write.ClipWriter, "_encode", full)
    with pytest.raises(MediaError, match=r"cannot write .*out\.mp4: No space left"):
        at_once(made, runner)
    assert runner.calls < 20, "26 steps are the whole job"
    assert not made.out.exists() and list((tmp_path / "jobs").iterdir()), "the next try goes on"


def test_broken_numbers_are_named_while_the_film_is_written(tmp_path):  # F36
    class Broken(StubRunner):
        def predict(self, *given, **options):
            return super().predict(*given, **options) * (float("nan") if self.calls > 4 else 1)

    made = job(tmp_path, 60)
    with pytest.raises(NumericError, match="crops 32, 33"):
        at_once(made, Broken())
    assert not made.out.exists()


def test_a_decoder_that_fails_leaves_no_thread_while_its_error_is_held(tmp_path):
    class Failing(LinearVAE):
        def decode(self, latents):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    checked, given = pipeline.check(job(tmp_path, 60)), replace(parts(), vae=Failing())
    prepared = pipeline.prepare(checked, given)
    with pytest.raises(torch.cuda.OutOfMemoryError) as held:
        pipeline.at_once(prepared, given)
    left = [thread for thread in threading.enumerate() if thread.name == "latentsync-ahead"]
    for thread in left:
        thread.join(5)  # it has ended but for its last instructions
    assert held and not any(thread.is_alive() for thread in left)


def test_a_job_that_is_stopped_half_way_goes_on_there(tmp_path):  # F49
    made = job(tmp_path, 60)
    with pytest.raises(KeyboardInterrupt):
        at_once(made, Patient(), listen_until(6, "denoise"))
    assert not made.out.exists()
    runner = StubRunner()
    at_once(made, runner)
    assert runner.calls in (4, 6), "of eight steps"
