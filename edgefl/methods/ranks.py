"""The layers that low-rank methods factorize, and their ranks: one ratio for all layers, or a plan from the weights' spectra."""

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.layers import factor_weights, low_rank, parameters_of_rank
from edgefl.factor.plan import LayerChoices, allocate
from edgefl.factor.svd import Factors
from edgefl.methods.state import Tensors
from edgefl.models.base import Architecture, replace_layer, stem_and_classifier, weighted_layers
from edgefl.records import Place

Ranks = dict[str, int]
Layer = nn.Conv2d | nn.Linear


def rank_candidates(network: nn.Module) -> dict[str, Layer]:
    """Return the layers that may be factorized, by name: all except stem, classifier, 1×1 and grouped convolutions, ``hybrid_dense``.

    Raises:
        ConfigError: no layer of the network can be factorized.
    """
    keep = stem_and_classifier(network)
    dense: tuple[str, ...] = getattr(network, "hybrid_dense", ())
    candidates = {
        name: layer
        for name, layer in weighted_layers(network)
        if name not in keep and not any(name == d or name.startswith(d + ".") for d in dense) and _factorizable(layer)
    }
    if not candidates:
        raise ConfigError("no layer can be factorized: all are the stem, 1x1 convolutions, grouped, or the classifier")
    return candidates


def hybrid_ranks(network: nn.Module, ratio: float) -> Ranks:
    """Return layer → rank at rank ratio ``ratio``, nothing at 1; raise :class:`ConfigError` if no layer can be factorized."""
    if ratio >= 1:
        return {}
    candidates = rank_candidates(network)
    ranks = {name: _rank(layer, ratio) for name, layer in candidates.items()}
    return {n: rank for n, rank in ranks.items() if parameters_of_rank(candidates[n], rank) < candidates[n].weight.numel()}


def ranked(network: nn.Module, ranks: Ranks) -> nn.Module:
    """Return ``network`` with low-rank layers in place of those that ``ranks`` names."""
    for name, rank in ranks.items():
        replace_layer(network, name, low_rank(network.get_submodule(name), rank))  # type: ignore[arg-type]
    return network


def truncated_state(tensors: Tensors, ranks: Ranks, factors: Mapping[str, Factors]) -> dict[str, tuple[Tensor, Place]]:
    """Return name → tensor and its place in ``tensors``, of the network that has the layers ``ranks`` in ``factors``."""
    found: dict[str, tuple[Tensor, Place]] = {}
    for name, tensor in tensors.items():
        layer, _, kind = name.rpartition(".")
        if layer in ranks and kind == "weight":
            u, v = factor_weights(*factors[layer].leading(ranks[layer]), tuple(tensor.shape))
            components = Place(name, (slice(0, ranks[layer]),))
            found |= {f"{layer}.u.weight": (u, components), f"{layer}.v.weight": (v, components)}
        else:
            found[f"{layer}.v.bias" if layer in ranks else name] = tensor.clone(), Place(name, (slice(None),))
    return found


def _rank(layer: nn.Conv2d | nn.Linear, ratio: float) -> int:
    """Return ⌊γ·n⌋ with n at most the rows of the unrolled weight: a larger rank adds nothing."""
    rows = layer.in_channels * layer.kernel_size[0] if isinstance(layer, nn.Conv2d) else layer.in_features
    return max(1, math.floor(ratio * min(layer.weight.shape[0], rows) + 1e-9))


def _factorizable(layer: Layer) -> bool:
    if isinstance(layer, nn.Linear):
        return True
    plain = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return plain and layer.groups == 1 and layer.kernel_size != (1, 1)


def spectral_ranks(architecture: Architecture, ratio: float, values: Tensors, relative: bool = True) -> Ranks:
    """Return a rank per layer with the least truncation error at no more than the uniform ranks' cost.

    The budgets are those of the ranks of ``ratio`` (below 1), summed over layers: MACs of a forward pass, weights, and values between a
    layer's two factors, which a training step holds. A layer may also stay dense. ``values`` has all singular values of each layer's
    unrolled weight, largest first; with ``relative`` a layer's error is a share of its weights' energy.
    """
    network = architecture.skeleton()
    candidates, uniform = rank_candidates(network), hybrid_ranks(network, ratio)
    shapes = _shapes(network, architecture)
    layers, limits, start = [], np.zeros(3, np.int64), {}
    for name, layer in candidates.items():
        kept = np.cumsum(values[name].double().numpy() ** 2)
        energy = kept / kept[-1] if relative and kept[-1] > 0 else kept
        numel, unit = layer.weight.numel(), parameters_of_rank(layer, 1)
        largest = min(math.ceil(numel / unit) - 1, len(energy))
        per_rank, dense = _costs(layer, *shapes[name])
        ranks = np.arange(1, largest + 1)
        costs = np.vstack([ranks[:, None] * per_rank, dense])
        # The choice after the largest rank stands for the dense layer.
        layers.append(LayerChoices(name, tuple(range(1, largest + 2)), np.append(energy[:largest], energy[-1]), costs))
        start[name] = uniform.get(name, largest + 1)
        limits += costs[start[name] - 1]
    plan = allocate(layers, limits, start)
    assert plan is not None  # the uniform ranks fit themselves
    return {layer.name: plan.ranks[layer.name] for layer in layers if plan.ranks[layer.name] < layer.ranks[-1]}


def _costs(layer: Layer, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return (MACs, weights, values in between) of one unit of rank, and of the dense layer; shapes are one sample's."""
    unit, numel = parameters_of_rank(layer, 1), layer.weight.numel()
    if isinstance(layer, nn.Linear):
        positions = math.prod(inputs[:-1])
        return np.array([positions * unit, unit, positions]), np.array([positions * numel, numel, 0])
    between, after = outputs[1] * inputs[2], outputs[1] * outputs[2]
    k1, k2 = layer.kernel_size
    macs = between * layer.in_channels * k1 + after * layer.out_channels * k2
    return np.array([macs, unit, between]), np.array([after * numel, numel, 0])


def _shapes(network: nn.Module, architecture: Architecture) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return layer → shapes of its input and output for one sample."""
    found: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def keep(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        found[name] = tuple(inputs[0].shape[1:]), tuple(output.shape[1:])

    handles = [layer.register_forward_hook(partial(keep, name)) for name, layer in weighted_layers(network)]
    with torch.device("meta"), torch.no_grad():
        network.eval()(architecture.samples(2))
    for handle in handles:
        handle.remove()
    return found
