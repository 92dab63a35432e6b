"""A rank for every layer under several linear budgets at once: the most spectral energy that fits.

With one choice per layer this is a multiple-choice knapsack with a few constraints. Its linear relaxation has at most one fractional
layer per budget, so rounding it is nearly optimal already; its prices (duals) λ ≥ 0 bound every plan by Lagrange's
Σ_layers max_c (e_c − λ·k_c) + λ·limits, and a choice that falls short of its layer's maximum by more than the distance from the best
plan known to that bound is in no better plan. What is left of the choices is small enough to exchange pairs in and to branch on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array, vstack

from edgefl.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
CLOSE = 1e-4  # a relative gap below which nothing is branched on
POOL = 1024  # choices that are branched on, or exchanged in pairs: the table of pairs has its square
SPREAD = 16  # choices of a layer that the relaxation begins with
NODES = 500  # of the branching: a limit that, unlike one of time, gives the same plan everywhere


@dataclass(frozen=True, eq=False)
class LayerChoices:
    """What one layer may be.

    Attributes:
        name: the layer's name, unique in a plan.
        ranks: allowed ranks, ascending; the last one may stand for the dense layer.
        energy: Σ_{i<r} σᵢ² that each choice keeps, float64, (ranks,); all of it for the dense layer.
        costs: what each choice adds to each budget, in the budget's unit (MACs, bytes, …), int64 or float64, (ranks, budgets). Not
            negative; it need not grow with the rank at the dense choice.

    Raises:
        ConfigError: shapes differ, ranks do not ascend from 1, or a number is negative, NaN or infinite.
    """

    name: str
    ranks: tuple[int, ...]
    energy: Floats
    costs: Floats | Ints

    def __post_init__(self) -> None:
        ascends = all(a < b for a, b in pairwise((0, *self.ranks)))
        if not self.ranks or not ascends:
            raise ConfigError(f"layer {self.name!r}: ranks {self.ranks} do not ascend from 1 or more; expected at least one rank")
        if self.energy.shape != (len(self.ranks),) or self.costs.ndim != 2 or len(self.costs) != len(self.ranks):
            raise ConfigError(
                f"layer {self.name!r}: energy of shape {self.energy.shape} and costs of shape {self.costs.shape} do not fit "
                f"{len(self.ranks)} ranks; expected ({len(self.ranks)},) and ({len(self.ranks)}, budgets)"
            )
        for what, values in (("energy", self.energy), ("costs", self.costs)):
            if not np.isfinite(values).all() or (values < 0).any():
                raise ConfigError(f"layer {self.name!r}: {what} hold NaN, infinity or a negative number; expected finite, from 0")


@dataclass(frozen=True)
class Allocation:
    """A plan.

    Attributes:
        ranks: layer → rank.
        energy: Σ of the energies kept.
        lost: Σ over the layers of their largest energy less the kept one: the summed squared truncation error where the largest
            choice is dense or of full rank.
        bound: no plan keeps more (Lagrangian bound at the duals of the linear relaxation, so it holds whatever the solver's error).
    """

    ranks: dict[str, int]
    energy: float
    lost: float
    bound: float

    @property
    def gap(self) -> float:
        """The share of ``bound`` that a better plan could add at most: (bound − energy)/bound."""
        return (self.bound - self.energy) / self.bound if self.bound > 0 else 0.0


def allocate(layers: Sequence[LayerChoices], limits: Floats | Ints, start: Mapping[str, int] | None = None) -> Allocation | None:
    """Choose a rank per layer: maximise Σ energy subject to Σ costs ≤ ``limits`` in every budget.

    No limit is ever exceeded: integer costs are compared as integers; float ones are first rounded up to multiples of 2⁻⁵¹ of the limit
    or less (below 1024 layers), so that what fits by less than the rounding counts as too much. A plan whose gap is above 1e-4 was
    branched on: it is short of the optimum by 1e-6 of it at most, unless the node limit was met or more than ``POOL`` choices could
    still be in a better plan. The same input gives the same plan. Whether any plan fits is searched for without a limit; that is quick
    where a layer has a choice that is the cheapest in every budget.

    Args:
        layers: the choices of every layer, with the same budgets in the same order.
        limits: (budgets,), in the units of the costs.
        start: layer → rank of a plan to start from; where it fits, the result keeps at least as much energy.

    Returns:
        The plan, or None where no choice of ranks fits.

    Raises:
        ConfigError: limits are NaN or infinite, names repeat, budgets differ in number, integer costs could overflow an int64, or
            ``start`` misses a layer or names a rank that is not among its choices.

    >>> energy, macs = np.array([9.0, 13.0, 14.0]), np.array([[10], [20], [24]])
    >>> pair = [LayerChoices("a", (1, 2, 3), energy, macs), LayerChoices("b", (1, 2, 3), 2 * energy, macs)]
    >>> plan = allocate(pair, np.array([34]))
    >>> plan.ranks, plan.energy, plan.lost
    ({'a': 1, 'b': 3}, 37.0, 5.0)
    >>> allocate(pair, np.array([19])) is None
    True
    """
    _check(layers, limits)
    at = None if start is None else _positions(layers, start)
    if not layers:
        return Allocation({}, 0.0, 0.0, 0.0) if (limits >= 0).all() else None
    if (limits < 0).any():
        return None
    problem = _pose(layers, limits)
    offsets = np.cumsum([0, *(len(layer.ranks) for layer in layers[:-1])], dtype=np.int64)
    found = _solve(problem, None if at is None else offsets + np.array(at, np.int64))
    plans = [] if found is None else [[int(i) for i in found[0] - offsets]]
    if at is not None and _within(layers, at, limits):
        plans.append(at)  # of float costs, a start may fit by less than the rounding that guards the limits
    if not plans:
        return None
    best = max(plans, key=lambda plan: _energy(layers, plan))
    energy = _energy(layers, best)
    most = math.fsum(float(layer.energy.max()) for layer in layers)
    bound = most if found is None else max(energy, min(most, found[1]))
    lost = math.fsum(float(layer.energy.max()) - float(layer.energy[i]) for layer, i in zip(layers, best, strict=True))
    return Allocation({layer.name: layer.ranks[i] for layer, i in zip(layers, best, strict=True)}, energy, lost, bound)


def _check(layers: Sequence[LayerChoices], limits: Floats | Ints) -> None:
    """Refuse what :func:`allocate` says it refuses of its layers and limits."""
    if limits.ndim != 1 or not np.isfinite(limits).all():
        raise ConfigError(f"limits {limits.tolist()} must be a vector of finite numbers; leave a budget without a limit out")
    names = [layer.name for layer in layers]
    if len(set(names)) < len(names):
        raise ConfigError(f"layers {names} must have different names")
    for layer in layers:
        if layer.costs.shape[1] != len(limits):
            raise ConfigError(
                f"layer {layer.name!r} has costs in {layer.costs.shape[1]} budgets, and {len(limits)} limits are given"
            )


def _positions(layers: Sequence[LayerChoices], start: Mapping[str, int]) -> list[int]:
    """Return where each layer's rank of ``start`` stands among its choices."""
    for layer in layers:
        if start.get(layer.name) not in layer.ranks:
            raise ConfigError(
                f"the start has rank {start.get(layer.name)} for layer {layer.name!r}; expected one of its {len(layer.ranks)} ranks, "
                f"{layer.ranks[0]} to {layer.ranks[-1]}"
            )
    return [layer.ranks.index(start[layer.name]) for layer in layers]


def _energy(layers: Sequence[LayerChoices], plan: Sequence[int]) -> float:
    return math.fsum(float(layer.energy[i]) for layer, i in zip(layers, plan, strict=True))


def _within(layers: Sequence[LayerChoices], plan: Sequence[int], limits: Floats | Ints) -> bool:
    """Compare the sums with the limits: Python's integers where costs are integers, correctly rounded sums elsewhere."""
    rows = zip(*(layer.costs[i].tolist() for layer, i in zip(layers, plan, strict=True)), strict=True)
    total = sum if _whole(layers) else math.fsum
    return all(total(row) <= limit for row, limit in zip(rows, limits.tolist(), strict=False))


def _whole(layers: Sequence[LayerChoices]) -> bool:
    return all(layer.costs.dtype.kind in "iu" for layer in layers)


@dataclass(frozen=True, eq=False)
class _Problem:
    """All layers' choices in one list: ``owner`` and ``energy`` (choices,), ``costs`` (choices, budgets), ``limits`` (budgets,).

    A plan is the array of its choices' positions in the list, one per layer, in the layers' order.
    """

    owner: Ints
    energy: Floats
    costs: Ints
    limits: Ints
    count: int

    def left(self, plan: Ints) -> Ints:
        """What the plan leaves of every limit; negative where it exceeds it."""
        return self.limits - self.costs[plan].sum(0)

    def fits(self, plan: Ints) -> bool:
        return bool((self.left(plan) >= 0).all())

    def kept(self, plan: Ints) -> float:
        return float(self.energy[plan].sum())

    def shares(self) -> Floats:
        """Costs as shares of their limits."""
        return self.costs / np.maximum(self.limits, 1)


def _pose(layers: Sequence[LayerChoices], limits: Floats | Ints) -> _Problem:
    """Gather the choices, with integer costs: as they are, or float ones in units of a power of two, rounded up (limits: down)."""
    owner = np.repeat(np.arange(len(layers)), [len(layer.ranks) for layer in layers])
    energy = np.concatenate([layer.energy for layer in layers]).astype(np.float64)
    if _whole(layers):
        if sum(max(layer.costs.max(0).tolist(), default=0) for layer in layers) >= 2**62:
            raise ConfigError("integer costs add up to 2**62 or more; give them as float64 or in a larger unit")
        whole = np.array([min(math.floor(limit), 2**62) for limit in limits.tolist()], np.int64)
        return _Problem(owner, energy, np.concatenate([layer.costs for layer in layers]).astype(np.int64), whole, len(layers))
    costs = np.concatenate([layer.costs for layer in layers]).astype(np.float64)
    # An integer limit above 2⁵³ may have no double of its own: the next smaller one is taken.
    floats = np.array([f if (f := float(limit)) <= limit else math.nextafter(f, 0.0) for limit in limits.tolist()])
    exponents = min(52, 62 - len(layers).bit_length()) - np.frexp(floats)[1]
    whole = np.floor(np.ldexp(floats, exponents)).astype(np.int64)
    with np.errstate(over="ignore"):
        units = np.ceil(np.ldexp(costs, exponents))
    # A cost that underflows still counts; one above the limit never fits, and need not overflow the sums.
    units = np.minimum(np.maximum(units, costs > 0), whole + 1)
    return _Problem(owner, energy, units.astype(np.int64), whole, len(layers))


def _solve(problem: _Problem, start: Ints | None) -> tuple[Ints, float] | None:
    """Return the best plan found and the bound, or None where none fits."""
    alive = _reachable(problem)
    if alive is None:
        return None
    largest, prices = _relax(problem, alive)
    value = problem.energy[alive] - problem.costs[alive] @ prices
    best = np.maximum.reduceat(value, _firsts(problem, alive))
    bound, lack = float(best.sum() + problem.limits @ prices), best[problem.owner[alive]] - value
    plan = _repair(problem, alive, largest)
    if plan is None:
        plan = _branch(problem, alive, np.zeros(len(problem.owner)), 2**31 - 1)
    if start is not None and problem.fits(start) and (plan is None or problem.kept(start) > problem.kept(plan)):
        plan = start
    if plan is None:
        return None
    plan = _polish(problem, alive, lack, bound, plan)
    if bound - problem.kept(plan) > CLOSE * bound:
        other = _branch(problem, _near(alive, lack, bound - problem.kept(plan), plan), problem.energy, NODES)
        if other is not None and problem.kept(other) > problem.kept(plan):
            plan = _polish(problem, alive, lack, bound, other)
    return plan, bound


def _firsts(problem: _Problem, pool: Ints) -> Ints:
    """Where each layer's choices begin in ``pool``, which is sorted."""
    return np.flatnonzero(np.diff(problem.owner[pool], prepend=-1))


def _reachable(problem: _Problem) -> Ints | None:
    """Return the choices that fit beside the cheapest of the other layers, budget by budget; None where a layer has none."""
    alive = np.arange(len(problem.owner))
    while len(firsts := _firsts(problem, alive)) == problem.count:
        least = np.minimum.reduceat(problem.costs[alive], firsts, axis=0)
        fits = (problem.costs[alive] - least[problem.owner[alive]] <= problem.limits - least.sum(0)).all(1)
        if fits.all():
            return alive
        alive = alive[fits]
    return None


def _one_each(problem: _Problem, pool: Ints) -> csr_array:
    """The matrix (layers, pool) whose product with choices is one for each layer that has one choice."""
    ones = (np.ones(len(pool)), (problem.owner[pool], np.arange(len(pool))))
    return csr_array(ones, shape=(problem.count, len(pool)))


def _relax(problem: _Problem, alive: Ints) -> tuple[Ints, Floats]:
    """Solve the linear relaxation: return each layer's largest choice in it, and the energy per unit of each budget (duals).

    It is solved over a few choices per layer, to which the best ones at its prices and some around those are added until they are all
    there: a tenth of the time of solving it over all of them.
    """
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


def _linear(problem: _Problem, pool: Ints) -> tuple[Ints, Floats] | None:
    """Solve the relaxation over ``pool``; None where it has no solution."""
    scale = max(float(problem.energy[pool].max()), 1e-300)
    result = linprog(  # type: ignore[call-overload]  # its stubs know no sparse matrices, its documentation does
        -problem.energy[pool] / scale,
        A_ub=csr_array(problem.shares()[pool].T),
        b_ub=problem.limits / np.maximum(problem.limits, 1),
        A_eq=_one_each(problem, pool),
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


def _repair(problem: _Problem, alive: Ints, plan: Ints) -> Ints | None:
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


def _polish(problem: _Problem, alive: Ints, lack: Floats, bound: float, plan: Ints) -> Ints:
    """Change one layer or two at a time, by the largest gain that fits, until there is none."""
    while (better := _exchange(problem, _near(alive, lack, bound - problem.kept(plan), plan), plan)) is not None:
        plan = better
    return plan


def _near(alive: Ints, lack: Floats, most: float, plan: Ints) -> Ints:
    """Return the plan's choices and the ``POOL`` others that lack least, of those that lack ``most`` at most."""
    near = np.flatnonzero(lack <= most)
    return np.union1d(alive[near[np.argsort(lack[near], kind="stable")[:POOL]]], plan)


def _exchange(problem: _Problem, pool: Ints, plan: Ints) -> Ints | None:
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


def _branch(problem: _Problem, pool: Ints, worth: Floats, nodes: int) -> Ints | None:
    """Branch and bound over the choices in ``pool`` for the plan of the largest Σ ``worth`` (choices,); None where none is found.

    The solver's tolerance can let a plan exceed a limit by 1e-10 of it; such a plan is cut off, and the search repeated.
    """
    pool = _undominated(problem, pool, worth)
    rows = csr_array(1e4 * problem.shares()[pool].T)
    room = 1e4 * problem.limits / np.maximum(problem.limits, 1)
    matrix = vstack([_one_each(problem, pool), rows], format="csr")
    low = np.concatenate([np.ones(problem.count), np.full(len(room), -np.inf)])
    high = np.concatenate([np.ones(problem.count), room])
    scale = max(float(worth[pool].max()), 1e-300)
    while True:
        result = milp(
            -worth[pool] / scale,
            integrality=np.ones(len(pool), int),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix, low, high),
            options={"mip_rel_gap": 1e-6, "node_limit": nodes},
        )
        chosen = np.flatnonzero(result.x > 0.5) if result.x is not None else np.empty(0, int)
        if len(chosen) != problem.count or problem.fits(pool[chosen]):
            return pool[chosen] if len(chosen) == problem.count else None
        cut = csr_array((np.ones(len(chosen)), (np.zeros(len(chosen), int), chosen)), shape=(1, len(pool)))
        matrix = vstack([matrix, cut], format="csr")
        low, high = np.append(low, -np.inf), np.append(high, problem.count - 1)


def _undominated(problem: _Problem, pool: Ints, worth: Floats) -> Ints:
    """Return the choices of ``pool`` than which no other of the layer costs no more anywhere and is worth no less; of equal ones, one."""
    kept = []
    for part in np.split(pool, _firsts(problem, pool)[1:]):
        beats = worth[part][:, None] >= worth[part][None, :]
        for costs in problem.costs[part].T:
            beats &= costs[:, None] <= costs[None, :]
        beats &= ~np.tril(beats.T)  # of two equal ones the first stays; the diagonal goes
        kept.append(part[~beats.any(0)])
    return np.concatenate(kept)
