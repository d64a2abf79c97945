"""Two clips against each other: real pictures of a real face, real detector."""
import json
import re
import weakref
from fractions import Fraction
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from latentsync_rtx.bench.stubs import StubDetector
from latentsync_rtx.lipsync import compare
from latentsync_rtx.lipsync.clip import Clip, TensorClip, open_clip
from latentsync_rtx.lipsync.compare import canvas, mouths, sounds
from latentsync_rtx.lipsync.compare.pairs import Pairs
from latentsync_rtx.lipsync.compare.pictures import Likeness
from latentsync_rtx.lipsync.errors import ShapeError
from latentsync_rtx.lipsync.face import Face


def clip_of(frames, rate=25) -> Clip:
    return open_clip(np.stack(list(frames)), rate)


def numbered(count, rate=25, size=(24, 32)) -> Clip:
    """Frame k is of grey level k."""
    return clip_of([np.full((*size, 3), k, np.uint8) for k in range(count)], rate)


def late(frames, by=3):
    return np.concatenate([frames[:1].repeat(by, 0), frames[:-by]])


@pytest.fixture(scope="module")
def shifted(talking, detector):
    """A is in time with the speech, B's pictures come three frames late."""
    told = []
    found = compare.compare_clips(
        clip_of(talking.frames), clip_of(late(talking.frames)), detector=detector, speech_a=talking.speech, speech_b=talking.speech,
        progress=lambda done, total, **_: told.append((done, total)),
    )
    assert told[-1] == (len(talking.frames),) * 2
    return found


def test_a_file_is_like_itself_in_everything(talking, detector, write_media, tmp_path):
    clip = open_clip(write_media(tmp_path, "clip.mp4", talking.frames[:12]))
    found = compare.compare_clips(clip, clip, detector=detector)
    numbers = json.loads(json.dumps(found.json(), allow_nan=False))
    for part in ("full_frame", "mouth"):
        assert numbers[part]["ssim"] == {"mean": 1.0, "min": 1.0, "max": 1.0}
        assert numbers[part]["psnr_db"] == {"pooled": "Infinity", "worst": "Infinity"}
    assert numbers["mouth"]["frames"] == 12
    for drift in numbers["landmark_drift"].values():
        assert drift["max"] == 0
    assert numbers["mouth_opening"]["correlation"] == 1
    assert "the same pictures" in found.summary()
    assert found.strip()[:, 100:].max() > 100  # the pictures are there


def test_mouth_three_frames_late_is_told_as_plus_three(shifted):
    assert [shifted.offset(name).frames for name in "ab"] == [0, 3]
    assert shifted.offset("b").score > 0.8 > shifted.offset("b").at_zero
    offset = shifted.json()["av_offset"]["b"]
    assert (offset["frames"], offset["seconds"], offset["method"]) == (3, 0.12, "correlation of mouth opening with the speech envelope")
    assert "+3 frames, +0.120 s (the mouth comes 3 frames late), by correlation of mouth opening" in shifted.summary()


def test_mouth_opening_follows_what_was_said(shifted, talking):
    assert sounds.correlation(shifted.series["opening_a"], talking.said) > 0.9
    wide, shut = talking.said > 0.3, talking.said < 0.02
    assert shifted.series["opening_a"][wide].mean() > 2 * shifted.series["opening_a"][shut].mean()


def test_sound_that_comes_late_is_a_mouth_that_comes_early(shifted, talking):
    loud = shifted.envelopes["a"]
    assert sounds.offset(shifted.series["opening_a"], np.r_[np.zeros(5), loud[:-5]], shifted.pairs.rate).frames == -5


def test_offset_that_chance_could_bring_is_not_to_be_relied_on(shifted, talking, detector):
    assert [round(sounds.needed(seconds), 2) for seconds in (1, 3, 10, 60, 600)] == [0.9, 0.87, 0.47, 0.3, 0.3]
    assert not any("do not rely" in note for note in shifted.notes)
    noise = {**talking.speech, "waveform": torch.rand(1, 1, 60 * 640) * torch.rand(60, generator=torch.Generator().manual_seed(1)).repeat_interleave(640)}
    found = compare.compare_clips(clip_of(talking.frames), clip_of(talking.frames), detector=detector, speech_b=noise)
    assert any("B: mouth and speech correlate" in note and "do not rely" in note for note in found.notes)


