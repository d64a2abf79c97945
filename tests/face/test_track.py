"""One face followed through a clip: real detector, painted clips."""
import inspect
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from latentsync_rtx.lipsync import spool
from latentsync_rtx.lipsync.clip import open_clip
from latentsync_rtx.lipsync.errors import DiskSpaceError, FaceError, ShapeError
from latentsync_rtx.lipsync.face import CHOICES, align_clip, align_matrices, track, warp_crops
from latentsync_rtx.lipsync.face.follower import CutFinder, facing

DEMO = Path(__file__).parents[3] / "shared" / "media" / "demo1_video.mp4"


def clip_of(frames):
    return open_clip(np.stack(frames))


def follow(frames, detector, **options):
    return align_clip(clip_of(frames), detector, 256, **{"min_size": 50, **options})  # larger than usual: less to search


def centres(found):
    return (found.boxes[:, :2] + found.boxes[:, 2:]) / 2


def distances(found, places, width):
    """How far the followed box is off each place, in face widths; only where found."""
    off = np.hypot(*(centres(found) - np.array(places)).T) / width
    return off[found.found]


class LookingOnly:
    """The real detector without its way of following: what InsightFace's is like."""

    name, device, note = "MediaPipe", "CPU", "a note for the user"

    def __init__(self, detector):
        self._detector = detector

    def detect(self, frames, **options):
        return self._detector.detect(frames, **options)


@pytest.fixture(params=["following", "looking only"])
def any_detector(request, detector):
    return detector if request.param == "following" else LookingOnly(detector)


def test_a_moving_face_is_followed_and_cut_out(any_detector, stage):
    places = [(150 + 10 * k, 170 + k) for k in range(20)]
    frames = [stage.shot(x, y) for x, y in places]
    found = follow(frames, any_detector)
    assert len(found) == 20
    assert found.found.all()
    assert (found.run_ids == 0).all()
    assert distances(found, [stage.face_at(x, y, 200) for x, y in places], 86).max() < 0.08
    assert found.matrices.dtype == found.scores.dtype == found.boxes.dtype == np.float32
    assert (found.scores > 0.6).all()
    assert np.array_equal(found.crop_row, np.arange(20))
    assert np.array_equal(found.crops.read(slice(0, 20)), warp_crops(np.stack(frames), found.matrices, 256))
    # the head moves, the crop shows it still
    first, last = found.crops.read([0, 19]).astype(float)
    assert np.abs(first - last)[60:200, 60:200].mean() < 12
    assert "20 of 20" in found.summary()
    assert re.search(r"MediaPipe on CPU, crops on CPU, \d+\.\d ms a frame", found.summary())  # F09


def test_one_black_frame_is_a_gap_and_nothing_more(any_detector, stage):
    """F01"""
    frames = [stage.shot(300 + k) for k in range(12)]
    frames[5] = np.zeros_like(frames[5])
    found = follow(frames, any_detector)
    assert np.flatnonzero(~found.found).tolist() == [5]
    assert found.run_ids.tolist() == [0] * 5 + [-1] + [1] * 6
    assert found.crop_row.tolist() == [0, 1, 2, 3, 4, -1, 5, 6, 7, 8, 9, 10]
    assert len(found.crops) == 11
    assert not found.matrices[5].any()
    assert "No face in frames 5:" in found.summary()


def test_the_first_frame_after_a_gap_starts_afresh(detector, stage):
    """F02: face, frames without, face: no smear of the smoothing into the first frame after."""
    frames = [stage.shot(300)] * 4 + [stage.empty()] * 12 + [stage.shot(300, side=240)] * 3
    found = follow(frames, detector)
    assert found.found.tolist() == [True] * 4 + [False] * 12 + [True] * 3
    fresh = follow(frames[16:], detector)
    middle = np.array([*stage.face_at(300, 180, 240), 1])
    assert np.abs((found.matrices[16] - fresh.matrices[0]) @ middle).max() < 2
    assert found.run_ids[16] == 1
    assert "4-15" in found.summary()


