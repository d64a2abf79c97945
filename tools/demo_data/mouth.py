"""Opens the mouth of a still face: a smooth warp parts the lips and lowers the jaw, and a cavity with teeth and tongue fills the gap."""

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F

POINTS = 21  # samples of each lip contour, evenly spaced from corner to corner


@dataclass
class Face:
    """A batch of B still faces; all places in face units (see the package)."""

    sheet: torch.Tensor  # float32 [B,4,h,w]: RGB in 0..1 and coverage
    region: tuple  # x0, y0, x1, y1 that the sheet spans
    centre: torch.Tensor  # [B] x of the middle of the mouth
    half: torch.Tensor  # [B] half the width of the mouth
    upper: torch.Tensor  # [B,POINTS] y of the upper lip's inner contour in the sheet
    lower: torch.Tensor  # [B,POINTS] y of the lower lip's inner contour in the sheet; equal to `upper` where the sheet's mouth is closed
    rest: torch.Tensor  # [B,POINTS] y of the line where the closed lips shall meet
    chin: torch.Tensor  # [B] y of the chin
    nose: torch.Tensor  # [B] y of the centre of the nose
    width: torch.Tensor  # [B] half the width of the head
    teeth: torch.Tensor  # [B] 0 (hidden) .. 1 (bright) look of the teeth
    light: torch.Tensor  # [B,3] brightness of the mouth's inside, from the light on the skin

    @classmethod
    def closed(cls, sheet, region, line_x, line_y, *, chin, nose, width):
        """A face drawn with its lips together along the line `line_x`, `line_y` [B,POINTS]."""
        half = (line_x[:, -1] - line_x[:, 0]) / 2
        x0, y0, x1, y1 = region
        row, column = int((1.6 - y0) / (y1 - y0) * sheet.shape[2]), int((0.9 - x0) / (x1 - x0) * sheet.shape[3])
        light = sheet[:, :3, row - 8 : row + 8, column - 16 : column + 16].mean((2, 3))
        return cls(
            sheet, region, (line_x[:, 0] + line_x[:, -1]) / 2, half, line_y, line_y, line_y, chin, nose, width, torch.ones_like(half), light
        )

    def __len__(self):
        return len(self.sheet)

    def pick(self, rows):
        """The faces at `rows` (an index, slice or tensor that keeps the batch axis)."""
        return Face(**{f.name: getattr(self, f.name) if f.name == "region" else getattr(self, f.name)[rows] for f in fields(self)})

    def to(self, device):
        return Face(**{f.name: getattr(self, f.name) if f.name == "region" else getattr(self, f.name).to(device) for f in fields(self)})


def smooth(low, high, value):
    """Smoothstep from 0 at `low` to 1 at `high`."""
    t = ((value - low) / (high - low)).clamp(0, 1)
    return t * t * (3 - 2 * t)


def contour(points, u):
    """Values [B,n] of contours `points` [B,POINTS] at positions `u` [B,n] (-1 and 1 are the corners; held beyond them)."""
    at = ((u.clamp(-1, 1) + 1) / 2 * (POINTS - 1)).clamp(max=POINTS - 1.001)
    low = at.long()
    return torch.lerp(points.gather(1, low), points.gather(1, low + 1), at - low)


def depth(x, y, face):
    """Height of the head towards the viewer, [B,n]; only what a small turn of the head must shift."""
    dome = (1 - (x / (face.width[:, None] * 1.25)) ** 2 - ((y - 0.9) / 3.4) ** 2).clamp(min=0).sqrt() * 1.3
    return dome - 0.75 + torch.exp(-((x / 0.3) ** 2) - ((y - face.nose[:, None] - 0.15) / 0.4) ** 2) * 0.35


def landmarks(face, turn):
    """Left brow, right brow and nose centre after the head's turn: [B,T,3,2] in face units; turn [B,T,2]."""
    zero = torch.zeros_like(face.nose)
    x = torch.stack([zero - 1, zero + 1, zero], 1)
    y = torch.stack([zero, zero, face.nose], 1)
    return torch.stack([x, y], 2)[:, None] + turn[:, :, None] * depth(x, y, face)[:, None, :, None]


def render(face, cameras, opening, spread, turn, size, background):
    """Pictures of talking faces.

    face      Face of B
    cameras   float32 [B,T,2,3], from output pixels to face units
    opening   float32 [B,T], distance between the inner lips in face units, 0 (closed) .. about 0.7
    spread    float32 [B,T], width of the mouth relative to rest, about 0.75 (rounded) .. 1.15
    turn      float32 [B,T,2], yaw and pitch as the shift of a point one unit in front
    size      (height, width) of the pictures
    background  float32 [B,3,h,w] or [B,T,3,h,w], what shows where the sheet does not cover
    Returns float32 [B,T,3,h,w] in 0..1.
    """
    (batch, frames), (tall, wide), device = opening.shape, size, face.sheet.device
    rows, columns = torch.meshgrid(torch.arange(tall, device=device), torch.arange(wide, device=device), indexing="ij")
    pixels = torch.stack([columns, rows, torch.ones_like(rows)]).float().flatten(1)  # [3,n]
    places = cameras @ pixels  # [B,T,2,n]
    area = cameras[..., 0, 0] * cameras[..., 1, 1] - cameras[..., 0, 1] * cameras[..., 1, 0]
    pixel = area.abs().sqrt().reshape(batch * frames, 1)  # size of an output pixel in face units

    many = face_per_frame(face, frames)
    x, y = places[:, :, 0].reshape(batch * frames, -1), places[:, :, 1].reshape(batch * frames, -1)
    shift = depth(x, y, many)
    yaw, pitch = turn.reshape(batch * frames, 2, 1).unbind(1)
    x, y = x - yaw * shift, y - pitch * shift
    source_x, source_y, inside, cavity = part(many, x, y, opening.reshape(-1, 1), spread.reshape(-1, 1), pixel)

    x0, y0, x1, y1 = face.region
    grid = torch.stack([(source_x - x0) / (x1 - x0) * 2 - 1, (source_y - y0) / (y1 - y0) * 2 - 1], -1).view(batch, frames * tall, wide, 2)
    drawn = F.grid_sample(face.sheet, grid, mode="bilinear", padding_mode="border", align_corners=True)
    drawn = drawn.view(batch, 4, frames, tall, wide).transpose(1, 2)
    colour, cover = drawn[:, :, :3], drawn[:, :, 3:]
    inside = inside.view(batch, frames, 1, tall, wide)
    colour = colour * (1 - inside) + cavity.view(batch, frames, 3, tall, wide) * inside
    background = background if background.ndim == 5 else background[:, None]
    return background * (1 - cover) + colour * cover


