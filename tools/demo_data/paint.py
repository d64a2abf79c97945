"""Drawn faces: layered, anti-aliased, lit pictures of heads with closed mouths, made from a few dozen random numbers each."""

import torch
import torch.nn.functional as F

from .mouth import POINTS, Face

REGION = (-2.75, -3.1, 2.75, 4.4)  # x0, y0, x1, y1 of the painted sheet, in face units
SHEET = (400, 512)  # its size in pixels, width and height: about 70 pixels a unit, as many as an aligned 256-pixel crop shows

SKIN = torch.tensor(
    [
        [0.98, 0.85, 0.76],
        [0.93, 0.75, 0.62],
        [0.86, 0.66, 0.52],
        [0.74, 0.53, 0.39],
        [0.58, 0.39, 0.28],
        [0.42, 0.27, 0.19],
        [0.31, 0.20, 0.15],
    ]
)
HAIR = torch.tensor(
    [
        [0.10, 0.08, 0.07],
        [0.22, 0.14, 0.09],
        [0.38, 0.24, 0.13],
        [0.62, 0.45, 0.24],
        [0.80, 0.66, 0.42],
        [0.45, 0.18, 0.09],
        [0.62, 0.60, 0.58],
    ]
)
IRIS = torch.tensor([[0.25, 0.15, 0.08], [0.36, 0.24, 0.12], [0.30, 0.40, 0.26], [0.28, 0.42, 0.56], [0.40, 0.44, 0.46]])


