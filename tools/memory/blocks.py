"""What the networks of the comparison are made of: small modules that torch.nn does not have."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Call(nn.Module):
    """Applies a function to its input."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of ``x``."""
        return self.function(x)


class Wrapped(nn.Module):
    """A chain of layers within a block."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)


class Residual(Wrapped):
    """Adds its input to the output of its layers."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x + f(x)."""
        total: Tensor = x + self.layers(x)
        return total


class Dense(Wrapped):
    """Concatenates its input with the output of its layers, channel by channel (Huang et al., CVPR 2017)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (x, f(x))."""
        return torch.cat((x, self.layers(x)), 1)


class Beside(nn.Module):
    """Concatenates the outputs of several branches on one input, channel by channel."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Return (f(x), g(x), …)."""
        return torch.cat([branch(x) for branch in self.branches], 1)


class Scaled(Wrapped):
    """Scales its input by the output of its layers: squeeze-and-excite and gates."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x · f(x)."""
        scaled: Tensor = x * self.layers(x)
        return scaled


class Recurrent(nn.Module):
    """A recurrent layer whose output sequence goes on; its states do not."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, steps, inputs) to (batch, steps, outputs)."""
        outputs: Tensor = self.layer(x)[0]
        return outputs


class SelfAttention(nn.Module):
    """torch's multi-head attention of a sequence to itself."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(channels, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, channels) to the same shape."""
        outputs: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return outputs


class PerSampleConv(nn.Module):
    """A 1×1 convolution whose weights are a mixture of four kernels, another one for each sample (CondConv, NeurIPS 2019)."""

    def __init__(self, inputs: int, outputs: int, kernels: int = 4) -> None:
        super().__init__()
        self.kernels = nn.Parameter(torch.randn(kernels, outputs, inputs) * inputs**-0.5)
        self.route = nn.Linear(inputs, kernels)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, height, width) to (batch, outputs, height, width)."""
        mixture = self.route(x.mean((2, 3))).softmax(1)
        weights = torch.einsum("bk,koi->boi", mixture, self.kernels)
        return torch.bmm(weights, x.flatten(2)).unflatten(2, x.shape[2:])


class UNet(nn.Module):
    """Two levels down, two levels up, with skip connections (Ronneberger et al., MICCAI 2015)."""

    def __init__(self, width: int, up: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.downs = nn.ModuleList([conv(3, width), conv(width, 2 * width)])
        self.middle = conv(2 * width, 4 * width)
        self.ups = nn.ModuleList([up(4 * width, 2 * width), up(2 * width, width)])
        self.after = nn.ModuleList([conv(4 * width, 2 * width), conv(2 * width, width)])
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 3, height, width) to the same shape."""
        skips = []
        for down in self.downs:
            x = down(x)
            skips.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up, after, skip in zip(self.ups, self.after, reversed(skips), strict=True):
            x = after(torch.cat((skip, up(x)), 1))
        logits: Tensor = self.head(x)
        return logits


class Output(nn.Module):
    """A library's network of token ids whose output is a record: returns the tensor of one name."""

    def __init__(self, network: nn.Module, name: str) -> None:
        super().__init__()
        self.network, self.name = network, name

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens) int64 to the named output."""
        output: Tensor = getattr(self.network(x), self.name)
        return output


def conv(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: type[nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Return a convolution that keeps the sides, apart from its stride, batch normalisation and an activation."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), act())


def squeeze(channels: int, reduced: int) -> Scaled:
    """Return squeeze-and-excite (Hu et al., CVPR 2018)."""
    return Scaled(
        nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, reduced, 1), nn.ReLU(), nn.Conv2d(reduced, channels, 1), nn.Hardsigmoid()
    )


def inverted(
    inputs: int, outputs: int, expand: int, stride: int = 1, act: type[nn.Module] = nn.Hardswish, excite: bool = False
) -> nn.Module:
    """Return an inverted residual block (Sandler et al., CVPR 2018); it adds its input if the shape stays."""
    width = inputs * expand
    layers = [
        conv(inputs, width, 1, act=act),
        conv(width, width, 3, stride, width, act=act),
        *([squeeze(width, max(4, width // 4))] if excite else []),
        conv(width, outputs, 1, act=nn.Identity),
    ]
    return Residual(*layers) if stride == 1 and inputs == outputs else nn.Sequential(*layers)


def head(channels: int, classes: int = 10) -> nn.Sequential:
    """Return global average pooling and a linear classifier."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def classified(channels: int, classes: int = 10) -> nn.Sequential:
    """Return the mean over the steps of a sequence (batch, steps, channels) and a linear classifier."""
    return nn.Sequential(Call(lambda x: x.mean(1)), nn.Linear(channels, classes))
