"""The module of a layer whose weights are composed of a shared basis and coefficients in every forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from edgefl.factor.basis import BasisSize, compose, orthogonality


class Composed(nn.Module):
    """Replaces a convolution, linear or recurrent layer, and computes the same with composed weights.

    For every composed weight, such as ``weight_hh_l0``, it holds ``basis_hh_l0`` (R₂, R₁, k₁, k₂) and ``coefficients_hh_l0`` (T, S/R₁, R₂).
    The other parameters are those of ``dense``, under their names. ``skeleton`` is the same layer on the ``meta`` device; ``sizes`` has R₁
    and R₂ of each composed weight by name.
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
