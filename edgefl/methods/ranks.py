"""Which layers low-rank methods factorize, and at which ranks: one ratio for all layers, or ranks from the singular values."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.layers import factor_weights, low_rank, parameters_of_rank, strides_first
from edgefl.factor.plan import LayerChoices, allocate
from edgefl.factor.svd import Factors
from edgefl.methods.axes import Need
from edgefl.methods.layer_rules import FROZEN, kept_layers, kind_of, why_dense
from edgefl.methods.state import Tensors
from edgefl.models.base import Architecture, replace_layer, stem_and_classifier, weighted_layers
from edgefl.models.valueless import on_meta
from edgefl.records import Observed, Place, Tier
from edgefl.util.convolutions import Convolution

Ranks = dict[str, int]
BY_DESIGN = "by design"
"""Why a layer is not factorized: the network's ``hybrid_dense`` lists it."""
Layer = Convolution | nn.Linear
_FORMLESS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.RNNBase, nn.MultiheadAttention)
NEW_FACTORS: dict[Need, str] = {
    "stale_updates": "every step decomposes the weights again, so an update of older factors does not match",
    "fixed_coordinates": "a client's factors are a fresh decomposition every round: remembered gradients and control variates would belong "
    "to other coordinates",
}
"""The capabilities that a method lacks if the server decomposes dense weights anew in every round, with the reasons."""


def dense_reasons(network: nn.Module, rules: str = "", adapted: bool = False) -> dict[str, str]:
    """Return each convolution and linear layer of ``network`` → why it is not factorized, "" if it may be.

    ``rules`` is the option ``factorize``. Without rules, convolutions and linear layers are factorized, and 1×1 convolutions only if no
    other layer can be. Grouped convolutions, those that pad with other values than zeros, and the layers of
    :func:`~edgefl.methods.layer_rules.kept_layers` never are. Frozen ones may be ``adapted``.
    """
    layers = dict(weighted_layers(network))
    stem, classifier = stem_and_classifier(network)
    by_design: tuple[str, ...] = getattr(network, "hybrid_dense", ())
    spared = {name: BY_DESIGN for name in layers if any(f"{name}.".startswith(f"{dense}.") for dense in by_design)}
    spared |= {str(stem): "stem", classifier: "classifier"}
    never = never_factorized(network, adapted)
    reasons = why_dense(layers, rules, ("conv", "linear"), spared, never)
    return reasons if "" in reasons.values() else why_dense(layers, rules, ("conv", "linear", "1x1"), spared, never)


def never_factorized(network: nn.Module, adapted: bool) -> dict[str, str]:
    """Return layer → why it has no low-rank form, of the convolutions and linear layers of ``network`` that have none."""
    reasons = {name: reason for name, reason in kept_layers(network).items() if not (adapted and reason == FROZEN)}
    return {name: reason for name, layer in weighted_layers(network) if (reason := reasons.get(name) or _formless(layer))}


def rank_candidates(network: nn.Module, rules: str = "", adapted: bool = False) -> dict[str, Layer]:
    """Return name → layer of all layers that may be factorized under ``rules``, see :func:`dense_reasons`.

    Raises:
        ConfigError: no layer of the network can be factorized, or the rules are wrong.
    """
    reasons = dense_reasons(network, rules, adapted)
    candidates = {name: layer for name, layer in weighted_layers(network) if not reasons[name]}
    if not candidates:
        formless = Counter(
            f"{kind_of(layer)} without a low-rank form" for layer in network.modules() if isinstance(layer, _FORMLESS)
        )
        counts = ", ".join(f"{number} {reason}" for reason, number in (Counter(reasons.values()) + formless).items())
        never = never_factorized(network, adapted)
        named = next((name for name in reasons if name not in never), "")
        remedy = f"name layers, such as --method-option factorize={named}, or " if named else ""
        raise ConfigError(f"no layer can be factorized ({counts}); {remedy}choose a method that cuts width, such as heterofl")
    return candidates


def hybrid_ranks(network: nn.Module, ratio: float, rules: str = "") -> Ranks:
    """Return layer → rank r = ⌊``ratio``·n⌋ of the layers that are smaller in factors; empty at ratio 1.

    n is the number of the layer's output channels, or its full rank if that is smaller. The factors of an unrolled weight (a × b) are
    smaller if r < a·b/(a + b).

    Raises:
        ConfigError: no layer can be factorized under ``rules``.

    >>> hybrid_ranks(nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3), nn.Flatten(), nn.Linear(64, 10)), 0.25)
    {'1': 4}
    """
    if ratio >= 1:
        return {}
    candidates = rank_candidates(network, rules)
    ranks = {name: _rank(layer, ratio) for name, layer in candidates.items()}
    return {n: rank for n, rank in ranks.items() if parameters_of_rank(candidates[n], rank) < candidates[n].weight.numel()}


def ranked(network: nn.Module, ranks: Ranks) -> nn.Module:
    """Return ``network`` with low-rank layers of arbitrary factors in place of those that ``ranks`` names."""
    for name, rank in ranks.items():
        replace_layer(network, name, low_rank(network.get_submodule(name), rank))  # type: ignore[arg-type]
    return network


