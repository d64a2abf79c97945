"""Sound to tokens, against the reference's tensors and against what users feed it."""
import importlib.util
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from latentsync_rtx.lipsync import sound
from latentsync_rtx.lipsync.audio import AudioFeatures, WhisperEncoder, extract, load_encoder, log_mel, speech_gain, window_indices
from latentsync_rtx.lipsync.errors import AudioError, ModelFileError, ShapeError
from safetensors.torch import load_file, save_file

GOLDEN = Path(__file__).parent / "data" / "golden"


def _recipe():
    spec = importlib.util.spec_from_file_location("golden_recipe", GOLDEN / "recipe.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


recipe = _recipe()


def speech(seconds, rate=16000, seed=0):
    """A voice-like buzz whose pitch and loudness wander, float32 [samples]."""
    t = np.arange(int(seconds * rate)) / rate
    rng = np.random.default_rng(seed)
    phase = 2 * np.pi * (120 * t + 8 * np.sin(2 * np.pi * 0.7 * t))
    buzz = sum(np.sin(k * phase) / k for k in range(1, 9)) * (0.6 + 0.4 * np.sin(2 * np.pi * 2.3 * t))
    return torch.from_numpy((0.2 * buzz + rng.normal(0, 0.003, len(t))).astype(np.float32))


def audio(waveform, rate=16000):
    return {"waveform": waveform.reshape(1, 1, -1) if waveform.ndim == 1 else waveform, "sample_rate": rate}


@pytest.fixture(scope="module")
def golden():
    return load_file(GOLDEN / "audio.safetensors")


@pytest.fixture(scope="module")
def encoder():
    """The small encoder of the reference tensors."""
    net = WhisperEncoder(**recipe.WHISPER)
    net.load_state_dict(recipe.seeded_parameters(net.named_parameters(), 16), strict=False)
    return net.eval()


def relative(found, wanted):
    return ((found - wanted).norm() / wanted.norm()).item()


def test_log_mel_equals_the_reference(golden):
    mel = log_mel(recipe.waveform(11))
    assert mel.shape == golden["log_mel"].shape
    assert (mel - golden["log_mel"]).abs().max() < 1e-4


def test_log_mel_of_a_long_sound_has_no_seams():
    wave = speech(65)
    mel = log_mel(wave)
    assert mel.shape == (80, 6500)
    inside = log_mel(wave[29 * 16000 : 31 * 16000])  # around the piece boundary at 30 s, away from its own reflected ends
    top = mel.max() - inside.max()  # the floor hangs on the loudest of each
    assert top < 0.3
    assert torch.allclose(mel[:, 2905:3095].clamp(min=mel.max() - 2), inside[:, 5:195].clamp(min=mel.max() - 2), atol=1e-3)


def test_hidden_states_equal_the_reference(golden, encoder):
    features = extract(audio(recipe.waveform(11)), encoder)
    assert features.states.shape == (168, 3, 64)
    assert relative(features.states, golden["features"]) < 1e-4
    assert relative(features.tokens([7], 25)[0], golden["window_25_frame_7"]) < 1e-4
    assert features.seconds == pytest.approx(3.37)


@pytest.mark.parametrize("fps", [25, 30])
def test_windows_equal_the_reference(fps):
    wanted = json.loads((GOLDEN / "audio_windows.json").read_text())[str(fps)]
    assert [window_indices(frame, fps, 168) for frame in range(len(wanted))] == wanted


def test_windows_of_a_rational_rate_do_not_drift():
    hour = 30000 * 3600 // 1001  # frames in an hour of 29.97
    assert window_indices(hour, Fraction(30000, 1001), 10**6)[4] == 179999
    assert window_indices(hour, 30000 / 1001, 10**6) == window_indices(hour, Fraction(30000, 1001), 10**6)


def test_tokens_are_step_major_and_clamped_at_the_end(encoder):
    features = extract(audio(speech(1.0)), encoder)
    tokens = features.tokens([0, 10, 500], Fraction(25))
    assert tokens.shape == (3, 30, 64)
    assert torch.equal(tokens[1].view(10, 3, 64), features.states[16:26])
    assert torch.equal(tokens[2].view(10, 3, 64), features.states[-1:].expand(10, 3, 64))


def test_the_encoder_refuses_another_window():
    with pytest.raises(ShapeError, match="3000"):
        WhisperEncoder(80, 1500, 64, 4, 1).hidden_states(torch.zeros(1, 80, 100))


# --- F15: no break in context every 30 s ---


def test_thirty_seconds_or_less_are_the_reference_rule(encoder):
    wave = audio(speech(30.0))
    assert torch.equal(extract(wave, encoder).states, extract(wave, encoder, windows="reference").states)


def test_overlapped_windows_leave_no_jump_at_30_and_60_seconds(encoder):  # F15
    # What is heard repeats every 2 s, so away from a break the states move as they did one period before.
    wave = audio(speech(2.0).repeat(33)[: 65 * 16000])

    def jumps(windows):
        states = extract(wave, encoder, windows=windows).states.flatten(1)
        steps = (states[1:] - states[:-1]).norm(dim=1)
        return [steps[at - 1] / steps[at - 101] for at in (1500, 3000)]  # against the same place of the sound 2 s earlier

    assert min(jumps("reference")) > 1.5  # the fault is there to be seen
    assert max(abs(jump - 1) for jump in jumps("overlapped")) < 0.2


def test_overlapped_windows_use_every_step_once_with_context(encoder):
    wave = speech(65, seed=3)
    whole = extract(audio(wave), encoder).states
    assert whole.shape[0] == 3250 and torch.isfinite(whole).all()
    # Sound far away does not matter: the first 20 s are the same, whatever comes after 40 s.
    shorter = extract(audio(wave[: 52 * 16000]), encoder).states
    assert relative(shorter[:1000], whole[:1000]) < 1e-3
    # Each end hears exactly one window.
    first = extract(audio(wave[: 30 * 16000]), encoder).states
    assert relative(whole[:1000], first[:1000]) < 1e-3


def test_progress_counts_windows_and_a_cancel_leaves_the_encoder_usable(encoder):
    class Stop(Exception):
        pass

    def stop(done, total, *, stage="", preview=None):
        seen.append((done, total))
        if done == 2:
            raise Stop

    seen = []
    with pytest.raises(Stop):
        extract(audio(speech(65)), encoder, progress=stop)
    assert seen[-3:] == [(0, 3), (1, 3), (2, 3)] and len(seen) > 9  # stopped at once while resampling, too
    assert torch.isfinite(extract(audio(speech(1)), encoder).states).all()


# --- F17: short and empty ---


@pytest.mark.parametrize("samples", [1, 100, 201, 399, 400, 641])
def test_a_very_short_sound_is_padded(samples, encoder):  # F17
    features = extract(audio(speech(1)[:samples]), encoder)
    assert len(features.states) >= 1 and torch.isfinite(features.states).all()
    assert features.seconds == samples / 16000
    assert features.tokens(range(3), 25).shape == (3, 30, 64)


@pytest.mark.parametrize("shape", [(1, 1, 0), (1, 0, 100), (0, 1, 100), (0,)])
def test_empty_sound_is_an_error(shape, encoder):  # F17
    with pytest.raises(AudioError, match="empty"):
        extract({"waveform": torch.zeros(shape), "sample_rate": 16000}, encoder)


# --- F19: whatever an AUDIO may be ---


def same_speech(found, wanted):
    """Equal but for what a resampler does to the topmost frequencies and the first and last samples."""
    found, wanted = found[800:-800], wanted[800:-800]
    assert found.shape == wanted.shape
    assert relative(found, wanted) < 0.05


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000, 96000])
def test_any_sample_rate_becomes_the_same_speech(rate):  # F19
    found = sound.mono_16k(sound.check(audio(speech(1.5, rate), rate)))
    same_speech(found, speech(1.5))


