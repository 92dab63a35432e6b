"""A rank for every layer under a budget, with the least truncation error of given weights.

The costs of a plan come from its own trace. Between traces they are predicted (:mod:`edgefl.planning.quantities`), and each trace corrects
the prediction. Plans are made and traced until one fits and repeats.

A budget of memory limits every moment of a step. Such plans show which layers are best dense; in a small network, every such set is tried.
Then the moments that would exceed the budget become budgets of their own (:mod:`edgefl.planning.quantities`).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from torch import Tensor

from edgefl.cost.memory import Timeline
from edgefl.factor.plan import Allocation, LayerChoices, allocate
from edgefl.factor.svd import factorize, unroll
from edgefl.methods.ranks import Layer, Ranks
from edgefl.planning.quantities import DeviceRound, Ints, Moments, moments_of, quantities, weighting
from edgefl.records import BudgetName, Cost

Uses = Mapping[BudgetName, tuple[float, float]]  # budget → what is needed and what there is

ATTEMPTS = 8
REFINEMENTS = 4  # the first of them traces a plan that is known
FEW_LAYERS = 4  # a network with no more layers has every set of dense layers tried


@dataclass(frozen=True)
class Spectral:
    """A plan with a rank per layer.

    Attributes:
        ranks: layer → rank; dense layers are missing.
        cost: its traced cost.
        energy_share: share of the layers' energy that it keeps, in [0, 1].
        gap: upper bound of what a better plan could add to that share.
    """

    ranks: Ranks
    cost: Cost
    energy_share: float
    gap: float


def energies(layers: Mapping[str, Layer], weights: Mapping[str, Tensor], relative: bool) -> dict[str, np.ndarray]:
    """Return Σ_{i≤r} σᵢ² of every layer's unrolled weight for r = 1, 2, …, float64, from weights named ``layer.weight``.

    ``relative`` divides by the layer's own energy, so that layers with small weights count as much as others.
    """
    squares = {name: factorize(unroll(weights[f"{name}.weight"]), 1).values.numpy() ** 2 for name in layers}
    sums = {name: np.cumsum(of_layer) for name, of_layer in squares.items()}
    return {name: energy / energy[-1] if relative and energy[-1] > 0 else energy for name, energy in sums.items()}


def share_kept(energy: Mapping[str, np.ndarray], ranks: Mapping[str, int]) -> float:
    """Return the share of all layers' energy that ``ranks`` keep; layers without a rank are dense."""
    total = math.fsum(float(e[-1]) for e in energy.values())
    kept_energy = math.fsum(float(e[ranks[name] - 1] if name in ranks else e[-1]) for name, e in energy.items())
    return kept_energy / total if total > 0 else 1.0


def spectral(
    layers: Mapping[str, Layer],
    energy: Mapping[str, np.ndarray],
    start: Ranks,
    cost_at: Callable[[Ranks], Cost],
    timeline_at: Callable[[Ranks], Timeline],
    uses_of: Callable[[Cost], Uses],
    work: DeviceRound | None,
) -> Spectral | None:
    """Return the plan that keeps the most energy within the budgets, at least as much as the plan ``start`` if that fits.

    ``layers`` may be factorized, with the cumulative ``energy`` of :func:`energies`. ``cost_at`` and ``timeline_at`` trace a plan.
    ``uses_of`` returns need and have of every budget of a cost. ``work`` is the device and round behind budgets in seconds and joules.
    """
    whole, least = Ranks(), dict.fromkeys(layers, 1)
    tables = {name: quantities(name, layer, cost_at(whole), cost_at(least), layers) for name, layer in layers.items()}
    search = _Search(energy, tables, cost_at, timeline_at, uses_of, work)
    # Of a layer such as 2×2, no rank is smaller than the dense layer: it always is dense.
    layers = {name: layer for name, layer in layers.items() if len(tables[name]) > 1}
    start, least = ({name: rank for name, rank in at.items() if name in layers} for at in (start, least))
    # The moment of the peak moves with the plan, so a budget of memory is searched from its other side as well.
    remembers = "memory_bytes" in uses_of(cost_at(start))
    results = [search.improved(at) for at in ([start, least, whole] if remembers else [start])]
    if remembers:
        results += [search.refined(at) for at in _dense_sets(layers, _best(results)) if at]
    best = _best(results)
    if best is None:
        return None
    total = math.fsum(float(e[-1]) for e in energy.values())
    gap = max(0.0, max(bound for _, bound in results) / total - best.energy_share) if total > 0 else 0.0
    return replace(best, gap=gap)


Found = tuple[Spectral | None, float]  # a plan that fits, and the bound of all plans


def _best(results: list[Found]) -> Spectral | None:
    return max((plan for plan, _ in results if plan is not None), key=lambda plan: plan.energy_share, default=None)