def truncated_state(tensors: Tensors, ranks: Ranks, factors: Mapping[str, Factors]) -> tuple[dict[str, Tensor], dict[str, Place]]:
    """Return the tensors of the dense network ``tensors`` with the layers ``ranks`` in factors, and name → place in ``tensors``.

    ``factors``: layer → decomposition, at least up to the layer's rank.
    """
    placed: dict[str, tuple[Tensor, Place]] = {}
    for name, tensor in tensors.items():
        layer, _, kind = name.rpartition(".")
        if layer in ranks and kind == "weight":
            u, v = factor_weights(*factors[layer].leading(ranks[layer]), tuple(tensor.shape))
            components = Place(name, (slice(0, ranks[layer]),))
            placed |= {f"{layer}.u.weight": (u, components), f"{layer}.v.weight": (v, components)}
        else:
            placed[f"{layer}.v.bias" if layer in ranks and kind == "bias" else name] = tensor.clone(), Place(name, (slice(None),))
    return {name: tensor for name, (tensor, _) in placed.items()}, {name: place for name, (_, place) in placed.items()}


def energy_of_tiers(bands: Mapping[str, Sequence[float]]) -> list[float]:
    """Return the share of all layers' energy in each of the ``bands`` of :meth:`Figures.energy_bands`; [] if the energy is zero.

    >>> energy_of_tiers({"conv1": (3.0, 1.0, 0.0), "conv2": (5.0, 1.0, 0.0)})
    [0.8, 0.2, 0.0]
    """
    whole = sum(map(sum, bands.values()))
    return [sum(energies) / whole for energies in zip(*bands.values(), strict=True)] if whole else []


def energy_figures(tiers: Iterable[Tier], bands: Mapping[str, Sequence[float]]) -> Observed:
    """Return what a round's record has of ``bands``: shares of the energy of all layers together, and of each layer; {} without energy."""
    of_all = energy_of_tiers(bands)
    if not of_all:
        return {}
    names = [f"energy first held by tier {tier.label}" for tier in sorted(tiers)]
    if any(energies[-1] for energies in bands.values()):
        names.append("energy held by no tier")

    def named(shares: Sequence[float]) -> dict[str, float]:
        return {name: round(share, 6) for name, share in zip(names, shares, strict=False)}

    by_layer = {layer: named(energy_of_tiers({layer: energies})) for layer, energies in bands.items()}
    return {"energy": named(of_all), "energy_by_layer": by_layer}


def _rank(layer: Layer, ratio: float) -> int:
    """Return ⌊γ·n⌋, at least 1, with n output channels or the unrolled weight's number of rows, if that is smaller."""
    rows = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels * layer.kernel_size[0]
    return max(1, math.floor(ratio * min(layer.weight.shape[0], rows) + 1e-9))


def _formless(layer: Layer) -> str:
    """Return why layers of its kind have no low-rank form, "" if they have one."""
    return kind_of(layer) if not isinstance(layer, nn.Linear) and layer.groups > 1 else ""


def spectral_ranks(architecture: Architecture, ratio: float, values: Tensors, relative: bool = True, rules: str = "") -> Ranks:
    """Return layer → rank with the least truncation error at no more than the cost of the uniform ranks of ``ratio`` (below 1).

    The costs are summed over layers: MACs of a forward pass, weights, and the values between a layer's two factors, which a training step
    stores. A layer may also stay dense; it is then missing in the result. ``values`` has all singular values of each layer's unrolled
    weight, largest first. With ``relative`` a layer's error is a share of its weight's energy.
    """
    network = architecture.skeleton()
    candidates, uniform = rank_candidates(network, rules), hybrid_ranks(network, ratio, rules)
    shapes = _shapes(network, architecture)
    layers, limits, start = [], np.zeros(3, np.int64), {}
    for name, layer in candidates.items():
        absolute = np.cumsum(values[name].double().numpy() ** 2)
        energy = absolute / absolute[-1] if relative and absolute[-1] > 0 else absolute
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
    """Return (MACs, weights, values between the factors) per unit of rank, and of the dense layer; shapes are one sample's."""
    unit, numel = parameters_of_rank(layer, 1), layer.weight.numel()
    if isinstance(layer, nn.Linear):
        positions = math.prod(inputs[:-1])
        return np.array([positions * unit, unit, positions]), np.array([positions * numel, numel, 0])
    after = math.prod(outputs[1:])
    between = after if strides_first(layer) else outputs[1] * math.prod(inputs[2:])
    k1, *k2 = layer.kernel_size
    macs = between * layer.in_channels * k1 + after * layer.out_channels * math.prod(k2)
    return np.array([macs, unit, between]), np.array([after * numel, numel, 0])


def _shapes(network: nn.Module, architecture: Architecture) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return layer → shapes of its input and output, for one sample."""
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def keep(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        shapes[name] = tuple(inputs[0].shape[1:]), tuple(output.shape[1:])

    handles = [layer.register_forward_hook(partial(keep, name)) for name, layer in weighted_layers(network)]
    with on_meta(), torch.no_grad():
        network.eval()(architecture.samples(2))
    for handle in handles:
        handle.remove()
    return shapes
