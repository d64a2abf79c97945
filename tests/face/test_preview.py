"""The track as a picture."""
from fractions import Fraction
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from latentsync_rtx.lipsync.clip import open_clip
from latentsync_rtx.lipsync.errors import MediaError
from latentsync_rtx.lipsync.face import FaceTrack, align_clip
from latentsync_rtx.lipsync.face.detector import Face
from latentsync_rtx.lipsync.face.preview import COLUMNS, CUT, FACE, FOUND, LOST, MARGIN, ROWS, SPAN, Thumbnails, draw
from latentsync_rtx.lipsync.face.sights import Sight


def track_of(count, lost=(), cuts=(), x=lambda k: 0.5, frame=(1280, 720)):
    """A track without a clip: a face 100 px wide, `x` of the way across."""
    found = np.ones(count, bool)
    found[list(lost)] = False
    boxes = np.array([(x(k) * frame[0] - 50, 300, x(k) * frame[0] + 50, 420) for k in range(count)], np.float32)
    thumbnails = Thumbnails(count)
    picture = np.full((frame[1], frame[0], 3), 90, np.uint8)
    for k in range(count):
        thumbnails(k, Sight(picture, Face(boxes[k], 0.9, np.zeros((3, 2))) if found[k] else None))
    return FaceTrack(
        clip=SimpleNamespace(width=frame[0], height=frame[1], rate=Fraction(25)), resolution=256, found=found, matrices=None,
        scores=np.where(found, 0.9, 0), boxes=boxes * found[:, None], run_ids=np.where(found, 0, -1), crops=None, crop_row=None,
        cuts=np.isin(np.arange(count), cuts), thumbnails=thumbnails.pictures, detector="MediaPipe on CPU",
    )


def pixels(picture, colour):
    return (picture == colour).all(-1)


def strip(picture):
    """The row through the found/lost strip: FOUND and LOST pixels only."""
    either = pixels(picture, FOUND) | pixels(picture, LOST)
    row = int(np.argmax(either.sum(1) > SPAN * 0.9))
    return pixels(picture, LOST)[row, MARGIN:MARGIN + SPAN]


def test_found_and_lost_lie_where_they_were():
    lost = strip(draw(track_of(100, lost=range(40, 60))))
    assert abs(int(np.argmax(lost)) - 0.4 * SPAN) < 3
    assert abs(int(lost.sum()) - 0.2 * SPAN) < 6


def test_one_lost_frame_of_a_long_clip_is_seen():
    assert strip(draw(track_of(20000, lost=[5000])))[SPAN // 4]


def test_cuts_and_the_face_are_drawn_over_time():
    picture = draw(track_of(100, cuts=[50], x=lambda k: 0.1 + 0.8 * k / 100))
    cuts = pixels(picture, CUT).sum(0)
    assert abs(int(np.argmax(cuts[MARGIN:])) - 0.5 * SPAN) < 2  # beyond the legend's square, one line
    face = pixels(picture, FACE)
    first = face[:, MARGIN + 400:MARGIN + 410].any(1)
    rows = np.flatnonzero(first)
    curve = rows[: int(np.argmax(np.diff(rows) > 1)) + 1]  # the uppermost curve: across
    later = np.flatnonzero(face[:, MARGIN + 1100:MARGIN + 1110].any(1))
    assert later.min() > curve.min() + 20


@pytest.mark.parametrize("count", [1, 2, 23, 24, 25, 5000])
def test_the_picture_is_of_bounded_size(count):
    track = track_of(count)
    assert len(track.thumbnails) == min(count, COLUMNS * ROWS)
    picture = draw(track)
    assert picture.shape[1] == MARGIN * 2 + SPAN
    assert picture.shape[0] < 800
    assert picture.dtype == np.uint8


@pytest.mark.parametrize("frame", [(1080, 1920), (64, 48), (2000, 16), (16, 2000)])
def test_any_shape_of_frame(frame):
    assert draw(track_of(30, lost=[3], frame=frame)).shape[0] < 950


def test_it_comes_with_the_track_and_goes_into_a_file(detector, stage, tmp_path):
    frames = [stage.shot(150 + 10 * k) for k in range(12)] + [stage.empty()] * 4
    track = align_clip(open_clip(np.stack(frames)), detector, 256, min_size=50)
    lost = strip(track.preview())
    assert abs(int(lost.sum()) - SPAN / 4) < 6
    indices = [index for index, _ in track.thumbnails]
    assert indices == list(range(16))
    boxed = [pixels(picture, FOUND).any() for _, picture in track.thumbnails]
    assert boxed == track.found.tolist()
    path = tmp_path / "дорожка.png"
    track.write_preview(path)
    assert np.array_equal(cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)[..., ::-1], track.preview())
    for bad in (tmp_path / "none" / "a.png", tmp_path / "a.what"):
        with pytest.raises(MediaError, match="cannot write the track's preview"):
            track.write_preview(bad)
