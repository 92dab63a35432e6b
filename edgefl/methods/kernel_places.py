"""Which layers of a network have principal kernels, how many kernels a tier has of each, and their places in the global state."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from edgefl.factor.kernels import KernelLayer, kept_kernels, kept_outputs, kernels_of
from edgefl.factor.width import stacked_in
from edgefl.methods.layer_rules import kept_layers
from edgefl.methods.momenta import momentum_name, parameter_of
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture, stem_and_classifier, weighted_layers
from edgefl.records import Place, Tier

Gates = dict[str, dict[str, int]]


def gates_of(network: nn.Module, pointwise: bool = False) -> Gates:
    """Return layer → weight → number of stacked matrices: the gates of a recurrent layer, else 1.

    These are recurrent layers, linear layers and convolutions of one group with kernels above 1×1, or ``pointwise`` of any kernel, except
    the stem, the classifier and the layers of :func:`~edgefl.methods.layer_rules.kept_layers`.
    """
    keep, stacks = {*stem_and_classifier(network), *kept_layers(network)}, stacked_in(network)
    gates: Gates = {}
    for name, layer in weighted_layers(network):
        if name not in keep and (
            isinstance(layer, nn.Linear) or (layer.groups == 1 and (pointwise or math.prod(layer.kernel_size) > 1))
        ):
            gates[name] = {"weight": 1}
    for name, module in network.named_modules():
        if isinstance(module, nn.RNNBase) and name not in keep:
            weights = [n for n, _ in module.named_parameters() if n.startswith(("weight_ih", "weight_hh"))]
            gates[name] = {n: stacks.get(f"{name}.{n}", 1) for n in weights}
    return gates


def kernel_counts(architecture: Architecture, tier: Tier) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return layer → weight → r, the number of kernels that ``tier`` has, of each of its matrices.

    Raises:
        ConfigError: the keep ratio leaves a matrix no kernel, or more than it has.
    """
    network = architecture.skeleton()
    counts: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, weights in gates_of(network).items():
        for weight, gates in weights.items():
            rows, *rest = getattr(network.get_submodule(name), weight).shape
            count = kept_kernels(name, tier.ratio, kernels_of((rows // gates, *rest)))
            counts.setdefault(name, {})[weight] = (count,) * gates
    return counts


def matrices(
    name: str, weight: str, counts: Sequence[int], place: Place, share: float, state: GlobalState
) -> Iterator[KernelLayer]:
    """Yield the matrices of a layer's weight.

    Args:
        name: the layer's name.
        weight: the weight's name in the layer, such as ``weight_hh_l0``.
        counts: r, the number of kernels, of each matrix.
        place: the place of the tier's narrow dense weight in ``state``.
        share: the share of its outputs that a convolution computes (:func:`~edgefl.factor.kernels.kept_outputs`).
        state: the server's state.
    """
    target = f"{name}.{weight}"
    rows, *rest = state.tensors[target].shape
    shape = (rows // len(counts), *rest)
    taken, columns = (torch.arange(size)[index].flatten() for size, index in zip((rows, rest[0]), place.index, strict=False))
    for gate, count in enumerate(counts):
        single = weight == "weight"
        part = taken[(taken >= gate * shape[0]) & (taken < (gate + 1) * shape[0])] - gate * shape[0]
        outputs = kept_outputs((len(part), *rest), share)
        inside = name if outputs == len(part) else f"{name}.first"
        prefix, suffix = (inside, ".weight") if single else (f"{target}.{gate}", "")
        key = target if single else f"{target}[{gate}]"
        yield KernelLayer(target, key, shape, gate, f"{prefix}.u{suffix}", f"{prefix}.v{suffix}", part[:outputs], columns, count)


def dense_place(name: str, dense: Mapping[str, Place]) -> Place:
    """Return the place of a client's tensor that is no factor, or of its momentum, given name → place of the dense network.

    Only the bias has another name in the dense network, on a client that of Conv_U.
    """
    parameter = parameter_of(name)
    place = dense[parameter if parameter in dense else parameter.removesuffix(".u.bias") + ".bias"]
    return place if parameter == name else replace(place, target=momentum_name(place.target))
