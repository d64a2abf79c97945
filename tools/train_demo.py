"""Trains the demo model: a small autoencoder, then a small LatentSync network, on the synthetic talking faces of `tools/demo_data`.

    python tools/train_demo.py prepare --faces FOLDER     speech and the portrait into one file; wherever requirements-dev.txt is installed
    python tools/train_demo.py train --out FOLDER         on a GPU; needs torch, numpy and safetensors alone
    python tools/train_demo.py train --try --out FOLDER   a few steps on the CPU

`train` writes FOLDER/demo.safetensors (float16, what lipsync/demo_model loads), FOLDER/log.jsonl (a line each `--report` steps) and
FOLDER/samples.npz (pictures of held-out faces). It stops at `--minutes`, wherever it is, with the learning rate led down to zero by then.
`--pause M` leaves off after M minutes; started again with the same folders, it goes on from WORK/vae.pt and WORK/state.pt (`--work`, by
default FOLDER) as far as the minutes of all parts together allow. `--start demo.safetensors` begins with weights alone.
Everything random comes from `--seed`.
"""

import argparse
import json
import logging
import math
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from demo_data.pack import ROOT, load
from demo_data.pool import FRAMES, SCALE, Faces, Pool, Speech, pictures
from demo_data.reading import Reading, correlation
from demo_data.step import MOUTH, Step

log = logging.getLogger("train_demo")

SMALL = dict(device="cpu", vae_steps=2, faces_a_step=1, clips=4, batch=1, steps=4, report=1, save=100)
SMALL |= dict(test_clips=2, test_blocks=1, test_steps=2)
DATA = ROOT / ".cache" / "demo_data" / "train.npz"


class Clock:
    """Progress of a phase from 0 to 1: by steps or by time, whichever is further."""

    def __init__(self, steps: int, seconds: float, step: int = 0, spent: float = 0.0):
        self.steps, self.seconds, self.start, self.step = steps, max(seconds, 1.0) + spent, time.monotonic() - spent, step

    def spent(self) -> float:
        """Seconds in this phase, in earlier parts of the run too."""
        return time.monotonic() - self.start

    def advance(self) -> float:
        self.step += 1
        return self.done()

    def done(self) -> float:
        return min(1.0, max(self.step / self.steps, self.spent() / self.seconds))


def learning_rate(peak: float, step: int, done: float, warm: int = 100) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    return peak * min(1.0, (step + 1) / warm) * (0.5 + 0.5 * math.cos(math.pi * done))


class Average:
    """Exponential moving average of a module's parameters; short at first."""

    def __init__(self, module, decay: float):
        self.decay, self.count = decay, 0
        self.values = [p.detach().clone() for p in module.parameters()]

    @torch.no_grad()
    def update(self, module) -> None:
        self.count += 1
        decay = min(self.decay, self.count / (self.count + 10))
        torch._foreach_lerp_(self.values, [p.detach() for p in module.parameters()], 1 - decay)

    @torch.no_grad()
    def into(self, module) -> None:
        for parameter, value in zip(module.parameters(), self.values, strict=True):
            parameter.copy_(value)


