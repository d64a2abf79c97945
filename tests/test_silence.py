"""F18: speech, two seconds of digital zero, speech. What the mouth does meanwhile."""
from dataclasses import replace

import numpy as np
import pytest
import torch
from latentsync_rtx.bench.stubs import LinearVAE
from latentsync_rtx.lipsync import denoise, timeline, vae
from latentsync_rtx.lipsync.audio import extract
from latentsync_rtx.lipsync.face import FaceTrack
from latentsync_rtx.lipsync.silence import with_silence
from latentsync_rtx.lipsync.spool import Spool

from . import small_jobs
from .small_jobs import StubEncoder, StubRunner, bursts

SECONDS, SILENT = 4.0, (1.0, 3.0)
FRAMES = np.arange(100)
QUIET = (FRAMES >= 30) & (FRAMES < 70)  # the fade is over


@pytest.fixture(scope="module")
def features():
    samples = torch.from_numpy(bursts(SECONDS, ((0.0, SILENT[0]), (SILENT[1], None)))).float() / 32768
    return extract({"waveform": samples[None, None], "sample_rate": 16000}, StubEncoder())


@pytest.fixture
def plan(features):
    return timeline.build(100, 25, features.seconds)


@pytest.fixture
def track():
    crops = Spool((64, 64, 3))
    crops.append(np.random.default_rng(0).integers(0, 256, (100, 64, 64, 3), dtype=np.uint8))
    ones = np.ones(100, bool)
    return FaceTrack(None, 64, ones, np.zeros((100, 2, 3), np.float32), ones, np.zeros((100, 4)), np.zeros(100, np.int32), crops, FRAMES)


def latents_of(plan, track, features):
    return denoise.denoise_clip(StubRunner(), LinearVAE(), track, plan, features, steps=2)


def test_off_changes_nothing(features, plan):
    assert with_silence(plan, features) is plan


def with_noise(features, seed):
    return replace(features, states=features.states + torch.randn(features.states.shape, generator=torch.Generator().manual_seed(seed)))


def test_rest_hears_perfect_silence_and_fades(features, plan, track):
    resting = with_silence(plan, features, "rest")
    assert resting.speaking.all() and resting.shown is None
    assert (resting.heard[QUIET] == 0).all() and (resting.heard[:25] == 1).all() and (resting.heard[76:] == 1).all()
    assert (np.diff(resting.heard[24:31]) <= 0).all() and (np.diff(resting.heard[69:77]) >= 0).all()
    assert ((resting.heard > 0) & (resting.heard < 1)).sum() >= 6
    noises = [with_noise(features, seed) for seed in (1, 2)]
    still, restless = ([latents_of(one, track, noise) for noise in noises] for one in (resting, plan))
    assert torch.equal(still[0][QUIET], still[1][QUIET]), "noise in the silence is not heard"
    assert not torch.equal(restless[0][QUIET], restless[1][QUIET])
    assert torch.equal(still[0][:25], restless[0][:25]) and torch.equal(still[0][76:], restless[0][76:]), "speech is"


def test_silence_is_what_the_encoder_makes_of_nothing(features):
    """At the floor of this very sound: as quiet as its own digital zero."""
    assert features.silence.shape == (1500, 5, 384)
    assert torch.allclose(features.silent_tokens([50], 25), features.tokens([50], 25), atol=1e-4)


@pytest.mark.parametrize("level", [0, 1e-6, 1e-4, 1e-2])
def test_however_quiet_the_sound_its_silence_is_digital_zero(level):
    """A sound's floor is 80 dB below its loudest, yet nothing is quieter than nothing: the network would hear what it never heard."""
    samples = level * torch.from_numpy(bursts(2.0, ((0.0, 1.0),))).float() / 32768
    quiet = extract({"waveform": samples[None, None], "sample_rate": 16000}, StubEncoder())
    assert torch.allclose(quiet.silent_tokens([40], 25), quiet.tokens([40], 25), atol=1e-4)


def test_keep_draws_nothing_there_and_fades_into_the_clips_own(features, plan, track):
    kept = with_silence(plan, features, "keep")
    redrawn = kept.redrawn(track.found)
    assert not set(redrawn) & set(FRAMES[QUIET]) and set(FRAMES[:25]) | set(FRAMES[76:]) <= set(redrawn)
    latents = latents_of(kept, track, features)
    assert len(latents) == len(redrawn)
    faded = vae.decode_crops(LinearVAE(), latents, track, kept).images
    whole = vae.decode_crops(LinearVAE(), latents, track, replace(kept, shown=None)).images
    share = kept.shown[redrawn]
    assert ((share > 0) & (share < 1)).sum() >= 6
    for row, frame in enumerate(redrawn):
        own, drawn, seen = (spool.read(int(at)).astype(float) for spool, at in ((track.crops, frame), (whole, row), (faded, row)))
        assert np.abs(seen - (own + share[row] * (drawn - own))).max() < 1.01


def test_an_altogether_silent_sound_leaves_the_clip_alone(track):
    silent = extract({"waveform": torch.zeros(1, 1, 16000), "sample_rate": 16000}, StubEncoder())
    plan = with_silence(timeline.build(100, 25, silent.seconds), silent, "keep")
    assert len(plan) == 25 and len(plan.redrawn(track.found)) == 0
    latents = latents_of(plan, track, silent)
    assert latents.shape == (0, 4, 8, 8)
    assert len(vae.decode_crops(LinearVAE(), latents, track, plan).images) == 0


def test_the_threshold_is_the_users(features, plan):
    assert (with_silence(plan, features, "rest", 0.0).heard == 0).all()
    with pytest.raises(ValueError, match="off, rest, keep"):
        with_silence(plan, features, "shut up")


@pytest.mark.parametrize("silence", ["off", "rest", "keep"])
def test_a_whole_job(tmp_path, monkeypatch, silence):
    monkeypatch.setenv("LATENTSYNC_JOBS", str(tmp_path / "jobs"))
    made = small_jobs.job(tmp_path, 100, audio=small_jobs.speech(tmp_path / "pause.wav", 4.0, ((0.0, 1.0), (3.0, None))), silence=silence)
    result = small_jobs.pipeline.run(made, parts=small_jobs.parts())
    before, after = small_jobs.frames_of(made.video), small_jobs.frames_of(result.path)
    changed = np.array([np.abs(a.astype(int) - b)[40:80, 60:100].mean() > 3 for a, b in zip(after, before, strict=True)])
    assert changed[:25].all() and changed[76:].all()
    assert changed[QUIET].all() if silence != "keep" else not changed[QUIET].any()
