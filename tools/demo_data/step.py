"""The loss of the demo model's network on one batch, and its gradients."""
import torch

from .pool import FRAMES

MOUTH = (20.5, 16.0)  # row and column of the middle of the mouth on the 32 x 32 latent grid
KEPT_WEIGHT, MOUTH_WEIGHT = 0.05, 4.0  # of the loss: where the crop is kept anyway, and added around the mouth
SILENT = 0.1  # share of clips whose audio is all zero: the unguided half of guidance


class Step:
    """Of a `train_demo.Trainer`. One loss of the network on a fresh batch. On CUDA the arithmetic is captured as a graph, gradients included, and replayed."""

    def __init__(self, trainer, batch: int):
        self.trainer, self.captured, self.loss, self.graph = trainer, False, None, None
        self.batch, self.count = batch, 0
        device = trainer.device
        self.inputs = {
            "target": torch.zeros(batch, 4, FRAMES, 32, 32, device=device),
            "reference": torch.zeros(batch, 4, FRAMES, 32, 32, device=device),
            "masked": torch.zeros(batch, 4, FRAMES, 32, 32, device=device),
            "tokens": torch.zeros(batch, FRAMES, 50, 384, device=device),
            "noise": torch.zeros(batch, 4, FRAMES, 32, 32, device=device),
            "timestep": torch.zeros(batch, dtype=torch.long, device=device),
        }
        row, column = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
        near = torch.exp(-(((row - MOUTH[0]) / 4) ** 2) - ((column - MOUTH[1]) / 5) ** 2).to(device)
        keep = trainer.latent_keep
        weight = KEPT_WEIGHT * keep + (1 - keep) * (1 + MOUTH_WEIGHT * near)
        self.weight = weight / weight.mean()

    def __call__(self):
        self.fill()
        self.count += 1
        if self.graph is not None:
            self.graph.replay()
        elif self.trainer.device.type == "cuda" and self.trainer.options.graph and self.count > 10:
            self.capture()
        else:
            self.loss = self.compute()
        return self.loss

    def fill(self) -> None:
        """A new batch into the buffers."""
        trainer, generator = self.trainer, self.trainer.generator
        target, reference, masked, window, start = trainer.pool.sample(self.batch, generator)
        tokens = trainer.speech.tokens(window, start).float()
        silent = (torch.rand(self.batch, 1, 1, 1, generator=generator) < SILENT).to(trainer.device)
        low = torch.randint(1000, (self.batch,), generator=generator)
        high = torch.randint(550, 1000, (self.batch,), generator=generator)
        timestep = torch.where(torch.rand(self.batch, generator=generator) < 0.5, low, high)
        # The pipeline starts all frames from one noise. Trained on that alone, the network reads the mouth's motion off the differences
        # between the frames, which are free of noise then, and needs no speech. Hence half of the variance is each frame's own, as
        # LatentSync was trained ("mixed noise", Ge et al. 2023, https://arxiv.org/abs/2305.10474, alpha 1).
        noise = torch.randn(self.batch, 4, FRAMES, 32, 32, device=trainer.device)
        noise = (noise + torch.randn(self.batch, 4, 1, 32, 32, device=trainer.device)) * 0.5**0.5
        fresh = dict(
            target=target, reference=reference, masked=masked, tokens=tokens.masked_fill(silent, 0.0), noise=noise, timestep=timestep
        )
        for name, value in fresh.items():
            self.inputs[name].copy_(value)

    def compute(self):
        """Squared error of the predicted noise, heavier around the mouth. Times noise over signal, squared, it is the error of the picture
        that the noise leaves: where there is much noise, the mouth's shape is decided, and only the speech tells it."""
        trainer, x = self.trainer, self.inputs
        signal, loud = (table[x["timestep"]].view(-1, 1, 1, 1, 1) for table in (trainer.signal, trainer.noise))
        noisy = signal * x["target"] + loud * x["noise"]
        keep = trainer.latent_keep.expand(self.batch, 1, FRAMES, 32, 32)
        with trainer.half():
            predicted = trainer.unet(torch.cat([noisy, keep, x["masked"], x["reference"]], 1), x["timestep"], x["tokens"]).float()
        error = (self.weight * (predicted - x["noise"]) ** 2).mean((1, 2, 3, 4))
        return (error * ((loud / signal) ** 2).clamp(0.1, 20.0).flatten()).mean()

    def capture(self) -> None:
        trainer = self.trainer
        try:
            self.loss = None  # it keeps gradient accumulators alive that belong to another stream, which breaks a capture
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    trainer.unet.zero_grad(set_to_none=True)
                    self.compute().backward()
            torch.cuda.current_stream().wait_stream(side)
            trainer.unet.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):
                self.loss = self.compute()
                self.loss.backward()
            self.graph, self.captured = graph, True
            graph.replay()
            trainer.note(event="captured")
        except RuntimeError as error:
            trainer.options.graph = False
            trainer.note(event="no graph", reason=str(error)[:200])
            trainer.unet.zero_grad(set_to_none=True)
            self.loss = self.compute()
