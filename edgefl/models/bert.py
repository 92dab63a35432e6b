"""BERT-small (Turc et al. 2019): a transformer encoder with a classifier on the first token."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.models.base import scaled, window
from edgefl.models.deit import HEAD_SIZE, Attention
from edgefl.registry import model

WORD_PIECES, CONTEXT, SEGMENTS, HEADS, BLOCKS, EXPANSION = 30522, 512, 2, 8, 4, 4


class Block(nn.Module):
    """Attention, then a perceptron of four times the channels, each with a shortcut and before a LayerNorm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.attention = Attention(channels, HEADS)
        self.norm1 = nn.LayerNorm(channels, eps=1e-12)
        self.expand = nn.Linear(channels, EXPANSION * channels)
        self.contract = nn.Linear(EXPANSION * channels, channels)
        self.norm2 = nn.LayerNorm(channels, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (batch, length, channels) to the same shape."""
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.contract(F.gelu(self.expand(x))))


class Encoder(nn.Module):
    """Embeddings of word pieces, positions and one segment, blocks, and a pooled linear classifier on the first token."""

    def __init__(self, classes: int, width: float) -> None:
        super().__init__()
        size = HEADS * scaled(HEAD_SIZE, width)
        self.tokens = nn.Embedding(WORD_PIECES, size)
        self.positions = nn.Parameter(torch.empty(CONTEXT, size))
        self.segments = nn.Parameter(torch.empty(SEGMENTS, size))
        self.norm = nn.LayerNorm(size, eps=1e-12)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(BLOCKS)))
        self.pool = nn.Linear(size, size)
        self.fc = nn.Linear(size, classes)
        layers = (module.weight for module in self.modules() if isinstance(module, (nn.Linear, nn.Embedding)))
        for parameter in (self.positions, self.segments, *layers):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Map ids of word pieces (batch, length) int64 to logits (batch, classes)."""
        x = self.norm(self.tokens(x) + self.positions[: x.shape[1]] + self.segments[0])
        return self.fc(torch.tanh(self.pool(self.blocks(x)[:, 0])))


@model("bert-small", usual_input=(128,), usual_classes=2, vocabulary=30522, large=True)
def bert_small(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return BERT-small without dropout: 28,763,648 parameters and the classifier's."""
    window("bert-small", input_shape, norm)
    if input_shape[0] > CONTEXT:
        raise ConfigError(f"model bert-small takes at most {CONTEXT} tokens, got {input_shape[0]}")
    return Encoder(classes, width)
