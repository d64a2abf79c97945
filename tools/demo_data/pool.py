"""What the training loop draws from: speech as encoder states, pictures for the autoencoder, and a pool of encoded clips for the
network."""

import math
import time

import numpy as np
import torch

from . import clips
from .mouth import Face
from .paint import paint
from .prepare import MEL_LOW, MEL_STEP

FRAMES = 16  # of a clip, one block of the pipeline
AROUND = torch.arange(-4, 6)  # lipsync/audio.py: the steps that a frame hears
PORTRAITS = 0.25  # share of clips that show the portrait
SCALE = 0.18215  # lipsync/vae.py


class Speech:
    """Windows of speech on the training device.

    states: float16 [W,1500,5,384]; steps: int64 [W], where the sound ends; opening, spread: float32 [W,3000] at 100 Hz.
    """

    def __init__(self, data, split: str, encoder, device):
        mel = torch.from_numpy(data[f"{split}.mel"])
        self.steps = torch.from_numpy(data[f"{split}.steps"]).to(device)
        self.opening = torch.from_numpy(data[f"{split}.opening"]).to(device).float() / 255
        self.spread = torch.from_numpy(data[f"{split}.spread"]).to(device).float() / 200
        encoder = encoder.to(device)
        states = []
        for part in mel.split(4):
            with torch.no_grad():
                value = part.to(device).float() * MEL_STEP + MEL_LOW
                silent = (torch.arange(3000, device=device) >= 2 * self.steps[sum(map(len, states)) :][: len(part), None])[:, None]
                states.append(encoder.hidden_states(value.masked_fill(silent, 0.0)).half())
        self.states = torch.cat(states)

    def pick(self, count: int, generator, frames: int = FRAMES):
        """Random places: window [count] and first video frame [count] of a run of `frames` frames at 25 a second that lies in the sound."""
        window = torch.randint(len(self.steps), (count,), generator=generator).to(self.steps.device)
        room = (self.steps[window] // 2 - frames).clamp(min=1)
        start = (torch.rand(count, generator=generator).to(room.device) * room).long()
        return window, start

    def mouth(self, window, start, frames: int = FRAMES):
        """Opening and spread at each frame, [n,frames] each."""
        at = ((start[:, None] + torch.arange(frames, device=start.device)) * 4).clamp(max=self.opening.shape[1] - 1)
        return self.opening[window[:, None], at], self.spread[window[:, None], at]

    def tokens(self, window, start, frames: int = FRAMES):
        """What the frames hear, float16 [n,frames,50,384]: `AudioFeatures.tokens` at 25 frames a second."""
        at = 2 * (start[:, None, None] + torch.arange(frames, device=start.device)[:, None]) + AROUND.to(start.device)
        at = torch.minimum(at.clamp(min=0), self.steps[window][:, None, None] - 1)
        return self.states[window[:, None, None], at].flatten(2, 3)


class Faces:
    """Drawn faces, each new, and now and then the portrait under another light. Everything random comes from `generator`."""

    def __init__(self, data, generator, device):
        self.generator, self.device = generator, device
        self.portrait, self.natural = (self._face(data, name).to(device) for name in ("portrait", "natural"))

    @staticmethod
    def _face(data, name) -> Face:
        fields = {}
        for key in Face.__dataclass_fields__:
            value = data[f"{name}.{key}"]
            fields[key] = tuple(map(float, value)) if key == "region" else torch.from_numpy(np.asarray(value)).float()
        fields["sheet"] = fields["sheet"] / 255
        return Face(**fields)

    def draw(self, count: int, real: bool | None = None) -> tuple[Face, Face | None]:
        """Faces [count] and, for the portrait, their natural versions. real None: the portrait in PORTRAITS of the calls."""
        if real is None:
            real = torch.rand((), generator=self.generator) < PORTRAITS
        light = clips.tints(count, self.generator)
        if not real:
            return clips.tinted(paint(count, self.generator, self.device), *light), None
        rows = torch.zeros(count, dtype=torch.long, device=self.device)
        return clips.tinted(self.portrait.pick(rows), *light), clips.tinted(self.natural.pick(rows), *light)


def pictures(faces: Faces, count: int, keep):
    """Crops for the autoencoder, float32 [4*count,3,256,256] in -1..1: random mouths, a quarter with the redrawn region grey."""
    generator = faces.generator
    face, natural = faces.draw(count)
    opening = (torch.rand(2, count, 2, generator=generator) ** 1.5 * 0.65).to(faces.device)
    opening = opening * (torch.rand(2, count, 2, generator=generator) > 0.15).to(faces.device)
    if natural is not None:
        opening[-1] = 0
    spread = (0.72 + 0.45 * torch.rand(2, count, 2, generator=generator)).to(faces.device)
    seen = clips.crops(face, opening, spread, generator, last=natural).flatten(0, 2) * 2 - 1
    gone = (torch.rand(len(seen), 1, 1, 1, generator=generator) < 0.25).to(faces.device)
    return torch.where(gone, seen * keep, seen)


class Pool:
    """Encoded clips. Each shows one face in one motion with three mouth tracks; the last is for reference only.

    whole: float16 [N,3,16,4,32,32]; masked: float16 [N,16,4,32,32] (scaled latents). window, start: int64 [N,2], the speech of the first
    two tracks. Stops early, with what it has, after `seconds`.
    """

    def __init__(self, count: int, faces: Faces, speech: Speech, encode, keep, batch: int = 8, frames: int = FRAMES, seconds=math.inf):
        generator, device = faces.generator, faces.device
        rows = {"whole": [], "masked": [], "window": [], "start": []}
        batch = min(batch, count)
        start = time.monotonic()
        for made in range(0, count, batch):
            if made and time.monotonic() - start > seconds:
                break
            face, natural = faces.draw(batch)
            places = [speech.pick(batch, generator, frames) for _ in range(3)]
            tracks = [speech.mouth(*place, frames) for place in places]
            tracks[2] = self._reference(*tracks[2], natural, generator)
            opening, spread = (torch.stack(part) for part in zip(*tracks, strict=True))
            seen = clips.crops(face, opening, spread, generator, last=natural) * 2 - 1  # [3,batch,frames,3,256,256]
            hidden = seen[2] * keep
            rows["whole"].append(torch.stack([encode(part.flatten(0, 1)).unflatten(0, (batch, frames)) for part in seen], 1))
            rows["masked"].append(encode(hidden.flatten(0, 1)).unflatten(0, (batch, frames)))
            rows["window"].append(torch.stack([window for window, _ in places[:2]], 1))
            rows["start"].append(torch.stack([start for _, start in places[:2]], 1))
        for name, parts in rows.items():
            setattr(self, name, torch.cat(parts))
        self.device = device

    @staticmethod
    def _reference(opening, spread, natural, generator):
        """The track shown as reference: speech of another moment, or for half of the clips one opening held all the while."""
        batch = len(opening)
        held = (torch.rand(batch, 1, generator=generator) < 0.5).to(opening.device)
        still = (torch.rand(batch, 1, generator=generator) * (torch.rand(batch, 1, generator=generator) < 0.5) * 0.5).to(opening.device)
        opening, spread = torch.where(held, still, opening), torch.where(held, 1.0, spread)
        if natural is not None:
            opening, spread = torch.zeros_like(opening), torch.ones_like(spread)  # the mouth it was taken with
        return opening, spread

    def __len__(self):
        return len(self.whole)

    def sample(self, count: int, generator):
        """A batch: target, reference and masked latents float32 [n,4,16,32,32], and the window and start of the target's speech."""
        clip = torch.randint(len(self), (count,), generator=generator).to(self.device)
        target = torch.randint(2, (count,), generator=generator).to(self.device)
        other = (target + 1 + torch.randint(2, (count,), generator=generator).to(self.device)) % 3

        def channels_first(latents):
            return latents.float().transpose(1, 2)

        return (
            channels_first(self.whole[clip, target]),
            channels_first(self.whole[clip, other]),
            channels_first(self.masked[clip]),
            self.window[clip, target],
            self.start[clip, target],
        )
