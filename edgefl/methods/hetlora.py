"""HetLoRA: the server averages zero-padded adapters by the norms of their products, and ranks that clients do not use are pruned."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from edgefl.factor.adapter import adapted, names_of
from edgefl.factor.layers import SquaredNorm, unrolled_factors
from edgefl.methods.adapters import Adapted, AdapterConfig
from edgefl.methods.averaging import WeightedSum
from edgefl.methods.axes import Need
from edgefl.methods.base import Method
from edgefl.methods.capabilities import Figures, Phased
from edgefl.methods.penalties import Penalised
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.records import Tier, Update
from edgefl.registry import method

_PRUNES = "a tier's rank may fall between two rounds; the option gamma=1 keeps it"
_TINY = 1e-12
"""The least squared norm: a root has no derivative at zero, and B is zero at first. It is no summand, which exporters would drop."""


class HetLoRAConfig(AdapterConfig):
    """Options of HetLoRA.

    Attributes:
        gamma: γ, the share of its rank that a tier keeps when it is pruned, rounded down. 1: ranks are never pruned.
        prune_strength: λ of the term that draws the last ranks, those beyond γ, to zero.
        present: tier's label → its rank after pruning. Set by the run.
    """

    gamma: float = Field(0.99, gt=0, le=1)
    prune_strength: float = Field(1e-3, ge=0, allow_inf_nan=False)
    present: dict[str, int] = Field({})


@method("hetlora")
class HetLoRA(Phased, Penalised, Adapted, Figures):
    """B ← Σ wₖB̄ₖ / Σ wₖ, A ← Σ wₖĀₖ / Σ wₖ with wₖ = ‖BₖAₖ‖_F. Bars stand for padding with zeros.

    A tier of rank r receives the first r ranks of the server's pair, and minimises its loss plus λ·‖B[:, γr:]‖·‖A[γr:]‖, summed over
    layers. If this product of norms is smaller after training than before, the client prunes: only its first ⌊γr⌋ ranks count. B is zero
    at first, so nothing is pruned in the first round.

    The base is frozen and part of the application. Adapters are beside attention's projections to queries and values. If there are
    none, they are beside the layers that FedHM factorizes. Devices run the base with the adapters merged into it
    (``edgefl/methods/adapters.py``).

    Differs from the paper: there, every client has a rank of its own. Here ranks belong to tiers, because a tier's payload has one size.
    The server computes the norms of a client itself, and cuts off the ranks that the client prunes. If more than half of a tier's clients
    pruned, the tier has ⌊γr⌋ ranks from the next round on. Every layer has its own weights wₖ. Ranks that no client of a round holds do
    not change, because factors that are both zero could never be trained again. The defaults of γ and λ are edgefl's.
    """

    config: HetLoRAConfig
    title = "HetLoRA"
    every_update = "the server weighs each client by the norm of its adapter"
    paper = "Cho et al., EMNLP 2024, arXiv 2401.06432"
    tier_meaning = (
        "rank of the adapters: the share p of the option rank, less what was pruned; the frozen base is the same in all tiers"
    )

    @property
    def lacks(self) -> Mapping[Need, str]:
        return {} if self.config.gamma == 1 else {"stale_updates": _PRUNES, "fixed_coordinates": _PRUNES}

    def rank(self, tier: Tier) -> int:
        return self.config.present.get(tier.label) or super().rank(tier)

    def _kept(self, tier: Tier) -> int:
        """Return the rank of ``tier`` after it is pruned once."""
        return max(1, math.floor(self.config.gamma * self.rank(tier) + 1e-9))

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        network = super().network(architecture, tier)
        network.kept_rank = self._kept(tier)  # type: ignore[assignment]
        return network

    def penalties(self, module: nn.Module) -> Iterable[Tensor]:
        """Return λ·‖B[:, γr:]‖·‖A[γr:]‖ of each layer."""
        rank: int = module.kept_rank  # type: ignore[assignment]
        for _, _, pair in adapted(module):
            if self.config.prune_strength and pair.u.weight.shape[0] > rank:
                norms = [tail.square().sum().clamp_min(_TINY).sqrt() for tail in (pair.u.weight[rank:], pair.v.weight[:, rank:])]
                yield self.config.prune_strength * norms[0] * norms[1]

    def advance(self, state: GlobalState, round_: int, rng: np.random.Generator) -> tuple[Method, GlobalState]:
        """Return the method with smaller ranks for each tier in which more than half of the clients pruned in the last round."""
        if not state.warm:
            return self, state
        tiers = {tier.label: tier for tier in state.tiers}
        pruned = {label: self._kept(tiers[label]) for label, votes in state.warm.items() if 2 * int(votes[0]) > int(votes[1])}
        state = state.replace(state.tensors, warm={})  # votes count once, also if the next round has no update
        return (self.with_options(present=self.config.present | pruned) if pruned else self), state

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Return the state with the weighted means of the factors, and with the mean of the classifiers; ``warm`` has the tiers' votes."""
        layers, heads = self.layers(state), dict[str, Tensor]()
        pairs = {name: state.tensors[name] for layer in layers for name in names_of(layer)}
        total, ranks = WeightedSum(pairs), dict.fromkeys(layers, 0)
        votes: dict[str, Tensor] = {}
        for update in self.with_heads(state, updates, heads):
            prunes = self._prunes(state, update)
            vote = votes.setdefault(update.tier.label, torch.zeros(2, dtype=torch.int64))
            vote += torch.tensor([prunes, 1])
            most = self._kept(update.tier) if prunes else self.rank(update.tier)
            for layer in layers:
                u, v = names_of(layer)
                a, b = update.tensors[u][:most], update.tensors[v][:, :most]
                weight = float(SquaredNorm.apply(*(part.double() for part in unrolled_factors(a, b)))[0]) ** 0.5  # type: ignore[no-untyped-call]
                if weight > 0:
                    total.add(u, _padded(a, pairs[u], 0), weight)
                    total.add(v, _padded(b, pairs[v], 1), weight)
                    ranks[layer] = max(ranks[layer], len(a))
        means = total.mean(pairs)
        for layer, rank in ranks.items():
            u, v = names_of(layer)
            means[u][rank:], means[v][:, rank:] = pairs[u][rank:], pairs[v][:, rank:]
        return state.replace({**state.tensors, **heads, **means}, warm=votes)

    def energy_bands(self, state: GlobalState) -> Mapping[str, Sequence[float]]:
        return self.pair_energies(state)

    def _prunes(self, state: GlobalState, update: Update) -> bool:
        """Return whether the last ranks of an update have a smaller product of norms, summed over layers, than what was sent."""
        left, rank = self._kept(update.tier), self.rank(update.tier)

        def tails(tensors: Mapping[str, Tensor]) -> float:
            pairs = ([tensors[name].double() for name in names_of(layer)] for layer in self.layers(state))
            return sum(float(a[left:rank].norm() * b[:, left:rank].norm()) for a, b in pairs)

        return tails(update.tensors) < tails(state.tensors)


def _padded(factor: Tensor, like: Tensor, axis: int) -> Tensor:
    """Return ``factor`` with zeros after it along ``axis``, in the shape of ``like``."""
    whole = torch.zeros_like(like)
    whole.narrow(axis, 0, factor.shape[axis]).copy_(factor)
    return whole
