"""Principal kernels: a weight as a sum of rank-one kernels. A client trains a random few of them (PriSM, Niu et al., section 3).

A weight with n outputs and m inputs is unrolled to W̄ (n × m·k₁k₂) = Σ σᵢ uᵢ vᵢᵀ (Eq. 1). Both factors contain √σᵢ (section 3.2.2,
:func:`edgefl.factor.svd.factorize`). A client receives r of the N kernels i, at its own output and input channels.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.hadamard_layers import composed
from edgefl.factor.layers import LowRank
from edgefl.factor.svd import Factors, factorize
from edgefl.util.convolutions import Convolution, convolution_for

Sampling = Literal["power", "uniform", "softmax"]


def kernels_of(shape: tuple[int, ...]) -> int:
    """Return N, the number of principal kernels of a weight (n, m, …): min(n, m·k₁k₂).

    >>> kernels_of((64, 64, 3, 3)), kernels_of((64, 3, 3, 3))
    (64, 27)
    """
    return min(shape[0], math.prod(shape[1:]))


def kept_kernels(name: str, keep: float, kernels: int) -> int:
    """Return r = ⌈c·N⌉ for the keep ratio c (section 4.2), exact for decimals such as 0.3; ConfigError if r is not 1 to N.

    >>> kept_kernels("conv", 0.2, 64), kept_kernels("conv", 0.3, 10)
    (13, 3)
    """
    count = math.ceil(keep * kernels - 1e-9) if math.isfinite(keep) else -1
    if not 1 <= count <= kernels:
        raise ConfigError(
            f"layer {name}: keep ratio {keep:g} of {kernels} principal kernels is {count} of them; expected a ratio above 0 and up to 1"
        )
    return count


def kept_outputs(shape: tuple[int, ...], share: float) -> int:
    """Return how many of its n outputs a weight (n, m, …) computes: ⌈share·n⌉ of a convolution, all of any other layer.

    >>> kept_outputs((64, 32, 3, 3), 0.4), kept_outputs((64, 32), 0.4)
    (26, 64)
    """
    return math.ceil(share * shape[0] - 1e-9) if len(shape) > 2 else shape[0]


def importance(values: Tensor, sampling: Sampling, kappa: float) -> Tensor:
    """Return the probability of each kernel in the first draw, float64 (N,), from the singular ``values`` (N,).

    ``power``: σᵢ^κ / Σσⱼ^κ (Eq. 2). ``uniform`` and ``softmax`` (of σ): section 4.5. If all σ are 0, ``power`` is uniform.

    >>> importance(torch.tensor([2.0, 1.0, 0.0]), "power", 2.0).tolist()
    [0.8, 0.2, 0.0]
    """
    sigma = values.double()
    if sampling == "softmax":
        return torch.softmax(sigma, 0)
    if sampling == "uniform" or not bool(sigma.max() > 0):
        return torch.full_like(sigma, 1 / len(sigma))
    # Relative to the largest, because a power of small values could underflow to 0.
    weights = (sigma / sigma.max()) ** kappa
    return weights / weights.sum()


def draw(name: str, probabilities: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """Return ``count`` different kernels, ascending, int64, drawn without replacement with ``probabilities`` (N,) (section 3.2.1).

    The kernels with the smallest Eᵢ/pᵢ are such a draw, if the Eᵢ are independent and exponential (Efraimidis and Spirakis 2006).

    Raises:
        ConfigError: ``count`` is not 1 to N; the message names the layer ``name``.

    >>> draw("conv", torch.tensor([0.5, 0.0, 0.25, 0.25]), 3, np.random.default_rng(0))
    tensor([0, 2, 3])
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
    """Return 2^H with the entropy H of σ/Σσ in bits: the number of kernels that approximate the layer (section 4.4.1).

    >>> effective_rank(torch.tensor([1.0, 1.0, 1.0, 1.0])), effective_rank(torch.tensor([3.0, 0.0]))
    (4.0, 1.0)
    """
    sigma = values.double()
    shares = sigma[sigma > 0] / sigma.sum()
    return float(2 ** -(shares * shares.log2()).sum()) if len(shares) else 0.0


