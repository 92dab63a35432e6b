"""Layers of drawn principal kernels (PriSM): Conv_V, then Conv_U; the same for linear layers and for the gates of recurrent ones."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.hadamard_layers import composed
from edgefl.factor.layers import LowRank


class Kernels(LowRank):
    """V, then U: a weight U·V (n × m·k₁k₂) of rank r, with the bias of the dense layer."""

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return U (n × r) and V (r × m·k₁k₂), views of the parameters."""
        return self.u.weight.flatten(1), self.v.weight.flatten(1)


class KernelConv2d(Kernels):
    """Conv_V, k₁×k₂ from m to r channels, then Conv_U, 1×1 from r to n, with the bias; no normalisation between (section 3.2.1)."""

    def __init__(self, dense: nn.Conv2d, count: int) -> None:
        super().__init__()
        if dense.groups != 1:
            raise ConfigError(f"only plain convolutions have principal kernels, got {dense}")
        device, bias = dense.weight.device, dense.bias is not None
        place = {"stride": dense.stride, "padding": dense.padding, "dilation": dense.dilation, "padding_mode": dense.padding_mode}
        self.v = nn.Conv2d(dense.in_channels, count, dense.kernel_size, bias=False, device=device, **place)  # type: ignore[arg-type]
        self.u = nn.Conv2d(count, dense.out_channels, 1, bias=bias, device=device)


class KernelLinear(Kernels):
    """V from m to r, then U from r to n."""

    def __init__(self, dense: nn.Linear, count: int) -> None:
        super().__init__()
        device = dense.weight.device
        self.v = nn.Linear(dense.in_features, count, bias=False, device=device)
        self.u = nn.Linear(count, dense.out_features, bias=dense.bias is not None, device=device)


class KernelProduct(Kernels):
    """U·V of one gate: u (n, r), v (r, m)."""

    def __init__(self, outputs: int, inputs: int, count: int, device: torch.device) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.empty(count, inputs, device=device))
        self.u = nn.Parameter(torch.empty(outputs, count, device=device))
        for parameter in (self.v, self.u):
            nn.init.normal_(parameter, 0.0, parameter.shape[1] ** -0.5)

    def forward(self) -> Tensor:  # type: ignore[override]  # a weight, not a layer
        """Return the product, (n, m)."""
        return self.u @ self.v

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return U (n × r) and V (r × m)."""
        return self.u, self.v


class KernelGates(nn.ModuleList):
    """The weight of all gates of a recurrent layer, (gates·H, m); calling it composes the weight gate by gate."""

    def forward(self) -> Tensor:
        """Return the weight in the form of torch's own kernel."""
        return torch.cat([gate() for gate in self])


def kernel_layer(dense: nn.Module, counts: Mapping[str, tuple[int, ...]]) -> nn.Module:
    """Return the layer that replaces ``dense``, with arbitrary factors; ``counts`` has r of each weight, one per gate.

    A recurrent layer composes its narrow weights once per pass for torch's own kernel. As two layers, each gate would cost about twice the
    MACs with r ≈ H, and save r values between them for every step and sample.
    """
    if isinstance(dense, nn.Conv2d):
        return KernelConv2d(dense, counts["weight"][0])
    if isinstance(dense, nn.Linear):
        return KernelLinear(dense, counts["weight"][0])
    weights = dict(dense.named_parameters())
    gates: dict[str, nn.Module] = {}
    for name, of in counts.items():
        outputs, inputs = weights[name].shape[0] // len(of), weights[name].shape[1]
        gates[name] = KernelGates(KernelProduct(outputs, inputs, count, weights[name].device) for count in of)
    return composed(dense, gates)


def kernel_parameters(network: nn.Module) -> set[nn.Parameter]:
    """Return the factors u and v of every kernel layer; biases are not among them."""
    factors = [factor for layer in kernel_modules(network) for factor in (layer.u, layer.v)]
    return {factor if isinstance(factor, nn.Parameter) else factor.weight for factor in factors}


def kernel_modules(network: nn.Module) -> list[Kernels]:
    """Return the modules of ``network`` that hold a pair of factors."""
    return [layer for layer in network.modules() if isinstance(layer, Kernels)]
