"""The face that is picked in one frame is the face of the whole track."""
import json

import numpy as np
import pytest
from latentsync_rtx.lipsync.clip import open_clip
from latentsync_rtx.lipsync.errors import FaceError
from latentsync_rtx.lipsync.face import align_clip
from latentsync_rtx.lipsync.face.look import look
from latentsync_rtx.lipsync.face.outline import MOST, outline

COMES = 8  # the frame in which Anna comes


@pytest.fixture(scope="module")
def clip(stage):
    """Bea on the right all the time; Anna on the left from frame COMES on; they slowly move."""
    frames = []
    for k in range(24):
        frame = stage.put(stage.empty(), 470 + k, 190, 200, stage.bea)
        frames.append(stage.put(frame, 140 + k, 190, 200, stage.anna) if k >= COMES else frame)
    return open_clip(np.stack(frames), rate=25)


def middle(track):
    return (track.boxes[track.found, 0] + track.boxes[track.found, 2]) / 2


def test_what_is_seen_is_numbered_from_the_left(clip, detector):
    frame, faces = look(clip, 20 / 25, detector)
    assert frame.shape == (360, 640, 3)
    assert [round(float(face.centre[0]), -2) for face in faces] == [200, 500]
    assert len(look(clip, 0, detector)[1]) == 1
    assert np.array_equal(look(clip, 1e6, detector)[0], next(clip.frames_at([23])))


def test_a_pick_in_the_middle_holds_before_and_after(clip, detector):
    without = align_clip(clip, detector, 64, choice=0)
    assert without.found.all() and middle(without).min() > 400, "the first face that is seen is Bea's"
    anna = align_clip(clip, detector, 64, choice=0, choice_time=20 / 25)
    assert middle(anna).max() < 300
    assert anna.found[COMES + 8:].all() and not anna.found[:COMES].any(), "Bea is nobody's stand-in"
    assert (anna.run_ids[20:] == anna.run_ids[20]).all()
    bea = align_clip(clip, detector, 64, choice=1, choice_time=20 / 25)
    assert bea.found.all() and middle(bea).min() > 400
    assert (bea.run_ids == 0).all(), "one run: she was followed before the pick, too"


def test_nobody_at_the_picked_place(clip, detector):
    with pytest.raises(FaceError, match=r"the face 5 is not at second 0\.8 \(frame 20\).*where 2 can be chosen"):
        align_clip(clip, detector, 64, choice=5, choice_time=0.8)


def test_outline_is_small_and_true(clip, detector):
    track = align_clip(clip, detector, 64, choice=0, choice_time=0.8)
    told = json.loads(json.dumps(outline(track)))
    assert (told["frames"], told["rate"], told["width"], told["height"]) == (24, 25.0, 640, 360)
    assert told["gaps"] == [list(gap) for gap in track.gaps()] and told["gaps"][0][0] == 0
    assert len(told["boxes"]) == track.found.sum() <= MOST
    frame, *box = told["boxes"][-1]
    assert np.allclose(np.array(box) * [640, 360, 640, 360], track.boxes[frame], atol=0.1)
