"""The multiple-choice knapsack under a few budgets: choose one option per layer, with integer costs and the largest sum of energies.

The linear relaxation has at most one fractional layer per budget, so rounding it is nearly optimal. Its prices (duals) λ ≥ 0 bound the
energy of every plan by Σ_layers max_c (e_c − λ·k_c) + λ·limits, for choices c of energy e_c and costs k_c. The "lack" of a choice is its
distance from its layer's maximum. If it exceeds the gap between the best known plan and the bound, no better plan contains the choice.
The few other choices are exchanged in pairs, and searched.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
CLOSE = 1e-4  # the search is skipped if the relative gap to the bound is smaller
POOL = 1024  # choices that are exchanged in pairs; the table of pairs has the square of this size
SPREAD = 16  # choices of a layer that the relaxation begins with
NODES = 20_000  # choices that the search tries. Unlike a limit of time, this gives the same plan on every computer


@dataclass(frozen=True, eq=False)
class Problem:
    """The choices of all layers in one list. A plan is an array (layers,) int64 with the position of each layer's choice in the list.

    Attributes:
        owner: number of each choice's layer, (choices,), ascending.
        energy: energy of each choice, (choices,).
        costs: (choices, budgets).
        limits: (budgets,).
        count: number of layers.
    """

    owner: Ints
    energy: Floats
    costs: Ints
    limits: Ints
    count: int

    def left(self, plan: Ints) -> Ints:
        """Return the rest of every limit, (budgets,); negative if the plan exceeds it."""
        return self.limits - self.costs[plan].sum(0)

    def fits(self, plan: Ints) -> bool:
        """Return whether the plan exceeds no limit."""
        return bool((self.left(plan) >= 0).all())

    def kept(self, plan: Ints) -> float:
        """Return the sum of the plan's energies."""
        return float(self.energy[plan].sum())

    def shares(self) -> Floats:
        """Return the costs as shares of their limits, (choices, budgets)."""
        return self.costs / np.maximum(self.limits, 1)


def solve(problem: Problem, start: Ints | None) -> tuple[Ints, float] | None:
    """Return the best plan found, at least as good as ``start`` if that fits, and a bound on all plans' energy; None if no plan fits."""
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
    """Return the position of each layer's first choice in ``pool``, which is sorted."""
    return np.flatnonzero(np.diff(problem.owner[pool], prepend=-1))


def _reachable(problem: Problem) -> Ints | None:
    """Return the choices that fit together with the cheapest ones of all other layers, by budget; None if a layer has none."""
    alive = np.arange(len(problem.owner))
    while len(firsts := _firsts(problem, alive)) == problem.count:
        least = np.minimum.reduceat(problem.costs[alive], firsts, axis=0)
        fits = (problem.costs[alive] - least[problem.owner[alive]] <= problem.limits - least.sum(0)).all(1)
        if fits.all():
            return alive
        alive = alive[fits]
    return None


def _relax(problem: Problem, alive: Ints) -> tuple[Ints, Floats]:
    """Return each layer's used choice of most energy in the relaxation over ``alive``, and prices in energy per unit of each budget."""
    # A small relaxation grows by each layer's best choice at the present prices until there is none to add.
    edges = np.append(_firsts(problem, alive), len(alive))
    spread = [np.linspace(a, b - 1, SPREAD).astype(np.int64) for a, b in pairwise(edges.tolist())]
    pool = np.unique(np.concatenate(spread))
    while True:
        solved = _linear(problem, alive[pool])
        if solved is None:  # the few choices do not fit, or no choices do
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
    """Solve the relaxation over ``pool`` as :func:`_relax` does; None if it has no solution."""
    from scipy.optimize import linprog  # imported here, because it takes half a second and only budgets need it
    from scipy.sparse import csr_array

    scale = max(float(problem.energy[pool].max()), 1e-300)
    result = linprog(
        -problem.energy[pool] / scale,
        A_ub=csr_array(problem.shares()[pool].T),
        b_ub=problem.limits / np.maximum(problem.limits, 1),
        A_eq=csr_array((np.ones(len(pool)), (problem.owner[pool], np.arange(len(pool)))), shape=(problem.count, len(pool))),
        b_eq=np.ones(problem.count),
        method="highs-ds",
    )
    if result.status != 0:
        return None
    used = np.asarray(result.x) > 1e-9
    ranked = np.lexsort((np.where(used, problem.energy[pool], -1.0), problem.owner[pool]))
    largest = pool[ranked[np.append(_firsts(problem, pool)[1:], len(pool)) - 1]]
    prices = -np.asarray(result.ineqlin.marginals) * scale
    return largest, np.maximum(prices, 0.0) / np.maximum(problem.limits, 1)


def _repair(problem: Problem, alive: Ints, plan: Ints) -> Ints | None:
    """Return ``plan`` after changes of one layer at a time, each with the least loss of energy per removed excess; None: no fit."""
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
    """Return ``plan`` after changes of one layer or two at a time, each with the largest gain that fits, until there is none."""
    while True:
        near = np.flatnonzero(lack <= bound - problem.kept(plan))
        pool = np.union1d(alive[near[np.argsort(lack[near], kind="stable")[:POOL]]], plan)
        if (better := _exchange(problem, pool, plan)) is None:
            return plan
        plan = better


def _exchange(problem: Problem, pool: Ints, plan: Ints) -> Ints | None:
    """Return the plan after the best exchange of one or two choices for others of ``pool``; None if none gains. ``pool`` has the plan's."""
    owner, current = problem.owner[pool], plan[problem.owner[pool]]
    gain, extra = problem.energy[pool] - problem.energy[current], problem.costs[pool] - problem.costs[current]
    # A pair with a choice of the plan changes one layer only, so both may be of the same layer.
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
    """Return the best plan of a depth-first search over ``NODES`` choices, or ``plan``. It skips branches with a bound below the best."""
    edges = [*_firsts(problem, alive).tolist(), len(alive)]
    order = [a + np.argsort(lack[a:b], kind="stable") for a, b in pairwise(edges)]
    least = np.minimum.reduceat(problem.costs[alive], edges[:-1], axis=0)
    # The least costs of all layers from each one on, by budget.
    after = np.concatenate([np.cumsum(least[::-1], axis=0)[::-1], np.zeros((1, len(problem.limits)), np.int64)])
    best, most, nodes = plan, -np.inf if plan is None else problem.kept(plan), 0

    def descend(layer: int, chosen: list[int], left: Ints, lacking: float) -> None:
        nonlocal best, most, nodes
        if layer == problem.count:
            candidate = np.array(chosen, np.int64)
            if problem.kept(candidate) > most:
                best, most = candidate, problem.kept(candidate)
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
