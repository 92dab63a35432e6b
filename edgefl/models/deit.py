"""DeiT-tiny for 32×32 images: a vision transformer of plain linear layers (Touvron et al. 2021; PriSM, Table 6)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.models.base import ImageShape, image_shape, scaled
from edgefl.registry import model

PATCH, HEADS, HEAD_SIZE, BLOCKS, EXPANSION = 4, 3, 64, 12, 4


class Attention(nn.Module):
    """Multi-head self-attention. Channel c belongs to head c mod ``heads``: leading slices have all heads, with fewer channels each.

    ``causal``: a token attends to itself and to those before it only.
    """

    def __init__(self, channels: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value, self.project = (nn.Linear(channels, channels) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (batch, length, channels) to the same shape."""
        layers = self.query, self.key, self.value
        # (batch, heads, length, channels of a head)
        query, key, value = (layer(x).unflatten(2, (-1, self.heads)).permute(0, 3, 1, 2) for layer in layers)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.project(mixed.permute(0, 2, 3, 1).flatten(2))


class Block(nn.Module):
    """Attention, then a perceptron of four times the channels, each after a LayerNorm and with a shortcut."""

    def __init__(self, channels: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels, eps=1e-6)
        self.attention = Attention(channels, heads, causal)
        self.norm2 = nn.LayerNorm(channels, eps=1e-6)
        self.expand = nn.Linear(channels, EXPANSION * channels)
        self.contract = nn.Linear(EXPANSION * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (batch, length, channels) to the same shape."""
        x = x + self.attention(self.norm1(x))
        return x + self.contract(F.gelu(self.expand(self.norm2(x))))


class DeiT(nn.Module):
    """Patches of 4×4 pixels and a class token, learnt positions, ``BLOCKS`` blocks, and a linear classifier on the class token."""

    def __init__(self, shape: ImageShape, classes: int, width: float) -> None:
        super().__init__()
        channels, height, width_px = shape
        size = HEADS * scaled(HEAD_SIZE, width)
        self.patches = nn.Conv2d(channels, size, PATCH, PATCH)
        self.token = nn.Parameter(torch.empty(1, 1, size))
        self.positions = nn.Parameter(torch.empty(1, 1 + (height // PATCH) * (width_px // PATCH), size))
        self.blocks = nn.Sequential(*(Block(size, HEADS) for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(size, eps=1e-6)
        self.fc = nn.Linear(size, classes)
        for parameter in (self.token, self.positions, *(m.weight for m in self.modules() if isinstance(m, nn.Linear))):
            nn.init.normal_(parameter, std=0.02)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, channels, h, w) to logits (batch, classes)."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.fc(self.norm(self.blocks(x))[:, 0])


@model("deit-tiny", usual_input=(3, 32, 32))
def deit_tiny(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "layer") -> nn.Module:
    """Return DeiT-tiny without distillation and stochastic depth: 5,362,762 parameters for 3×32×32, 10 classes (PriSM, Table 6)."""
    shape = image_shape("deit-tiny", input_shape, PATCH)
    if shape[1] % PATCH or shape[2] % PATCH:
        raise ConfigError(f"model deit-tiny takes images that divide into patches of {PATCH}x{PATCH}, got {shape[1]}x{shape[2]}")
    if norm != "layer":
        raise ConfigError(f"norm: model deit-tiny normalises by layer, token by token, expected 'layer', got {norm!r}")
    return DeiT(shape, classes, width)
