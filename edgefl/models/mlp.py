"""A two-layer perceptron."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.models.base import scaled
from edgefl.registry import model


class MLP(nn.Module):
    """One hidden layer of 256 units at width 1, on the flattened input."""

    def __init__(self, inputs: int, classes: int, width: float) -> None:
        super().__init__()
        hidden = scaled(256, width)
        self.hidden = nn.Linear(inputs, hidden)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map samples (batch, …) to logits (batch, classes)."""
        return self.fc(F.relu(self.hidden(x.flatten(1))))


@model("mlp", usual_input=(1, 28, 28))
def mlp(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """The 2-layer MLP with 256 hidden units; it has no feature maps, so the only policy is ``none``; ConfigError for another."""
    if norm != "none":
        raise ConfigError(f"norm: model mlp has no feature maps to normalise, expected 'none', got {norm!r}")
    return MLP(math.prod(input_shape), classes, width)
