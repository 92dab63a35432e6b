"""Neural composition (FLANC): the weights of every width as linear combinations of one basis that all widths share.

A weight (T, S, k₁, k₂) is cut along its S input channels into S/R₁ fragments of R₁ consecutive channels per output channel; each fragment
is a combination of the same R₂ bases (Eq. 2). Recurrent and linear weights (T, S) are the case k₁ = k₂ = 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgefl.errors import ConfigError


@dataclass(frozen=True)
class BasisSize:
    """R₁ and R₂ of one weight: the input channels that a basis vector spans, and how many basis vectors there are."""

    channels: int
    count: int


@dataclass(frozen=True)
class BasisRule:
    """How R₁ and R₂ follow from a weight's shapes (T, S, …) at the widths of a run.

    R₁ is the largest common divisor of all S_p that is at most ``share``·min(S, √(S·T)) at the smallest width: half of the smallest
    incoming channel, where the paper's accuracy peaks (section 3.4), and less for few outputs.
    R₂ = ⌊``bases``·√(k₁k₂)·R₁⌋: the composed layer holds ``bases``/√(k₁k₂) of the dense layer's weights, and a basis.
    A first convolution (``whole``), or a weight with one input channel, has R₁ = S and R₂ = k₁k₂S, at most the outputs at the least width.

    >>> BasisRule().size([(16, 8, 3, 3), (64, 32, 3, 3)])
    BasisSize(channels=4, count=8)
    """

    share: float = 0.5
    bases: float = 2 / 3

    def size(self, shapes: Sequence[tuple[int, ...]], whole: bool = False) -> BasisSize:
        """Return R₁ and R₂ of a weight from its shapes (T, S, …) at all widths; R₁ = 1 if nothing larger divides."""
        inputs, outputs, area = _channels(shapes)
        smallest, fewest = min(inputs), min(outputs)
        if (whole and len(set(inputs)) == 1) or max(inputs) == 1:
            return BasisSize(smallest, min(area * smallest, fewest))
        most = self.share * min(smallest, math.sqrt(smallest * fewest))
        divisor = math.gcd(*inputs)
        channels = max(d for d in range(1, divisor + 1) if divisor % d == 0 and (d <= most or d == 1))
        return BasisSize(channels, self.count(channels, area))

    def count(self, channels: int, area: int) -> int:
        """Return R₂ for R₁ = ``channels`` and k₁k₂ = ``area``."""
        return max(1, min(area * channels, math.floor(self.bases * math.sqrt(area) * channels + 1e-9)))


def check_size(name: str, size: BasisSize, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise :class:`ConfigError` unless R₁ divides every S_p of the weight ``name`` and R₂ vectors of k₁k₂R₁ can be orthonormal."""
    inputs, _, area = _channels(shapes)
    if wrong := [s for s in inputs if s % size.channels]:
        raise ConfigError(
            f"layer {name}: R1 = {size.channels} does not divide {wrong[0]} input channels; {_listed(inputs)} are needed"
        )
    if not 1 <= size.count <= area * size.channels:
        raise ConfigError(
            f"layer {name}: R2 = {size.count} bases of {area}x{size.channels} numbers cannot be orthonormal; expected 1 to"
            f" {area * size.channels}"
        )


def check_divisor(name: str, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise :class:`ConfigError` where the S_p of the weight ``name`` have no common divisor: no basis of channels can be shared."""
    inputs = _channels(shapes)[0]
    if math.gcd(*inputs) == 1 < min(inputs):
        raise ConfigError(
            f"layer {name}: its {_listed(inputs)} input channels at the run's widths have no common divisor for R1;"
            " choose widths whose channels have one, such as 1, 0.5 and 0.25"
        )


def compose(basis: Tensor, coefficients: Tensor) -> Tensor:
    """Return the weight (T, S, k₁, k₂) or (T, S): W = V·U, fragment by fragment (Eq. 1 and 2).

    ``basis`` is V, (R₂, R₁, k₁, k₂) or (R₂, R₁), a basis vector per row; ``coefficients`` is U_p, (T, S/R₁, R₂).

    >>> compose(torch.tensor([[1.0, 0.0], [0.0, -1.0]]), torch.tensor([[[2.0, 3.0], [5.0, 7.0]]])).tolist()
    [[2.0, -3.0, 5.0, -7.0]]
    """
    count, channels, *kernel = basis.shape
    outputs, fragments, _ = coefficients.shape
    # One product of two plain matrices: its rows are already in the order of a torch weight.
    product = coefficients.reshape(outputs * fragments, count) @ basis.reshape(count, -1)
    return product.view(outputs, fragments * channels, *kernel)


def orthogonality(basis: Tensor) -> Tensor:
    """Return ‖V·Vᵀ − I‖²_F over the R₂ basis vectors (the regulariser of Eq. 3).

    >>> orthogonality(torch.tensor([[2.0, 0.0], [0.0, 1.0]])).item()
    9.0
    """
    rows = basis.flatten(1)
    return (rows @ rows.T - torch.eye(len(rows), dtype=rows.dtype, device=rows.device)).square().sum()


def first_basis(shape: tuple[int, ...]) -> Tensor:
    """Return random basis vectors of ``shape`` (R₂, R₁, …), orthonormal: the regulariser starts at its minimum."""
    basis = torch.empty(shape)
    torch.nn.init.orthogonal_(basis.view(shape[0], -1))
    return basis


def first_coefficients(shape: tuple[int, ...], channels: int, gain: float) -> Tensor:
    """Return random coefficients of ``shape`` (T, S/R₁, R₂): a composed weight then has variance ``gain``/(k₁k₂·S); He's gain is 2."""
    _, fragments, count = shape
    return torch.randn(shape) * math.sqrt(gain * channels / (count * fragments * channels))


def _channels(shapes: Sequence[tuple[int, ...]]) -> tuple[list[int], list[int], int]:
    """Return the input channels and output channels at every width, and the kernel's area."""
    return [shape[1] for shape in shapes], [shape[0] for shape in shapes], math.prod(shapes[0][2:])


def _listed(inputs: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(set(inputs), reverse=True)))


