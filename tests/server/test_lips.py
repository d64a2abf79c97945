"""Does a mouth follow the speech? The demo model through the whole graph, on a face and a voice that it was not trained on, and the mouth
of what comes out measured by MediaPipe's face mesh."""
import demo_media
import lip_reading
import numpy as np
import pytest
import speech
from comfy_client import as_images, frames_of, pictures_of
from demo_data.held_out import FPS, held_out
from demo_data.talk import RATE
from lip_reading import correlation, delay

SECONDS = 4.0
SEED = 3
PIECE = 16  # frames
HIDDEN = slice(44, 50)  # frames without a face
BLOCKS = [slice(0, 16), slice(16, 32), slice(32, 44), slice(50, 66), slice(66, 82), slice(82, 100)]  # the last: a block and a tail of two


def pieces(values: np.ndarray, length: int, order: list[int]) -> np.ndarray:
    """The pieces of `length` of a track or a sound in another order; what does not fill one stays at the end."""
    count = len(values) // length
    return np.concatenate([*(values[at * length : (at + 1) * length] for at in order), values[count * length :]])


def shuffle(truth: np.ndarray) -> list[int]:
    """The order of pieces in which the track is least like itself."""
    count = len(truth) // PIECE
    orders = [list(np.random.default_rng(seed).permutation(count)) for seed in range(50)]
    return min(orders, key=lambda order: abs(correlation(pieces(truth, PIECE, order), truth)))


def faults(mouth: np.ndarray, truth: np.ndarray) -> list[str]:
    """All that is wrong with a mouth (opening a frame, NaN where no face is) that should do what `truth` says."""
    found = []
    if not (r := correlation(mouth, truth)) >= 0.6:  # nor NaN
        found.append(f"r = {r:.2f}")
    if abs(late := delay(mouth, truth)) > 2:
        found.append(f"{late} frames late")
    levels = [np.nanmean(mouth[part]) for part in (truth < 0.02, truth > 0.3)]
    if levels[0] > 0.4 * levels[1]:
        found.append(f"{levels[0]:.3f} open in silence, {levels[1]:.3f} in loud vowels")
    if not (r := correlation(mouth[BLOCKS[-1]], truth[BLOCKS[-1]])) >= 0.5:
        found.append(f"r = {r:.2f} at the end")
    return found


@pytest.fixture(scope="module")
def clip():
    made = held_out(SECONDS, SEED)
    made.frames[HIDDEN] = np.linspace(90, 140, made.frames.shape[2], dtype=np.uint8)[None, None, :, None]
    return made


@pytest.fixture(scope="module")
def seen(comfy, example, clip, face_files):
    """what is said -> (frames of the result uint8 [N,H,W,3], opening of the mouth in each)."""
    order, samples = shuffle(clip.truth), RATE // FPS * PIECE
    sounds = {"own": clip.sound, "shuffled": pieces(clip.sound, samples, order)}
    demo_media.write_clip(comfy.input / "speaker.mp4", iter(clip.frames), FPS)
    detector, found = lip_reading.pack.face.load_detector("mediapipe", face_files), {}
    for name, sound in sounds.items():
        speech.save_wav(comfy.input / f"{name}.wav", sound, RATE)
        inputs = {"LoadVideo.file": "speaker.mp4", "LoadAudio.audio": f"{name}.wav"}
        done = comfy.run(as_images(example({**inputs, "LatentSyncDenoise.steps": 4, "LatentSyncDenoise.guidance": 2.5})))
        assert done.status == "success", done.failure
        frames = pictures_of(comfy.saved(done))
        found[name] = frames, lip_reading.openings(frames, detector)
    return found


def test_the_mouth_follows_the_speech(seen, clip):
    frames, mouth = seen["own"]
    assert len(frames) == len(clip.frames) and np.isnan(mouth[HIDDEN]).all()
    assert faults(mouth, clip.truth) == []


def test_other_speech_moves_it_otherwise(seen, clip):
    _, mouth = seen["shuffled"]
    assert correlation(mouth, clip.truth) < 0.2
    assert correlation(mouth, pieces(clip.truth, PIECE, shuffle(clip.truth))) >= 0.6


def test_what_is_not_redrawn_is_the_clips_own(seen, comfy):
    frames, _ = seen["own"]
    source = np.clip(255.0 * (frames_of(comfy.input / "speaker.mp4").astype(np.float32) / 255), 0, 255).astype(np.uint8)  # as SaveImage does
    changed = (frames != source).any(3)
    assert not changed[HIDDEN].any()
    assert changed.any((1, 2)).sum() == len(frames) - len(range(*HIDDEN.indices(len(frames))))
    rows, columns = np.nonzero(changed.any(0))
    height, width = changed.shape[1:]
    assert changed.mean() < 0.25 and rows.min() > height // 5 and columns.min() > width // 8 and columns.max() < width * 7 // 8


@pytest.mark.parametrize(
    "spoil",
    [
        lambda mouth: np.roll(mouth, 3),
        lambda mouth: np.roll(mouth, -3),
        lambda mouth: np.where(np.isnan(mouth), np.nan, np.random.default_rng(0).normal(0.05, 0.02, len(mouth))),  # speech ignored
        lambda mouth: np.concatenate([mouth[part] for part in (BLOCKS[1], BLOCKS[0], slice(32, 50), BLOCKS[4], BLOCKS[3], BLOCKS[5])]),  # order
        lambda mouth: np.concatenate([mouth[: BLOCKS[-1].start], mouth[BLOCKS[-1]][::-1]]),  # the end backwards
        lambda mouth: np.concatenate([mouth[: BLOCKS[-1].start], np.full(18, mouth[BLOCKS[-1].start])]),  # or standing still
    ],
)
def test_these_tests_would_see(spoil, seen, clip):
    assert faults(spoil(seen["own"][1]), clip.truth) != []
