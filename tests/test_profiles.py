"""Profiles: what each asks of the network, that it asks for no more, and that no block knows of another."""
import dataclasses
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from latentsync_rtx.bench.stubs import StubRunner
from latentsync_rtx.lipsync import pipeline
from latentsync_rtx.lipsync.denoise import denoise, denoise_clip
from latentsync_rtx.lipsync.errors import EngineError, LatentSyncError
from latentsync_rtx.lipsync.journal import Journal
from latentsync_rtx.lipsync.profiles import EXACT, PROFILES, Profile, choose
from latentsync_rtx.lipsync.runners import TorchRunner
from latentsync_rtx.lipsync.unet import LatentSyncUNet, UNetConfig

from . import small_jobs
from .test_denoise import AveragingVAE, Coded, Features

APPROXIMATE = [name for name in PROFILES if name != EXACT]
CACHED = [name for name in PROFILES if choose(name).plan(1.5).cached]


@pytest.fixture(scope="module")
def runner():
    torch.manual_seed(0)
    return TorchRunner(LatentSyncUNet(UNetConfig(block_out_channels=(32, 32, 64, 64))), device="cpu")


@pytest.fixture
def counted(runner):
    """How often the network's deepest level and its last layer were evaluated, and on how many rows of two frames."""
    seen = {"deep": [], "all": []}
    hooks = [
        module.register_forward_hook(lambda _, inputs, output, rows=rows: rows.append(len(output) // 2))
        for module, rows in ((runner.unet.mid_block, seen["deep"]), (runner.unet.conv_out, seen["all"]))
    ]
    yield seen
    for hook in hooks:
        hook.remove()


def inputs(frames=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    masked, reference = torch.randn(2, frames, 4, 8, 8, generator=generator)
    return {
        "masked_latents": masked,
        "reference_latents": reference,
        "audio": torch.randn(frames, 50, 384, generator=generator),
        "latent_keep": torch.zeros(8, 8),
        "base_noise": torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(9)),
    }


def cosine(a, b):
    return torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), 0).item()


def test_one_profile_is_exact_and_the_others_say_that_they_are_not():
    assert next(iter(PROFILES)) == EXACT
    assert [profile.name for profile in PROFILES.values() if not profile.approximate] == [EXACT]
    assert all(name.startswith("approx") and "approximate: " in PROFILES[name].text for name in APPROXIMATE)
    assert "approx" not in PROFILES[EXACT].text


@pytest.mark.parametrize(
    ("name", "guided", "alone", "deep"),
    [
        (EXACT, 20, 0, 20),
        ("approx12", 12, 0, 12),
        ("approx8", 8, 0, 8),
        ("approx4", 4, 0, 4),
        ("approx-dpm10", 10, 0, 10),
        ("approx-guidance", 10, 10, 20),
        ("approx-cache2", 20, 0, 10),
        ("approx-cache3", 20, 0, 7),
    ],
)
def test_the_network_is_asked_for_what_the_profile_says_and_no_more(runner, counted, name, guided, alone, deep):
    """In every block: steps on both halves of guidance, on one, and how many of them go down to the deepest level."""
    denoise(runner, **inputs(4), profile=name, blocks=[[0, 1], [2, 3]])
    assert sorted(counted["all"]) == sorted(2 * (guided * [2] + alone * [1]))
    assert len(counted["deep"]) == 2 * deep


def test_every_profile_works_without_guidance(runner, counted):
    for name in ("approx-guidance", "approx-cache2"):
        denoise(runner, **inputs(), profile=name, guidance=1.0)
    assert counted["all"] == 40 * [1] and counted["deep"] == 30 * [1]


def test_approximate_results_are_near_the_exact_one_and_not_it(runner):
    exact = denoise(runner, **inputs())
    results = {name: denoise(runner, **inputs(), profile=name) for name in APPROXIMATE}
    assert all(cosine(result, exact) > 0.5 and not torch.equal(result, exact) for result in results.values())
    assert len({result.sum().item() for result in results.values()}) == len(results)


@pytest.mark.parametrize("name", PROFILES)
def test_a_block_after_another_is_as_it_is_alone(runner, name):
    """Neither the sampler's memory nor deep features go from block to block."""
    first, second = inputs(seed=1), inputs(seed=2)
    both = {key: value if key in ("latent_keep", "base_noise") else torch.cat([value, second[key]]) for key, value in first.items()}
    after = denoise(runner, **both, profile=name, blocks=[[0, 1], [2, 3]])[2:]
    assert torch.equal(after, denoise(runner, **second, profile=name))


def test_old_settings_keep_their_result_and_are_called_what_they_are(runner, caplog):
    """Jobs from before there were profiles have steps alone."""
    caplog.set_level("INFO")
    old = denoise(runner, **inputs(), steps=8)
    assert "profile approx8 (approximate: 8 steps instead of 20)" in caplog.text
    assert torch.equal(old, denoise(runner, **inputs(), profile="approx8"))
    assert choose(EXACT, 20) is PROFILES[EXACT]
    assert choose(EXACT, 30).approximate and choose(EXACT, 20, "dpm++2m").approximate
    caplog.clear()
    engine = StubRunner()
    coded(engine, "approx4", steps=15)
    assert engine.calls == 4 * 4 and "15 steps are not taken: profile approx4 has 4" in caplog.text


