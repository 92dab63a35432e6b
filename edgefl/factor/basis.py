"""Neural composition (FLANC, Mei et al., NeurIPS 2022): the weights of all widths are linear combinations of one shared basis.

A weight (T, S, k₁, k₂) has T outputs and S inputs. For each output, it is cut along the inputs into S/R₁ fragments of R₁ consecutive
channels. Each fragment is a combination of the same R₂ basis vectors (Eq. 2). Recurrent and linear weights (T, S) are the case k₁ = k₂ = 1.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.onnxgrad.stateless import called

Init = Literal["plain", "he"]
"""The size of first composed weights: that of the plain layer's, or He's."""


@dataclass(frozen=True)
class BasisSize:
    """The size of one weight's basis: R₂ vectors (R₁, k₁, k₂).

    Attributes:
        channels: R₁, the input channels of a basis vector.
        count: R₂, the number of basis vectors.
    """

    channels: int
    count: int

    def check(self, name: str, shapes: Sequence[tuple[int, ...]]) -> None:
        """Raise :class:`ConfigError` unless R₁ divides S of the weight ``name`` at all widths and R₂ vectors can be orthonormal."""
        inputs, _, area = _channels(shapes)
        if wrong := [s for s in inputs if s % self.channels]:
            raise ConfigError(
                f"layer {name}: R1 = {self.channels} does not divide {wrong[0]} input channels; {_listed(inputs)} are needed"
            )
        if not 1 <= self.count <= (most := area * self.channels):
            raise ConfigError(
                f"layer {name}: R2 = {self.count} bases of {area}x{self.channels} numbers cannot be orthonormal; expected 1 to {most}"
            )


@dataclass(frozen=True)
class BasisRule:
    """How R₁ and R₂ follow from a weight's shapes (T, S, …) at the widths of a run, and at width 1.

    R₁ is the largest common divisor of S at all widths that is at most ``share``·S′, with S′ = min(S, √(S·T)) at width 1. The default, an
    eighth as in the authors' code, is half of the channels at width .25, where the paper's accuracy peaks (section 3.4).

    R₂ = ⌊``bases``·√(k₁k₂)·R₁·max(1, T/S′)⌋: a quarter of the outputs of a 3×3 convolution at width 1, as in the authors' code. It is at
    most 15/16 of k₁k₂R₁, as in the paper's recurrent layer (Table 1), so that the coefficients are fewer than the dense weights.

    A first convolution (``whole``), or a weight with one input channel, has R₁ = S and R₂ = k₁k₂S, at most T at the smallest width.

    >>> BasisRule().size([(32, 16, 3, 3), (64, 32, 3, 3)], (128, 64, 3, 3))
    BasisSize(channels=8, count=32)
    """

    share: float = 1 / 8
    bases: float = 2 / 3

    def size(self, shapes: Sequence[tuple[int, ...]], full: tuple[int, ...], whole: bool = False) -> BasisSize:
        """Return R₁ and R₂ of a weight from its shapes (T, S, …) at all widths, and its shape ``full`` at width 1."""
        inputs, outputs, area = _channels(shapes)
        if (whole and len(set(inputs)) == 1) or max(inputs) == 1:
            return BasisSize(inputs[0], min(area * inputs[0], min(outputs)))
        divisor, most = math.gcd(*inputs), self.share * _balanced(full) + 1e-9
        channels = max(d for d in range(1, divisor + 1) if divisor % d == 0 and (d <= most or d == 1))
        return BasisSize(channels, self.count(channels, full))

    def count(self, channels: int, full: tuple[int, ...]) -> int:
        """Return R₂ for R₁ = ``channels`` of a weight with the shape ``full`` at width 1."""
        area = math.prod(full[2:])
        wished = self.bases * math.sqrt(area) * channels * max(1.0, full[0] / _balanced(full))
        return max(1, min(15 * area * channels // 16, math.floor(wished + 1e-9)))


def _balanced(full: tuple[int, ...]) -> float:
    """Return S′ = min(S, √(S·T)): fewer than S channels if a weight has few outputs."""
    return min(full[1], math.sqrt(full[0] * full[1]))


def check_divisor(name: str, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise :class:`ConfigError` if S of the weight ``name`` has no common divisor above 1 at all widths, so that none can be R₁."""
    inputs = _channels(shapes)[0]
    if math.gcd(*inputs) == 1 < min(inputs):
        raise ConfigError(
            f"layer {name}: its {_listed(inputs)} input channels at the run's widths have no common divisor for R1; choose widths whose"
            f' channels have one, such as 1, 0.5 and 0.25, or accept R1 = 1: method_options.basis_channels = {{"{name}" = 1}}'
        )


def compose(basis: Tensor, coefficients: Tensor) -> Tensor:
    """Return the weight (T, S, k₁, k₂) or (T, S): W = V·U, fragment by fragment (Eq. 1 and 2).

    ``basis`` is V, (R₂, R₁, k₁, k₂) or (R₂, R₁), with a basis vector per row; ``coefficients`` is U, (T, S/R₁, R₂).

    >>> compose(torch.tensor([[1.0, 0.0], [0.0, -1.0]]), torch.tensor([[[2.0, 3.0], [5.0, 7.0]]])).tolist()
    [[2.0, -3.0, 5.0, -7.0]]
    """
    count, channels, *kernel = basis.shape
    outputs, fragments, _ = coefficients.shape
    # One product of two plain matrices: its rows are already in the order of a torch weight.
    product = coefficients.reshape(outputs * fragments, count) @ basis.reshape(count, -1)
    return product.view(outputs, fragments * channels, *kernel)


