"""The plan of the output: exactly as many frames as promised, the mouth tied to time, blocks that never cross a gap."""
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from latentsync_rtx.lipsync.errors import AudioError, MediaError
from latentsync_rtx.lipsync.timeline import EXTENSIONS, LENGTHS, OVERHANG_SECONDS, build, plan_blocks

NTSC = Fraction(30000, 1001)
RATES = [Fraction(16), Fraction(24), Fraction(25), NTSC, Fraction(50), Fraction(60)]


@pytest.mark.parametrize("count", [1, 12, 16, 17, 25, 300])
@pytest.mark.parametrize("extend", EXTENSIONS)
@pytest.mark.parametrize("length", LENGTHS)
def test_as_many_out_as_in(count, extend, length):  # F13
    plan = build(count, 25, count / 25, length, extend)
    assert plan.source.tolist() == list(range(count)) and plan.speaking.all() and plan.seconds == Fraction(count, 25)


def test_ten_seconds_and_ten_seconds():  # F14
    plan = build(250, 25, 10.0)
    assert len(plan) == 250 and plan.source.tolist() == list(range(250))
    assert plan.source.dtype == np.int64 and plan.speaking.dtype == bool and plan.rate == 25


@pytest.mark.parametrize("extend", EXTENSIONS)
@pytest.mark.parametrize("seconds", [441344 / 44100, 10.02, 10.04, 10.08])
def test_sound_padded_by_its_coder_does_not_turn_the_picture(extend, seconds):  # F14
    plan = build(250, 25, seconds, extend=extend)
    assert len(plan) == round(seconds * 25)
    assert (np.diff(plan.source) >= 0).all()


@pytest.mark.parametrize("seconds", [0.0001, 0.019, 0.02])
def test_the_shortest_sound_is_one_frame(seconds):  # F17
    assert len(build(100, 25, seconds)) == 1


@pytest.mark.parametrize(("length", "video", "audio", "frames", "spoken"), [  # F16
    ("audio", 50, 7.0, 175, 175), ("video", 50, 7.0, 50, 50), ("shortest", 50, 7.0, 50, 50),
    ("audio", 250, 3.0, 75, 75), ("video", 250, 3.0, 250, 75), ("shortest", 250, 3.0, 75, 75),
])
def test_length_policies(length, video, audio, frames, spoken):
    plan = build(video, 25, audio, length)
    assert len(plan) == frames
    assert plan.speaking.tolist() == [True] * spoken + [False] * (frames - spoken)


def test_extensions():  # F16
    assert build(4, 25, 12 / 25, extend="ping-pong").source.tolist() == [0, 1, 2, 3, 2, 1, 0, 1, 2, 3, 2, 1]
    assert build(4, 25, 10 / 25, extend="loop").source.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert build(4, 25, 10 / 25, extend="hold").source.tolist() == [0, 1, 2, 3, 3, 3, 3, 3, 3, 3]
    for extend in EXTENSIONS:
        assert build(1, 25, 10 / 25, extend=extend).source.tolist() == [0] * 10
    assert build(2, 25, 10 / 25, extend="ping-pong").source.tolist() == [0, 1] * 5


@pytest.mark.parametrize("seed", range(20))
def test_what_every_plan_promises(seed):
    draw = random.Random(seed)
    for _ in range(20):
        rate, frames = draw.choice(RATES), draw.choice([1, 2, 3, 17, draw.randrange(1, 2000)])
        seconds = draw.choice([frames / float(rate), draw.uniform(0.001, 90), Fraction(draw.randrange(1, 10 ** 6), 48000)])
        length, extend = draw.choice(LENGTHS), draw.choice(EXTENSIONS)
        plan = build(frames, rate, seconds, length, extend)
        spoken = max(1, math.floor(Fraction(seconds) * rate + Fraction(1, 2)))
        wanted = {"audio": spoken, "video": frames, "shortest": min(spoken, frames)}[length]
        assert len(plan) == len(plan.speaking) == len(plan.source) == wanted
        assert plan.source.min() == 0 and plan.source.max() <= frames - 1
        assert plan.source[:frames].tolist() == list(range(min(frames, len(plan))))
        if extend == "ping-pong":
            assert np.abs(np.diff(plan.source)).max(initial=0) <= 1
            held = (np.diff(plan.source) == 0).sum()
            assert frames == 1 or held <= OVERHANG_SECONDS * rate
        if length == "audio":
            assert plan.speaking.all() and abs(plan.seconds - Fraction(seconds)) <= max(1 / (2 * rate), 1 / rate - Fraction(seconds))
        assert (np.diff(plan.speaking.astype(int)) <= 0).all()