def test_landmarks_do_not_jump_where_a_face_is_looked_for_again(talking, detector):
    noise = np.random.default_rng(3).normal(0, 5, talking.frames.shape)
    found = compare.compare_clips(clip_of(talking.frames), clip_of((talking.frames + noise).clip(0, 255).astype(np.uint8)), detector=detector)
    assert found.series["drift"].max() < 1.5, found.series["drift"].round(2)


def test_doubtful_face_is_not_taken_however_large():
    def face(size, score):
        box = np.float32([0, 0, size, size])
        return Face(box, score, np.zeros((3, 2), np.float32))

    seen = SimpleNamespace(detect=lambda frames, everywhere: [[face(90, 0.4), face(40, 0.95)]])
    assert mouths.Finder(seen)(np.zeros((99, 99, 3), np.uint8)).size == 40


@pytest.mark.parametrize("size", [(70, 90), (11, 40), (400, 700)])
def test_ssim_is_scikit_images(size):
    """Whole or in bands, as a CPU does large pictures."""
    from skimage.metrics import structural_similarity

    random = np.random.default_rng(2)
    a = cv2.resize(random.integers(0, 255, (9, 9, 3)).astype(np.uint8), size[::-1], interpolation=cv2.INTER_CUBIC)
    b = (a + random.normal(0, 12, a.shape)).clip(0, 255).astype(np.uint8)
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "channel_axis": 2, "data_range": 255}
    alike, error = Likeness()(a, b)
    assert alike == pytest.approx(structural_similarity(a, b, **options), abs=1e-4)
    assert error == pytest.approx(((a / 255.0 - b / 255.0) ** 2).mean(), rel=1e-4)


MOVING, LOUD = np.random.default_rng(0).random((2, 60))


@pytest.mark.parametrize(
    "opening, loud, why",
    [
        (np.r_[np.linspace(0, 1, 20), [np.nan] * 40], LOUD, "20 frames .* are too few"),
        (np.full(60, 0.1), LOUD, "the mouth does not move"),
        (0.03 + 0.007 * MOVING, LOUD, "the mouth does not move"),  # a picture, in which the mesh trembles
        (np.r_[[0.1] * 30, MOVING[:30]], np.r_[LOUD[:30], [np.nan] * 30], "the mouth does not move"),  # but where there is no sound
        (MOVING, np.zeros(60), "no speech: the sound stays below -50 dB"),
        (MOVING, 0.003 * LOUD, "no speech: the sound stays below -50 dB"),
        (MOVING, 0.1 + 0.01 * LOUD, "no speech: the sound is even"),
    ],
)
def test_why_there_is_no_offset(opening, loud, why):
    assert re.search(why, sounds.offset(opening, loud, Fraction(25)))


def test_best_lag_is_one_at_which_something_is_known():
    """Late by a lot, only a stretch is left in which the mouth stands still."""
    opening = np.r_[[0.1] * 12, LOUD[:18], [0.1] * 10]
    loud = np.r_[[np.nan] * 12, LOUD[:18], [np.nan] * 10]
    assert np.isnan(sounds.correlation(opening, loud, 20)) and np.isnan(sounds.correlation(opening[:2], loud[:2]))
    assert sounds.delay(opening, loud, 22) == 0
    assert sounds.delay(np.r_[LOUD[5:10], LOUD[:30]], LOUD) == 5 and sounds.delay(LOUD[3:], LOUD) == -3


def test_what_does_not_move_is_said_to_be_unknown(talking, detector):
    """Not r = 0, and not the r of a mesh that trembles."""
    still = clip_of(talking.frames[:1].repeat(30, 0))
    for a, b, who in ((still, still, "A and of B"), (clip_of(talking.frames[:30]), still, "B")):
        found = compare.compare_clips(a, b, detector=detector, speech_a=talking.speech, speech_b=talking.speech)
        numbers = json.loads(json.dumps(found.json(), allow_nan=False))
        assert numbers["mouth_opening"]["correlation"] is None and numbers["av_offset"]["b"] is None
        missing = {one["what"]: one["why"] for one in numbers["missing"]}
        assert missing["correlation of the two mouths"] == f"the mouth of {who} does not move"
        assert missing["mouth against speech in B"] == "the mouth does not move"
        told = found.summary()
        assert "on average; whether they move alike is unknown" in told and "A/V offset of B:" not in told and "they correlate" not in told
        assert f"not measured: correlation of the two mouths: the mouth of {who} does not move." in told
        assert found.plot().shape[0] > 300


