"""How far the mouth is open, read off latents, and whether that goes with the speech."""
import torch
import torch.nn.functional as F

from .pool import Pool, Speech


class Reading:
    """The mouth's opening read off latents: ridge regression on the latents around the mouth of true clips."""

    def __init__(self, pool: Pool, speech: Speech):
        latents = torch.cat([pool.whole[:, 0], pool.whole[:, 1]]).float()
        truth = torch.cat([speech.mouth(pool.window[:, i], pool.start[:, i], latents.shape[1])[0] for i in (0, 1)])
        around = self.around(latents).flatten(0, 1).double()
        self.mean, self.level = around.mean(0), truth.double().mean()
        gram = (around - self.mean).T @ (around - self.mean)
        gram += torch.eye(len(gram), device=gram.device, dtype=gram.dtype) * gram.diagonal().mean() * 0.02
        self.slope = torch.linalg.solve(gram, (around - self.mean).T @ (truth.flatten().double() - self.level))

    @staticmethod
    def around(latents):
        return latents[..., 16:27, 10:22].flatten(2)

    def __call__(self, latents):
        return ((self.around(latents).double() - self.mean) @ self.slope + self.level).float()


def correlation(a, b) -> float:
    """Mean over clips of Pearson's r of [n,F] and [n,F]; clips without motion are left out."""
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    moving = b.std(1) > 0.03
    return float(F.cosine_similarity(a[moving], b[moving], dim=1).mean())
