"""Speech from text with eSpeak NG, and when each phoneme sounds.

    python tools/speech.py OUT.wav "Some words"

The library comes from the package `espeakng-loader` (it ships libespeak-ng and its voices; GPL-3.0, so a tool of the demo and the tests
only); without that package the program `espeak-ng` is used, which tells no phoneme times.
"""
import ctypes
import io
import shutil
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np

# constants and the layout of an event: espeak-ng/speak_lib.h
AUDIO_OUTPUT_RETRIEVAL = 1
INITIALIZE_PHONEME_EVENTS = 0x0001
INITIALIZE_PHONEME_IPA = 0x0002
INITIALIZE_DONT_EXIT = 0x8000
CHARS_UTF8 = 1
EVENT_LIST_TERMINATED = 0
EVENT_PHONEME = 7
EVENT_SAMPLERATE = 8
PARAMETER_RATE = 1
PARAMETER_PITCH = 3

DEFAULT_TEXT = "My mouth moves with every word, and the rest of me stays as it was."


class SpeechError(RuntimeError):
    """There is no speech synthesiser, or it refuses the voice."""


class _Id(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int), ("unique_identifier", ctypes.c_uint), ("text_position", ctypes.c_int), ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int), ("sample", ctypes.c_int), ("user_data", ctypes.c_void_p), ("id", _Id),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))
_library: tuple[ctypes.CDLL, int] | None = None


def speak(text: str = DEFAULT_TEXT, *, voice: str = "en-us", words_per_minute: int = 160, pitch: int = 50) -> tuple[np.ndarray, int, list]:
    """-> (waveform float32 [T] in -1..1, sample rate in Hz, [(phoneme in IPA with its stress mark, start in seconds)]).

    pitch is eSpeak's, 0..100. The phoneme list covers pauses too (an empty string); it is empty when only the `espeak-ng` program is there.
    Raises SpeechError.
    """
    try:
        import espeakng_loader
    except ImportError:
        return _speak_by_program(text, voice, words_per_minute, pitch)
    return _speak_by_library(espeakng_loader, text, voice, words_per_minute, pitch)


def _speak_by_library(loader, text: str, voice: str, words_per_minute: int, pitch: int):
    library, rate = _load(loader)
    chunks: list[np.ndarray] = []
    phonemes: list[tuple[str, float]] = []

    @_Callback
    def collect(samples, count, events):
        if samples and count > 0:
            chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        position = 0
        while events[position].type != EVENT_LIST_TERMINATED:
            event = events[position]
            if event.type == EVENT_PHONEME:
                # the name lies in the eight bytes of the union themselves, and fills them when it is that long
                name = bytes(event.id)[:8].split(b"\0")[0].decode("utf-8", "replace")
                phonemes.append((name, event.sample / rate))
            position += 1
        return 0

    if library.espeak_SetVoiceByName(voice.encode()) != 0:
        raise SpeechError(f"eSpeak NG has no voice {voice!r}; `espeak-ng --voices` lists them")
    library.espeak_SetParameter(PARAMETER_RATE, words_per_minute, 0)
    library.espeak_SetParameter(PARAMETER_PITCH, pitch, 0)
    library.espeak_SetSynthCallback(collect)
    encoded = text.encode("utf-8")
    library.espeak_Synth(encoded, ctypes.c_size_t(len(encoded) + 1), 0, 0, 0, CHARS_UTF8, None, None)
    library.espeak_Synchronize()
    library.espeak_SetSynthCallback(_Callback())  # `collect` is about to be freed
    if not chunks:
        raise SpeechError(f"eSpeak NG made no sound of {text!r}")
    return np.concatenate(chunks).astype(np.float32) / 32768, rate, phonemes


def _load(loader) -> tuple[ctypes.CDLL, int]:
    """The library, initialised once a process, and its sample rate."""
    global _library  # noqa: PLW0603 - eSpeak NG has one state a process itself
    if _library is None:
        library = ctypes.CDLL(loader.get_library_path())
        options = INITIALIZE_PHONEME_EVENTS | INITIALIZE_PHONEME_IPA | INITIALIZE_DONT_EXIT
        rate = library.espeak_Initialize(AUDIO_OUTPUT_RETRIEVAL, 0, str(loader.get_data_path()).encode(), options)
        if rate <= 0:
            raise SpeechError(f"eSpeak NG cannot read its voices in {loader.get_data_path()}")
        _library = library, rate
    return _library


def _speak_by_program(text: str, voice: str, words_per_minute: int, pitch: int):
    program = shutil.which("espeak-ng")
    if program is None:
        raise SpeechError("no speech synthesiser: `pip install espeakng-loader`, or install the program espeak-ng")
    command = [program, "--stdout", "-v", voice, "-s", str(words_per_minute), "-p", str(pitch), "--", text]
    sound = subprocess.run(command, capture_output=True, check=True).stdout
    with wave.open(io.BytesIO(sound)) as file:
        # the length in the header of a stream is a placeholder: read what is there
        samples = np.frombuffer(sound, dtype="<i2", offset=len(sound) - (len(sound) - 44) // 2 * 2)
        return samples.astype(np.float32) / 32768, file.getframerate(), []


def save_wav(path: Path, waveform: np.ndarray, rate: int) -> Path:
    """`waveform` float [T] in -1..1 as a 16-bit mono WAV file."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(waveform, -1, 1) * 32767).round().astype("<i2").tobytes())
    return path


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sound, hertz, spoken = speak(sys.argv[2])
    save_wav(Path(sys.argv[1]), sound, hertz)
    print(f"{sys.argv[1]}: {len(sound) / hertz:.2f} s")
    for phone, start in spoken:
        print(f"{start:8.3f}  {phone}")
