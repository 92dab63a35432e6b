"""One layer of every kind, each with its multiply-accumulates written out: what every counter is held to.

Add a layer as one ``Layer`` of ``LAYERS``, and its figure worked out by hand to ``THOUSANDS`` of tests/test_tools.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS, SIDE, STEPS, HEADS, KERNEL = 64, 16, 16, 4, 9
POSITIONS = SIDE * SIDE
FEDPARA_RANK = 16
FLANC_GROUPS, FLANC_KERNELS = 4, 32
FLANC_CHANNELS = CHANNELS // FLANC_GROUPS


class SelfAttention(nn.Module):
    """Multi-head attention of tokens (batch, tokens, channels) to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(CHANNELS, HEADS, bias=False, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended tokens, without the probabilities."""
        attended: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return attended


class Recurrent(nn.Module):
    """An LSTM that returns its outputs alone."""

    def __init__(self, inputs: int = CHANNELS, hidden: int = CHANNELS, layers: int = 1) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, steps, inputs) to (batch, steps, hidden)."""
        outputs: Tensor = self.lstm(x)[0]
        return outputs


class FedPara(nn.Module):
    """A 3×3 convolution by W = (T1 ×₁ X1 ×₂ Y1) ⊙ (T2 ×₁ X2 ×₂ Y2): FedPara (Hyeon-Woo et al., ICLR 2022), Proposition 3."""

    T1: nn.Parameter
    X1: nn.Parameter
    Y1: nn.Parameter
    T2: nn.Parameter
    X2: nn.Parameter
    Y2: nn.Parameter

    def __init__(self) -> None:
        super().__init__()
        for i in (1, 2):
            self.register_parameter(f"T{i}", nn.Parameter(torch.randn(FEDPARA_RANK, FEDPARA_RANK, 3, 3)))
            self.register_parameter(f"X{i}", nn.Parameter(torch.randn(CHANNELS, FEDPARA_RANK)))
            self.register_parameter(f"Y{i}", nn.Parameter(torch.randn(CHANNELS, FEDPARA_RANK)))

    def _half(self, T: Tensor, X: Tensor, Y: Tensor) -> Tensor:
        """Return T ×₁ X ×₂ Y, (out, in, 3, 3)."""
        mode1 = (X @ T.flatten(1)).view(CHANNELS, FEDPARA_RANK, KERNEL)
        return (Y @ mode1).view(CHANNELS, CHANNELS, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve x (batch, channels, height, width) by the composed weight."""
        weight = self._half(self.T1, self.X1, self.Y1) * self._half(self.T2, self.X2, self.Y2)
        return F.conv2d(x, weight, padding=1)


class Flanc(nn.Module):
    """A 3×3 convolution as FLANC composes it (Mei et al., NeurIPS 2022): a basis shared by groups of channels, then coefficients."""

    def __init__(self) -> None:
        super().__init__()
        self.basis = nn.Parameter(torch.randn(FLANC_KERNELS, FLANC_CHANNELS, 3, 3))
        self.coefficients = nn.Conv2d(FLANC_GROUPS * FLANC_KERNELS, CHANNELS, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve every group of x (batch, channels, height, width) by the basis, then combine the results."""
        batch, _, *sides = x.shape
        responses = F.conv2d(x.reshape(batch * FLANC_GROUPS, FLANC_CHANNELS, *sides), self.basis, padding=1)
        return self.coefficients(responses.reshape(batch, FLANC_GROUPS * FLANC_KERNELS, *sides))


@dataclass(frozen=True)
class Layer:
    """One kind of layer and its closed form.

    Attributes:
        shape: one sample of its input.
        macs: forward MACs of a sample.
        compose_macs: forward MACs of work on the weights alone, once a pass.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    macs: int
    compose_macs: int = 0

    @property
    def forward(self) -> int:
        """MACs of one sample's forward pass."""
        return self.macs + self.compose_macs

    @property
    def both(self) -> int:
        """MACs of one sample's forward and backward pass: each product once more for either factor's gradient."""
        return 3 * self.forward

    def behind_another(self) -> tuple[nn.Sequential, Tensor]:
        """Return the layer behind one that learns, so that its input needs a gradient, and a batch of one for the two."""
        if len(self.shape) == 3:
            return nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 1), self.build()), torch.zeros(1, *self.shape)
        return nn.Sequential(nn.Embedding(80, CHANNELS), self.build()), torch.zeros(1, self.shape[0], dtype=torch.int64)


IMAGE, TOKENS = (CHANNELS, SIDE, SIDE), (POSITIONS, CHANNELS)
LAYERS = (
    # output positions · output channels · kernel · input channels
    Layer(
        "convolution 3×3",
        lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False),
        IMAGE,
        macs=POSITIONS * CHANNELS * KERNEL * CHANNELS,
    ),
    # each channel meets its own kernel alone
    Layer(
        "depthwise 3×3",
        lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS, bias=False),
        IMAGE,
        macs=POSITIONS * CHANNELS * KERNEL,
    ),
    # stride 2: each input value is spread over the kernel and the output channels
    Layer(
        "transposed 3×3, stride 2",
        lambda: nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, stride=2, padding=1, output_padding=1, bias=False),
        IMAGE,
        macs=POSITIONS * CHANNELS * KERNEL * CHANNELS,
    ),
    # tokens · inputs · outputs
    Layer("linear, 256 tokens", lambda: nn.Linear(CHANNELS, CHANNELS, bias=False), TOKENS, macs=POSITIONS * CHANNELS**2),
    # projections to Q, K, V and from the heads; every token with every token, for the scores and for the sum
    Layer("self-attention, 4 heads", SelfAttention, TOKENS, macs=4 * POSITIONS * CHANNELS**2 + 2 * POSITIONS**2 * CHANNELS),
    # steps · four gates · units · (inputs + units)
    Layer("LSTM, 16 steps", Recurrent, (STEPS, CHANNELS), macs=STEPS * 4 * CHANNELS * (CHANNELS + CHANNELS)),
    # the convolution; composed from two halves: T ×₁ X is out · R · R · kernel, ×₂ Y then out · in · R · kernel
    Layer(
        "FedPara, R = 16",
        FedPara,
        IMAGE,
        macs=POSITIONS * CHANNELS * KERNEL * CHANNELS,
        compose_macs=2 * KERNEL * (CHANNELS * FEDPARA_RANK**2 + CHANNELS * CHANNELS * FEDPARA_RANK),
    ),
    # the basis over every group, then a 1×1 convolution of its responses
    Layer(
        "FLANC, 32 kernels",
        Flanc,
        IMAGE,
        macs=POSITIONS * FLANC_GROUPS * FLANC_KERNELS * (KERNEL * FLANC_CHANNELS + CHANNELS),
    ),
)
