"""Principal kernels: a weight as a sum of rank-one kernels, of which clients train a drawn few (PriSM, Niu et al., section 3).

A weight of n outputs is unrolled to W̄ (n × m·k₁k₂) = Σ σᵢ uᵢ vᵢᵀ (Eq. 1), with √σᵢ merged into both factors (section 3.2.2) by
:func:`edgefl.factor.svd.factorize`. A client gets r kernels, of each the entries for its own output and input channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.hadamard_layers import composed
from edgefl.factor.layers import LowRank
from edgefl.factor.svd import Factors, factorize

Sampling = Literal["power", "uniform", "softmax"]


def kernels_of(shape: tuple[int, ...]) -> int:
    """Return how many principal kernels a weight (n, m, …) has: min(n, m·k₁k₂).

    >>> kernels_of((64, 64, 3, 3)), kernels_of((64, 3, 3, 3))
    (64, 27)
    """
    return min(shape[0], math.prod(shape[1:]))


def kept_kernels(name: str, keep: float, kernels: int) -> int:
    """Return r = ⌈c·N⌉ for a keep ratio c (section 4.2); ConfigError if that is not 1 to N. Binary rounding never raises exact decimals.

    >>> kept_kernels("conv", 0.2, 64), kept_kernels("conv", 0.3, 10)
    (13, 3)
    """
    count = math.ceil(keep * kernels - 1e-9) if math.isfinite(keep) else -1
    if not 1 <= count <= kernels:
        raise ConfigError(
            f"layer {name}: keep ratio {keep:g} of {kernels} principal kernels is {count} of them; expected a ratio above 0 and up to 1"
        )
    return count


def importance(values: Tensor, sampling: Sampling, kappa: float) -> Tensor:
    """Return the probabilities pᵢ of a first draw, float64 (N,).

    ``power``: σᵢ^κ / Σσⱼ^κ (Eq. 2); ``uniform`` and ``softmax`` (of the singular values): section 4.5. If all σ are 0: uniform.

    >>> importance(torch.tensor([2.0, 1.0, 0.0]), "power", 2.0).tolist()
    [0.8, 0.2, 0.0]
    """
    sigma = values.double()
    if sampling == "softmax":
        return torch.softmax(sigma, 0)
    if sampling == "uniform" or not bool(sigma.max() > 0):
        return torch.full_like(sigma, 1 / len(sigma))
    # Relative to the largest, or a power of small values would be 0 for all.
    weights = (sigma / sigma.max()) ** kappa
    return weights / weights.sum()


def draw(name: str, probabilities: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """Return ``count`` different kernels, ascending, int64: drawn one after the other with p of the remaining ones (section 3.2.1).

    The smallest Eᵢ/pᵢ with exponential Eᵢ are such a draw (Efraimidis and Spirakis 2006). ConfigError if ``count`` is not 1 to N.
    """
    total = len(probabilities)
    if not 1 <= count <= total:
        raise ConfigError(f"layer {name}: {count} kernels were to be drawn of {total}; expected 1 to {total}")
    if count == total:
        return torch.arange(total)
    waits = rng.exponential(size=total)
    with np.errstate(divide="ignore"):
        keys = waits / probabilities.numpy()
    first = np.lexsort((waits, keys))[:count]
    return torch.from_numpy(np.sort(first))


def effective_rank(values: Tensor) -> float:
    """Return 2^H with the entropy H of σ/Σσ in bits: how many kernels it takes to approximate the layer (section 4.4.1).

    >>> effective_rank(torch.tensor([1.0, 1.0, 1.0, 1.0])), effective_rank(torch.tensor([3.0, 0.0]))
    (4.0, 1.0)
    """
    sigma = values.double()
    shares = sigma[sigma > 0] / sigma.sum()
    return float(2 ** -(shares * shares.log2()).sum()) if len(shares) else 0.0


@dataclass(frozen=True)
class KernelLayer:
    """The principal kernels of one matrix (a recurrent weight has one per gate, stacked along its rows), and which part one tier holds.

    Attributes:
        target: the dense weight's name in the global state.
        key: the matrix's name in records: that of its weight, with the gate's number if there are several.
        shape: the matrix's own shape (n, m, …).
        block: number of the matrix in the stack.
        u, v: names of the factors in the client's network.
        rows, columns: output and input channels that the client has, int64.
        count: r.
    """

    target: str
    key: str
    shape: tuple[int, ...]
    block: int
    u: str
    v: str
    rows: Tensor
    columns: Tensor
    count: int

    @property
    def span(self) -> slice:
        """The rows of the dense weight that are this matrix."""
        return slice(self.block * self.shape[0], (self.block + 1) * self.shape[0])

    def decompose(self, weight: Tensor) -> Factors:
        """Return all N kernels of the dense weight's matrix: √σᵢuᵢ, (n, N), and √σᵢvᵢᵀ, (N, m·k₁k₂), float32."""
        return factorize(weight[self.span].flatten(1), kernels_of(self.shape))

    def right(self, factors: Factors) -> Tensor:
        """Return √σᵢvᵢ of all kernels in the form of the weight, (N, m, …): a view."""
        return factors.right.view(-1, *self.shape[1:])

    def of_left(self, kernels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index of this tier's part of ``left`` (n, N): its rows of ``kernels``, the subset uᵢ(1:r) of section 3.2.1."""
        return self.rows[:, None], kernels

    def of_right(self, kernels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index of this tier's part of :meth:`right`: the output channels of the layer before."""
        return kernels[:, None], self.columns

    def cut(self, factors: Factors, kernels: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies: u (rows, r) and v (r, columns, …)."""
        return factors.left[self.of_left(kernels)], self.right(factors)[self.of_right(kernels)]

    def composed(self, factors: Factors, kernels: Tensor) -> Tensor:
        """Return Σ σᵢuᵢvᵢᵀ over ``kernels`` at this tier's channels, (rows, columns, …)."""
        u, v = self.cut(factors, kernels)
        return (u @ v.flatten(1)).view(len(self.rows), *v.shape[1:])


def all_of(index: slice | Tensor, size: int) -> Tensor:
    """Return the positions of an index into a dimension of ``size``, int64.

    >>> all_of(slice(0, 2), 5).tolist()
    [0, 1]
    """
    return torch.arange(size)[index]


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
    """Return the layer that replaces ``dense``, with arbitrary factors; ``counts`` has r of each weight, one per gate."""
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
