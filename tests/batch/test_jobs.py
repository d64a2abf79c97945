"""Jobs files: what is taken, and what is refused, line by line, before anything is done."""
import io
import json
from fractions import Fraction
from pathlib import Path

import pytest
from latentsync_rtx.lipsync.batch import read_jobs
from latentsync_rtx.lipsync.batch.jobs import job_of
from latentsync_rtx.lipsync.errors import JobsFileError
from latentsync_rtx.lipsync.pipeline import Job

LEAST = {"video": "a.mp4", "audio": "a.wav", "out": "b.mp4"}


def test_a_line_is_a_job_and_its_paths_are_relative_to_the_file(jobs_file, tmp_path):
    more = {**LEAST, "out": "c.mp4", "seed": 7, "guidance": 2, "work_rate": "30000/1001", "face": 1, "silence": "rest"}
    more |= {"face_preview": "p.png", "resume": False}
    first, second = read_jobs(jobs_file(LEAST, "", more))
    assert first.job == Job(tmp_path / "a.mp4", tmp_path / "a.wav", tmp_path / "b.mp4") and first.line == 1
    assert second.line == 3
    job = second.job
    assert (job.seed, job.guidance, job.work_rate, job.face, job.silence, job.resume) == (7, 2.0, Fraction(30000, 1001), 1, "rest", False)
    assert job.face_preview == tmp_path / "p.png"
    assert job_of(json.loads(json.dumps(second.given))) == job, "another process makes the same job of it"


def test_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(LEAST).encode())))
    assert read_jobs("-")[0].job.video == Path.cwd() / "a.mp4"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"vido": "x"}, "no field 'vido'; did you mean 'video'"),
        ({"wholly": 1}, "no field 'wholly': use video, audio"),
        ({"out": None}, "'out' is missing: a job needs video, audio, out"),
        ({"steps": "many"}, 'steps is a whole number, not "many"'),
        ({"steps": True}, "steps is a whole number, not true"),
        ({"steps": 2.5}, "steps is a whole number, not 2.5"),
        ({"resume": 1}, "resume is true or false, not 1"),
        ({"video": 3}, "video is a path, not 3"),
        ({"guidance": float("nan")}, "guidance is nan"),
        ({"work_rate": "fast"}, "work_rate: 'fast' is not a frame rate"),
        ({"face": [1]}, "face is text or a whole number"),
        ({"face": "biggest"}, "unknown choice of face 'biggest'"),
        ({"crf": 99}, "crf 99"),
        ({"out": "a.txt"}, "cannot write a.txt: name it"),
        ({"silence": "hush"}, "off, rest, keep"),
        ({"windows": "wide"}, "windows is one of overlapped, reference, not 'wide'"),
        ({"backend": "vulkan"}, "backend is one of auto, tensorrt_rtx, torch"),
        ({"steps": 0}, "0 denoising steps"),
    ],
)
def test_a_wrong_line_is_told_by_number(jobs_file, change, says):
    with pytest.raises(JobsFileError, match="line 2: ") as raised:
        read_jobs(jobs_file(LEAST, {**LEAST, "out": "c.mp4", **change}))
    assert says in str(raised.value)


def test_all_wrong_lines_are_told_at_once(jobs_file, tmp_path):
    with pytest.raises(JobsFileError) as raised:
        read_jobs(jobs_file("no json", "[1]", LEAST, '{"video": "v.mp4"}'))
    for text in ("line 1: it is no JSON", "line 2: it is no JSON object, but list", "line 4: 'audio' is missing"):
        assert text in str(raised.value)
    with pytest.raises(JobsFileError, match="has no jobs"):
        read_jobs(jobs_file("", " "))
    with pytest.raises(JobsFileError, match=r"cannot read .*absent\.jsonl"):
        read_jobs(tmp_path / "absent.jsonl")


def test_jobs_that_get_in_each_others_way(jobs_file):
    with pytest.raises(JobsFileError, match=r"line 2: .*b\.mp4 is what line 1 writes, too"):
        read_jobs(jobs_file(LEAST, {**LEAST, "out": "folder/../b.mp4"}))
    with pytest.raises(JobsFileError, match=r"line 2: .*b\.mp4 is what line 1 writes: jobs overlap"):
        read_jobs(jobs_file(LEAST, {**LEAST, "video": "b.mp4", "out": "c.mp4"}))
    with pytest.raises(JobsFileError, match=r"line 1: .*a\.mp4 would be overwritten by its own result"):
        read_jobs(jobs_file({**LEAST, "out": "a.mp4"}))
