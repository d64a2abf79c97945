"""Parts for workers on Ray, which are processes of their own: they find these by name."""
import os
import signal
import time
from pathlib import Path

from latentsync_rtx.lipsync import folders
from latentsync_rtx.tests.small_jobs import StubRunner, parts

STEP_SECONDS = 0.1
DEADLY = 72  # px: at this resolution, the network takes its process with it


class Slow(StubRunner):
    """A network that takes its time, so that a worker can be lost in the middle, and that leaves a line for each step."""

    def predict(self, *given):
        if given[0].shape[-1] * 8 == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(STEP_SECONDS)
        with open(Path(os.environ["LATENTSYNC_JOBS"]).parent / "steps.txt", "a") as file:
            file.write(f"{os.getpid()}\n")
        return super().predict(*given)


def slow():
    temp = Path(os.environ["LATENTSYNC_JOBS"]).parent / "temp"
    folders.temp_dir = lambda: temp
    return parts(Slow())