def test_resampling_moves_nothing_in_time_and_has_no_seams():  # F22
    wave = torch.zeros(44100 * 25)
    for second in (1, 12, 24):
        wave[second * 44100] = 1
    found = sound.mono_16k(sound.check(audio(wave, 44100)))
    assert len(found) == 25 * 16000
    for second in (1, 12, 24):
        near = found[second * 16000 - 2000 : second * 16000 + 2000].abs()
        assert abs(near.argmax().item() - 2000) <= 1
    quiet = torch.ones(len(found), dtype=bool)
    for second in (1, 12, 24):
        quiet[second * 16000 - 200 : second * 16000 + 200] = False
    assert found[quiet].abs().max() < 1e-3


def test_frequencies_that_do_not_fit_are_removed_not_folded():
    t = torch.arange(48000) / 48000
    found = sound.mono_16k(sound.check(audio(torch.sin(2 * torch.pi * 11000 * t), 48000)))
    assert found[1000:-1000].abs().max() < 0.01


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.expand(1, 2, -1),
        lambda w: w.expand(1, 6, -1),
        lambda w: w[0].expand(2, -1),
        lambda w: w[0, 0],
        lambda w: (w * 32767).round().to(torch.int16),
        lambda w: (w.double() * (2**31 - 1)).round().to(torch.int32),
        lambda w: (w * 127 + 128).round().to(torch.uint8),
        lambda w: w.half(),
        lambda w: w.bfloat16(),
        lambda w: w.double(),
        lambda w: w.numpy(),
        lambda w: w.clone().requires_grad_(),
    ],
    ids=["stereo", "six", "two-dimensional", "one-dimensional", "int16", "int32", "uint8", "fp16", "bf16", "fp64", "numpy", "grad"],
)
def test_any_channels_and_dtype_become_the_same_speech(change):  # F19
    wave = speech(1.0).view(1, 1, -1)
    same_speech(sound.mono_16k(sound.check({"waveform": change(wave), "sample_rate": 16000})), wave.flatten())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_tensor_is_audio_too(encoder):  # F19
    wave = audio(speech(2.0, 48000), 48000)
    moved = {"waveform": wave["waveform"].cuda(), "sample_rate": 48000}
    on_gpu = extract(moved, encoder, device="cuda")
    assert on_gpu.states.device.type == "cpu" and encoder.conv1.weight.device.type == "cpu"
    assert relative(on_gpu.states, extract(wave, encoder).states) < 1e-2