def test_guidance_that_comes_or_goes_renews_the_deep_features():
    plan = Profile("test", "", renew=3, guided=(500, 1000)).plan(1.5)
    steps = list(zip(plan.schedule.timesteps.tolist(), plan.evaluations, strict=True))
    assert [timestep for timestep, step in steps if not step.reuse] == [951, 801, 651, 501, 451, 301, 151, 1]
    assert all(step.guided == (timestep > 500) for timestep, step in steps)
    assert not any(a.guided != b.guided and b.reuse for a, b in pairwise(plan.evaluations))


@pytest.mark.parametrize(("blocks", "calls"), [(4, 60), (2, 30), (1, 20), (3, 50)])
def test_a_batch_of_two_takes_two_blocks_where_nothing_is_guided(blocks, calls):
    """An engine for guidance: 20 calls a block when every step is guided; half as many wherever it is not, but for a block left over."""
    engine = StubRunner(frames=2, batch=2)
    result = denoise(engine, **inputs(2 * blocks), profile="approx-guidance")
    assert engine.calls == calls
    torch.testing.assert_close(result, denoise(StubRunner(), **inputs(2 * blocks), profile="approx-guidance", blocks=np.arange(2 * blocks).reshape(-1, 2)))


@pytest.mark.parametrize("name", CACHED)
def test_what_cannot_reuse_says_so_before_any_work(name, tmp_path):
    engine = StubRunner(frames=2, batch=2)
    with pytest.raises(EngineError, match=rf"{name}.*--caching.*another profile.*back end 'torch'"):
        denoise(engine, **inputs(), profile=name)
    heard = []
    with pytest.raises(EngineError, match=name):
        pipeline.run(small_jobs.job(tmp_path, profile=name), lambda *_, stage="", **__: heard.append(stage), small_jobs.parts(engine))
    assert engine.calls == 0 and not heard


def test_unknown_profiles_and_impossible_steps_are_refused(tmp_path):
    with pytest.raises(LatentSyncError, match=r"no profile 'fast'.*exact20, approx12"):
        choose("fast")
    with pytest.raises(LatentSyncError, match="0 denoising steps"):
        pipeline.check_settings(small_jobs.job(tmp_path, steps=0))
    with pytest.raises(LatentSyncError, match="'fast'"):
        pipeline.run(dataclasses.replace(small_jobs.job(tmp_path), profile="fast"))


# --- jobs ---


class Named(AveragingVAE):
    identity = "averaging"


def coded(runner, name, **options):
    return denoise_clip(runner, Named(), *Coded.job(40, (17, 30)), Features(), seed=3, profile=name, **options)


@pytest.mark.parametrize("name", PROFILES)
def test_parts_put_together_are_the_whole(name, runner):
    """Blocks of 16, 1, 12 and 9 frames; pairs of them where nothing is guided. The cached profile runs the real network on fewer."""
    if name in CACHED:
        clip = Coded.job(5, (2,))
        whole, *parts = (denoise_clip(runner, Named(), *clip, Features(), profile=name, blocks=blocks) for blocks in (None, [0], [1]))
    else:
        engine = StubRunner(frames=16, batch=2)
        whole, *parts = (coded(engine, name, blocks=blocks) for blocks in (None, [0], [1, 2], [3]))
    assert torch.equal(torch.cat(parts), whole)


def test_finished_blocks_of_one_profile_are_never_another_s(tmp_path):
    journal, names = Journal(tmp_path), [name for name in PROFILES if name not in CACHED]
    for count, name in enumerate(names, 1):
        runner = StubRunner()
        coded(runner, name, journal=journal)
        assert runner.calls > 0 and len(list(tmp_path.iterdir())) == 4 * count
    runner = StubRunner()
    for name in names:
        coded(runner, name, journal=journal)
    coded(runner, EXACT, steps=12, journal=journal)  # = approx12
    assert runner.calls == 0
    settings = [choose(name).plan(1.5).settings for name in PROFILES] + [choose(EXACT).plan(1.6).settings]
    assert len({repr([part.tolist() if isinstance(part, torch.Tensor) else part for part in parts]) for parts in settings}) == len(settings)


def test_the_summary_says_what_is_approximate(tmp_path, monkeypatch):
    monkeypatch.setenv("LATENTSYNC_JOBS", str(tmp_path / "jobs"))
    made = small_jobs.job(tmp_path, 6, steps=20)
    runner = StubRunner()
    assert "Profile: exact20 (the reference's arithmetic)." in pipeline.run(made, parts=small_jobs.parts(runner)).summary
    assert runner.calls == 20
    quick = dataclasses.replace(made, profile="approx4", out=Path(tmp_path / "quick.mp4"))
    assert "Profile: approx4 (approximate: 4 steps instead of 20)." in pipeline.run(quick, parts=small_jobs.parts(runner)).summary
    assert runner.calls == 24
    assert "approximate: 2 steps" in pipeline.run(dataclasses.replace(made, steps=2), parts=small_jobs.parts(runner)).summary


def test_the_command_line_takes_profiles(capsys):
    import argparse

    from latentsync_rtx.commands import run

    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    given = ["--video", "a", "--audio", "b", "--out", "c"]
    assert (parser.parse_args(given).profile, parser.parse_args(given).steps) == (EXACT, 20)
    assert parser.parse_args([*given, "--profile", "approx-dpm10"]).profile == "approx-dpm10"
    with pytest.raises(SystemExit):
        parser.parse_args([*given, "--profile", "fast"])
    said = capsys.readouterr().err
    assert all(name in said for name in PROFILES)