@dataclass(frozen=True)
class KernelLayer:
    """The principal kernels of one matrix, and the part of them that a tier holds. Recurrent weights stack one matrix per gate.

    Attributes:
        target: the name of the dense weight in the global state.
        key: the name of the matrix in records: that of its weight, with the gate's number if there are several.
        shape: the shape (n, m, …) of the matrix.
        block: the number of the matrix in the stack.
        u, v: the names of the factors in the client's network.
        rows, columns: the output and input channels that the client has, int64.
        count: r, the number of kernels that a client has.
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
        """The rows of this matrix in the dense weight."""
        return slice(self.block * self.shape[0], (self.block + 1) * self.shape[0])

    def decompose(self, weight: Tensor) -> Factors:
        """Return all N kernels of the dense weight's matrix: √σᵢuᵢ, (n, N), and √σᵢvᵢᵀ, (N, m·k₁k₂), float32."""
        return factorize(weight[self.span].flatten(1), kernels_of(self.shape))

    def right(self, factors: Factors) -> Tensor:
        """Return √σᵢvᵢ of all kernels as a view of shape (N, m, …)."""
        return factors.right.view(-1, *self.shape[1:])

    def of_left(self, kernels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index of the tier's part of ``kernels`` in ``left`` (n, N): at its output channels, uᵢ(1:r) of section 3.2.1."""
        return self.rows[:, None], kernels

    def of_right(self, kernels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index of the tier's part of ``kernels`` in :meth:`right` (N, m, …): at its input channels."""
        return kernels[:, None], self.columns

    def cut(self, factors: Factors, kernels: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies of the tier's part of ``kernels``: u (rows, r) and v (r, columns, …)."""
        return factors.left[self.of_left(kernels)], self.right(factors)[self.of_right(kernels)]

    def composed(self, factors: Factors, kernels: Tensor) -> Tensor:
        """Return Σ σᵢuᵢvᵢᵀ over ``kernels`` at the tier's channels, (rows, columns, …)."""
        u, v = self.cut(factors, kernels)
        return (u @ v.flatten(1)).view(len(self.rows), *v.shape[1:])


class Kernels(LowRank):
    """A layer v and then a layer u, with the weight U·V (n × m·k₁k₂) of rank r and the dense layer's bias."""

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return U (n × r) and V (r × m·k₁k₂), views of the parameters."""
        return self.u.weight.flatten(1), self.v.weight.flatten(1)


class KernelConv(Kernels):
    """Conv_V, k₁×k₂ from m to r channels, then Conv_U, 1×1 from r to n with the bias (section 3.2.1); ConfigError for groups.

    With ``outputs``, Conv_U computes that many of the n outputs, and has no bias.
    """

    def __init__(self, dense: Convolution, count: int, outputs: int | None = None) -> None:
        super().__init__()
        if dense.groups != 1:
            raise ConfigError(f"only plain convolutions have principal kernels, got {dense}")
        device, bias = dense.weight.device, dense.bias is not None and outputs is None
        place = {"stride": dense.stride, "padding": dense.padding, "dilation": dense.dilation, "padding_mode": dense.padding_mode}
        kind = convolution_for(dense.weight)
        self.v = kind(dense.in_channels, count, dense.kernel_size, bias=False, device=device, **place)
        self.u = kind(count, outputs or dense.out_channels, 1, bias=bias, device=device)


class FirstOutputs(nn.Module):
    """The kernels' first ``outputs`` of n output channels; the other channels contain only the bias.

    Weights and products are those of the first outputs. The map has all n channels, because the next layers read all of them.
    """

    def __init__(self, dense: Convolution, count: int, outputs: int) -> None:
        super().__init__()
        self.others = dense.out_channels - outputs
        self.first = KernelConv(dense, count, outputs)
        self.bias = None if dense.bias is None else nn.Parameter(torch.zeros_like(dense.bias))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, m, …) to (batch, n, …), like the dense layer."""
        axes = x.dim() - 2
        x = F.pad(self.first(x), (0, 0) * axes + (0, self.others))
        return x if self.bias is None else x + self.bias[(slice(None), *(None,) * axes)]


class KernelLinear(Kernels):
    """A linear layer v from m to r, then u from r to n with the bias."""

    def __init__(self, dense: nn.Linear, count: int) -> None:
        super().__init__()
        device = dense.weight.device
        self.v = nn.Linear(dense.in_features, count, bias=False, device=device)
        self.u = nn.Linear(count, dense.out_features, bias=dense.bias is not None, device=device)


class KernelProduct(Kernels):
    """Composes the weight U·V of one gate from the parameters u (n, r) and v (r, m)."""

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
    """Composes the weight (gates·H, m) of a recurrent layer, gate by gate."""

    def forward(self) -> Tensor:
        """Return the weight (gates·H, m), as torch's recurrent layers have it."""
        return torch.cat([gate() for gate in self])


def kernel_layer(dense: nn.Module, counts: Mapping[str, tuple[int, ...]], share: float = 1.0) -> nn.Module:
    """Return the layer that replaces ``dense``, with arbitrary factors; ``counts``: weight → r of each of its gates.

    ``share``: the share of its outputs that a convolution computes (:func:`kept_outputs`).
    """
    if isinstance(dense, Convolution):
        outputs, count = kept_outputs(tuple(dense.weight.shape), share), counts["weight"][0]
        return KernelConv(dense, count) if outputs == dense.out_channels else FirstOutputs(dense, count, outputs)
    if isinstance(dense, nn.Linear):
        return KernelLinear(dense, counts["weight"][0])
    weights = dict(dense.named_parameters())
    gates: dict[str, nn.Module] = {}
    for name, ranks in counts.items():
        outputs, inputs = weights[name].shape[0] // len(ranks), weights[name].shape[1]
        gates[name] = KernelGates(KernelProduct(outputs, inputs, count, weights[name].device) for count in ranks)
    return composed(dense, gates)
