"""`validate`, as typed."""
import json
import re

import numpy as np
import pytest
from latentsync_rtx.commands import main
from latentsync_rtx.tests.small_jobs import film, speech, write_film
from PIL import Image


def test_writes_numbers_and_pictures(tmp_path, capsys):
    clip = film(tmp_path / "a.mp4", 12)
    outputs = [tmp_path / name for name in ("out.json", "plot.png", "strip.png")]
    options = ["--detector", "none", "--json", outputs[0], "--png", outputs[1], "--strip", outputs[2], "--max-frames", 10]
    assert main(["validate", *map(str, [clip, clip, *options])]) == 0
    numbers = json.loads(outputs[0].read_text())
    assert numbers["compared"]["frames"] == 10 and numbers["full_frame"]["psnr_db"]["pooled"] == "Infinity"
    plot, strip = (np.asarray(Image.open(path)) for path in outputs[1:])
    assert plot.shape[1] == strip.shape[1] == 1280
    told = capsys.readouterr().out
    assert "SSIM 1.0000" in told and "first 10 frames" in told and str(outputs[2]) in told


@pytest.mark.parametrize(
    "make, why",
    [
        (lambda folder: [write_film(folder / "b.mp4", [np.zeros((64, 96, 3), np.uint8)] * 3)], "160 x 120.*96 x 64"),
        (lambda folder: [folder / "none.mp4"], "none.mp4"),
        (lambda folder: [folder / "a.mp4", "--audio", folder / "a.mp4"], "has no sound"),
        (lambda folder: [folder / "a.mp4", "--json", folder / "nowhere" / "out.json"], "there is no folder"),
        (lambda folder: [folder / "a.mp4", "--engine", "none.plan"], "none"),
        (lambda folder: [folder / "a.mp4", "--json", folder], "it is a folder"),
        (lambda folder: [folder / "a.mp4", "--png", folder / "a.mp4"], "one of the files to compare"),
        (lambda folder: [folder / "a.mp4", "--audio", folder / "speech.wav", "--json", folder / "speech.wav"], "one of the files to compare"),
        (lambda folder: [folder / "a.mp4", "--png", folder / "x.png", "--strip", folder / "x.png"], "asked for twice"),
        (lambda folder: [folder / "a.mp4", "--max-frames", 0], "at least 1"),
        (lambda folder: [folder / "a.mp4", "--device", "cuda:99"], "cuda:99"),
        (lambda folder: [folder / "a.mp4", "--device", "gpu"], "'gpu' is no device"),
    ],
)
def test_says_what_is_wrong_in_one_line(tmp_path, capsys, make, why):
    clip = film(tmp_path / "a.mp4", 3)
    speech(tmp_path / "speech.wav", 1)
    assert main(["validate", "--detector", "none", *map(str, [clip, *make(tmp_path)])]) == 1
    error = capsys.readouterr().err
    assert re.search(why, error), error