def face_per_frame(face, frames):
    """The small fields of `face` repeated for each frame; the sheet is left out (it is sampled once for all frames)."""
    repeated = {f.name: getattr(face, f.name) for f in fields(face)}
    for name, value in repeated.items():
        if name not in ("sheet", "region"):
            repeated[name] = value.repeat_interleave(frames, 0)
    return Face(**repeated)


def part(face, x, y, opening, spread, pixel):
    """For points x, y [N,n] of pictures with the mouth open: where they come from in the closed sheet, and the inside of the mouth.

    Returns source x, source y [N,n], coverage of the cavity [N,n] and its colour [N,3,n].
    """
    centre, half, chin = face.centre[:, None], face.half[:, None], face.chin[:, None]
    middle = face.rest.mean(1, keepdim=True)
    near = torch.exp(-(((x - centre) / (1.5 * half)) ** 2) - ((y - middle - 0.4 * opening) / 0.55) ** 2)
    source_x = centre + (x - centre) / (1 + (spread - 1) * near)
    u = (source_x - centre) / half
    rest, upper, lower = contour(face.rest, u), contour(face.upper, u), contour(face.lower, u)
    shape = (1 - u**2).clamp(min=0) ** 0.65
    top, low = rest - 0.2 * opening * shape, rest + 0.8 * opening * shape

    edge = smooth(1.25, 0.9, u.abs())  # lips that move in the sheet (a portrait's) fade out beyond the corners
    lip_up = (top - upper) * edge * (1 - smooth(0.08, 0.42, top - y))
    lip_down = (low - lower) * edge * (1 - smooth(0.25, 0.85, y - low))
    jaw = (
        0.62
        * opening
        * torch.exp(-(((x - centre) / 1.35) ** 4))
        * smooth(middle - 0.1, chin - 0.15, y)
        * (1 - smooth(chin + 0.05, chin + 0.55, y))
    )
    seam = (top + low) / 2
    drop = torch.maximum(lip_down, jaw) + lip_down.clamp(max=0)  # a portrait's parted lip comes up by a negative drop
    source_y = torch.where(y < seam, y - lip_up, y - drop)

    cover = (torch.minimum(y - top, low - y) / pixel + 0.5).clamp(0, 1) * (u.abs() < 1)
    cover = cover * smooth(0.0, 1.0, (low - top) / pixel)
    return source_x, source_y, cover, inner(face, u, y, top, low, rest, opening)


def inner(face, u, y, top, low, rest, opening):
    """Colour [N,3,n] of the inside of the mouth: dark throat, tongue below, upper teeth hanging from the skull, lower teeth on the jaw."""
    gap = (low - top).clamp(min=1e-3)
    down = ((y - top) / gap).clamp(0, 1)
    throat = y.new_tensor([0.20, 0.05, 0.05])[:, None]
    tongue = y.new_tensor([0.62, 0.25, 0.25])[:, None]
    ivory = y.new_tensor([0.93, 0.90, 0.82])[:, None]
    colour = throat * (0.5 + 0.5 * down)[:, None]
    hump = smooth(0.55, 0.95, down + 0.25 * (1 - u**2) - 0.25) * smooth(0.95, 0.5, u.abs())
    colour = torch.lerp(colour, tongue * (0.6 + 0.4 * down)[:, None], hump[:, None] * 0.8)
    arch = (1 - 0.75 * u**2).clamp(min=0)
    gaps = 1 - 0.25 * torch.exp(-(((u * 5.5 - (u * 5.5).round()) / 0.09) ** 2))
    upper_end = rest + 0.02 + 0.10 * arch
    upper_teeth = smooth(0.02, -0.02, y - upper_end) * smooth(0.88, 0.7, u.abs())
    lower_end = low - 0.05 - 0.05 * arch
    lower_teeth = smooth(-0.02, 0.02, y - lower_end) * smooth(0.7, 0.5, u.abs()) * 0.6
    bite = torch.maximum(upper_teeth, lower_teeth) * face.teeth[:, None]
    colour = torch.lerp(colour, ivory * (gaps * (0.55 + 0.45 * arch))[:, None], bite[:, None])
    shadow = 0.55 + 0.45 * smooth(0.0, 0.12, y - top)
    return (
        colour
        * shadow[:, None]
        * (0.35 + 0.65 * face.light[:, :, None] / face.light.amax(1)[:, None, None])
        * (0.4 + 0.6 * face.light.amax(1)[:, None, None])
    )
