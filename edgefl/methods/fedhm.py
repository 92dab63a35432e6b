"""FedHM: a tier is a rank ratio, and its layers are truncated singular value decompositions of the global ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.layers import LowRank, composed_weight, factor_weights, frobenius_sq, low_rank, parameters_of_rank
from edgefl.factor.svd import Factors, factorize, unroll
from edgefl.methods.base import GlobalState, Method, MethodConfig, WeightedSum, checked, masked_cross_entropy
from edgefl.models.base import Architecture, replace_layer, stem_and_classifier, weighted_layers
from edgefl.records import Batch, Place, Submodel, Tier, Update
from edgefl.registry import method

Ranks = dict[str, int]


class FedHMConfig(MethodConfig):
    """Options of FedHM.

    Attributes:
        frobenius_decay: λ of λ/2·‖UVᵀ‖²_F, in place of weight decay on factorized layers.
        temperature: τ of the aggregation weights; None takes the paper's: 5 for dynamic tiers, ∞ (equal weights) for fixed ones.
        dynamic_tiers: whether clients change tier between rounds; set from the run's tier assignment.
    """

    frobenius_decay: float = Field(1e-4, ge=0, allow_inf_nan=False)
    temperature: float | None = Field(None, gt=0)
    dynamic_tiers: bool = False


@method("fedhm")
class FedHM(Method):
    """W ≈ U Vᵀ at rank r = ⌊γ·n⌋: a k×1 convolution to r channels and a 1×k convolution to n (section 2.2); ratio 1 is dense.

    Not factorized: the stem, 1×1 convolutions, the classifier, and what the network names in ``hybrid_dense`` (ResNet-18: the first
    residual block; ResNet-34: layers 1 and 2; Tables 5 and 6). The server multiplies every update back to full shape (Eq. 1) and
    averages with α_p = softmax(γ_p/τ) (Eq. 2). One decomposition per layer and round serves every tier: the smaller ranks are leading
    columns of the largest.

    Differs from the paper: r = ⌊γ·n⌋ with n output channels (at most the full rank), as its parameter counts require, where its text
    says γ times the full rank; a layer whose factors would hold as many weights as the dense one stays dense.
    """

    config: FedHMConfig

    config_class: ClassVar[type[MethodConfig]] = FedHMConfig
    title: ClassVar[str] = "FedHM"
    paper: ClassVar[str] = "Yao et al., FedHM: Efficient Federated Learning for Heterogeneous Models via Low-rank Factorization"
    tier_meaning: ClassVar[str] = (
        "rank ratio γ: the share of output channels that a factorized layer keeps as its rank; 1 is dense"
    )
    travels: ClassVar[str] = "two factors of each factorized layer and the dense rest, both ways"
    refuses: ClassVar[Mapping[str, str]] = {
        "dyn": "a client's factors are a fresh decomposition every round: its memory of gradients would be of other coordinates",
        "scaffold": "a client's factors are a fresh decomposition every round: control variates would be of other coordinates",
    }
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "unchanged clients leave the state unchanged": "a tier below 1 sends back the truncated weights, and Eq. 1 puts those in "
        "place of the full ones: what the truncation cut off is gone",
    }

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the hybrid network: dense where the paper keeps it so, two small layers elsewhere."""
        network = architecture.build()
        return ranked(network, hybrid_ranks(network, tier.ratio))

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        """Return dense tensors where the tier has them and spectral factors elsewhere."""
        ranks = _ranks(state, tier)
        tensors: dict[str, Tensor] = {}
        places: dict[str, Place] = {}
        for name, tensor in state.tensors.items():
            layer, _, kind = name.rpartition(".")
            if layer not in ranks:
                tensors[name], places[name] = tensor.clone(), Place(name, (slice(None),))
            elif kind == "bias":
                tensors[f"{layer}.v.bias"], places[f"{layer}.v.bias"] = tensor.clone(), Place(name, (slice(None),))
            else:
                left, right = self._factors(state, layer).leading(ranks[layer])
                u, v = factor_weights(left, right, tuple(tensor.shape))
                components = Place(name, (slice(0, ranks[layer]),))
                tensors[f"{layer}.u.weight"], places[f"{layer}.u.weight"] = u, components
                tensors[f"{layer}.v.weight"], places[f"{layer}.v.weight"] = v, components
        return Submodel(tier, tensors, partial(self.network, state.architecture, tier), places)

    def _factors(self, state: GlobalState, layer: str) -> Factors:
        """Return the layer's decomposition at the largest rank that any tier needs, computed once per state."""
        largest = max(ranks[layer] for tier in state.tiers if layer in (ranks := _ranks(state, tier)))
        return state.once(f"svd {layer}", lambda: factorize(unroll(state.tensors[f"{layer}.weight"]), largest))

    def local_loss(self, module: nn.Module, batch: Batch, received: Mapping[str, Tensor]) -> Tensor:
        """Return masked cross-entropy + λ/2 Σ ‖UVᵀ‖²_F over the factorized layers (section 2.2, Frobenius decay)."""
        loss = masked_cross_entropy(module(batch.x), batch)
        if self.config.frobenius_decay:
            for layer in _low_rank_layers(module):
                loss = loss + self.config.frobenius_decay / 2 * frobenius_sq(layer)
        return loss

    def decayed(self, module: nn.Module) -> list[nn.Parameter]:
        """Return every parameter but the factors, which Frobenius decay acts on."""
        factors = {p for layer in _low_rank_layers(module) for p in (layer.u.weight, layer.v.weight)}
        return [p for p in module.parameters() if p not in factors]

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Multiply every update back to full shape and average with softmax(γ/τ)."""
        tau = self.config.temperature or (5.0 if self.config.dynamic_tiers else math.inf)
        shapes = {tier: self.shapes(state.architecture, tier) for tier in state.tiers}
        total = WeightedSum(state.tensors)
        for update in checked(updates, lambda update: shapes[update.tier]):
            weight = math.exp(update.tier.ratio / tau)
            ranks = _ranks(state, update.tier)
            for name in state.tensors:
                layer, _, kind = name.rpartition(".")
                if layer not in ranks:
                    full = update.tensors[name]
                elif kind == "bias":
                    full = update.tensors[f"{layer}.v.bias"]
                else:
                    full = composed_weight(update.tensors[f"{layer}.u.weight"], update.tensors[f"{layer}.v.weight"])
                total.add(name, full, weight)
        return state.replace(total.mean(state.tensors))


def rank_candidates(network: nn.Module) -> dict[str, nn.Conv2d | nn.Linear]:
    """Return the layers that may be factorized, by name: not the stem, the classifier, 1×1 and grouped convolutions, ``hybrid_dense``.

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
        raise ConfigError("FedHM finds no layer to factorize: all are the stem, 1x1 convolutions, grouped, or the classifier")
    return candidates