def test_no_drift():  # F23: an hour at 29.97
    assert len(build(10, NTSC, 3600)) == len(build(10, NTSC, np.float32(3600))) == 107892
    assert abs(float(build(10, NTSC, 3600).seconds) - 3600) < 0.02


def test_what_cannot_be_planned():
    for seconds in (0, -1, float("nan"), float("inf")):
        with pytest.raises(AudioError, match="sound"):
            build(10, 25, seconds)
    with pytest.raises(MediaError, match="no frames"):
        build(0, 25, 1)
    with pytest.raises(MediaError, match="rate"):
        build(10, 0, 1)
    with pytest.raises(ValueError, match="ping-pong"):
        build(10, 25, 1, extend="bounce")
    with pytest.raises(ValueError, match="shortest"):
        build(10, 25, 1, length="longest")


def runs(found) -> np.ndarray:
    """A run for each stretch of found frames, as a face track gives them."""
    found = np.asarray(found, bool)
    starts = found & ~np.concatenate([[False], found[:-1]])
    return np.where(found, np.cumsum(starts) - 1, -1)


def test_blocks_of_a_whole_clip():
    found = np.ones(37, bool)
    blocks = plan_blocks(build(37, 25, 37 / 25), found, runs(found))
    assert [len(block) for block in blocks] == [16, 16, 5] and np.concatenate(blocks).tolist() == list(range(37))
    assert [len(block) for block in plan_blocks(build(37, 25, 37 / 25), found, runs(found), size=22)] == [22, 15]
    assert all(block.dtype == np.int64 for block in blocks)
    with pytest.raises(ValueError, match="at least one"):
        plan_blocks(build(37, 25, 1), found, runs(found), size=0)


def test_a_gap_leaves_the_mouth_in_its_time():  # F01, F02
    found = np.ones(150, bool)
    found[50:100] = False
    plan = build(150, 25, 6.0)
    redrawn = plan.redrawn(found)
    assert redrawn.tolist() == [*range(50), *range(100, 150)]  # frame 100 hears the sound of second 4, not of second 2
    blocks = plan_blocks(plan, found, runs(found))
    assert [len(block) for block in blocks] == [16, 16, 16, 2, 16, 16, 16, 2]
    assert redrawn[blocks[4]].tolist() == list(range(100, 116))


def test_no_face_anywhere():
    assert plan_blocks(build(10, 25, 1), np.zeros(10, bool), np.full(10, -1)) == []


def test_a_cut_and_a_loop_and_the_end_of_the_sound_part_blocks():
    found, ids = np.ones(10, bool), np.repeat([0, 1], 5)
    assert [block.tolist() for block in plan_blocks(build(10, 25, 10 / 25), found, ids)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    loop = build(10, 25, 20 / 25, extend="loop")
    assert [len(block) for block in plan_blocks(loop, found, np.zeros(10))] == [10, 10]
    turn = build(10, 25, 15 / 25)  # turning around is movement like any other
    assert [len(block) for block in plan_blocks(turn, found, np.zeros(10))] == [15]
    silent = build(10, 25, 4 / 25, "video")
    assert [block.tolist() for block in plan_blocks(silent, found, np.zeros(10))] == [[0, 1, 2, 3]]


@pytest.mark.parametrize("seed", range(20))
def test_what_every_block_promises(seed):
    draw = np.random.default_rng(seed)
    frames, size = int(draw.integers(1, 120)), int(draw.integers(1, 24))
    found = draw.random(frames) < draw.choice([0.3, 0.9, 1.0])
    ids = runs(found) * 10 + np.cumsum(draw.random(frames) < 0.05)  # cuts inside runs
    plan = build(frames, 25, float(draw.uniform(0.1, 10)), str(draw.choice(LENGTHS)), str(draw.choice(EXTENSIONS)))
    redrawn, blocks = plan.redrawn(found), plan_blocks(plan, found, ids, size)
    assert np.array_equal(redrawn, [k for k in range(len(plan)) if plan.speaking[k] and found[plan.source[k]]])
    assert np.concatenate([*blocks, []]).tolist() == list(range(len(redrawn)))
    for block in blocks:
        shown = plan.source[redrawn[block]]
        assert 1 <= len(block) <= size
        assert (np.diff(redrawn[block]) == 1).all() and len(set(ids[shown])) == 1 and np.abs(np.diff(shown)).max(initial=0) <= 1
