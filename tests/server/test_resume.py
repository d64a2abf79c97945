"""A prompt that was cancelled goes on from its finished blocks when it is queued again."""
import numpy as np
import speech
from comfy_client import frames_of, only
from demo_media import spoken
from test_cancel import cancel_when


def test_a_cancelled_prompt_goes_on_where_it_stopped(comfy, example):
    name = speech.save_wav(comfy.input / "two seconds.wav", *spoken(2)) and "two seconds.wav"
    workflow = example({"LoadAudio.audio": name, "LatentSyncDenoise.seed": 444, "LatentSyncDenoise.steps": 2})  # blocks of 16, 16, 16 and 2
    denoise = only(workflow, "LatentSyncDenoise")
    jobs = comfy.server.base / "user" / "latentsync-jobs"
    told = []

    def third_block(kind, data):
        if kind == "progress" and data["node"] == denoise:
            told.append(data["value"])
        return bool(told) and told[-1] >= 5

    def kept() -> set:
        return set(jobs.glob("*")) - others

    comfy.forget()
    others = set(jobs.glob("*"))  # of jobs that other tests cancelled
    cancelled = comfy.run(workflow, cancel_when(comfy, third_block))
    assert cancelled.status == "interrupted"
    assert len([file for file in kept() if file.suffix == ".block"]) == 2
    told.clear()
    finished = comfy.run(workflow, lambda kind, data: told.append(data["value"]) if kind == "progress" and data["node"] == denoise else None)
    assert finished.status == "success", finished.failure
    assert next(value for value in told if value) > 1 and max(told) == 8, "the first two blocks were there"
    assert not kept(), "a finished job keeps nothing"
    comfy.forget()
    clean = comfy.run({**workflow, denoise: {**workflow[denoise], "inputs": {**workflow[denoise]["inputs"], "resume": False}}})
    assert clean.status == "success" and not kept()
    assert np.array_equal(*(frames_of(comfy.saved(one)[0]) for one in (finished, clean)))
