"""Central differential privacy: the server adds noise to sums of clipped changes before a method sees them.

A tier's clients are sent the same tensors x. Their clipped changes Δᵢ have equal weights, and become one update of the tier::

    x̂ = x + ( Σᵢ min(1, C/‖Δᵢ‖)·Δᵢ + N(0, (zC)²) ) / n

with a public number n, the clients of the tier that a round expects, whoever takes part. The method aggregates n such updates of every
tier. Whatever it does with them, such as a product of factors, only reads what has noise. A client belongs to one tier, so that it moves
the sums of all tiers together by at most C.

Where a method averages entries of the state, the sums of all tiers are one sum of changes of these entries. It gets noise once. An entry
that is in k tiers then has a k-th of the variance.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from edgefl.client.clipping import adapted
from edgefl.client.stage import Stage, StagePlace, TierSums, Turn
from edgefl.client.stages.clip import CLIP, Clip, norms_of
from edgefl.contrib.privacy.noised import gaussian
from edgefl.methods.base import Method
from edgefl.methods.networks import upload_shapes
from edgefl.methods.state import GlobalState
from edgefl.methods.tier_sum import TierSum, folds, tier_sum
from edgefl.records import Observed, Submodel, Tier, Update

Draw = Callable[[str], np.random.Generator]
"""Returns the generator of a round for a part of the noise."""
NOBODY = -1
"""The client of an update that stands for a tier."""
_COUNTED = 20  # σ_b is a 20th of the clients of a round, as Andrew et al. (2021) recommend


@dataclass(frozen=True)
class Central:
    """The noise of a run.

    Attributes:
        noise_multiplier: z, of everything that the server releases in a round.
        clients: tier → n, how many of its clients a round expects.
        adaptive: whether bounds adapt, so that counts of clipped changes get noise too.
    """

    noise_multiplier: float
    clients: Mapping[Tier, int]
    adaptive: bool = False

    @property
    def count_std(self) -> float:
        """Standard deviation σ_b of the noise on the number of changes within their bound."""
        return max(sum(self.clients.values()) / _COUNTED, self.noise_multiplier)

    @property
    def sum_multiplier(self) -> float:
        """The multiplier of the noise on sums, (z⁻² − (2σ_b)⁻²)^(−1/2) with adaptive bounds (Andrew et al. 2021), else z.

        >>> Central(1.0, {Tier(1.0): 10}).sum_multiplier, round(Central(1.0, {Tier(1.0): 10}, adaptive=True).sum_multiplier, 4)
        (1.0, 1.1547)
        """
        if not self.adaptive:
            return self.noise_multiplier
        return float((self.noise_multiplier**-2 - (2 * self.count_std) ** -2) ** -0.5)

    def updates(
        self,
        method: Method,
        state: GlobalState,
        sums: Mapping[Tier, TierSum],
        sent: Mapping[Tier, Submodel],
        bounds: Mapping[Tier, float],
        draw: Draw,
    ) -> dict[Tier, Update]:
        """Return the update of every tier, from the sums of its clients' clipped tensors.

        Args:
            method: decides whether noise is added once for all tiers: if it :func:`folds` and the bounds are equal.
            state: the server's state before the round.
            sums: tier → Σ of what its clients sent, each with weight 1; tiers without clients may be missing.
            sent: tier → what its clients were sent.
            bounds: tier → C.
            draw: the generator of each part of the noise.
        """
        shapes = {tier: upload_shapes(method, state.architecture, tier) for tier in self.clients}
        once = folds(method) and len(set(bounds.values())) == 1
        shared = self._once(state, shapes, sent, max(bounds.values()), draw) if once else {}
        updates = {}
        for tier, clients in self.clients.items():
            total, rng = sums.get(tier), draw(f"privacy {tier.label}")
            parts = {} if total is None else {name: part.value() for name, part in total.parts().items()}
            tensors = {}
            for name, shape in shapes[tier].items():
                start = (
                    sent[tier].tensors[name].double() if name in sent[tier].tensors else torch.zeros(shape, dtype=torch.float64)
                )
                change = torch.zeros_like(start) if total is None else parts[name] - total.weight * start
                if once:
                    place = sent[tier].places[name]
                    noise = shared[place.target][place.index]
                else:
                    noise = gaussian(shape, self.sum_multiplier * bounds[tier], rng) / clients
                tensors[name] = (start + change / clients + noise).float()
            updates[tier] = Update(NOBODY, tier, tensors, sent[tier].places, 1)
        return updates

    def _once(
        self,
        state: GlobalState,
        shapes: Mapping[Tier, Mapping[str, tuple[int, ...]]],
        sent: Mapping[Tier, Submodel],
        bound: float,
        draw: Draw,
    ) -> dict[str, Tensor]:
        """Return, for every tensor of the state that clients send parts of, noise divided by the clients of each entry."""
        clients: dict[str, Tensor] = {}
        for tier, of in shapes.items():
            for name in of:
                place = sent[tier].places[name]
                clients.setdefault(place.target, torch.zeros(state.tensors[place.target].shape, dtype=torch.float64))[
                    place.index
                ] += self.clients[tier]
        rng, std = draw("privacy"), self.sum_multiplier * bound
        return {name: gaussian(of.shape, std, rng) / of.clamp_min(1) for name, of in clients.items()}

    def bounds(
        self, clipping: Clip, memory: Mapping[str, Tensor], norms: Mapping[Tier, Iterable[float]], draw: Draw
    ) -> dict[str, Tensor]:
        """Return the adaptive bounds after a round by name, from counts with noise; empty if the bound is fixed.

        Andrew et al. (2021): b̃ = ( Σᵢ (bᵢ − ½) + N(0, σ_b²) ) / n + ½, with bᵢ = 1 if ‖Δᵢ‖ ≤ C. Clients that did not take part
        count as a half.
        """
        if not self.adaptive:
            return {}
        bounds, rng = {}, draw("privacy counts")
        for tier, clients in self.clients.items():
            bound = clipping.bound(memory, tier)
            total = sum((norm <= bound) - 0.5 for norm in norms.get(tier, ())) + float(rng.standard_normal()) * self.count_std
            within = total / clients + 0.5
            bounds[CLIP + tier.label] = torch.tensor(
                adapted(bound, within, clipping.quantile, clipping.rate), dtype=torch.float64
            )
        return bounds


def weighed(
    method: Method, state: GlobalState, clients: Mapping[Tier, int], updates: Mapping[Tier, Update]
) -> dict[Tier, TierSum]:
    """Return the sum of each tier, whose update counts for so many ``clients``."""
    sums: dict[Tier, TierSum] = {}
    for tier, update in updates.items():
        sums[tier] = tier_sum(method, state.architecture, tier)
        sums[tier].add(update, clients[tier])
    return sums


@dataclass(frozen=True)
class CentralNoise(Stage):
    """The sums of a round get noise, those of tiers without clients too.

    Attributes:
        central: the noise.
        clip: bounds the changes.
    """

    central: Central
    clip: Clip

    place = StagePlace.SUMMED
    sums = True

    def summed(self, sums: TierSums, turn: Turn) -> TierSums:
        """Return sums of the updates with noise, each of which counts for the clients that its tier expects."""
        bounds = self._bounds(turn)
        sent = {tier: turn.submodel(tier) for tier in bounds}
        updates = self.central.updates(turn.method, turn.model, sums, sent, bounds, turn.draw)
        return weighed(turn.method, turn.model, self.central.clients, updates)

    def record(self, turn: Turn) -> Observed:
        """Return the noise of each tier's sum; adapt the bounds by counts with noise."""
        turn.after.update(self.central.bounds(self.clip, turn.memory, norms_of(turn), turn.draw))
        return {"noise_std": {tier.label: self.central.sum_multiplier * bound for tier, bound in self._bounds(turn).items()}}

    def _bounds(self, turn: Turn) -> dict[Tier, float]:
        return {tier: self.clip.bound(turn.memory, tier) for tier in self.central.clients}
