"""Talking clips: faces that move in front of a background, seen whole or through the aligned crop that the network works on."""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F

from .mouth import Face, landmarks, render

# lipsync/face/align.py: three landmarks on a card, in crop pixels per pixel of resolution; repeated here because this runs where OpenCV
# is missing,
# and compared with it by tests/test_demo_model.py
TEMPLATE = torch.tensor([[17.0, 20.0], [58.0, 20.0], [37.5, 40.0]]) * (2.8 / 256)
CARD = (75 * 2.8 / 256, 100 * 2.8 / 256)  # width and height of the upright face picture, per pixel of resolution


def wander(batch, frames, generator, device, speed=0.08):
    """Smooth random motion of unit spread, [batch,frames]: three slow sine waves."""
    rate = torch.rand(batch, 3, 1, generator=generator) * speed + 0.01
    phase = torch.rand(batch, 3, 1, generator=generator) * 2 * math.pi
    waves = torch.sin(2 * math.pi * rate * torch.arange(frames) + phase).sum(1) * (2 / 3) ** 0.5
    return waves.to(device)


def align(points, resolution):
    """Matrices [...,2,3] from the space of `points` [...,3,2] to the square crop of `resolution` px, as `lipsync.face.align_matrices`
    without
    smoothing, followed by the resize to a square that `warp_crops` does."""
    target = (TEMPLATE * resolution).to(points)

    def normalised(p):
        centre = p.mean(-2, keepdim=True)
        spread = (p - centre).flatten(-2).std(-1)[..., None, None]
        return centre, spread, (p - centre) / spread

    centre, spread, source = normalised(points)
    target_centre, target_spread, goal = normalised(target)
    dot = (source * goal).sum((-1, -2))
    cross = (source[..., 0] * goal[..., 1] - source[..., 1] * goal[..., 0]).sum(-1)
    scale = (target_spread / spread)[..., 0, 0] / torch.hypot(dot, cross)
    a, b = scale * dot, scale * cross
    turned = torch.stack([torch.stack([a, -b], -1), torch.stack([b, a], -1)], -2)
    offset = target_centre[0] - (turned @ centre.transpose(-1, -2))[..., 0] + goal[2] - source[..., 2, :]
    matrix = torch.cat([turned, offset[..., None]], -1)
    square = resolution / torch.tensor([round(CARD[0] * resolution), round(CARD[1] * resolution)]).to(points)
    matrix = matrix * square[:, None]
    matrix[..., 2] += square / 2 - 0.5  # both pictures count pixels from the middle of the first
    return matrix


def inverted(matrix):
    """The inverse of affine matrices [...,2,3]."""
    linear = torch.linalg.inv(matrix[..., :2])
    return torch.cat([linear, -linear @ matrix[..., 2:]], -1)


def backgrounds(count, size, generator, device):
    """Something to stand in front of: float32 [count,3,h,w], a colour gradient with blurred shapes."""
    tall, wide = size
    coarse = torch.rand(count, 3, 2, 2, generator=generator)
    detail = torch.randn(count, 3, 6, 8, generator=generator) * 0.25 * torch.rand(count, 1, 1, 1, generator=generator)
    grey = torch.rand(count, 1, 1, 1, generator=generator)
    picture = F.interpolate(coarse, size=(tall, wide), mode="bilinear") + F.interpolate(detail, size=(tall, wide), mode="bicubic")
    return torch.lerp(picture, picture.mean(1, keepdim=True), grey).clamp(0, 1).to(device)


def tints(count, generator):
    """Random lights for `tinted`: gains of the colours [count,3], gamma and slope across the picture [count]."""
    gain = (1 + 0.11 * torch.randn(count, 3, generator=generator)).clamp(0.6, 1.4) * (
        0.75 + 0.5 * torch.rand(count, 1, generator=generator)
    )
    return gain, torch.exp(0.25 * torch.randn(count, generator=generator)), 0.25 * torch.randn(count, generator=generator)


def tinted(face: Face, gain, gamma, slope) -> Face:
    """Faces under other light; see `tints`."""
    device = face.sheet.device
    gain, gamma, slope = gain.to(device), gamma.to(device)[:, None], slope.to(device)
    across = 1 + slope[:, None, None, None] * torch.linspace(-1, 1, face.sheet.shape[-1], device=device)
    colour = (face.sheet[:, :3].clamp(1e-3, 1) ** gamma[:, :, None, None] * gain[:, :, None, None] * across).clamp(0, 1)
    light = (face.light.clamp(1e-3, 1) ** gamma * gain).clamp(0.02, 1)
    return replace(face, sheet=torch.cat([colour, face.sheet[:, 3:]], 1), light=light)


def crops(face: Face, opening, spread, generator, resolution=256, last: Face | None = None):
    """Aligned crops of B talking faces, K times with the same motion of the head: opening and spread [K,B,T] -> float32 [K,B,T,3,r,r].

    The head sways and turns a little, and the landmarks that align it are off by a pixel or two, as a detector's are. `last`: other
    versions of the same faces, seen in the last of the K.
    """
    count, batch, frames = opening.shape
    device = face.sheet.device
    swing = torch.rand(batch, 1, generator=generator).to(device)
    turn = (
        torch.stack([wander(batch, frames, generator, device) * 0.07, wander(batch, frames, generator, device) * 0.05], -1)
        * swing[..., None]
    )
    turn = turn + 0.06 * torch.randn(batch, 1, 2, generator=generator).to(device)
    points = landmarks(face, turn)
    points = points + 0.035 * torch.randn(batch, 1, 3, 2, generator=generator).to(device)  # where this detector sees them on this face
    points = points + 0.012 * torch.randn(batch, frames, 3, 2, generator=generator).to(device)
    points = points + 0.02 * wander(batch * 2, frames, generator, device, 0.2).view(batch, frames, 1, 2)
    scene = backgrounds(batch, (resolution, resolution), generator, device)
    camera = inverted(align(points, resolution))
    size = (resolution, resolution)
    shown = [face] * (count - 1) + [last or face]
    return torch.stack([render(f, camera, o, s, turn, size, scene) for f, o, s in zip(shown, opening, spread, strict=True)])


def video(face: Face, opening, spread, generator, size=(360, 480), scale=0.19):
    """Frames of a video of one talking face: uint8 [T,h,w,3]; `opening` and `spread` [T]; a face unit is `scale` of the height / 1.6."""
    tall, wide = size
    frames, device = len(opening), face.sheet.device
    sway = [wander(1, frames, generator, device, 0.02)[0] for _ in range(5)]
    unit = tall * scale / 1.6 * (1 + 0.02 * sway[2])  # px
    angle = 0.03 * sway[3]
    linear = (
        torch.stack([torch.stack([angle.cos(), -angle.sin()], -1), torch.stack([angle.sin(), angle.cos()], -1)], -2) * unit[:, None, None]
    )
    middle = torch.stack([wide / 2 + unit * 0.15 * sway[0], tall * 0.36 + unit * 0.1 * sway[1]], -1)
    camera = inverted(torch.cat([linear, middle[..., None]], -1))
    turn = torch.stack([0.05 * sway[4], 0.03 * sway[1]], -1)
    scene = backgrounds(1, size, generator, device)
    parts = []
    for start in range(0, frames, 8):
        part = slice(start, start + 8)
        seen = render(face, camera[None, part], opening[None, part], spread[None, part], turn[None, part], size, scene)[0]
        parts.append((seen.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu())
    return torch.cat(parts)