class Composed(nn.Module):
    """Replaces a convolution, linear or recurrent layer, and computes the same with composed weights.

    For every composed weight, such as ``weight_hh_l0``, it holds ``basis_hh_l0`` (R₂, R₁, k₁, k₂) and ``coefficients_hh_l0`` (T, S/R₁, R₂).
    ``skeleton`` is the same layer on the ``meta`` device; ``sizes`` has R₁ and R₂ of each composed weight by name.
    """

    def __init__(self, dense: nn.Module, skeleton: nn.Module, sizes: Mapping[str, BasisSize]) -> None:
        super().__init__()
        self.sizes = dict(sizes)
        self.others = tuple(name for name, _ in dense.named_parameters() if name not in sizes)
        # In a tuple, for its parameters are not this network's.
        self.skeleton = (skeleton,)
        for name, parameter in dense.named_parameters():
            if name not in sizes:
                self.register_parameter(name, parameter)
                continue
            outputs, inputs, *kernel = parameter.shape
            size = sizes[name]
            basis = torch.empty(size.count, size.channels, *kernel, device=parameter.device)
            coefficients = torch.empty(outputs, inputs // size.channels, size.count, device=parameter.device)
            self.register_parameter(basis_name(name), nn.Parameter(basis))
            self.register_parameter(coefficients_name(name), nn.Parameter(coefficients))

    def weights(self) -> dict[str, Tensor]:
        """Return the composed weights by the names that they have in the dense layer."""
        parameters = self._parameters
        return {name: compose(parameters[basis_name(name)], parameters[coefficients_name(name)]) for name in self.sizes}  # type: ignore[arg-type]

    def forward(self, *inputs: Any) -> Any:
        """Compute what the dense layer computes with the composed weights."""
        layer = self.skeleton[0].train(self.training)
        others = {name: getattr(self, name) for name in self.others}
        return torch.func.functional_call(layer, {**others, **self.weights()}, inputs)

    def penalty(self) -> Tensor:
        """Return Σ ‖V·Vᵀ − I‖² over the layer's bases."""
        terms = [orthogonality(getattr(self, basis_name(name))) for name in self.sizes]
        return torch.stack(terms).sum() if len(terms) > 1 else terms[0]


def basis_name(weight: str) -> str:
    """Return the name of a weight's basis.

    >>> basis_name("weight"), coefficients_name("weight_hh_l0")
    ('basis', 'coefficients_hh_l0')
    """
    return weight.replace("weight", "basis", 1)


def coefficients_name(weight: str) -> str:
    """Return the name of a weight's coefficients."""
    return weight.replace("weight", "coefficients", 1)


def composed_layers(network: nn.Module) -> dict[str, Composed]:
    """Return the composed layers of ``network`` by name."""
    return {name: layer for name, layer in network.named_modules() if isinstance(layer, Composed)}


@torch.no_grad()
def dense_state(network: nn.Module) -> dict[str, Tensor]:
    """Return the state of the plain network that ``network`` composes: every weight is composed once."""
    state = dict(network.state_dict())
    for layer_name, layer in composed_layers(network).items():
        for weight, value in layer.weights().items():
            del state[f"{layer_name}.{basis_name(weight)}"], state[f"{layer_name}.{coefficients_name(weight)}"]
            state[f"{layer_name}.{weight}"] = value
    return state