class Trainer:
    def __init__(self, options):
        self.options, self.device = options, torch.device(options.device)
        self.pack = load("lipsync.unet", "lipsync.sampler", "lipsync.demo_model")
        self.demo = self.pack.lipsync.demo_model
        self.out = Path(options.out)
        self.work = Path(options.work or options.out)
        for folder in (self.out, self.work):
            folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(options.seed)
        self.generator = torch.Generator().manual_seed(options.seed)
        self.started, self.earlier, self.lines = time.monotonic(), 0.0, (self.out / "log.jsonl").open("a")
        self.state = self.work / "state.pt"
        self.saved = torch.load(self.state, map_location=self.device, weights_only=True) if self.state.exists() else None
        if self.saved:
            self.earlier = self.saved["seconds"]
            self.generator.manual_seed(options.seed + self.saved["step"])  # other faces than before

        data = np.load(options.data)
        self.keep = torch.from_numpy(data["keep"]).to(self.device)
        self.latent_keep = self.keep[::8, ::8]
        encoder = self.demo.demo_encoder()
        self.speech = Speech(data, "train", encoder, self.device)
        self.test_speech = Speech(data, "test", encoder, self.device)
        self.faces = Faces(data, self.generator, self.device)
        self.test_faces = Faces(data, torch.Generator().manual_seed(options.seed + 1), self.device)
        self.vae = self.demo.Autoencoder(**self.demo.AUTOENCODER).to(self.device, memory_format=torch.channels_last)
        self.unet = self.pack.lipsync.unet.LatentSyncUNet(self.pack.lipsync.unet.UNetConfig(**self.demo.UNET)).to(self.device)
        kept = torch.from_numpy(self.pack.lipsync.sampler.alphas()).to(self.device).float()
        self.signal, self.noise = kept.sqrt(), (1 - kept).sqrt()
        self.note(event="start", speech_seconds=int(self.speech.steps.sum()) / 50, unet=size(self.unet), vae=size(self.vae))

    def note(self, **values) -> None:
        """One line of the log."""
        values = {
            "seconds": round(self.earlier + self.elapsed(), 1),
            **{k: round(v, 5) if isinstance(v, float) else v for k, v in values.items()},
        }
        self.lines.write(json.dumps(values) + "\n")
        self.lines.flush()
        log.info("%s", " ".join(f"{k}={v}" for k, v in values.items()))

    def left(self) -> float:
        """Seconds until `--minutes` are over, earlier parts of the run counted in."""
        return self.options.minutes * 60 - self.earlier - self.elapsed()

    def elapsed(self) -> float:
        """Seconds of this part of the run."""
        return time.monotonic() - self.started

    def paused(self) -> bool:
        """Whether this part of the run is over before the run is."""
        return self.options.pause is not None and self.elapsed() > self.options.pause * 60 - self.options.reserve

    def half(self):
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if self.device.type == "cuda" else nullcontext()

    # --- the autoencoder ---

    def train_vae(self) -> None:
        options = self.options
        optimizer = torch.optim.AdamW(
            self.vae.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=1e-3, fused=self.device.type == "cuda"
        )
        average, clock = Average(self.vae, 0.998), Clock(options.vae_steps, self.left() * options.vae_share)
        row, column = torch.meshgrid(torch.arange(256.0), torch.arange(256.0), indexing="ij")
        near = torch.exp(-(((row - MOUTH[0] * 8) / 40) ** 2) - ((column - MOUTH[1] * 8) / 50) ** 2).to(self.device)
        weight = (1 + 2 * near) / (1 + 2 * near).mean()
        total = 0.0
        while (done := clock.done()) < 1:
            picture = pictures(self.faces, options.faces_a_step, self.keep).contiguous(memory_format=torch.channels_last)
            with self.half():
                mean, spread = self.vae.moments(picture).float().chunk(2, 1)
                spread = spread.clamp(-20, 10)
                seen = self.vae.decode(mean + torch.randn_like(mean) * (0.5 * spread).exp()).float()
            loss = (weight * (seen - picture).abs()).mean() + edges(seen, picture)
            loss = loss + 1e-7 * 0.5 * (mean**2 + spread.exp() - 1 - spread).sum((1, 2, 3)).mean()
            self.move(self.vae, optimizer, loss, learning_rate(2e-3, clock.step, done))
            average.update(self.vae)
            total += loss.detach()
            clock.advance()
            if clock.step % options.report == 0:
                self.note(phase="vae", step=clock.step, loss=float(total) / options.report)
                total = 0.0
        average.into(self.vae)
        self.normalise()
        self.vae.requires_grad_(False).eval()

    @torch.no_grad()
    def normalise(self) -> None:
        """Fold into the outermost layers what gives every latent channel mean 0 and the spread that SD 1.5's have, 1 / SCALE."""
        latents = torch.cat([self.vae.moments(pictures(self.faces, 8, self.keep))[:, :4] for _ in range(self.options.faces_a_step)]).float()
        mean, spread = latents.mean((0, 2, 3)), latents.std((0, 2, 3)) * SCALE
        inner, outer = self.vae.quant_conv, self.vae.post_quant_conv
        outer.bias += outer.weight.flatten(1) @ mean
        outer.weight *= spread[None, :, None, None]
        inner.bias[:4] -= mean
        inner.bias[:4] /= spread
        inner.weight[:4] /= spread[:, None, None, None]
        inner.bias[4:] -= 2 * spread.log()

    @torch.no_grad()
    def encode(self, picture):
        """[N,3,256,256] in -1..1 -> scaled latents, float16 [N,4,32,32]."""
        with self.half():
            parts = [self.vae.moments(part.contiguous(memory_format=torch.channels_last))[:, :4] for part in picture.split(128)]
        return (torch.cat(parts).float() * SCALE).half()

    # --- the network ---

    def train_unet(self) -> None:
        options = self.options
        self.soften()
        if options.start:
            self.read(Path(options.start), "unet", self.unet)
        optimizer = torch.optim.AdamW(
            self.unet.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=1e-2, fused=self.device.type == "cuda"
        )
        average, before, spent = Average(self.unet, 0.999), 0, 0.0
        if saved := self.saved:
            self.unet.load_state_dict(saved["unet"])
            optimizer.load_state_dict(saved["optimizer"])
            average.values, average.count, before, spent = saved["average"], saved["count"], saved["step"], saved["spent"]
            self.note(event="resumed", step=before)
        clock = Clock(options.steps, self.left() - options.reserve, before, spent)
        step, total = Step(self, options.batch), torch.zeros((), device=self.device)
        while (done := clock.done()) < 1 and not self.paused():
            self.move(self.unet, optimizer, step(), learning_rate(options.rate, clock.step, done), backward=not step.captured)
            average.update(self.unet)
            total += step.loss.detach()
            clock.advance()
            if clock.step % options.report == 0:
                self.note(phase="unet", step=clock.step, loss=float(total) / options.report, norm=float(self.norm))
                total.zero_()
            if clock.step % options.save == 0:
                self.save(optimizer, average, clock)
                self.examine(clock.step, average, clips=4)
        self.save(optimizer, average, clock)
        self.examine(clock.step, average, clips=options.test_clips, pictures_too=True)

    def save(self, optimizer, average, clock) -> None:
        """The state to go on from, and the weights so far."""
        parts = {"unet": self.unet.state_dict(), "optimizer": optimizer.state_dict(), "average": average.values, "count": average.count}
        parts |= {"step": clock.step, "spent": clock.spent(), "seconds": self.earlier + self.elapsed()}
        torch.save(parts, self.state)
        self.write(average, clock.step)

    def soften(self) -> None:
        """Every transformer starts as no more than its residual, and the network's answer as zero: a calmer start."""
        with torch.no_grad():
            for name, parameter in self.unet.named_parameters():
                if "proj_out" in name or name.startswith("conv_out"):
                    parameter.zero_()

    def move(self, module, optimizer, loss, rate: float, backward: bool = True) -> None:
        """One step of the optimiser."""
        if backward:
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = rate
        self.norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()

    # --- files ---

    def write(self, average, step: int) -> None:
        """demo.safetensors: both parts as float16, the network's averaged."""
        from safetensors.torch import save_file

        tensors = {f"vae.{name}": value for name, value in self.vae.state_dict().items()}
        smooth = dict(zip((name for name, _ in self.unet.named_parameters()), average.values, strict=True))
        tensors |= {f"unet.{name}": smooth.get(name, value) for name, value in self.unet.state_dict().items()}
        tensors = {name: value.detach().half().contiguous().cpu() for name, value in tensors.items()}
        save_file(tensors, self.out / "demo.safetensors", metadata={"step": str(step), "seed": str(self.options.seed), "format": "pt"})

    def read(self, path: Path, part: str, module) -> None:
        """The weights of one part of a demo.safetensors."""
        from safetensors.torch import load_file

        module.load_state_dict(
            {name.removeprefix(f"{part}."): value.float() for name, value in load_file(path).items() if name.startswith(f"{part}.")}
        )

    # --- does it follow the speech? ---

    @torch.no_grad()
    def examine(self, step: int, average=None, clips: int = 4, pictures_too: bool = False) -> None:
        """Speech of held-out voices over held-out faces, denoised as the pipeline does, and what a linear reading of the latents says of
        the mouth."""
        own, blocks = [p.detach().clone() for p in self.unet.parameters()], self.options.test_blocks
        if average:
            average.into(self.unet)
        if not hasattr(self, "test"):
            self.test = Pool(self.options.test_clips, self.test_faces, self.test_speech, self.encode, self.keep, frames=FRAMES * blocks)
            self.reading = Reading(self.test, self.test_speech)
        rows = slice(0, clips)
        window, start = self.test.window[rows, 0], self.test.start[rows, 0]
        truth = self.test_speech.mouth(window, start, FRAMES * blocks)[0]
        tokens = self.test_speech.tokens(window, start, FRAMES * blocks).float()
        reference, masked = self.test.whole[rows, 2].float(), self.test.masked[rows].float()
        made = self.denoise(masked, reference, tokens)
        seen = self.reading(made)
        other = self.reading(self.denoise(masked, reference, tokens.roll(1, 0)))
        result = dict(
            r=correlation(seen, truth),
            shuffled=correlation(other, truth),
            reading=correlation(self.reading(self.test.whole[rows, 0].float()), truth),
        )
        result |= {f"lag{lag:+d}": correlation(seen.roll(-lag, 1)[:, 3:-3], truth[:, 3:-3]) for lag in (-3, 3)}
        quiet = truth < 0.02
        result |= {
            "rest": float(seen[quiet].mean()) if quiet.any() else None,
            "wide": float(seen[truth > 0.35].mean()),
            "wide_true": float(truth[truth > 0.35].mean()),
        }
        self.note(phase="examine", step=step, **result)
        if pictures_too:

            def shown(latents):
                return (self.vae.decode(latents[:, ::8].flatten(0, 1) / SCALE).clamp(-1, 1) * 127.5 + 127.5).byte().cpu().numpy()

            some = slice(0, 3)
            np.savez_compressed(
                self.out / "samples.npz",
                made=shown(made[some]),
                true=shown(self.test.whole[some, 0].float()),
                reference=shown(reference[some]),
            )
        for parameter, value in zip(self.unet.parameters(), own, strict=True):
            parameter.copy_(value)

    @torch.no_grad()
    def denoise(self, masked, reference, tokens, guidance: float = 1.5):
        """Latents [n,F,4,32,32] of clips whose frames are a whole number of blocks, each block by itself."""
        sampler = self.pack.lipsync.sampler
        plan, count = sampler.ddim(self.options.test_steps), len(masked)
        table = plan.table.to(self.device)

        def blocks(x):
            return x.unflatten(1, (-1, FRAMES)).flatten(0, 1)

        known = torch.cat([blocks(masked), blocks(reference)], 2).transpose(1, 2)
        audio = blocks(tokens)
        keep = self.latent_keep.expand(len(known), 1, FRAMES, 32, 32)
        noise = torch.randn(4, 1, 32, 32, generator=torch.Generator().manual_seed(0)).to(self.device)
        latents = noise.expand(len(known), 4, FRAMES, 32, 32).clone()
        for row, timestep in zip(table, plan.timesteps.tolist(), strict=True):
            silent, heard = self.unet(torch.cat([latents, keep, known], 1), timestep, audio, guided=True).chunk(2)
            sampler.apply(latents, torch.lerp(silent, heard, guidance), None, row)
        return latents.transpose(1, 2).unflatten(0, (count, -1)).flatten(1, 2)