def orthogonality(basis: Tensor) -> Tensor:
    """Return ‖V·Vᵀ − I‖²_F of a basis (R₂, …), a scalar: the regulariser of Eq. 3.

    >>> orthogonality(torch.tensor([[2.0, 0.0], [0.0, 1.0]])).item()
    9.0
    """
    rows = basis.flatten(1)
    return (rows @ rows.T - torch.eye(len(rows), dtype=rows.dtype, device=rows.device)).square().sum()


def first_basis(shape: tuple[int, ...]) -> Tensor:
    """Return random orthonormal basis vectors, float32 of ``shape`` (R₂, R₁, …), at which the regulariser is zero."""
    basis = torch.empty(shape)
    torch.nn.init.orthogonal_(basis.view(shape[0], -1))
    return basis


def first_coefficients(shape: tuple[int, ...], plain: Tensor, init: Init = "plain") -> Tensor:
    """Return normal coefficients U, float32 of ``shape`` (T, S/R₁, R₂), for which V·U has the mean square of ``plain`` (T, S, …).

    With ``init`` "he" its mean square is 2/(k₁k₂S). A basis vector has k₁k₂R₁ numbers and length 1, so a coefficient's mean square is
    k₁k₂R₁/R₂ times that of a weight.
    """
    _, fragments, count = shape
    inputs = plain[0].numel()
    square = 2 / inputs if init == "he" else float(plain.double().square().mean())
    return torch.randn(shape) * (square * inputs / fragments / count) ** 0.5


def _channels(shapes: Sequence[tuple[int, ...]]) -> tuple[list[int], list[int], int]:
    """Return S and T at every width, and k₁k₂."""
    return [shape[1] for shape in shapes], [shape[0] for shape in shapes], math.prod(shapes[0][2:])


def _listed(inputs: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(set(inputs), reverse=True)))


class Composed(nn.Module):
    """A convolution, linear or recurrent layer that composes its weights in every pass.

    In place of a composed weight, such as ``weight_hh_l0``, it has the parameters ``basis_hh_l0`` (R₂, R₁, k₁, k₂) and
    ``coefficients_hh_l0`` (T, S/R₁, R₂).

    Attributes:
        sizes: name of each composed weight → R₁ and R₂.
        others: names of the dense layer's other parameters, which this layer shares.
        skeleton: the dense layer on the ``meta`` device, which computes with the composed weights.
    """

    def __init__(self, dense: nn.Module, skeleton: nn.Module, sizes: Mapping[str, BasisSize]) -> None:
        super().__init__()
        self.sizes = dict(sizes)
        self.others = tuple(name for name, _ in dense.named_parameters() if name not in sizes)
        # In a tuple, so that its parameters are not this module's.
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
        """Return name in the dense layer → composed weight."""
        parameters = self._parameters
        return {name: compose(parameters[basis_name(name)], parameters[coefficients_name(name)]) for name in self.sizes}  # type: ignore[arg-type]

    def forward(self, *inputs: Any) -> Any:
        """Compute what the dense layer computes with the composed weights."""
        layer = self.skeleton[0].train(self.training)
        others = {name: getattr(self, name) for name in self.others}
        return called(layer, {**others, **self.weights()}, inputs)

    @torch.no_grad()
    def fill(self, dense: nn.Module, init: Init = "plain") -> None:
        """Draw initial bases and coefficients, in place.

        The composed weights have the mean square of the initial weights of the plain layer ``dense``. With ``init`` "he", those that a
        rectifier follows, which recurrent ones do not, have He's 2/(k₁k₂S).
        """
        for weight in self.sizes:
            basis, coefficients = getattr(self, basis_name(weight)), getattr(self, coefficients_name(weight))
            basis.copy_(first_basis(tuple(basis.shape)))
            rule = init if weight == "weight" else "plain"
            coefficients.copy_(first_coefficients(tuple(coefficients.shape), getattr(dense, weight), rule))

    def penalty(self, strength: float, mean: bool) -> Tensor:
        """Return Σ ``strength``·‖V·Vᵀ − I‖²_F over the layer's bases, a scalar; with ``mean``, the mean of the R₂² squares."""
        terms = [
            (strength / size.count**2 if mean else strength) * orthogonality(getattr(self, basis_name(name)))
            for name, size in self.sizes.items()
        ]
        return torch.stack(terms).sum() if len(terms) > 1 else terms[0]


def basis_name(weight: str) -> str:
    """Return the name of the parameter with the basis of ``weight``.

    >>> basis_name("weight"), coefficients_name("weight_hh_l0")
    ('basis', 'coefficients_hh_l0')
    """
    return weight.replace("weight", "basis", 1)


def coefficients_name(weight: str) -> str:
    """Return the name of the parameter with the coefficients of ``weight``."""
    return weight.replace("weight", "coefficients", 1)


def composed_layers(network: nn.Module) -> dict[str, Composed]:
    """Return the composed layers of ``network`` by name."""
    return {name: layer for name, layer in network.named_modules() if isinstance(layer, Composed)}


@torch.no_grad()
def dense_state(network: nn.Module) -> dict[str, Tensor]:
    """Return the state_dict of the plain network that computes the same as ``network``, with every weight composed."""
    state = dict(network.state_dict())
    for layer_name, layer in composed_layers(network).items():
        for weight, value in layer.weights().items():
            del state[f"{layer_name}.{basis_name(weight)}"], state[f"{layer_name}.{coefficients_name(weight)}"]
            state[f"{layer_name}.{weight}"] = value
    return state
