"""The multiple-choice knapsack under a few budgets: one choice per layer, integer costs, the largest sum of energies.

Its linear relaxation has at most one fractional layer per budget, so rounding it is nearly optimal. Its prices (duals) λ ≥ 0 bound every
plan by Σ_layers max_c (e_c − λ·k_c) + λ·limits. A choice that falls short of its layer's maximum by more than the distance from the best
known plan to that bound is in no better plan: few choices remain to exchange in pairs and to search.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
CLOSE = 1e-4  # a relative gap below which nothing is searched for
POOL = 1024  # choices that are exchanged in pairs: the table of pairs has its square
SPREAD = 16  # choices of a layer that the relaxation begins with
NODES = 20_000  # choices that a search tries: a limit that, unlike one of time, gives the same plan everywhere


@dataclass(frozen=True, eq=False)
class Problem:
    """All layers' choices in one list: ``owner`` and ``energy`` (choices,), ``costs`` (choices, budgets), ``limits`` (budgets,).

    A plan is the array of its choices' positions in the list, one per layer, in the layers' order.
    """

    owner: Ints
    energy: Floats
    costs: Ints
    limits: Ints
    count: int

    def left(self, plan: Ints) -> Ints:
        """What remains of every limit; negative if the plan exceeds it."""
        return self.limits - self.costs[plan].sum(0)

    def fits(self, plan: Ints) -> bool:
        """Whether the plan exceeds no limit."""
        return bool((self.left(plan) >= 0).all())

    def kept(self, plan: Ints) -> float:
        """Σ of the plan's energies."""
        return float(self.energy[plan].sum())

    def shares(self) -> Floats:
        """Costs as shares of their limits."""
        return self.costs / np.maximum(self.limits, 1)


def solve(problem: Problem, start: Ints | None) -> tuple[Ints, float] | None:
    """Return the best plan found and the bound; None if no plan fits. If ``start`` fits, the plan is at least as good."""
    alive = _reachable(problem)
    if alive is None:
        return None
    largest, prices = _relax(problem, alive)
    value = problem.energy[alive] - problem.costs[alive] @ prices
    best = np.maximum.reduceat(value, _firsts(problem, alive))
    bound, lack = float(best.sum() + problem.limits @ prices), best[problem.owner[alive]] - value
    plan = _repair(problem, alive, largest)
    if start is not None and problem.fits(start) and (plan is None or problem.kept(start) > problem.kept(plan)):
        plan = start
    if plan is not None:
        plan = _polish(problem, alive, lack, bound, plan)
    if plan is None or bound - problem.kept(plan) > CLOSE * bound:
        plan = _search(problem, alive, lack, bound, plan)
    return None if plan is None else (plan, bound)


def _firsts(problem: Problem, pool: Ints) -> Ints:
    """Where each layer's choices begin in ``pool``, which is sorted."""
    return np.flatnonzero(np.diff(problem.owner[pool], prepend=-1))


def _reachable(problem: Problem) -> Ints | None:
    """Return the choices that fit beside the cheapest of the other layers, budget by budget; None if a layer has none."""
    alive = np.arange(len(problem.owner))
    while len(firsts := _firsts(problem, alive)) == problem.count:
        least = np.minimum.reduceat(problem.costs[alive], firsts, axis=0)
        fits = (problem.costs[alive] - least[problem.owner[alive]] <= problem.limits - least.sum(0)).all(1)
        if fits.all():
            return alive
        alive = alive[fits]
    return None


def _relax(problem: Problem, alive: Ints) -> tuple[Ints, Floats]:
    """Solve the relaxation over few choices per layer, adding better ones: each layer's largest choice, energy per unit of each budget."""
    edges = np.append(_firsts(problem, alive), len(alive))
    spread = [np.linspace(a, b - 1, SPREAD).astype(np.int64) for a, b in pairwise(edges.tolist())]
    pool = np.unique(np.concatenate(spread))
    while True:
        solved = _linear(problem, alive[pool])
        if solved is None:  # the few do not fit, or (all of them) nothing does
            if len(pool) == len(alive):
                return alive[edges[1:] - 1], np.zeros(len(problem.limits))
            pool = np.arange(len(alive))
            continue
        value = problem.energy[alive] - problem.costs[alive] @ solved[1]
        best = np.array([a + int(value[a:b].argmax()) for a, b in pairwise(edges.tolist())])
        entering = np.flatnonzero(~np.isin(best, pool))
        if not len(entering):
            return solved
        around = best[entering, None] + np.array([-16, -8, -4, -2, -1, 0, 1, 2, 4, 8, 16])
        pool = np.union1d(pool, np.clip(around, edges[:-1][entering, None], edges[1:][entering, None] - 1))


