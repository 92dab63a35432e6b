"""GPT-2 in its four sizes (Radford et al. 2019), for costs: decoder-only transformers of plain linear layers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.models.base import scaled, window
from edgefl.models.deit import HEAD_SIZE, Block
from edgefl.registry import model

TOKENS, CONTEXT = 50257, 1024


class Decoder(nn.Module):
    """Embeddings of tokens and positions, causal blocks, and logits by the embedding's own weight: the classifier has none."""

    def __init__(self, blocks: int, heads: int, width: float) -> None:
        super().__init__()
        size = heads * scaled(HEAD_SIZE, width)
        self.tokens = nn.Embedding(TOKENS, size)
        self.positions = nn.Parameter(torch.empty(CONTEXT, size))
        self.blocks = nn.Sequential(*(Block(size, heads, causal=True) for _ in range(blocks)))
        self.norm = nn.LayerNorm(size, eps=1e-5)
        for parameter in (self.tokens.weight, self.positions):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Map token ids (batch, length) int64 to logits (batch · length, tokens): each token's row predicts the next."""
        x = self.tokens(x) + self.positions[: x.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight).flatten(0, 1)


def _decoder(name: str, blocks: int, heads: int, input_shape: tuple[int, ...], classes: int, width: float, norm: str) -> Decoder:
    window(name, input_shape, norm)
    if input_shape[0] > CONTEXT or classes != TOKENS:
        raise ConfigError(
            f"model {name} takes at most {CONTEXT} tokens and has {TOKENS} classes, got {input_shape[0]} tokens and {classes} classes"
        )
    return Decoder(blocks, heads, width)


@model("gpt2-small", usual_input=(1024,), usual_classes=50257, vocabulary=50257, large=True, per_token=True)
def gpt2_small(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return GPT-2 small: 124,439,808 parameters. All sizes have GELU without its approximation, and no dropout."""
    return _decoder("gpt2-small", 12, 12, input_shape, classes, width, norm)


@model("gpt2-medium", usual_input=(1024,), usual_classes=50257, vocabulary=50257, large=True, per_token=True)
def gpt2_medium(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return GPT-2 medium: 354,823,168 parameters."""
    return _decoder("gpt2-medium", 24, 16, input_shape, classes, width, norm)


@model("gpt2-large", usual_input=(1024,), usual_classes=50257, vocabulary=50257, large=True, per_token=True)
def gpt2_large(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return GPT-2 large: 774,030,080 parameters."""
    return _decoder("gpt2-large", 36, 20, input_shape, classes, width, norm)


@model("gpt2-xl", usual_input=(1024,), usual_classes=50257, vocabulary=50257, large=True, per_token=True)
def gpt2_xl(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return GPT-2 XL: 1,557,611,200 parameters."""
    return _decoder("gpt2-xl", 48, 25, input_shape, classes, width, norm)
