"""OpenAI's Whisper encoder, for its hidden states: what LatentSync hears with. Names and layout of the parameters are OpenAI's."""
import logging
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from .checkpoint import Uninitialised, read_checkpoint
from .errors import ModelFileError, ShapeError

log = logging.getLogger(__name__)

STATE_WIDTH = 384  # Whisper tiny: what LatentSync's cross-attention was trained on
HEAD_WIDTH = 64  # the same in every Whisper
ENGLISH_ONLY_VOCABULARY = 51864  # multilingual: 51865
TINY = dict(n_mels=80, n_ctx=1500, n_state=STATE_WIDTH, n_head=STATE_WIDTH // HEAD_WIDTH, n_layer=4)
WIDTHS = {384: "tiny", 512: "base", 768: "small", 1024: "medium", 1280: "large"}
SOURCE = "get whisper/tiny.pt of ByteDance/LatentSync-1.6 on Hugging Face (75 MB)"


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query(x), self.key(x), self.value(x)))
        return self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attn, self.attn_ln = _Attention(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.attn_ln(x))
        return x + self.mlp(self.mlp_ln(x))


class WhisperEncoder(nn.Module):
    """n_mels: mel bands. n_ctx: steps of 20 ms in a window. n_state: width. n_head, n_layer: of the transformer."""

    def __init__(self, n_mels: int, n_ctx: int, n_state: int, n_head: int, n_layer: int):
        super().__init__()
        self.n_mels, self.n_ctx, self.n_state, self.n_layer = n_mels, n_ctx, n_state, n_layer
        self.conv1 = nn.Conv1d(n_mels, n_state, 3, padding=1)
        self.conv2 = nn.Conv1d(n_state, n_state, 3, stride=2, padding=1)
        self.register_buffer("positional_embedding", _sinusoids(n_ctx, n_state))
        self.blocks = nn.ModuleList(_Block(n_state, n_head) for _ in range(n_layer))
        self.ln_post = nn.LayerNorm(n_state)  # in the files, but the states are read before it

    def hidden_states(self, mel: torch.Tensor) -> torch.Tensor:
        """Conv stem plus positions, then each block's output: mel [B, n_mels, 2*n_ctx] (30 s: 3000) -> [B, n_ctx, n_layer+1, n_state]."""
        if mel.ndim != 3 or tuple(mel.shape[1:]) != (self.n_mels, 2 * self.n_ctx):
            raise ShapeError(f"the encoder takes mel frames [batch, {self.n_mels}, {2 * self.n_ctx}], not {list(mel.shape)}.")
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2) + self.positional_embedding
        states = [x]
        for block in self.blocks:
            states.append(block(states[-1]))
        return torch.stack(states, 2)


def _sinusoids(length: int, channels: int) -> torch.Tensor:
    """Whisper's position table [length, channels]: sines, then cosines, of wavelengths from 2 pi to 10000 * 2 pi steps."""
    rates = torch.exp(-math.log(10000) / (channels // 2 - 1) * torch.arange(channels // 2))
    angles = torch.arange(length)[:, None] * rates[None]
    return torch.cat([angles.sin(), angles.cos()], 1)


def load_encoder(path: str | Path) -> WhisperEncoder:
    """The encoder in OpenAI's `tiny.pt` or in a `.safetensors` file with the same names; float32 on the CPU.

    Only `encoder.*` is read. Raises ModelFileError when the file is missing, damaged, no Whisper encoder, or of another size than
    tiny (told by its width: base is 512 wide, small 768, ...), or the English-only tiny.
    """
    path = Path(path)
    contents = read_checkpoint(path, what="the Whisper encoder", source=SOURCE)
    weights = contents.get("model_state_dict", contents)
    state = {name.removeprefix("encoder."): value for name, value in weights.items() if not name.startswith("decoder.")}
    if not isinstance(state.get("conv1.weight"), torch.Tensor):
        raise ModelFileError(f"{path} is no Whisper encoder in OpenAI's layout (no 'encoder.conv1.weight' in it): {SOURCE}.")
    width = state["conv1.weight"].shape[0]
    if width != STATE_WIDTH:
        name = WIDTHS.get(width, "another Whisper")
        raise ModelFileError(f"{path} is Whisper {name}, {width} wide, but LatentSync needs Whisper tiny, {STATE_WIDTH} wide: {SOURCE}.")
    if contents.get("dims", {}).get("n_vocab") == ENGLISH_ONLY_VOCABULARY:
        raise ModelFileError(f"{path} is the English-only Whisper tiny, but LatentSync was trained on the multilingual one: {SOURCE}.")
    with Uninitialised():
        encoder = WhisperEncoder(**TINY)
    try:
        encoder.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise ModelFileError(f"{path} does not fit Whisper tiny ({_first_lines(error)}): {SOURCE}.") from error
    log.debug("Whisper tiny encoder from %s", path)
    return encoder.eval().requires_grad_(False)


def _first_lines(error: RuntimeError) -> str:
    text = " ".join(str(error).split(":", 1)[-1].split())
    return text if len(text) < 300 else f"{text[:300]}..."