def _linear(problem: Problem, pool: Ints) -> tuple[Ints, Floats] | None:
    """Solve the relaxation over ``pool``; None if it has no solution."""
    from scipy.optimize import linprog  # here: half a second to import, and only budgets need it
    from scipy.sparse import csr_array

    scale = max(float(problem.energy[pool].max()), 1e-300)
    constraints: dict[str, Any] = {  # apart: the stubs of linprog know no sparse matrices, its documentation does
        "A_ub": csr_array(problem.shares()[pool].T),
        "b_ub": problem.limits / np.maximum(problem.limits, 1),
        "A_eq": csr_array((np.ones(len(pool)), (problem.owner[pool], np.arange(len(pool)))), shape=(problem.count, len(pool))),
        "b_eq": np.ones(problem.count),
    }
    result = linprog(-problem.energy[pool] / scale, method="highs-ds", **constraints)
    if result.status != 0:
        return None
    used = np.asarray(result.x) > 1e-9
    ranked = np.lexsort((np.where(used, problem.energy[pool], -1.0), problem.owner[pool]))
    largest = pool[ranked[np.append(_firsts(problem, pool)[1:], len(pool)) - 1]]
    prices = -np.asarray(result.ineqlin.marginals) * scale
    return largest, np.maximum(prices, 0.0) / np.maximum(problem.limits, 1)


def _repair(problem: Problem, alive: Ints, plan: Ints) -> Ints | None:
    """Change one layer at a time, by the least energy per share of the excess removed, until the plan fits."""
    shares, owner, plan = problem.shares()[alive], problem.owner[alive], plan.copy()
    room = problem.limits / np.maximum(problem.limits, 1)
    while not problem.fits(plan):
        used = problem.shares()[plan]
        after = used.sum(0) - used[owner] + shares
        drop = np.maximum(used.sum(0) - room, 0.0).sum() - np.maximum(after - room, 0.0).sum(1)
        lost = problem.energy[plan][owner] - problem.energy[alive]
        if not (drop > 1e-12).any():
            return None
        choice = int(np.argmin(np.where(drop > 1e-12, lost / np.maximum(drop, 1e-12), np.inf)))
        plan[owner[choice]] = alive[choice]
    return plan


def _polish(problem: Problem, alive: Ints, lack: Floats, bound: float, plan: Ints) -> Ints:
    """Change one layer or two at a time, by the largest gain that fits, until there is none."""
    while True:
        near = np.flatnonzero(lack <= bound - problem.kept(plan))
        pool = np.union1d(alive[near[np.argsort(lack[near], kind="stable")[:POOL]]], plan)
        if (better := _exchange(problem, pool, plan)) is None:
            return plan
        plan = better


def _exchange(problem: Problem, pool: Ints, plan: Ints) -> Ints | None:
    """Return the plan after the best exchange of two layers' choices for others of ``pool``, which holds the plan's own too."""
    owner, current = problem.owner[pool], plan[problem.owner[pool]]
    gain, extra = problem.energy[pool] - problem.energy[current], problem.costs[pool] - problem.costs[current]
    # Beside a choice that changes nothing, any other is a change of one layer: that may be the same one.
    allowed = (owner[:, None] != owner[None, :]) | (pool == current)[None, :]
    for change, left in zip(extra.T, problem.left(plan), strict=True):
        allowed &= change[:, None] + change[None, :] <= left
    gains = np.where(allowed, gain[:, None] + gain[None, :], 0.0)
    first, second = np.unravel_index(int(gains.argmax()), gains.shape)
    if gains[first, second] <= 1e-12 * problem.kept(plan):
        return None
    plan = plan.copy()
    plan[owner[second]] = pool[second]
    plan[owner[first]] = pool[first]
    return plan


def _search(problem: Problem, alive: Ints, lack: Floats, bound: float, plan: Ints | None) -> Ints | None:
    """Return the best plan of a depth-first search of ``NODES`` choices, or ``plan``; a branch ends if its bound is not above the best."""
    edges = [*_firsts(problem, alive).tolist(), len(alive)]
    order = [a + np.argsort(lack[a:b], kind="stable") for a, b in pairwise(edges)]
    least = np.minimum.reduceat(problem.costs[alive], edges[:-1], axis=0)
    # What the layers from each one on take at least, budget by budget.
    after = np.concatenate([np.cumsum(least[::-1], axis=0)[::-1], np.zeros((1, len(problem.limits)), np.int64)])
    best, most, nodes = plan, -np.inf if plan is None else problem.kept(plan), 0

    def descend(layer: int, chosen: list[int], left: Ints, lacking: float) -> None:
        nonlocal best, most, nodes
        if layer == problem.count:
            found = np.array(chosen, np.int64)
            if problem.kept(found) > most:
                best, most = found, problem.kept(found)
            return
        for position in order[layer].tolist():
            nodes += 1
            total = lacking + float(lack[position])
            if nodes > NODES or bound - total <= most:
                return
            rest = left - problem.costs[alive[position]]
            if (rest >= after[layer + 1]).all():
                descend(layer + 1, [*chosen, int(alive[position])], rest, total)

    descend(0, [], problem.limits, 0.0)
    return best