def hybrid_ranks(network: nn.Module, ratio: float) -> Ranks:
    """Return layer → rank for the layers that are factorized at rank ratio ``ratio``; empty at 1.

    Raises:
        ConfigError: no layer of the network can be factorized.
    """
    if ratio >= 1:
        return {}
    candidates = rank_candidates(network)
    ranks = {name: _rank(layer, ratio) for name, layer in candidates.items()}
    return {n: rank for n, rank in ranks.items() if parameters_of_rank(candidates[n], rank) < candidates[n].weight.numel()}


def ranked(network: nn.Module, ranks: Ranks) -> nn.Module:
    """Return ``network`` with low-rank layers in the place of those that ``ranks`` names."""
    for name, rank in ranks.items():
        replace_layer(network, name, low_rank(network.get_submodule(name), rank))  # type: ignore[arg-type]
    return network


def _rank(layer: nn.Conv2d | nn.Linear, ratio: float) -> int:
    """Return ⌊γ·n⌋; n is taken no larger than the rows of the unrolled weight, above which a rank adds nothing."""
    rows = layer.in_channels * layer.kernel_size[0] if isinstance(layer, nn.Conv2d) else layer.in_features
    return max(1, math.floor(ratio * min(layer.weight.shape[0], rows) + 1e-9))


def _factorizable(layer: nn.Conv2d | nn.Linear) -> bool:
    if isinstance(layer, nn.Linear):
        return True
    plain = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return plain and layer.groups == 1 and layer.kernel_size != (1, 1)


def _low_rank_layers(module: nn.Module) -> list[LowRank]:
    return [layer for layer in module.modules() if isinstance(layer, LowRank)]


def _ranks(state: GlobalState, tier: Tier) -> Ranks:
    return state.once(f"ranks {tier.label}", lambda: hybrid_ranks(state.architecture.skeleton(), tier.ratio))