def edges(a, b):
    """L1 of the differences between neighbours, at full and at half size: keeps lips and teeth sharp."""
    total = 0.0
    for _ in range(2):
        for dim in (2, 3):
            total = total + (a.diff(dim=dim) - b.diff(dim=dim)).abs().mean()
        a, b = F.avg_pool2d(a, 2), F.avg_pool2d(b, 2)
    return total


def size(module) -> int:
    return sum(p.numel() for p in module.parameters())


def train(options) -> None:
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    trainer = Trainer(options)
    if options.start:
        trainer.read(Path(options.start), "vae", trainer.vae)
        trainer.vae.requires_grad_(False).eval()
    elif (trainer.work / "vae.pt").exists():
        trainer.vae.load_state_dict(torch.load(trainer.work / "vae.pt", map_location=trainer.device, weights_only=True))
        trainer.vae.requires_grad_(False).eval()
    else:
        trainer.train_vae()
        torch.save(trainer.vae.state_dict(), trainer.work / "vae.pt")
    trainer.pool = Pool(options.clips, trainer.faces, trainer.speech, trainer.encode, trainer.keep, seconds=options.pool_seconds)
    trainer.note(event="pool", clips=len(trainer.pool))
    trainer.train_unet()
    trainer.note(event="end")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("prepare", "train"))
    parser.add_argument("--data", type=Path, default=DATA, help="the file that `prepare` writes and `train` reads")
    parser.add_argument("--faces", type=Path, default=None, help="folder of MediaPipe's two .tflite files")
    parser.add_argument("--windows", type=int, default=96, help="half minutes of speech to prepare")
    parser.add_argument("--out", type=Path, default=ROOT / ".cache" / "demo_train")
    parser.add_argument("--work", type=Path, default=None, help="where the state to resume from is kept, 70 MB")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=20.0, help="of the whole run, set-up included")
    parser.add_argument("--pause", type=float, default=None, help="minutes after which this part of the run leaves off")
    parser.add_argument("--vae-share", type=float, default=0.22, help="of the time, for the autoencoder")
    parser.add_argument("--reserve", type=float, default=25.0, help="seconds at the end for the last examination")
    parser.add_argument("--vae-steps", type=int, default=8000)
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--clips", type=int, default=8000, help="in the pool of encoded clips")
    parser.add_argument("--pool-seconds", type=float, default=80.0, help="that making the pool may take")
    parser.add_argument("--batch", type=int, default=16, help="clips of 16 frames in a step")
    parser.add_argument("--faces-a-step", type=int, default=8, help="of the autoencoder's training, 4 pictures each")
    parser.add_argument("--test-clips", type=int, default=16, help="held-out clips to examine the network on")
    parser.add_argument("--test-blocks", type=int, default=4, help="blocks of 16 frames in each of them")
    parser.add_argument("--test-steps", type=int, default=10, help="denoising steps of that examination")
    parser.add_argument("--rate", type=float, default=1e-3, help="peak learning rate of the network")
    parser.add_argument("--report", type=int, default=100)
    parser.add_argument("--save", type=int, default=1000)
    parser.add_argument("--start", type=Path, default=None, help="a demo.safetensors to go on from")
    parser.add_argument("--no-graph", dest="graph", action="store_false")
    parser.add_argument("--try", dest="small", action="store_true", help="everything once and small, on the CPU")
    options = parser.parse_args()
    if options.small:
        vars(options).update(SMALL)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if options.action == "prepare":
        from demo_data.prepare import prepare

        prepare(options.data, load(), options.faces, options.windows)
    else:
        train(options)


if __name__ == "__main__":
    main()
