"""What distinguishes one LatentSync network from another: its sizes."""
from dataclasses import dataclass


@dataclass(frozen=True)
class UNetConfig:
    """Sizes of the network. The defaults are LatentSync 1.5 and 1.6 (the same network with other weights); tests use
    `UNetConfig(block_out_channels=(32, 32, 64, 64))`."""

    block_out_channels: tuple[int, ...] = (320, 640, 1280, 1280)  # width of each level, from full size down; multiples of `norm_groups`
    layers_per_block: int = 2  # resnets in a level on the way down; one more on the way up
    in_channels: int = 13  # 4 noisy latent, 1 keep mask, 4 latent of the masked crop, 4 latent of the crop
    out_channels: int = 4  # the predicted noise (epsilon)
    heads: int = 8  # in every attention
    norm_groups: int = 32
    audio_tokens: int = 50  # audio tokens a frame hears: 10 steps of 20 ms, 5 hidden states each
    audio_width: int = 384  # width of an audio token: Whisper tiny
    max_frames: int = 24  # length of the position tables

    @property
    def multiple(self) -> int:
        """Latent height and width must be multiples of this: every level but the last halves them."""
        return 2 ** (len(self.block_out_channels) - 1)