def test_few_frames_and_no_face_are_said_to_be_unknown(talking, detector):
    short, empty = clip_of(talking.frames[:2]), clip_of(np.zeros_like(talking.frames[:30]))
    found = compare.compare_clips(short, short, detector=detector, speech_a=talking.speech)
    assert ("correlation of the two mouths", "2 frames with both mouths are too few: 3 are needed") in found.missing
    assert ("A/V offset of B", "it has no sound, and no speech was given") in found.missing and found.json()["mouth_opening"]["correlation"] is None
    found = compare.compare_clips(clip_of(talking.frames[:30]), empty, detector=detector, speech_a=talking.speech, speech_b=talking.speech)
    assert ("A/V offset of B", "no frame shows its mouth") in found.missing and found.json()["mouth_opening"]["correlation"] is None


def test_drift_is_told_in_pixels_and_of_the_face(talking, detector):
    moved = np.stack([np.roll(frame, 5, 1) for frame in talking.frames[:6]])
    numbers = compare.compare_clips(clip_of(talking.frames[:6]), clip_of(moved), detector=detector).json()["landmark_drift"]
    assert numbers["pixels"]["mean"] == pytest.approx(5, abs=0.5)
    assert numbers["lips_pixels"]["mean"] == pytest.approx(5, abs=0.7)
    assert numbers["of_face_size"]["mean"] == pytest.approx(5 / 172, abs=0.005)  # the face of this clip is 172 px


def test_blurred_mouth_shows_in_the_mouth_more_than_in_the_frame(talking, detector):
    blurred = talking.frames[:6].copy()
    blurred[:, 170:240, 120:230] = [cv2.GaussianBlur(frame, (0, 0), 3)[170:240, 120:230] for frame in blurred]
    found = compare.compare_clips(clip_of(talking.frames[:6]), clip_of(blurred), detector=detector)
    assert found.mean("mouth_ssim") < 0.9 and 0.97 < found.mean("ssim") < 1
    assert found.psnr("mouth_error") < found.psnr() - 6


def test_frames_without_a_face_are_counted_and_left_out(talking, detector):
    gone = talking.frames[:12].copy()
    gone[4:9] = 0
    found = compare.compare_clips(clip_of(talking.frames[:12]), clip_of(gone), detector=detector)
    numbers = found.json()
    assert numbers["faces"]["frames_without_face"] == {"a": 0, "b": 5}
    assert numbers["mouth"]["frames"] == 7 and numbers["mouth"]["ssim"]["min"] == 1
    assert numbers["full_frame"]["ssim"]["min"] < 0.5
    assert "5 of 12 frames of B have no face" in found.summary()
    found.plot()  # with gaps


def test_mouths_are_where_the_guide_shows_them(talking, detector):
    """Noise in place of a mouth is no face, yet is compared."""
    ruined = talking.frames[:4].copy()
    ruined[:, 20:] = np.random.default_rng(0).integers(0, 255, ruined[:, 20:].shape)
    blind = compare.compare_clips(clip_of(ruined), clip_of(ruined), detector=detector)
    seeing = compare.compare_clips(clip_of(ruined), clip_of(ruined), detector=detector, guide=clip_of(talking.frames[:4]))
    assert blind.json()["mouth"]["frames"] == 0 and seeing.json()["mouth"]["frames"] == 4


def test_detector_without_a_mesh_says_what_is_not_measured(talking):
    found = compare.compare_clips(
        clip_of(talking.frames[:4]), clip_of(talking.frames[:4]), detector=StubDetector(), speech_a=talking.speech, speech_b=talking.speech
    )
    missing = {one["what"]: one["why"] for one in found.json()["missing"]}
    assert "use MediaPipe" in missing["mouth opening, mouth SSIM and PSNR, lip drift, A/V offset"]
    assert found.json()["landmark_drift"]["pixels"]["max"] == 0 and found.json()["mouth"]["ssim"]["mean"] is None


def test_other_sizes_are_an_error_that_tells_both_or_are_scaled():
    a, b = numbered(3, size=(24, 32)), numbered(3, size=(48, 64))
    with pytest.raises(ShapeError, match=r"32 x 24.*64 x 48"):
        compare.compare_clips(a, b, detector=None)
    found = compare.compare_clips(a, b, detector=None, resize=True)
    assert found.mean("ssim") == pytest.approx(1, abs=1e-4) and "scaled from 64 x 48" in found.notes[0] and found.json()["compared"]["resized"]


