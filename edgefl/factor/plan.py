"""A rank for every layer under several linear budgets, with the most spectral energy; :mod:`edgefl.factor.knapsack` searches."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from edgefl.errors import ConfigError
from edgefl.factor.knapsack import Floats, Ints, Problem, solve


@dataclass(frozen=True, eq=False)
class LayerChoices:
    """The choices of one layer; ConfigError if shapes differ, ranks do not ascend from 1, or a value is negative or not finite.

    Attributes:
        name: the layer's name.
        ranks: ascending; the last one may stand for the dense layer.
        energy: Σ_{i≤r} σᵢ² of each rank r, (ranks,) float64.
        costs: (ranks, budgets), each in its budget's unit.
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
    """A rank for each layer.

    Attributes:
        ranks: layer → rank.
        energy: the summed energy of these ranks.
        lost: the largest possible energy minus ``energy``: the squared truncation errors, summed.
        bound: an upper bound on the energy of every plan within the limits.
    """

    ranks: dict[str, int]
    energy: float
    lost: float
    bound: float

    @property
    def gap(self) -> float:
        """(bound − energy)/bound, the largest share that a better plan could add."""
        return (self.bound - self.energy) / self.bound if self.bound > 0 else 0.0


def allocate(layers: Sequence[LayerChoices], limits: Floats | Ints, start: Mapping[str, int] | None = None) -> Allocation | None:
    """Return a rank per layer with the largest Σ energy such that Σ costs ≤ ``limits`` (budgets,) in every budget; None if nothing fits.

    No limit is ever exceeded. Integer costs are compared as integers. Float costs are first rounded up to multiples of at most 2⁻⁵¹ of the
    limit (below 1024 layers). If the gap is above 1e-4, a search over a limited number of choices follows. The same input gives the same
    plan. If the plan ``start`` (layer → rank) fits, the result has at least its energy.

    Raises:
        ConfigError: limits are not finite, names repeat, or layers have different numbers of budgets; integer costs could overflow; or
            ``start`` lacks a layer, or has a rank that is no choice.

    >>> energy, macs = np.array([9.0, 13.0, 14.0]), np.array([[10], [20], [24]])
    >>> pair = [LayerChoices("a", (1, 2, 3), energy, macs), LayerChoices("b", (1, 2, 3), 2 * energy, macs)]
    >>> plan = allocate(pair, np.array([34]))
    >>> plan.ranks, plan.energy, plan.lost, allocate(pair, np.array([19])) is None
    ({'a': 1, 'b': 3}, 37.0, 5.0, True)
    """
    _check(layers, limits)
    positions = None if start is None else _positions(layers, start)
    if not layers:
        return Allocation({}, 0.0, 0.0, 0.0) if (limits >= 0).all() else None
    if (limits < 0).any():
        return None
    problem = _pose(layers, limits)
    offsets = np.cumsum([0, *(len(layer.ranks) for layer in layers[:-1])], dtype=np.int64)
    solution = solve(problem, None if positions is None else offsets + np.array(positions, np.int64))
    plans = [] if solution is None else [[int(i) for i in solution[0] - offsets]]
    if positions is not None and _within(layers, positions, limits):
        plans.append(positions)  # with float costs, it may fit by less than the rounding above
    if not plans:
        return None
    best = max(plans, key=lambda plan: _energy(layers, plan))
    energy = _energy(layers, best)
    most = math.fsum(float(layer.energy.max()) for layer in layers)
    bound = most if solution is None else max(energy, min(most, solution[1]))
    lost = math.fsum(float(layer.energy.max()) - float(layer.energy[i]) for layer, i in zip(layers, best, strict=True))
    return Allocation({layer.name: layer.ranks[i] for layer, i in zip(layers, best, strict=True)}, energy, lost, bound)


def _check(layers: Sequence[LayerChoices], limits: Floats | Ints) -> None:
    """Raise the errors of :func:`allocate` about layers and limits."""
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
    """Return the position of each layer's rank in ``start`` among its choices; ConfigError if it is none of them."""
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
    """Return whether the plan fits, from sums of Python integers for integer costs, and correctly rounded sums for others."""
    rows = zip(*(layer.costs[i].tolist() for layer, i in zip(layers, plan, strict=True)), strict=True)
    total = sum if _whole(layers) else math.fsum
    return all(total(row) <= limit for row, limit in zip(rows, limits.tolist(), strict=False))


def _whole(layers: Sequence[LayerChoices]) -> bool:
    return all(layer.costs.dtype.kind in "iu" for layer in layers)


def _pose(layers: Sequence[LayerChoices], limits: Floats | Ints) -> Problem:
    """Return the problem in integers. Float costs become units of a power of two, rounded up; their limits are rounded down."""
    owner = np.repeat(np.arange(len(layers)), [len(layer.ranks) for layer in layers])
    energy = np.concatenate([layer.energy for layer in layers]).astype(np.float64)
    if _whole(layers):
        if sum(max(layer.costs.max(0).tolist(), default=0) for layer in layers) >= 2**62:
            raise ConfigError("integer costs add up to 2**62 or more; give them as float64 or in a larger unit")
        whole = np.array([min(math.floor(limit), 2**62) for limit in limits.tolist()], np.int64)
        return Problem(owner, energy, np.concatenate([layer.costs for layer in layers]).astype(np.int64), whole, len(layers))
    costs = np.concatenate([layer.costs for layer in layers]).astype(np.float64)
    # An integer limit above 2⁵³ may have no double of its own: the next smaller one is taken.
    floats = np.array([f if (f := float(limit)) <= limit else math.nextafter(f, 0.0) for limit in limits.tolist()])
    exponents = min(52, 62 - len(layers).bit_length()) - np.frexp(floats)[1]
    whole = np.floor(np.ldexp(floats, exponents)).astype(np.int64)
    with np.errstate(over="ignore"):
        units = np.ceil(np.ldexp(costs, exponents))
    # A cost that underflows counts as one unit. One above the limit never fits, and is cut so that sums do not overflow.
    units = np.minimum(np.maximum(units, costs > 0), whole + 1)
    return Problem(owner, energy, units.astype(np.int64), whole, len(layers))