def test_a_shot_without_a_person_between_two_with(detector, make_stage):
    """F03: one line for it all."""
    stage, other = make_stage(), make_stage()
    other.backdrop = np.ascontiguousarray(255 - stage.backdrop[::-1])
    frames = [stage.shot(200)] * 6 + [other.empty()] * 6 + [other.shot(450, side=160)] * 6
    found = follow(frames, detector)
    assert found.run_ids.tolist() == [0] * 6 + [-1] * 6 + [1] * 6
    assert found.summary().count("\n") == 0
    assert found.gaps() == [(6, 11)]


def test_two_faces_whose_sizes_cross(any_detector, stage):
    """F04: whoever was chosen is followed, also when the other becomes the larger."""
    def frame(k):
        return stage.put(stage.put(stage.empty(), 160, 180, 140 + 5 * k), 480, 180, 240 - 5 * k, stage.bea)

    frames = [frame(k) for k in range(21)]
    for choice, x in (("largest", 480), (0, 160)):
        found = follow(frames, any_detector, choice=choice)
        assert found.found.all(), choice
        assert (found.run_ids == 0).all(), choice
        assert np.abs(centres(found)[:, 0] - x).max() < 20, choice


def test_left_right_and_number_choose(detector, stage):
    frames = [stage.put(stage.put(stage.empty(), 160, 180, 140), 480, 180, 240, stage.bea)]
    for choice, x in (("left", 160), ("right", 480), (0, 160), ("1", 480)):
        assert np.abs(centres(follow(frames, detector, choice=choice))[:, 0] - x).max() < 20, choice


def test_a_mask_chooses(detector, stage):
    frames = [stage.put(stage.put(stage.empty(), 160, 180, 140), 480, 180, 240, stage.bea)] * 2
    mask = np.zeros((36, 64), np.float32)  # another size than the frame
    mask[10:26, 4:24] = 1
    assert np.abs(centres(follow(frames, detector, choice=mask))[:, 0] - 160).max() < 20
    masks = torch.zeros(2, 36, 64)  # ComfyUI's MASK, one a frame; the face is chosen where it is first seen
    masks[0, 10:26, 44:] = 1
    masks[1, 10:26, 4:24] = 1
    assert np.abs(centres(follow(frames, detector, choice=masks))[:, 0] - 480).max() < 20
    late = follow([stage.empty(), frames[0]], detector, choice=masks)
    assert late.found.tolist() == [False, True]
    assert abs(centres(late)[1, 0] - 160) < 20
    with pytest.raises(FaceError, match="mark something"):
        follow(frames, detector, choice=torch.zeros(1, 64, 64))


def test_one_person_walks_behind_another(detector, stage):
    """F04: hidden for a while, then found again; never the one in front."""
    anna = [(110 + 14 * k, 180) for k in range(30)]
    frames = [stage.put(stage.shot(x, y, 190), 530 - 14 * k, 180, 190, stage.bea) for k, (x, y) in enumerate(anna)]
    found = follow(frames, detector, choice="left")
    assert distances(found, [stage.face_at(x, y, 190) for x, y in anna], 82).max() < 0.25
    assert found.found[:10].all()
    assert found.found[-4:].all()
    assert not found.found.all()


def test_the_same_person_after_a_cut(detector, make_stage):
    """F04 over a cut: the known face, although the choice would now mean the other."""
    stage, other = make_stage(), make_stage()
    other.backdrop = np.ascontiguousarray(255 - stage.backdrop[::-1])
    before = stage.put(stage.shot(160, side=220), 480, 180, 140, stage.bea)
    after = other.put(other.shot(480, side=140), 160, 180, 240, other.bea)
    found = follow([before] * 4 + [after] * 4, detector, choice="largest")
    assert found.run_ids.tolist() == [0] * 4 + [1] * 4
    assert np.abs(centres(found)[4:, 0] - 480).max() < 20


def test_a_jump_within_a_shot_is_a_new_run(detector, stage):
    frames = [stage.shot(150)] * 5 + [stage.shot(480)] * 5
    found = follow(frames, detector)
    assert found.run_ids.tolist() == [0] * 5 + [1] * 5
    assert distances(found, [stage.face_at(150, 180, 200)] * 5 + [stage.face_at(480, 180, 200)] * 5, 86).max() < 0.1


