"""FedHM: a tier is a rank ratio, and its layers are truncated singular value decompositions of the global ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import Tensor, nn

from edgefl.errors import ConfigError, nearest
from edgefl.factor.layers import LowRank, frobenius_sq, unrolled_factors
from edgefl.factor.svd import Factors, counted, roll, singular_values, truncated, unroll
from edgefl.methods.averaging import WeightedSum
from edgefl.methods.axes import Need
from edgefl.methods.base import Method, MethodConfig, cross_entropy, masked_cross_entropy
from edgefl.methods.ranks import Ranks, hybrid_ranks, rank_candidates, ranked, spectral_ranks, truncated_state
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.records import Batch, Submodel, Tier, Update
from edgefl.registry import method
from edgefl.util.compute import in_parallel


class FedHMConfig(MethodConfig):
    """Options of FedHM.

    Attributes:
        frobenius_decay: λ of λ/2·‖UVᵀ‖²_F, in place of weight decay on factorized layers.
        temperature: τ of the aggregation weights; None: the paper's 5 for dynamic tiers, ∞ (equal weights) for fixed ones.
        dynamic_tiers: whether clients change tier between rounds; set by the run.
        mask_labels: whether a client's loss leaves out labels that it has no samples of, as in HeteroFL.
        allocate: ``uniform``: one γ for every layer, as in the paper. ``spectral``: from the second round on, a rank per layer with the
            least truncation error that needs no more MACs, weights and activations than the uniform ranks.
        error: whether a layer's truncation error counts relative to its own weights, or absolutely.
        plan_every: rounds between two spectral plans.
        ranks: tier's label → layer → rank, for a plan of the user's own; a spectral run stores its present plan here.
    """

    frobenius_decay: float = Field(1e-4, ge=0, allow_inf_nan=False)
    temperature: float | None = Field(None, gt=0)
    dynamic_tiers: bool = False
    mask_labels: bool = True
    allocate: Literal["uniform", "spectral"] = "uniform"
    error: Literal["relative", "absolute"] = "relative"
    plan_every: int = Field(5, ge=1)
    ranks: dict[str, dict[str, Annotated[int, Field(ge=1)]]] = Field({})


@method("fedhm")
class FedHM(Method):
    """W ≈ U Vᵀ at rank r = ⌊γ·n⌋: a k×1 convolution to r channels and a 1×k convolution to n (section 2.2); ratio 1 is dense.

    Not factorized: the stem, 1×1 convolutions, the classifier, and what the network names in ``hybrid_dense`` (ResNet-18: the first
    residual block; ResNet-34: layers 1 and 2; Tables 5 and 6). The server multiplies every update back to full shape (Eq. 1) and
    averages with α_p = softmax(γ_p/τ) (Eq. 2). One decomposition per layer and round serves every tier: smaller ranks are leading columns
    of the largest. It starts from the vectors of the round before.

    Beyond the paper: ``allocate = "spectral"`` chooses a rank for every layer (:func:`edgefl.methods.ranks.spectral_ranks`).

    Differs from the paper: r = ⌊γ·n⌋ with n output channels (at most the full rank), as its parameter counts require; its text says γ
    times the full rank. A layer stays dense if its factors would hold as many weights.
    """

    config: FedHMConfig
    title: ClassVar[str] = "FedHM"
    paper: ClassVar[str] = "Yao et al., FedHM: Efficient Federated Learning for Heterogeneous Models via Low-rank Factorization"
    tier_meaning: ClassVar[str] = (
        "rank ratio γ: the share of output channels that a factorized layer keeps as its rank; 1 is dense"
    )
    travels: ClassVar[str] = "two factors of each factorized layer and the dense rest, both ways"
    truncates: ClassVar[bool] = True
    lacks: ClassVar[Mapping[Need, str]] = {
        "stale_updates": "the factors of every step are a new decomposition: what an older one changed has no place in it",
        "fixed_coordinates": "a client's factors are a fresh decomposition every round: remembered gradients and "
        "control variates would be of other coordinates",
    }
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "unchanged clients leave the state unchanged": "a tier below 1 sends back truncated weights, and by Eq. 1 they replace the "
        "full ones: what the truncation cut off is gone",
    }

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        network = architecture.build()
        return ranked(network, self._ranks(network, tier))

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Raise :class:`ConfigError` if the option ``ranks`` has an unknown tier or layer, or more than a layer's full rank."""
        candidates = rank_candidates(architecture.skeleton())
        for label, ranks in self.config.ranks.items():
            if label not in (known := [tier.label for tier in tiers]):
                raise ConfigError(f"method_options.ranks: {label!r} is no tier of this run; it has {', '.join(known)}")
            for name, rank in ranks.items():
                if name not in candidates:
                    raise ConfigError(
                        f"method_options.ranks.{label}: {name!r} is no layer to factorize;{nearest(name, candidates)}"
                    )
                if rank > (full := min(unroll(candidates[name].weight).shape)):
                    raise ConfigError(f"method_options.ranks.{label}.{name}: rank {rank} is over the full rank {full}")

    def _ranks(self, network: nn.Module, tier: Tier) -> Ranks:
        """Return the ranks of the tier's factorized layers: the plan's, or ⌊γ·n⌋."""
        return self.config.ranks.get(tier.label) or hybrid_ranks(network, tier.ratio)

    def advance(self, state: GlobalState, round_: int) -> tuple[FedHM, GlobalState]:
        """Return the method with a new rank plan if one is due. In the first round weights have no structure yet."""
        if self.config.allocate != "spectral" or round_ < 2 or (round_ - 2) % self.config.plan_every:
            return self, state
        names = rank_candidates(state.architecture.skeleton())
        values = in_parallel({name: partial(_values, state.tensors[f"{name}.weight"]) for name in names})
        small = [tier for tier in state.tiers if tier.ratio < 1]
        plans = {t.label: spectral_ranks(state.architecture, t.ratio, values, self.config.error == "relative") for t in small}
        return FedHM(self.config.model_copy(update={"ranks": plans})), state

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        ranks = self._state_ranks(state, tier)
        found = truncated_state(state.tensors, ranks, self._factors(state) if ranks else {})
        places = {name: place for name, (_, place) in found.items()}
        tensors = {name: tensor for name, (tensor, _) in found.items()}
        return Submodel(tier, tensors, partial(self.network, state.architecture, tier), places)

    def _factors(self, state: GlobalState) -> dict[str, Factors]:
        """Return every factorized layer's decomposition at the ranks of all tiers, computed once per state."""
        needed: dict[str, set[int]] = {}
        for tier in state.tiers:
            for layer, rank in self._state_ranks(state, tier).items():
                needed.setdefault(layer, set()).add(rank)
        layers = {layer: (state.tensors[f"{layer}.weight"], sorted(ranks)) for layer, ranks in needed.items()}
        slowest_first = sorted(layers, key=lambda layer: -layers[layer][0].numel())
        tasks = {layer: partial(_truncated, *layers[layer], state.warm.get(layer)) for layer in slowest_first}
        return state.once(f"svd {sorted(needed.items())}", lambda: in_parallel(tasks))

    def _state_ranks(self, state: GlobalState, tier: Tier) -> Ranks:
        uniform = state.once(f"ranks {tier.label}", lambda: hybrid_ranks(state.architecture.skeleton(), tier.ratio))
        return self.config.ranks.get(tier.label) or uniform

    def criterion(self, logits: Tensor, batch: Batch) -> Tensor:
        return (masked_cross_entropy if self.config.mask_labels else cross_entropy)(logits, batch)

    def penalties(self, module: nn.Module) -> Iterable[Tensor]:
        """Return λ/2·‖UVᵀ‖²_F of each factorized layer (section 2.2, Frobenius decay)."""
        decay = self.config.frobenius_decay
        return (decay / 2 * frobenius_sq(layer) for layer in _low_rank_layers(module) if decay)

    def decayed(self, module: nn.Module) -> list[nn.Parameter]:
        """Return every parameter except the factors, which have Frobenius decay."""
        factors = {p for layer in _low_rank_layers(module) for p in (layer.u.weight, layer.v.weight)}
        return [p for p in module.parameters() if p not in factors]

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Multiply every update back to full shape and average with softmax(γ/τ)."""
        tau = self.config.temperature or (5.0 if self.config.dynamic_tiers else math.inf)
        total, warm = WeightedSum(state.tensors), state.warm
        for update in self.checked(state, updates):
            weight = math.exp(update.tier.ratio / tau)
            if ranks := self._state_ranks(state, update.tier):
                warm = {layer: found.start for layer, found in self._factors(state).items() if found.start is not None}
            for name in state.tensors:
                layer, _, kind = name.rpartition(".")
                if layer not in ranks:
                    total.add(name, update.tensors[name], weight)
                elif kind == "bias":
                    total.add(name, update.tensors[f"{layer}.v.bias"], weight)
                else:
                    u, v = (update.tensors[f"{layer}.{factor}.weight"] for factor in "uv")
                    fold = partial(roll, shape=tuple(state.tensors[name].shape))
                    total.add_product(name, *unrolled_factors(u, v), weight, fold)
        return state.replace(total.mean(state.tensors), warm=warm)

    def observe(self, state: GlobalState, sent: Sequence[Submodel]) -> dict[str, Any]:
        """Return how many layers were decomposed which way: by a block, in full, or in full after a block failed."""
        if not any(self._state_ranks(state, submodel.tier) for submodel in sent):
            return {}
        return {"decompositions": dict(counted(self._factors(state).values()))}


def _truncated(weight: Tensor, ranks: Sequence[int], start: Tensor | None) -> Factors:
    return truncated(unroll(weight), ranks, start)


def _values(weight: Tensor) -> Tensor:
    return singular_values(unroll(weight))


def _low_rank_layers(module: nn.Module) -> list[LowRank]:
    return [layer for layer in module.modules() if isinstance(layer, LowRank)]
