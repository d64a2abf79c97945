"""The example graph through /prompt of a real ComfyUI."""
import shutil
from pathlib import Path

import av
import demo_media
import numpy as np
import pytest
from comfy_client import as_images, frames_of, only, pictures_of, sound_of

NODES = {
    "LatentSyncModelLoad", "LatentSyncEngineLoad", "LatentSyncFaceAlign", "LatentSyncAudioFeatures", "LatentSyncDenoise",
    "LatentSyncVAEDecode", "LatentSyncRestore", "LatentSyncCropsToImages", "LatentSyncImagesToCrops",
}
RATE = 25
SHARED = Path(__file__).resolve().parents[3] / "shared" / "media"


def cut(source: Path, target: Path, seconds: float) -> Path:
    """The first seconds of a media file, packets copied as they are."""
    with av.open(str(source)) as whole, av.open(str(target), "w") as part:
        stream = whole.streams.video[0] if whole.streams.video else whole.streams.audio[0]
        copy = part.add_stream_from_template(stream)
        for packet in whole.demux(stream):
            if packet.dts is not None and packet.dts * packet.time_base < seconds:
                packet.stream = copy
                part.mux(packet)
    return target


def test_object_info_lists_every_node(comfy):
    listed = comfy.get("/object_info")
    assert sorted(NODES - set(listed)) == [], comfy.server.log()
    for node in NODES:
        assert listed[node]["description"] and listed[node]["category"].startswith("LatentSync")


def test_example_gives_a_playable_clip_of_the_right_size_length_and_sound(comfy, example, media):
    finished = comfy.run(example({"LatentSyncDenoise.steps": 2, "LatentSyncDenoise.guidance": 1.5}))
    assert finished.status == "success", finished.failure
    (path,) = comfy.saved(finished)
    source = frames_of(next(media.glob("*.mp4")))
    result = frames_of(path)
    assert result.shape == source.shape
    sound, rate = sound_of(path)
    speech, speech_rate = sound_of(next(media.glob("*.wav")))
    assert len(sound) / rate == pytest.approx(len(speech) / speech_rate, abs=0.06)  # AAC works in blocks of 1024 samples
    # the demo model paints over the lower face and leaves the corners to the encoder alone
    difference = np.abs(result.astype(int) - source).mean((0, 3))
    height, width = difference.shape
    assert difference[: height // 8].mean() < 3
    assert difference[height // 3 : height * 3 // 4, width // 3 : width * 2 // 3].mean() > 3 * difference[: height // 8].mean()


def test_an_approximate_profile_is_called_so(comfy, example):
    finished = comfy.run(example({"LatentSyncDenoise.profile": "approx4", "LatentSyncDenoise.seed": 4}))
    assert finished.status == "success", finished.failure
    log = comfy.server.log()
    assert "profile approx4 (approximate: 4 steps instead of 20)" in log and "1 steps are not taken" in log


def test_images_outside_the_matte_are_the_clips_own(comfy, example, media):
    """F25, in IMAGE form: bit for bit."""
    finished = comfy.run(as_images(example()))
    assert finished.status == "success", finished.failure
    source = frames_of(next(media.glob("*.mp4")))
    result = pictures_of(comfy.saved(finished))
    as_saved = np.clip(255.0 * (source.astype(np.float32) / 255), 0, 255).astype(np.uint8)  # SaveImage rounds down
    changed = (result != as_saved).any((0, 3))
    rows, columns = np.nonzero(changed)
    height, width = changed.shape
    assert 0.01 < changed.mean() < 0.5
    assert rows.min() > height // 8 and columns.min() > width // 8 and columns.max() < width * 7 // 8


def test_unchanged_prompt_executes_nothing_and_lists_its_outputs_again(comfy, example):
    """F50, F51."""
    first, second, third = (comfy.run(example({"LatentSyncDenoise.seed": 50})) for _ in range(3))
    assert first.status == second.status == third.status == "success"
    for again in (second, third):
        assert again.executed == []
        assert set(again.cached) == set(example())
        assert comfy.saved(again) == comfy.saved(first) != []
        assert {only(example(), f"LatentSync{kind}") for kind in ("FaceAlign", "Restore")} < set(again.outputs), "they show what they showed"
        assert all(shown == first.outputs[node] for node, shown in again.outputs.items())


def test_changed_file_content_executes_again(comfy, example, media):
    """F50: the same name, other frames."""
    clip = comfy.input / "changing.mp4"
    shutil.copy(next(media.glob("*.mp4")), clip)
    workflow = example({"LoadVideo.file": clip.name})
    first = comfy.run(workflow)
    demo_media.write_clip(clip, (frame[:, ::-1] for frame in demo_media.face_frames(0.6, size=(320, 256))))
    second = comfy.run(workflow)
    assert first.status == second.status == "success"
    ran = {workflow[node]["class_type"] for node in second.executed}
    assert {"LoadVideo", "LatentSyncFaceAlign", "LatentSyncDenoise", "LatentSyncRestore", "SaveVideo"} <= ran
    assert "LatentSyncAudioFeatures" not in ran  # the speech is the same
    before, after = (frames_of(comfy.saved(finished)[0]) for finished in (first, second))
    assert np.abs(before[:, :, ::-1].astype(int) - after).mean() < np.abs(before.astype(int) - after).mean() / 4


def test_other_seed_executes_only_what_depends_on_it(comfy, example):
    workflow = example({"LatentSyncDenoise.seed": 51})
    comfy.run(workflow)
    workflow = example({"LatentSyncDenoise.seed": 52})
    ran = {workflow[node]["class_type"] for node in comfy.run(workflow).executed}
    assert ran == {"LatentSyncDenoise", "LatentSyncVAEDecode", "LatentSyncRestore", "SaveVideo"}


def test_progress_is_told_for_every_long_stage(comfy, example):
    comfy.forget()
    workflow = example()
    finished = comfy.run(workflow)
    told = {}
    for kind, data in finished.events:
        if kind == "progress":
            told.setdefault(workflow[data["node"]]["class_type"], []).append(data["value"] / data["max"])
    assert {"LatentSyncFaceAlign", "LatentSyncAudioFeatures", "LatentSyncDenoise", "LatentSyncVAEDecode", "LatentSyncRestore"} <= set(told)
    for stage, parts in told.items():
        assert parts == sorted(parts) and parts[-1] == 1, (stage, parts)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/media")
def test_first_two_seconds_of_the_shared_clip(comfy, example):
    """A portrait HEVC clip of 1080x1920 and its speech."""
    cut(SHARED / "demo1_video.mp4", comfy.input / "portrait.mp4", 2)
    cut(SHARED / "demo1_audio.wav", comfy.input / "portrait.wav", 2)
    finished = comfy.run(example({"LoadVideo.file": "portrait.mp4", "LoadAudio.audio": "portrait.wav"}))
    assert finished.status == "success", finished.failure
    (path,) = comfy.saved(finished)
    speech, speech_rate = sound_of(comfy.input / "portrait.wav")
    seconds = len(speech) / speech_rate
    assert seconds == pytest.approx(2, abs=0.1)
    result = frames_of(path)
    assert result.shape[1:] == (1920, 1080, 3)
    assert len(result) == pytest.approx(seconds * RATE, abs=0.5)
    sound, rate = sound_of(path)
    assert len(sound) / rate == pytest.approx(seconds, abs=0.06)
