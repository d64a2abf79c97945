"""Clips that the demo model never saw: a new face that speaks other words, and new words of a new voice to be put into its mouth."""

from dataclasses import dataclass

import numpy as np
import torch

from . import clips, talk
from .paint import paint

FPS = 25
SEED = 1_000_000  # training uses small seeds


@dataclass(frozen=True)
class HeldOut:
    """frames: uint8 RGB [T,h,w,3]. sound: float32 [samples] at 16 kHz. truth: float32 [T], the opening that belongs to the sound, face
    units."""

    frames: np.ndarray
    sound: np.ndarray
    truth: np.ndarray


def held_out(seconds: float, seed: int = 0, size: tuple[int, int] = (360, 480), pause: float = 0.12) -> HeldOut:
    """A drawn face in front of a camera, `seconds` at 25 frames a second, and speech of that length with pauses in it."""
    random = np.random.default_rng(SEED + seed)
    generator = torch.Generator().manual_seed(SEED + seed)
    sound, opening, _ = talk.monologue(talk.HELD_OUT_VOICES, seconds, random, silence=pause)
    _, other, spread = talk.monologue(talk.HELD_OUT_VOICES, seconds, random)
    at = np.arange(round(seconds * FPS)) * talk.TRACK_RATE // FPS
    face = paint(1, generator)
    frames = clips.video(face, torch.from_numpy(other[at]), torch.from_numpy(spread[at]), generator, size)
    return HeldOut(frames.numpy(), sound, opening[at])