@pytest.mark.parametrize(
    ("waveform", "says"),
    [
        (torch.zeros(2, 1, 1000), r"\(2, 1, 1000\)"),
        (torch.zeros(1, 1, 1, 1000), r"\(1, 1, 1, 1000\)"),
        (torch.zeros(1, 1000, 2), r"\(1, 1000, 2\)"),
        (torch.zeros(1000, 2), r"\(1000, 2\)"),
        (torch.zeros(1, 1, 1000, dtype=torch.bool), "bool"),
        (torch.zeros(1, 1, 1000, dtype=torch.complex64), "complex"),
        ([0.0] * 1000, "list"),
    ],
)
def test_what_is_not_audio_is_refused_at_once_with_its_shape(waveform, says):  # F19
    with pytest.raises(AudioError, match=says):
        sound.check({"waveform": waveform, "sample_rate": 16000})


@pytest.mark.parametrize(
    ("value", "says"), [(None, "no audio"), ({}, "nothing in it"), (torch.zeros(1, 1, 9), "tensor"), ({"samples": 1}, "samples")]
)
def test_no_audio_is_a_clear_error(value, says, encoder):  # F20
    with pytest.raises(AudioError, match=says):
        extract(value, encoder)


@pytest.mark.parametrize("rate", [0, -44100, 3, None, "fast", float("nan"), float("inf")])
def test_an_impossible_rate_is_refused(rate):
    with pytest.raises(AudioError, match="sample rate"):
        sound.check(audio(speech(0.1), rate))


@pytest.mark.parametrize(("value", "says"), [(float("nan"), "NaN"), (float("inf"), "infinity"), (20000.0, "-1..1")])
def test_samples_that_are_no_sound_are_refused(value, says, encoder):
    wave = speech(25)
    wave[23 * 16000] = value
    with pytest.raises(AudioError, match=says):
        extract(audio(wave), encoder)


