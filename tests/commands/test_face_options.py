"""`run`'s options that choose a face."""
import argparse

import cv2
import numpy as np
import pytest
from latentsync_rtx.commands import run
from latentsync_rtx.lipsync.errors import MediaError


def parsed(*options):
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    return parser.parse_args(["--video", "v.mp4", "--audio", "a.wav", "--out", "o.mp4", *options])


def test_a_face_is_chosen_by_name_or_number():
    assert parsed().face == "largest"
    assert parsed("--face", "right").face == "right"
    assert parsed("--face", "2").face == "2"
    for wrong in ("middle", "-1", "1.5"):
        with pytest.raises(SystemExit):
            parsed("--face", wrong)


def test_a_mask_is_a_picture_file(tmp_path):
    picture = np.zeros((36, 64, 3), np.uint8)
    picture[5, 6] = 255
    path = tmp_path / "маска it's.png"
    cv2.imencode(".png", picture)[1].tofile(path)
    mask = run.read_mask(path)
    assert mask.shape == (36, 64)
    assert mask[5, 6] == 1
    assert mask.sum() == 1


@pytest.mark.parametrize("content", [None, b"", b"no picture"])
def test_what_is_no_mask_is_named(tmp_path, content):
    path = tmp_path / "mask.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(MediaError, match="cannot open the mask"):
        run.read_mask(path)
