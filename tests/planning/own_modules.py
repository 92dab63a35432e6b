"""Networks of a user's own: small ones, inverted blocks, an LSTM, a transformer, and a module with wrong ones."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

CLASSES = 5
IDS = "int64:12"

OWN = """
import numpy as np
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.layer = nn.Linear(4, width)
    def forward(self, x):
        return self.layer(x)

instance = Net(7)
number = 3

def factory():
    return Net()

def rates():
    return nn.Sequential(nn.Linear(4, 4), *(nn.Dropout(rate.item()) for rate in torch.linspace(0, 0.4, 3)), nn.Linear(4, 3))

def wants_a_width(width):
    return Net(width)

def classifier(in_channels, num_classes):
    return nn.Sequential(nn.Conv1d(in_channels, 4, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, num_classes))

def raises():
    raise ValueError("no weights here\\nand a second line")

def no_module():
    return 3

class Flow(Net):
    def forward(self, x):
        return self.layer(x if x.sum() > 0 else -x)

class NoParameters(nn.Module):
    def forward(self, x):
        return torch.relu(x)

class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)

class Detached(Net):
    def forward(self, x):
        return self.layer(x).detach()

class Labels(Net):
    def forward(self, x):
        return self.layer(x).argmax(1, keepdim=True)

class Exotic(Net):
    def forward(self, x):
        return torch.linalg.matrix_exp(self.layer(x)[:, :, None] * torch.ones(3)).sum(1)

class Plain(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)
    def forward(self, x):
        return self.head(self.embedding(x).mean(1))

class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(16, 5)
    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))
"""


class Words(nn.Module):
    """Two inputs: identities of words, and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(30, 4), nn.Linear(4 + 6, 3)

    def forward(self, ids: Tensor, x: Tensor) -> Any:
        return self.head(torch.cat([self.embedding(ids).mean(1), x], 1))


class Inverted(nn.Module):
    """An inverted residual block: wider, depthwise, narrower."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide, self.skips = 4 * inputs, stride == 1 and inputs == outputs
        depthwise = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False)
        self.body = nn.Sequential(
            nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True),
            depthwise, nn.BatchNorm2d(wide), nn.ReLU6(inplace=True),
            nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Any:
        return x + self.body(x) if self.skips else self.body(x)


def mobile() -> nn.Module:
    """Return a small mobile network."""
    stem = (nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
    blocks = (Inverted(8, 8, 1), Inverted(8, 16, 2), Inverted(16, 16, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, CLASSES))


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(50, 8), nn.LSTM(8, 16, batch_first=True), nn.Linear(16, CLASSES)

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.lstm(self.embedding(ids))[0][:, -1])


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(50, 16), nn.MultiheadAttention(16, 4, batch_first=True)
        self.wide, self.narrow, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, CLASSES)

    def forward(self, ids: Tensor) -> Any:
        x = self.embedding(ids)
        x = x + self.attention(x, x, x)[0]
        return self.head((x + self.narrow(torch.relu(self.wide(x)))).mean(1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "mobile": (mobile, "3x32x32"),
    "lstm": (LSTM, IDS),
    "transformer": (Transformer, IDS),
}
COUNTS = ("macs_forward", "macs_backward_input", "macs_backward_weight", "macs_compose", "params")


def conv() -> nn.Module:
    """Return three convolutions and a head."""
    body = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3))
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES))
