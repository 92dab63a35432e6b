"""FedHM: a tier is a rank ratio, and its layers are truncated singular value decompositions of the global ones."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from torch import Tensor, nn

from edgefl.errors import ConfigError, nearest
from edgefl.factor.bands import band_energies
from edgefl.factor.layers import unrolled_factors
from edgefl.factor.svd import Factors, counted, roll, singular_values, truncated, unroll
from edgefl.methods.averaging import WeightedSum
from edgefl.methods.axes import Need
from edgefl.methods.base import Method
from edgefl.methods.capabilities import ByLabel, Factorizes, Figures, Phased, Rebases
from edgefl.methods.layer_rules import FactorizingConfig
from edgefl.methods.losses import cross_entropy, masked_cross_entropy
from edgefl.methods.networks import submodel_of
from edgefl.methods.penalties import FrobeniusConfig, FrobeniusDecay
from edgefl.methods.rank_changes import RankChanges
from edgefl.methods.ranks import (
    NEW_FACTORS,
    Ranks,
    dense_reasons,
    hybrid_ranks,
    rank_candidates,
    ranked,
    spectral_ranks,
    truncated_state,
)  # fmt: skip
from edgefl.methods.state import GlobalState, Tensors
from edgefl.methods.updates import checked, moved
from edgefl.models.base import Architecture, classifier_tensors
from edgefl.records import Batch, Observed, Submodel, Tier, Update
from edgefl.registry import method
from edgefl.util.compute import in_parallel


class FedHMConfig(FrobeniusConfig, FactorizingConfig):
    """Options of FedHM.

    Attributes:
        temperature: τ of the aggregation weights. None: the paper's 5 for dynamic tiers, ∞ (equal weights) for fixed ones. At 0.1, the
            least value, a client of tier 1 counts 1,800 times as much as one of tier .25.
        dynamic_tiers: whether clients change tier between rounds. Set by the run.
        mask_labels: whether a client's loss ignores labels that it has no samples of, as in HeteroFL.
        label_rows: whether a row of the classifier is averaged only over clients that have samples of its label, as in HeteroFL's
            published code. Clients then send the list of their labels.
        aggregation: how the server averages factorized layers. ``mean``: products of the factors, as in the paper. ``residual``: changes of
            products; ranks that a client was not sent do not change. ``bands``: changes, each band of ranks over the clients that have it.
        allocate: ``uniform``: one γ for every layer, as in the paper. ``spectral``: from the second round on, each layer has its own rank.
            The ranks have the least truncation error, with no more MACs, weights and activations than the uniform ranks.
        error: whether the truncation error of a layer is a share of its weights' energy (sum of squares), or absolute.
        plan_every: rounds between two spectral plans.
        ranks: tier's label → layer → rank, for ranks of your own. A spectral run stores its current ranks here.
    """

    temperature: float | None = Field(None, ge=0.1)
    dynamic_tiers: bool = False
    mask_labels: bool = True
    label_rows: bool = True
    aggregation: Literal["mean", "residual", "bands"] = "mean"
    allocate: Literal["uniform", "spectral"] = "uniform"
    error: Literal["relative", "absolute"] = "relative"
    plan_every: int = Field(5, ge=1)
    ranks: dict[str, dict[str, Annotated[int, Field(ge=1)]]] = Field({})


@method("fedhm")
class FedHM(ByLabel, Factorizes, Phased, FrobeniusDecay, Rebases, Figures):
    """W ≈ U Vᵀ at rank r = ⌊γ·n⌋: a k×1 convolution to r channels, then 1×k to the n outputs (section 2.2); γ = 1 is dense.

    By default these layers stay dense: the stem, 1×1 convolutions, the classifier, and the network's ``hybrid_dense`` (ResNet-18: the first
    residual block; ResNet-34: layers 1 and 2; Tables 5 and 6). If no other layer can be factorized, 1×1 convolutions are. The option
    ``factorize`` chooses layers. The server multiplies every update back to full shape (Eq. 1), and averages with the weights
    α_p = softmax(γ_p/τ) (Eq. 2).

    One decomposition per layer and round serves every tier, because the factors of smaller ranks are leading columns of the largest. It
    starts from the singular vectors of the previous round.

    Eq. 1 pulls the ranks beyond the smallest tier's to zero, because every client of that tier contributes zeros there. After some rounds
    all tiers then compute the same. Beyond the paper, ``aggregation = "residual"`` averages changes: W ← W + Σ w(ÛV̂ᵀ − UVᵀ) / Σ w. Here a
    client received U and V, sent Û and V̂, and has the weight w of Eq. 2. ``aggregation = "bands"`` averages each band of ranks over the
    clients that hold it (:func:`edgefl.factor.bands.banded`); it needs one sum of changes per tier. Both cost the server twice the
    products of Eq. 1. They also take updates of earlier steps, so that the run may be asynchronous. Layers that every tier has dense are
    averaged as in Eq. 2.

    Beyond the paper: ``allocate = "spectral"`` chooses a rank for every layer (:func:`edgefl.methods.ranks.spectral_ranks`).

    Differs from the paper: r is γ times the number n of output channels, or of the full rank if that is smaller. The paper's parameter
    counts require this; its text says γ times the full rank. A layer stays dense if its factors would not be smaller. A row of the
    classifier is averaged over the clients that have samples of its label, as in HeteroFL's published code. The paper averages it over all
    clients.
    """

    config: FedHMConfig
    title = "FedHM"
    weighs_samples = False
    every_update = "the server multiplies each client's factors: the product of sums is not the sum of products"
    paper = "Yao et al., FedHM: Efficient Federated Learning for Heterogeneous Models via Low-rank Factorization"
    tier_meaning = "rank ratio γ: the share of output channels that a factorized layer keeps as its rank; 1 is dense"
    travels = "two factors of each factorized layer and the dense rest, both ways"
    truncates = True

    @property
    def lacks(self) -> Mapping[Need, str]:
        if self.config.aggregation == "mean":
            remedy = "; the option aggregation=residual or aggregation=bands takes such updates"
            return {**NEW_FACTORS, "stale_updates": NEW_FACTORS["stale_updates"] + remedy}
        if self.config.allocate == "spectral":
            stale = "ranks change between two steps, while clients are at work; the option allocate=uniform keeps them"
            return {**NEW_FACTORS, "stale_updates": stale}
        return {need: reason for need, reason in NEW_FACTORS.items() if need != "stale_updates"}

    @property
    def contract_exceptions(self) -> Mapping[str, str]:
        if self.config.aggregation != "mean":
            return {}
        return {
            "unchanged clients leave the state unchanged": "a tier below 1 sends back truncated weights, and by Eq. 1 they replace the "
            "full ones: what the truncation cut off is gone",
        }

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        network = architecture.build()
        return ranked(network, self.config.ranks.get(tier.label) or self._uniform(network, tier))

    def dense_reasons(self, network: nn.Module) -> Mapping[str, str]:
        return dense_reasons(network, self.config.factorize)

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Raise :class:`ConfigError` if the option ``ranks`` has an unknown tier or layer, or more than a layer's full rank."""
        candidates = rank_candidates(architecture.skeleton(), self.config.factorize)
        for label, ranks in self.config.ranks.items():
            if label not in (labels := [tier.label for tier in tiers]):
                raise ConfigError(f"method_options.ranks: {label!r} is no tier of this run; it has {', '.join(labels)}")
            for name, rank in ranks.items():
                if name not in candidates:
                    problem = f"{name!r} is no layer to factorize;{nearest(name, candidates)}"
                    raise ConfigError(f"method_options.ranks.{label}: {problem}")
                if rank > (full := min(unroll(candidates[name].weight).shape)):
                    raise ConfigError(f"method_options.ranks.{label}.{name}: rank {rank} is over the full rank {full}")

    def advance(self, state: GlobalState, round_: int, rng: np.random.Generator) -> tuple[Method, GlobalState]:
        """Return the method with new spectral ranks if they are due, from round 2 on: initial weights have no structure."""
        if self.config.allocate != "spectral" or round_ < 2 or (round_ - 2) % self.config.plan_every:
            return self, state
        names = rank_candidates(state.architecture.skeleton(), self.config.factorize)
        weights = {name: unroll(state.tensors[f"{name}.weight"]) for name in names}
        values = in_parallel({name: partial(singular_values, weight) for name, weight in weights.items()})
        small = [tier for tier in state.tiers if tier.ratio < 1]
        spectral = partial(spectral_ranks, values=values, relative=self.config.error == "relative", rules=self.config.factorize)
        plans = {tier.label: spectral(state.architecture, tier.ratio) for tier in small}
        return self.with_options(ranks=plans), state

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        ranks = self._state_ranks(state, tier)
        tensors, places = truncated_state(state.tensors, ranks, self._factors(state) if ranks else {})
        return submodel_of(self, state, tier, tensors, places)

    def _factors(self, state: GlobalState) -> dict[str, Factors]:
        """Return layer → decomposition, good at the ranks of all tiers, computed once per state."""
        needed = self._ranks_by_layer(state)
        weights = {layer: state.tensors[f"{layer}.weight"] for layer in needed}
        slowest_first = sorted(needed, key=lambda layer: -weights[layer].numel())
        tasks = {
            layer: partial(truncated, unroll(weights[layer]), needed[layer], state.warm.get(layer)) for layer in slowest_first
        }
        return state.once(f"svd {sorted(needed.items())}", lambda: in_parallel(tasks))

    def _ranks_by_layer(self, state: GlobalState) -> dict[str, list[int]]:
        """Return layer → its ranks in all tiers that factorize it, ascending."""
        needed: dict[str, set[int]] = {}
        for tier in state.tiers:
            for layer, rank in self._state_ranks(state, tier).items():
                needed.setdefault(layer, set()).add(rank)
        return {layer: sorted(ranks) for layer, ranks in needed.items()}

    def _state_ranks(self, state: GlobalState, tier: Tier) -> Ranks:
        """Return layer → rank of the tier's factorized layers: the option ``ranks``, or ⌊γ·n⌋."""
        uniform = state.once(f"ranks {tier.label}", lambda: self._uniform(state.architecture.skeleton(), tier))
        return self.config.ranks.get(tier.label) or uniform

    def _uniform(self, network: nn.Module, tier: Tier) -> Ranks:
        return hybrid_ranks(network, tier.ratio, self.config.factorize)

    def local_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        loss = masked_cross_entropy if self.config.mask_labels else cross_entropy
        return sum(self.penalties(module), loss(module(batch.x), batch))

    def label_rows(self, architecture: Architecture) -> frozenset[str]:
        if not self.config.label_rows:
            return frozenset()
        # Rows of a product of factors do not belong to one label each.
        dense = self.dense_reasons(architecture.skeleton()) if self.config.factorize else {}
        return frozenset(name for name in classifier_tensors(architecture) if dense.get(name.rpartition(".")[0]) != "")

    def rebased(self, update: Update, sent: Tensors, now: Tensors, weight: float) -> Update:
        """Return the update with its dense tensors moved to ``now``. Its ``sent`` has the factors that the client began from.

        The server's present factors are others, so :meth:`aggregate` needs these to compute the change of each product. ``weight`` scales U
        in both, and so this change.
        """
        factors = {name for name, place in update.places.items() if place.target != name and name.endswith(".weight")}
        scaled = [
            {name: tensors[name] * (weight if name.endswith(".u.weight") else 1.0) for name in factors}
            for tensors in (update.tensors, sent)
        ]
        dense = {name: tensor for name, tensor in update.tensors.items() if name not in factors}
        return replace(update, tensors={**moved(dense, sent, now, weight), **scaled[0]}, sent=scaled[1])

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Return the mean of the updates, each multiplied back to full shape (Eq. 1), with the weights softmax(γ/τ) (Eq. 2).

        With another ``aggregation`` than "mean" it is the mean of the changes of factorized layers, added to the present weights.
        """
        tau = self.config.temperature or (5.0 if self.config.dynamic_tiers else math.inf)
        total, warm, by_label = WeightedSum(state.tensors), state.warm, self.label_rows(state.architecture)
        layers = () if self.config.aggregation == "mean" else self._ranks_by_layer(state)
        weights = {layer: state.tensors[f"{layer}.weight"] for layer in layers}
        changes = RankChanges(weights, partial(self._factors, state), self.config.aggregation == "bands")
        for update in checked(self, state, updates):
            weight = round(math.exp(update.tier.ratio / tau) * 2**28) / 2**28  # so that sums of weights are exact
            if ranks := self._state_ranks(state, update.tier):
                warm = {layer: factors.start for layer, factors in self._factors(state).items() if factors.start is not None}
            changes.add(update, ranks, weight)
            for name in state.tensors:
                layer, _, kind = name.rpartition(".")
                if layer in weights and kind == "weight":
                    continue
                if layer not in ranks:
                    total.add(name, update.tensors[name], weight, rows=update.labels if name in by_label else None)
                elif kind == "bias":
                    total.add(name, update.tensors[f"{layer}.v.bias"], weight)
                else:
                    u, v = (update.tensors[f"{layer}.{factor}.weight"] for factor in "uv")
                    fold = partial(roll, shape=tuple(state.tensors[name].shape))
                    total.add_product(name, *unrolled_factors(u, v), weight, fold)
        changed = {f"{layer}.weight": weight for layer, weight in changes.applied().items()}
        return state.replace({**total.mean(state.tensors), **changed}, warm=warm)

    def observe(self, state: GlobalState, sent: Sequence[Submodel]) -> Observed:
        """Return the number of layers for each :data:`edgefl.factor.svd.Way` of their decomposition.

        Also what :meth:`Figures.observe` returns.
        """
        factors = self._factors(state).values()
        return {**({"decompositions": dict(counted(factors))} if factors else {}), **super().observe(state, sent)}

    def energy_bands(self, state: GlobalState) -> Mapping[str, Sequence[float]]:
        by_tier = [self._state_ranks(state, tier) for tier in sorted(state.tiers)]
        energies, factors = {}, self._factors(state)
        for layer in self._ranks_by_layer(state):
            matrix = unroll(state.tensors[f"{layer}.weight"])
            # Spectral ranks of a layer may shrink from one tier to a larger one.
            ends = list(accumulate((ranks.get(layer, min(matrix.shape)) for ranks in by_tier), max))
            energies[layer] = band_energies(matrix, factors[layer].values, ends)
        return energies