def _dense_sets(layers: Mapping[str, Layer], best: Spectral | None) -> Iterator[Ranks]:
    """Yield a plan of each set of dense layers to refine: all sets for few layers, and the best one's for more."""
    if len(layers) > FEW_LAYERS:
        yield dict.fromkeys(layers, 1) if best is None else best.ranks
        return
    for factorized in product((True, False), repeat=len(layers)):
        yield {name: 1 for name, factors in zip(layers, factorized, strict=True) if factors}


@dataclass(frozen=True)
class _Search:
    """The knowledge of a search for ranks: each layer's cumulative energy and quantities, how to trace a plan, and the budgets."""

    energy: Mapping[str, np.ndarray]
    tables: Mapping[str, np.ndarray]
    cost_at: Callable[[Ranks], Cost]
    timeline_at: Callable[[Ranks], Timeline]
    uses_of: Callable[[Cost], Uses]
    work: DeviceRound | None

    def improved(self, at: Ranks, moments: Moments | None = None) -> Found:
        """Plan and trace in turn from ``at`` on; return the best plan that fits, if any, and the bound of all plans.

        With ``moments``, plans have the dense layers of ``at``, and each moment has the budget of memory.
        """
        best: Spectral | None = None
        bound = 0.0
        margins: dict[BudgetName, float] = {}
        watched: list[int] = []
        for _ in range(ATTEMPTS if moments is None else REFINEMENTS):
            cost = self.cost_at(at)
            share = share_kept(self.energy, at)
            left = {name: have - need for name, (need, have) in self.uses_of(cost).items()}
            if min(left.values(), default=0.0) >= 0 and (best is None or share > best.energy_share):
                best = Spectral(at, cost, share, 0.0)
            if moments is not None:
                left.pop("memory_bytes")
                moments = moments.learned(at, self.timeline_at(at)) or moments
            # If a plan needs more than was predicted, the next plans get a larger margin.
            margins = {name: margins.get(name, 0.0) + max(0.0, -room) for name, room in left.items()}
            allocation = self.next(at, cost, {name: room - margins[name] for name, room in left.items()}, moments, watched)
            if allocation is None:
                break
            bound = max(bound, allocation.bound)
            chosen = {name: rank for name, rank in allocation.ranks.items() if rank < len(self.tables[name])}
            if chosen == at:
                break
            at = chosen
        return best, bound

    def refined(self, at: Ranks) -> Found:
        """Return what :meth:`improved` finds with moments, None if plans with the dense layers of ``at`` have no common ones."""
        moments = moments_of({name: len(self.tables[name]) - 1 for name in at}, self.timeline_at)
        return (None, 0.0) if moments is None else self.improved(at, moments)

    def next(
        self, at: Ranks, cost: Cost, limits: Mapping[BudgetName, float], moments: Moments | None, watched: list[int]
    ) -> Allocation | None:
        """Return the best plan by costs predicted around ``at``, with its traced ``cost``; ``limits`` is the rest of each budget.

        Of ``moments``, those in ``watched`` have a budget, and it gains the ones that prove to need it.
        """
        weights = np.array([weighting(name, cost, self.work) for name in limits]).reshape(len(limits), 6)
        choices, used = [], np.zeros(len(limits))
        for name, table in self.tables.items():
            costs = table @ weights.T
            kept_energy = np.append(self.energy[name][: len(table) - 1], self.energy[name][-1])
            used += costs[at[name] - 1 if name in at else -1]
            choices.append(LayerChoices(name, tuple(range(1, len(table) + 1)), kept_energy, costs))
        room = used + np.array(list(limits.values()))
        if moments is None:
            return allocate(choices, room)
        have_bytes = self.uses_of(cost)["memory_bytes"][1]
        while True:
            rows = np.array(watched, np.int64)
            allocation = allocate(
                [_watched(choice, moments, rows) for choice in choices], np.append(room, have_bytes - moments.fixed[rows])
            )
            if allocation is None:
                return None
            need_bytes = moments.bytes_at(allocation.ranks)
            most = int(need_bytes.argmax())
            if need_bytes[most] <= have_bytes or most in watched:
                return allocation
            watched.append(most)


def _watched(choices: LayerChoices, moments: Moments, rows: Ints) -> LayerChoices:
    """Return the choices of a layer that has moments, or that is dense, with its bytes at the moments ``rows`` as further costs."""
    if choices.name not in moments.numbers:
        dense, costs = slice(-1, None), np.zeros((1, len(rows)))
    else:
        dense, costs = slice(0, -1), moments.bytes_of(choices.name, np.array(choices.ranks[:-1]), rows)
    together = np.hstack([choices.costs[dense].astype(np.float64), costs])
    return LayerChoices(choices.name, choices.ranks[dense], choices.energy[dense], together)