def test_the_original_audio_is_kept_untouched(encoder):
    original = audio(speech(1.0, 44100).view(1, 1, -1).repeat(1, 2, 1).contiguous(), 44100)
    before = original["waveform"].clone()
    features = extract(original, encoder)
    assert features.audio is original and torch.equal(original["waveform"], before)


# --- F18: silence ---


def test_the_gain_rests_in_silence_and_fades(encoder):  # F18
    wave = speech(6.0)
    wave[2 * 16000 : 4 * 16000] = 0
    features = extract(audio(wave), encoder)
    gain = speech_gain(features, range(150), 25)
    assert (gain[:49] == 1).all() and (gain[101:] == 1).all()
    assert (gain[56:94] == 0).all()
    assert (np.diff(gain[48:57]) <= 0).all() and 0 < gain[52] < 1
    silent = AudioFeatures(features.states, torch.full_like(features.levels, -120), 6.0, {})
    assert not speech_gain(silent, range(150), 25).any()


# --- F21 and the files ---


def openai_checkpoint(width=384, heads=6, layers=4, vocabulary=51865, change=None):
    """What OpenAI's tiny.pt holds, at any width: random weights, a decoder that must be ignored."""
    torch.manual_seed(1)
    net = WhisperEncoder(80, 1500, width, heads, layers)
    state = {f"encoder.{name}": value.half() for name, value in net.state_dict().items()}
    state["decoder.token_embedding.weight"] = torch.zeros(10, width)
    dims = dict(n_mels=80, n_audio_ctx=1500, n_audio_state=width, n_audio_head=heads, n_audio_layer=layers, n_vocab=vocabulary)
    return net, {"dims": dims, "model_state_dict": state}


def test_openai_tiny_pt_loads(tmp_path):
    net, contents = openai_checkpoint()
    torch.save(contents, tmp_path / "tiny.pt")
    loaded = load_encoder(tmp_path / "tiny.pt")
    assert torch.equal(loaded.blocks[3].mlp[2].weight, net.blocks[3].mlp[2].weight.half().float())
    features = extract(audio(speech(0.5)), loaded)
    assert features.states.shape == (25, 5, 384) and features.states.dtype == torch.float32
    assert features.tokens(range(16), 25).shape == (16, 50, 384)


@pytest.mark.parametrize("prefix", ["encoder.", ""])
def test_the_safetensors_form_loads(tmp_path, prefix):
    net, _ = openai_checkpoint()
    save_file({prefix + name: value.contiguous() for name, value in net.state_dict().items()}, tmp_path / "tiny.safetensors")
    loaded = load_encoder(tmp_path / "tiny.safetensors")
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in loaded.state_dict().items())


def test_whisper_small_is_refused_by_width(tmp_path):  # F21
    torch.save(openai_checkpoint(768, 12, 1)[1], tmp_path / "small.pt")
    with pytest.raises(ModelFileError, match=r"small, 768 wide.*384"):
        load_encoder(tmp_path / "small.pt")


def test_the_english_tiny_is_refused(tmp_path):
    torch.save(openai_checkpoint(vocabulary=51864)[1], tmp_path / "tiny.en.pt")
    with pytest.raises(ModelFileError, match="English-only"):
        load_encoder(tmp_path / "tiny.en.pt")


def test_a_file_with_other_contents_is_refused(tmp_path):
    torch.save({"state_dict": {"a": torch.zeros(1)}}, tmp_path / "tiny.pt")
    with pytest.raises(ModelFileError, match="no Whisper encoder"):
        load_encoder(tmp_path / "tiny.pt")
    _, contents = openai_checkpoint()
    del contents["model_state_dict"]["encoder.blocks.2.attn.key.weight"]
    torch.save(contents, tmp_path / "tiny.pt")
    with pytest.raises(ModelFileError, match=r"blocks\.2\.attn\.key\.weight"):
        load_encoder(tmp_path / "tiny.pt")
    with pytest.raises(ModelFileError, match=r"missing.*whisper/tiny\.pt"):
        load_encoder(tmp_path / "none.pt")