def test_other_rates_and_lengths_are_compared_by_time():
    pairs = Pairs(numbered(10, 25), numbered(40, 50))
    assert [(one[0, 0, 0], other[0, 0, 0]) for one, other in pairs] == [(k, 2 * k) for k in range(10)]
    assert any("25 frames a second, B 50" in note for note in pairs.notes) and any("B goes on for 0.40 s" in note for note in pairs.notes)
    assert len(Pairs(numbered(30, 30), numbered(10, 25))) == 12
    assert len(Pairs(numbered(30), numbered(30), max_frames=4)) == 4


class Watched(TensorClip):
    """Counts its frames that are alive."""

    def __init__(self, count):
        super().__init__(torch.zeros(1, 32, 32, 3).expand(count, -1, -1, -1), 25)
        self.alive = self.most = 0

    def _frame(self, index):
        frame = super()._frame(index)
        self.alive += 1
        self.most = max(self.most, self.alive)
        weakref.finalize(frame, self._gone)
        return frame

    def _gone(self):
        self.alive -= 1


def test_clips_are_streamed():
    a, b = Watched(200), Watched(200)
    compare.compare_clips(a, b, detector=None)
    assert max(a.most, b.most) < 8


def test_what_a_listener_raises_stops_the_comparison():
    def stop(done, total, **_):
        if done == 3:
            raise KeyboardInterrupt

    a = Watched(50)
    with pytest.raises(KeyboardInterrupt):
        compare.compare_clips(a, a, detector=None, progress=stop)


def test_engine_verdict_is_told():
    verdict = {"NVIDIA RTX 4090, compute capability 8.9": {"passed": True, "cosine": 0.999987, "largest_error": 0.01, "driver": "13.0"}}
    engine = SimpleNamespace(path=SimpleNamespace(name="one.plan"), manifest={"parity": verdict})
    found = compare.compare_clips(numbered(2), numbered(2), detector=None, engine=engine)
    assert "one.plan against PyTorch: agrees on NVIDIA RTX 4090, compute capability 8.9, cosine 0.999987" in found.summary()
    assert found.json()["engine"] == {"name": "one.plan", "parity": verdict}


def test_plot_shows_both_mouths_and_strip_their_difference(shifted):
    page = shifted.plot()
    assert page.shape[1] == canvas.WIDTH and page.dtype == np.uint8
    for colour in (canvas.A, canvas.B, canvas.SOUND):
        assert (page == np.uint8(colour)).all(-1).sum() > 300
    same = compare.compare_clips(numbered(9), numbered(9), detector=None)
    assert (same.plot() == np.uint8(canvas.A)).all(-1).sum() == 0  # nothing is drawn that was not measured
    strip = shifted.strip()
    assert strip.shape[1] == canvas.WIDTH and strip.shape[0] > same.strip().shape[0]  # mouths are there in addition


def test_sound_of_a_clip_begins_with_its_first_picture(talking, write_media, tmp_path):
    quiet_then_loud = torch.cat([torch.zeros(16000), torch.full((22400,), 0.5) * torch.sin(torch.arange(22400) / 5)])[None, None]
    path = write_media(tmp_path, "clip.mp4", talking.frames, {"waveform": quiet_then_loud, "sample_rate": 16000})
    for start, silent in ((0.0, 25), (0.6, 10)):
        clip = open_clip(path, start=start)
        loud = sounds.envelope(compare.sound_of(clip), clip.rate, clip.frame_count)
        assert np.flatnonzero(loud > 0.1)[0] == pytest.approx(silent, abs=1)
    assert compare.sound_of(clip_of(talking.frames)) is None
    assert np.isnan(sounds.envelope({"waveform": torch.ones(1, 1, 6400), "sample_rate": 16000}, clip.rate, 15)).sum() == 5  # it ends before


def test_lip_reading_tool_reads_the_same(shifted, talking, detector):
    import lip_reading

    measured = lip_reading.openings(talking.frames[:8], detector)
    np.testing.assert_allclose(measured, shifted.series["opening_a"][:8], rtol=1e-5)
    assert "frames late" in lip_reading.report(shifted.series["opening_b"], talking.said)
    assert "mouth against speech: unknown" in lip_reading.report(np.full(60, 0.1, np.float32), talking.said)