@pytest.mark.parametrize("speed", [40, 85, 120])
def test_fast_moves_are_followed_or_left_out(detector, stage, speed):
    """F07: half a face, a face, one and a half a frame; never a patch beside the face."""
    places = [(110 + abs((speed * k) % 840 - 420), 180) for k in range(12)]
    found = follow([stage.shot(x, y) for x, y in places], detector)
    assert found.found.mean() > 0.8
    assert distances(found, [stage.face_at(x, y, 200) for x, y in places], 86).max() < 0.1


def test_a_face_that_leaves_or_is_covered_is_let_go(detector, stage):
    """F07"""
    leaving = [(560 + 14 * k, 180) for k in range(16)]
    found = follow([stage.shot(x, y) for x, y in leaving], detector)
    assert found.found[:3].all()
    assert not found.found[-6:].any()
    assert distances(found, [stage.face_at(x, y, 200) for x, y in leaving], 86).max() < 0.3

    covered = [stage.shot() for _ in range(16)]
    for k, frame in enumerate(covered):
        frame[280 - 16 * k:280, 200:440] = 120, 90, 80  # a board rises before the face
    found = follow(covered, detector)
    assert found.found[:2].all()
    assert not found.found[-4:].any()


def test_no_face_anywhere_says_what_was_seen(detector, stage):
    """F05, F06: after the whole clip, naming the best candidate, its size and score, and what refused it."""
    with pytest.raises(FaceError, match=r"IMAGE batch of 3.*nothing in it looks like one"):
        follow([stage.empty()] * 3, detector)
    with pytest.raises(FaceError, match=r"8\dx\d+ px.*score 0\.\d+.*narrower than min_size 150 px"):
        follow([stage.shot()] * 3, detector, min_size=150)
    with pytest.raises(FaceError, match=r"less sure than min_score 0\.99"):
        follow([stage.shot()] * 3, detector, min_score=0.99)
    with pytest.raises(FaceError, match="up to 1 were seen at once, but number 3"):
        follow([stage.shot()] * 3, detector, choice=3)


def test_a_face_late_in_the_clip_is_found(detector, stage):
    found = follow([stage.empty()] * 20 + [stage.shot()] * 3, detector)
    assert found.found.tolist() == [False] * 20 + [True] * 3


@pytest.mark.parametrize("choice", ["middle", "", -1, None])
def test_unknown_choices_are_refused_before_work(detector, stage, choice):
    with pytest.raises(FaceError, match="largest, left, right"):
        follow([stage.shot()], detector, choice=choice)


def test_the_offered_choices_are_understood(detector, stage):
    frame = stage.empty()
    for x in (80, 240, 400, 560):
        stage.put(frame, x, 180, 150)
    for choice in (*CHOICES, 3):
        assert follow([frame], detector, choice=choice, min_size=50).found.all()


def test_odd_resolutions_are_refused_before_work(detector, stage):
    with pytest.raises(ShapeError, match="500"):
        align_clip(clip_of([stage.shot()]), detector, 500)


def test_smoothing_can_be_turned_off(detector, stage):
    frames = [stage.shot(300 + 9 * (k % 2)) for k in range(4)]
    smooth, raw = follow(frames, detector), follow(frames, detector, smooth="off")
    assert np.allclose(smooth.boxes, raw.boxes)
    assert not np.allclose(smooth.matrices, raw.matrices, atol=1e-3)


def test_the_note_reaches_the_log(detector, stage, caplog):
    follow([stage.shot()], LookingOnly(detector))
    assert "a note for the user" in caplog.text


class Counting(LookingOnly):
    """Counts the searches of a whole frame; follows like the real one."""

    def __init__(self, detector):
        super().__init__(detector)
        self.searched = []

    def detect(self, frames, **options):
        self.searched.append(options.get("everywhere", True))
        return super().detect(frames, **options)

    def __getattr__(self, name):
        return getattr(self._detector, name)


def test_work_a_frame_stays_flat(detector, stage):
    """F12: the whole frame is searched once for a face that stays, and only now and then for one that does not come."""
    counting = Counting(detector)
    follow([stage.shot()] * 40, counting)
    assert counting.searched == [True]
    counting = Counting(detector)
    with pytest.raises(FaceError):
        follow([stage.empty()] * 40, counting)
    assert sum(counting.searched) <= 7