class Dice:
    """Random numbers for a batch of faces, each shaped [B,1,1] (colours [B,3,1,1]) to broadcast over a picture."""

    def __init__(self, count, generator, device):
        self.count, self.generator, self.device = count, generator, device

    def uniform(self, low=0.0, high=1.0):
        return (torch.rand(self.count, 1, 1, generator=self.generator) * (high - low) + low).to(self.device)

    def normal(self, mean=0.0, spread=1.0):
        return (torch.randn(self.count, 1, 1, generator=self.generator).clamp(-2.2, 2.2) * spread + mean).to(self.device)

    def chance(self, probability):
        return (torch.rand(self.count, 1, 1, generator=self.generator) < probability).float().to(self.device)

    def colour(self, palette, jitter=0.04):
        """A random blend of two neighbours of a palette [N,3], jittered: [B,3,1,1] in 0..1."""
        at = torch.rand(self.count, generator=self.generator) * (len(palette) - 1)
        low = at.long().clamp(max=len(palette) - 2)
        mixed = torch.lerp(palette[low], palette[low + 1], (at - low)[:, None])
        mixed = mixed + torch.randn(self.count, 3, generator=self.generator) * jitter
        return mixed.clamp(0.02, 1.0)[:, :, None, None].to(self.device)

    def muted(self):
        """Any colour, mostly a muted one: [B,3,1,1]."""
        colour = torch.rand(self.count, 3, generator=self.generator)
        grey = colour.mean(1, keepdim=True)
        return torch.lerp(grey, colour, torch.rand(self.count, 1, generator=self.generator))[:, :, None, None].to(self.device)

    def noise(self, size, cells):
        """Smooth noise [B,h,w] of about unit spread, `cells` features across the picture."""
        width, height = size
        coarse = torch.randn(self.count, 1, max(2, cells * height // width), cells, generator=self.generator).to(self.device)
        return F.interpolate(coarse, size=(height, width), mode="bicubic", align_corners=True)[:, 0]


def smooth(low, high, value):
    """Smoothstep from 0 at `low` to 1 at `high`."""
    t = ((value - low) / (high - low)).clamp(0, 1)
    return t * t * (3 - 2 * t)


def bump(x, y, at_x, at_y, wide, tall):
    """A Gaussian hill of height one."""
    return torch.exp(-(((x - at_x) / wide) ** 2) - ((y - at_y) / tall) ** 2)


def inside(distance, edge=0.014):
    """Anti-aliased coverage from a signed distance in face units (negative = inside); `edge` is about one sheet pixel."""
    return (0.5 - distance / (2 * edge)).clamp(0, 1)


def over(picture, colour, coverage):
    """Paint `colour` [B,3,1,1] or [B,3,h,w] over `picture` where `coverage` [B,h,w] says."""
    coverage = coverage[:, None]
    return picture * (1 - coverage) + colour * coverage


def sheet_grid(device):
    """Face coordinates x, y of every sheet pixel, each [h,w]."""
    x0, y0, x1, y1 = REGION
    xs = torch.linspace(x0, x1, SHEET[0], device=device)
    ys = torch.linspace(y0, y1, SHEET[1], device=device)
    y, x = torch.meshgrid(ys, xs, indexing="ij")
    return x, y


def head_shape(x, y, p):
    """Signed distance (about) to the outline of the head: an ellipse above the cheek line, a rounder or squarer one below it."""
    below = ((y - p["cheek_y"]) / (p["chin_y"] - p["cheek_y"])).clamp(min=0)
    above = ((p["cheek_y"] - y) / (p["cheek_y"] - p["top_y"])).clamp(min=0)
    power = torch.where(y > p["cheek_y"], p["jaw_power"], torch.full_like(p["jaw_power"], 2.1))
    radius = ((x / p["half_width"]).abs() ** power + (below + above).abs() ** power).clamp(min=1e-6) ** (1 / power)
    return (radius - 1) * p["half_width"]


def relief(x, y, p):
    """Height of the head towards the viewer, in face units: shades the face and shifts it when the head turns."""
    dome = (1 - (x / (p["half_width"] * 1.12)) ** 2 - ((y - 0.9) / 3.1) ** 2).clamp(min=0.02).sqrt() * 1.45
    bridge = bump(x, y, 0, 0.75, 0.20, 0.55) * 0.16 + bump(x, y, 0, p["nose_y"] + 0.22, p["nose_w"] * 0.62, 0.24) * 0.34 * p["nose_size"]
    wings = (
        bump(x, y, p["nose_w"] * 0.8, p["nose_y"] + 0.32, 0.15, 0.14) + bump(x, y, -p["nose_w"] * 0.8, p["nose_y"] + 0.32, 0.15, 0.14)
    ) * 0.12
    sockets = (bump(x, y, p["eye_x"], p["eye_y"], 0.42, 0.24) + bump(x, y, -p["eye_x"], p["eye_y"], 0.42, 0.24)) * -0.13
    cheeks = (bump(x, y, 0.95, 1.25, 0.45, 0.40) + bump(x, y, -0.95, 1.25, 0.45, 0.40)) * 0.08 * p["cheek"]
    muzzle = bump(x, y, 0, p["mouth_y"], 0.75, 0.5) * 0.14
    chin = bump(x, y, 0, p["chin_y"] - 0.35, 0.42, 0.28) * 0.12
    return dome + bridge + wings + sockets + cheeks + muzzle + chin


def roll(dice):
    """The numbers of one batch of faces, name -> [B,1,1]."""
    p = {
        "half_width": dice.normal(1.66, 0.11),
        "top_y": dice.normal(-2.0, 0.15),
        "chin_y": dice.normal(3.1, 0.14),
        "cheek_y": dice.normal(0.75, 0.15),
        "jaw_power": dice.uniform(1.9, 2.6),
        "eye_x": dice.normal(0.84, 0.03),
        "eye_y": dice.normal(0.46, 0.035),
        "eye_w": dice.normal(0.37, 0.03),
        "eye_h": dice.normal(0.125, 0.02),
        "nose_y": dice.normal(1.14, 0.05),
        "nose_w": dice.normal(0.42, 0.05),
        "nose_size": dice.uniform(0.6, 1.3),
        "cheek": dice.uniform(0.2, 1.5),
        "mouth_y": dice.normal(1.98, 0.05),
        "mouth_w": dice.normal(0.74, 0.06),
        "lip_top": dice.uniform(0.08, 0.17),
        "lip_bottom": dice.uniform(0.12, 0.24),
        "smile": dice.normal(0.04, 0.05),
        "bow": dice.uniform(0.0, 0.05),
        "brow_h": dice.uniform(0.05, 0.11),
        "brow_arch": dice.normal(0.08, 0.04),
        "brow_tilt": dice.normal(0.0, 0.05),
    }
    p["mouth_y"] = p["mouth_y"] + (p["chin_y"] - 3.1) * 0.4
    return p


def paint(count, generator, device="cpu"):
    """Paint `count` heads with closed mouths.

    Returns a `Face` whose sheet is float32 [count,4,512,400] (RGB in 0..1 and coverage; outside the head and shoulders coverage is 0).
    The numbers come from `generator` (a CPU one), so the same seed gives the same faces on every device.
    """
    dice = Dice(count, generator, device)
    x, y = sheet_grid(device)
    x, y = x[None], y[None]
    p = roll(dice)
    side = x.abs()
    skin, hair = dice.colour(SKIN), dice.colour(HAIR)
    head = head_shape(x, y, p)

    # Hair behind, neck, clothes.
    long_hair = dice.chance(0.45) * dice.uniform(0.3, 1.0)
    bald = dice.chance(0.12)
    volume = dice.uniform(0.12, 0.4)
    behind = torch.where(
        y < p["cheek_y"], head - volume, side - p["half_width"] - volume + 0.12 * smooth(1.0, 3.5, y) * dice.uniform(-1, 2)
    )
    behind = torch.maximum(behind, y - 0.9 - 2.9 * long_hair)
    hair_cover = inside(behind, 0.05) * (1 - bald)
    strands = 1 + 0.16 * dice.noise(SHEET, 60) + 0.12 * dice.noise(SHEET, 9)
    picture = hair * strands[:, None] * 0.8
    cover = hair_cover
    neck = torch.maximum(side - dice.uniform(0.85, 1.15) - 0.25 * smooth(3.4, 4.4, y), 1.5 - y)
    neck_shade = 0.62 + 0.3 * smooth(p["chin_y"], p["chin_y"] + 0.9, y) - 0.16 * (x / 1.2) ** 2
    picture = over(picture, skin * neck_shade[:, None], inside(neck, 0.03))
    cover = torch.maximum(cover, inside(neck, 0.03))
    collar = p["chin_y"] + dice.uniform(0.45, 0.9)
    shoulders = torch.maximum(collar - y - 0.35 * smooth(0.2, 1.4, side) * dice.uniform(-1, 1) + 0.18 * side, side - 2.2 - (y - 3.6))
    cloth = dice.muted()
    picture = over(picture, cloth * (1 + 0.12 * dice.noise(SHEET, 12))[:, None], inside(shoulders))
    cover = torch.maximum(cover, inside(shoulders))

    # Ears, then the head itself, lit by its relief.
    ears = ((side - p["half_width"] * 0.99) / 0.2) ** 2 + ((y - 0.85) / 0.42) ** 2
    picture = over(picture, skin * 0.82, inside((ears.sqrt() - 1) * 0.2, 0.02))
    cover = torch.maximum(cover, inside((ears.sqrt() - 1) * 0.2, 0.02))
    height = relief(x, y, p)
    step_x, step_y = (REGION[2] - REGION[0]) / SHEET[0], (REGION[3] - REGION[1]) / SHEET[1]
    slope_y, slope_x = torch.gradient(height, dim=(1, 2))
    normal = torch.stack([-slope_x / step_x, -slope_y / step_y, torch.ones_like(height)], 1)
    normal = F.normalize(normal, dim=1)
    light = torch.stack([dice.normal(0, 0.55), dice.normal(-0.35, 0.3), torch.ones(count, 1, 1, device=device)], 1)
    light = F.normalize(light, dim=1)
    lambert = (normal * light).sum(1).clamp(min=0)
    ambient = dice.uniform(0.45, 0.75)
    shade = ambient + (1.08 - ambient) * lambert
    gloss = lambert**24 * dice.uniform(0.0, 0.14)
    tone = skin * (1 + 0.03 * dice.noise(SHEET, 24) + 0.05 * dice.noise(SHEET, 5) + 0.02 * dice.noise(SHEET, 120))[:, None]
    blush = (bump(x, y, 0.98, 1.3, 0.45, 0.35) + bump(x, y, -0.98, 1.3, 0.45, 0.35) + bump(x, y, 0, 1.4, 0.3, 0.3)) * dice.uniform(0, 0.22)
    tone = tone * (1 - blush[:, None] * torch.tensor([0.05, 0.5, 0.45], device=device)[:, None, None])
    tone = beard(tone, hair, x, y, p, dice)
    face = features(tone * shade[:, None] + gloss[:, None], skin * shade[:, None], hair, x, y, p, dice)
    picture = over(picture, face, inside(head, 0.02))
    cover = torch.maximum(cover, inside(head, 0.02))

    # Hair in front: everything above a hairline that comes down at the temples.
    line = dice.normal(-0.95, 0.22) + dice.normal(0.0, 0.25) * x * 0.4 + smooth(0.9, 1.75, side) * dice.uniform(0.5, 1.5)
    front = torch.maximum(y - line + 0.10 * dice.noise(SHEET, 14) * 0.5, head - 0.16)
    picture = over(picture, hair * (strands * (0.85 + 0.25 * lambert))[:, None], inside(front, 0.06) * (1 - bald))
    picture = glasses(picture, x, y, p, dice)
    sheet = torch.cat([picture.clamp(0, 1), cover[:, None]], 1)
    return Face.closed(
        sheet, REGION, *mouth_line(p, device), chin=p["chin_y"].flatten(), nose=p["nose_y"].flatten(), width=p["half_width"].flatten()
    )


def mouth_line(p, device):
    """Where the closed lips meet: x and y of POINTS points, each [B,POINTS]; the corners are the first and last."""
    u = torch.linspace(-1, 1, POINTS, device=device)[None]
    half, centre, smile = (p[k].flatten()[:, None] for k in ("mouth_w", "mouth_y", "smile"))
    return u * half, centre - smile * u**2


def beard(tone, hair, x, y, p, dice):
    """Stubble or a beard over some of the lower faces."""
    has, strength = dice.chance(0.25), dice.uniform(0.15, 0.8)
    area = smooth(1.2, 1.9, y + 0.5 * (x.abs() - 0.6).clamp(min=0)) * (1 - bump(x, y, 0, p["mouth_y"] + 0.03, p["mouth_w"] * 0.9, 0.2))
    return over(tone, hair * 1.1, area * has * strength * (0.85 + 0.15 * dice.noise(SHEET, 90)).clamp(0, 1))


def features(face, skin, hair, x, y, p, dice):
    """Eyes, brows, nostrils and lips over the lit skin [B,3,h,w]."""
    side = x.abs()
    dark = skin * 0.45

    # Nose: nostrils, a shadow under the tip, the fold beside each wing.
    under = p["nose_y"] + 0.44
    face = over(face, dark, bump(side, y, 0.0, under + 0.06, p["nose_w"] * 0.75, 0.08) * 0.45)
    face = over(
        face, skin * 0.22, inside((((side - p["nose_w"] * 0.42) / 0.12) ** 2 + ((y - under) / 0.06) ** 2).sqrt() * 0.09 - 0.09, 0.03) * 0.85
    )
    wing = (((side - p["nose_w"] * 0.72) / 0.2) ** 2 + ((y - under + 0.1) / 0.2) ** 2).sqrt()
    face = over(face, dark, torch.exp(-(((wing - 1) / 0.16) ** 2)) * smooth(0.0, 0.1, side - p["nose_w"] * 0.75) * 0.55)
    fold = side - p["nose_w"] * 1.1 - (y - under) * 0.42
    face = over(
        face,
        dark,
        torch.exp(-((fold / 0.05) ** 2))
        * smooth(under - 0.1, under + 0.1, y)
        * (1 - smooth(under + 0.3, under + 0.6, y))
        * dice.uniform(0, 0.4),
    )

    # Eyes.
    u = (side - p["eye_x"]) / p["eye_w"]
    tilt = 0.05 * u
    lid_top = p["eye_y"] - tilt - p["eye_h"] * (1 - u**2).clamp(min=0) ** 0.75
    lid_low = p["eye_y"] - tilt * 0.6 + p["eye_h"] * 0.85 * (1 - u**2).clamp(min=0) ** 0.9
    opening = torch.maximum(torch.maximum(lid_top - y, y - lid_low), (u.abs() - 1) * p["eye_w"])
    face = over(face, dark, bump(side, y, p["eye_x"], p["eye_y"] - 0.12, p["eye_w"] * 1.1, 0.17) * dice.uniform(0.1, 0.45))
    gaze = dice.normal(0, 0.04)
    ball = ((x.sign() * (side - p["eye_x"]) - gaze) ** 2 + (y - p["eye_y"] + 0.01) ** 2).sqrt()
    white = torch.full_like(skin, 0.86) * (0.75 + 0.25 * skin / skin.amax((1, 2, 3), keepdim=True))
    eye = white * (1 - 0.35 * smooth(0.25, 1.0, u.abs()))[:, None]
    radius = dice.normal(0.145, 0.008)
    eye = over(eye, dice.colour(IRIS) * (1.15 - 0.5 * smooth(0.5, 1.0, ball / radius))[:, None], inside(ball - radius))
    eye = over(eye, torch.full_like(skin, 0.03), inside(ball - radius * 0.45))
    eye = over(
        eye,
        torch.full_like(skin, 0.95),
        inside(((x.sign() * (side - p["eye_x"]) - gaze + 0.05) ** 2 + (y - p["eye_y"] + 0.055) ** 2).sqrt() - 0.032),
    )
    eye = eye * (0.55 + 0.45 * smooth(0.0, 0.1, y - lid_top))[:, None]
    face = over(face, eye, inside(opening))
    lash = torch.exp(-(((y - lid_top) / 0.032) ** 2)) * inside((u.abs() - 1.03) * p["eye_w"], 0.03)
    face = over(face, skin * 0.12, lash * dice.uniform(0.6, 1.0))
    crease = torch.exp(-(((y - lid_top + 0.1) / 0.025) ** 2)) * inside((u.abs() - 0.95) * p["eye_w"], 0.08)
    face = over(face, dark, crease * 0.5 + torch.exp(-(((y - lid_low) / 0.03) ** 2)) * inside((u.abs() - 0.95) * p["eye_w"], 0.05) * 0.45)

    # Brows: centre at (1, 0) by the definition of the coordinates.
    v = (side - 1.0) / 0.56
    spine = -p["brow_arch"] * (1 - v**2) + p["brow_arch"] * 0.6 + p["brow_tilt"] * v
    thick = p["brow_h"] * (1 - 0.65 * smooth(-0.2, 1.0, v)) * (1 - v.abs() ** 6).clamp(min=0)
    brow = inside((y - spine).abs() - thick, 0.035) * inside((v.abs() - 1) * 0.5, 0.05)
    face = over(face, hair * 0.75, brow * dice.uniform(0.65, 0.95) * (0.9 + 0.12 * dice.noise(SHEET, 100)).clamp(0, 1))

    return lips(face, skin, x, y, p, dice)


def lips(face, skin, x, y, p, dice):
    """Closed lips: an upper one with a bow, a fuller lower one with a highlight, and shadows at the line, the corners and below."""
    u = (x / p["mouth_w"]).clamp(-1.3, 1.3)
    line = p["mouth_y"] - p["smile"] * u**2
    taper = (1 - u**2).clamp(min=0)
    top = line - p["lip_top"] * taper**0.75 + p["bow"] * torch.exp(-((u / 0.16) ** 2))
    low = line + p["lip_bottom"] * taper**0.7
    paint_strength = dice.uniform(0.35, 0.95)
    red = torch.tensor([0.95, 0.55, 0.55], device=x.device)[:, None, None] * (0.85 + 0.3 * dice.uniform())[:, None]
    colour = skin * (1 - paint_strength[:, None]) + skin * red * paint_strength[:, None]
    upper = inside(torch.maximum(top - y, y - line), 0.02) * (u.abs() < 1)
    lower = inside(torch.maximum(line - y, y - low), 0.02) * (u.abs() < 1)
    face = over(face, skin * 0.5, bump(x, y, 0, p["mouth_y"] + p["lip_bottom"] + 0.09, p["mouth_w"] * 0.6, 0.08) * 0.4)
    face = over(face, colour * 0.86, upper)
    face = over(face, colour * (1 + 0.18 * bump(x, y, 0, p["mouth_y"] + p["lip_bottom"] * 0.5, 0.4, 0.07))[:, None], lower)
    seam = torch.exp(-(((y - line) / 0.022) ** 2)) * smooth(1.06, 0.94, u.abs())
    face = over(face, skin * 0.2, seam * 0.8)
    return over(face, skin * 0.4, bump(x.abs(), y, p["mouth_w"], p["mouth_y"] - p["smile"], 0.07, 0.05) * 0.5)


def glasses(picture, x, y, p, dice):
    """Frames over a sixth of the faces."""
    has, wide, tall = dice.chance(0.16), dice.uniform(0.5, 0.62), dice.uniform(0.33, 0.46)
    ring = (((x.abs() - p["eye_x"] - 0.03) / wide).abs() ** 3 + ((y - p["eye_y"] - 0.02) / tall).abs() ** 3) ** (1 / 3)
    rim = torch.exp(-(((ring - 1) / 0.07) ** 2))
    bridge = torch.exp(-(((y - p["eye_y"] + 0.08) / 0.035) ** 2)) * (x.abs() < p["eye_x"] - wide + 0.05)
    return over(picture, dice.colour(HAIR) * 0.7, torch.maximum(rim, bridge).clamp(0, 1) * has * 0.9)