class Recording:
    """A clip that says how far it was read."""

    def __init__(self, clip):
        self._clip, self.read = clip, 0

    def __getattr__(self, name):
        return getattr(self._clip, name)

    def frames(self, start=0):
        for frame in self._clip.frames(start):
            self.read += 1
            yield frame


def test_frames_are_streamed(detector, stage):
    """F32: a bounded number of frames is on its way, however long the clip."""
    clip, seen = Recording(clip_of([stage.shot()] * 60)), []

    def progress(done, total, *, stage="", preview=None):
        assert clip.read - done <= 16
        seen.append((done, total, stage))

    align_clip(clip, detector, 256, progress=progress)
    assert [done for done, _, _ in seen] == list(range(1, 61))
    assert {total for _, total, _ in seen} == {60}


def test_cancelling_stops_and_cleans_up(detector, stage, tmp_path, monkeypatch):
    """F30, F49: what the listener raises comes out as it is; no thread and no file stay."""
    monkeypatch.setattr(track, "Spool", lambda *a, **k: spool.Spool(*a, **k, memory_limit_bytes=300_000))
    threads = threading.active_count()

    def stop(done, total, *, stage="", preview=None):
        if done == 10:
            raise KeyboardInterrupt

    clip = Recording(clip_of([stage.shot()] * 100))
    with pytest.raises(KeyboardInterrupt):
        align_clip(clip, detector, 256, spool_folder=tmp_path, progress=stop)
    assert clip.read < 40
    assert not list(tmp_path.iterdir())
    assert threading.active_count() <= threads
    assert follow([stage.shot()] * 3, detector).found.all()  # the detector is as good as new


def test_disk_need_is_refused_up_front(detector, stage, tmp_path, monkeypatch):
    """F33"""
    monkeypatch.setattr(spool.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10 << 20}))
    monkeypatch.setattr(track, "MEMORY_LIMIT", 1 << 20)
    clip = Recording(clip_of([stage.shot()] * 100))
    with pytest.raises(DiskSpaceError, match=str(tmp_path)):
        align_clip(clip, detector, 512, spool_folder=tmp_path)
    assert clip.read == 0


def test_cuts_are_cuts_and_motion_is_not(make_stage):
    stage, other = make_stage(), make_stage()
    other.backdrop = np.ascontiguousarray(255 - stage.backdrop[::-1])
    cuts = CutFinder()
    pan = [np.roll(stage.shot(), 12 * k, axis=1) for k in range(10)]
    assert not any([cuts(frame) for frame in pan])
    assert cuts(other.shot())
    assert not cuts(other.shot(340))
    assert cuts(np.zeros_like(pan[0]))
    assert not cuts(np.zeros_like(pan[0]))


@pytest.mark.parametrize(
    "points, good",
    [
        ([[200, 88], [253, 90], [223, 125]], True),
        ([[200, 88], [253, 90], [223, 60]], False),  # a nose above the brows
        ([[200, 88], [210, 88], [240, 125]], False),  # a profile
        ([[200, 88], [200, 88], [200, 125]], False),
        ([[np.nan, 88], [253, 90], [223, 125]], False),
    ],
)
def test_three_points_that_face_the_camera(points, good):
    assert facing(np.array(points, np.float32)) is good


@pytest.mark.skipif(not DEMO.is_file(), reason="no shared media here")
def test_a_real_clip(detector):
    """A woman talks to her phone, upright 1080x1920: found in every frame, in one run, where the detector by itself finds her."""
    clip = open_clip(DEMO)
    frames = [frame for frame, _ in zip(clip.frames(), range(25), strict=False)]
    found = align_clip(clip_of(frames), detector, 512)
    assert found.found.all()
    assert (found.run_ids == 0).all()
    [alone] = align_matrices(detector.detect([frames[20]])[0][0].points[None], 512, smooth="off")
    corner = np.array([256.0, 256, 1])
    assert np.hypot(*((found.matrices[20] - alone) @ corner)) < 12  # px of 512: the bias and the smoothing


def test_align_clip_is_what_the_node_calls():
    assert {"choice", "min_size", "min_score", "smooth", "spool_folder", "progress"} <= set(inspect.signature(align_clip).parameters)
