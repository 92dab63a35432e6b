"""Ranks under several budgets: against brute force, never over a limit, never worse than the start."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.errors import ConfigError
from edgefl.factor.plan import Allocation, LayerChoices, allocate


@st.composite
def instances(draw):
    """1–4 layers whose ranks cost more and keep more, 1–3 budgets, and at some layers a dense choice with costs of its own."""
    budgets = draw(st.integers(1, 3))
    steps = st.lists(st.integers(0, 9), min_size=budgets, max_size=budgets)
    layers = []
    for number in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 5))
        energy = np.cumsum([draw(st.integers(0, 50)) for _ in range(size)]) / 7.0
        costs = np.cumsum([draw(steps) for _ in range(size)], axis=0)
        if draw(st.booleans()):
            costs[-1] = draw(st.lists(st.integers(0, 30), min_size=budgets, max_size=budgets))
        layers.append(LayerChoices(f"layer{number}", tuple(range(1, size + 1)), energy, costs))
    limits = np.array(draw(st.lists(st.integers(0, 60), min_size=budgets, max_size=budgets)))
    return layers, limits


def every_plan(layers, limits):
    """(energy, ranks) of all plans that fit, in Python's integers."""
    for picks in itertools.product(*(range(len(layer.ranks)) for layer in layers)):
        used = [
            sum(column) for column in zip(*(layer.costs[i].tolist() for layer, i in zip(layers, picks, strict=True)), strict=True)
        ]
        if all(u <= limit for u, limit in zip(used, limits.tolist(), strict=True)):
            energy = math.fsum(layer.energy[i] for layer, i in zip(layers, picks, strict=True))
            yield energy, {layer.name: layer.ranks[i] for layer, i in zip(layers, picks, strict=True)}


def used_by(layers, ranks):
    return [sum(column) for column in zip(*(x.costs[x.ranks.index(ranks[x.name])].tolist() for x in layers), strict=True)]


def choices(name, energy, costs, ranks=None):
    return LayerChoices(name, ranks or tuple(range(1, len(energy) + 1)), np.array(energy, np.float64), np.array(costs))


def spectrum_layers(seed, count, ranks, budgets, integer=True):
    """Layers as networks have them: falling spectra, costs linear in the rank, and a dense choice that is dearer in some budgets."""
    rng = np.random.default_rng(seed)
    layers = []
    for number in range(count):
        values = np.sort(rng.exponential(size=ranks))[::-1] * np.arange(1, ranks + 1) ** -rng.uniform(0.2, 1.2)
        costs = np.arange(1, ranks + 1)[:, None] * rng.integers(50, 5000, budgets)
        costs[-1] = (costs[-1] * rng.uniform(0.3, 0.9, budgets)).astype(int)
        layers.append(choices(f"layer{number}", np.cumsum(values**2), costs if integer else costs / 7.0))
    return layers, np.floor(sum(layer.costs[-2] for layer in layers) * rng.uniform(0.1, 0.4, budgets)).astype(int)


@settings(max_examples=150)
@given(instances())
def test_plans_are_those_of_brute_force(instance):
    layers, limits = instance
    optimum = max((energy for energy, _ in every_plan(layers, limits)), default=None)
    plan = allocate(layers, limits)
    # Where the cheapest choice differs between budgets, only trying them all says whether any plan fits.
    assert (plan is None) == (optimum is None)
    if plan is None:
        return
    assert all(used <= limit for used, limit in zip(used_by(layers, plan.ranks), limits.tolist(), strict=True))
    assert optimum * (1 - 1e-4) - 1e-12 <= plan.energy <= optimum + 1e-12
    assert plan.bound >= optimum * (1 - 1e-12)
    assert plan.gap >= 0
    if plan.gap > 1e-4:  # then it was branched on
        assert plan.energy == pytest.approx(optimum, rel=2e-6)
    assert plan.energy + plan.lost == pytest.approx(sum(layer.energy.max() for layer in layers))
    assert allocate(layers, limits) == plan


@given(instances(), st.data())
def test_plans_are_never_worse_than_a_start_that_fits(instance, data):
    layers, limits = instance
    start = {layer.name: data.draw(st.sampled_from(layer.ranks)) for layer in layers}
    plan = allocate(layers, limits, start)
    fitting = {tuple(sorted(ranks.items())): energy for energy, ranks in every_plan(layers, limits)}
    assert (plan is None) == (not fitting)
    if plan is not None:
        assert tuple(sorted(plan.ranks.items())) in fitting
        assert plan.energy >= fitting.get(tuple(sorted(start.items())), 0.0)


@given(instances(), st.sampled_from([1 / 3, 0.1, 1e-9, 1e15]))
def test_float_costs_exceed_no_limit(instance, unit):
    layers, limits = instance
    layers = [LayerChoices(x.name, x.ranks, x.energy, x.costs * unit) for x in layers]
    limits = limits * unit
    plan = allocate(layers, limits)
    if plan is not None:
        for column, limit in zip(zip(*(x.costs[plan.ranks[x.name] - 1] for x in layers), strict=True), limits, strict=True):
            assert math.fsum(column) <= limit


def test_a_start_of_float_costs_that_fits_by_rounding_is_kept():
    # In exact arithmetic the three sum to less than the nearest double of their sum.
    costs = [[0.1], [0.2], [0.7]]
    layers = [choices(f"layer{i}", [1.0], [cost]) for i, cost in enumerate(costs)]
    limits = np.array([math.fsum(cost[0] for cost in costs)])
    start = {layer.name: 1 for layer in layers}
    assert allocate(layers, limits, start).ranks == start


@pytest.mark.parametrize("integer", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_networks_are_planned_to_a_small_gap(seed, integer):
    layers, limits = spectrum_layers(seed, 12, 96, 4, integer)
    plan = allocate(layers, limits)
    assert plan is not None
    assert 0 <= plan.gap < 2e-3
    assert (np.array(used_by(layers, plan.ranks)) <= limits).all()
    assert allocate(layers, limits) == plan
    assert allocate(layers, limits, plan.ranks).energy >= plan.energy


def test_several_budgets_can_have_different_cheapest_choices():
    # Rank 1 is the cheapest in MACs and the dense layer in bytes: each fits one budget, neither fits both.
    layer = choices("a", [1.0, 2.0], [[1, 9], [9, 1]])
    assert allocate([layer], np.array([5, 5])) is None
    assert allocate([layer], np.array([5, 9])).ranks == {"a": 1}
    assert allocate([layer], np.array([9, 9])).ranks == {"a": 2}
    # Two such layers fit only one of each kind.
    pair = [layer, choices("b", [1.0, 3.0], [[1, 9], [9, 1]])]
    assert allocate(pair, np.array([10, 10])).ranks == {"a": 1, "b": 2}
    assert allocate(pair, np.array([10, 9])) is None


def test_integer_limits_are_exact_where_floats_are_not():
    big = 2**55
    layer = choices("a", [1.0, 2.0], [[big], [big + 1]])
    assert allocate([layer], np.array([big])).ranks == {"a": 1}
    assert allocate([layer], np.array([big + 1])).ranks == {"a": 2}
    assert allocate([layer], np.array([big - 1])) is None
    pair = [layer, choices("b", [1.0, 2.0], [[big], [big + 1]])]
    assert allocate(pair, np.array([2 * big])).energy == 2.0
    assert allocate(pair, np.array([2 * big + 1])).energy == 3.0


def test_integers_that_could_overflow_are_refused():
    layers = [choices(name, [1.0], [[2**61]]) for name in "ab"]
    with pytest.raises(ConfigError, match="integer costs add up to 2\\*\\*62 or more; give them as float64 or in a larger unit"):
        allocate(layers, np.array([2**62]))


def test_one_layer_takes_the_largest_rank_that_fits():
    layer = choices("a", [1.0, 1.5, 1.75], [[2], [4], [6]], (4, 8, 16))
    for limit, rank in ((2, 4), (3, 4), (4, 8), (5.9, 8), (6, 16), (100, 16)):
        plan = allocate([layer], np.array([limit]))
        assert plan.ranks == {"a": rank}
    assert plan == Allocation({"a": 16}, 1.75, 0.0, 1.75)
    assert plan.gap == 0.0


def test_budgets_of_nothing_and_no_budgets():
    free = choices("a", [1.0, 2.0], [[0, 3], [4, 0]])
    assert allocate([free], np.array([0, 3])).ranks == {"a": 1}
    assert allocate([free], np.array([0, 0])) is None
    assert allocate([free], np.array([9, -1])) is None
    unlimited = choices("a", [1.0, 2.0], np.zeros((2, 0), int))
    assert allocate([unlimited], np.zeros(0)).ranks == {"a": 2}
    assert allocate([], np.array([3])) == Allocation({}, 0.0, 0.0, 0.0)
    assert allocate([], np.array([-1])) is None
    assert allocate([choices("a", [0.0, 0.0], [[1], [2]])], np.array([1])).gap == 0.0


def test_what_is_not_finite_is_refused():
    for bad in (float("nan"), float("inf"), -1.0):
        with pytest.raises(
            ConfigError, match="layer 'a': energy hold NaN, infinity or a negative number; expected finite, from 0"
        ):
            choices("a", [1.0, bad], [[1], [2]])
        with pytest.raises(
            ConfigError, match="layer 'a': costs hold NaN, infinity or a negative number; expected finite, from 0"
        ):
            choices("a", [1.0, 2.0], [[1.0], [bad]])
    for bad in (float("nan"), float("inf")):
        with pytest.raises(
            ConfigError, match=rf"limits \[{bad}\] must be a vector of finite numbers; leave a budget without a limit"
        ):
            allocate([choices("a", [1.0], [[1]])], np.array([bad]))


def test_shapes_and_names_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"layer 'a': ranks \(2, 2\) do not ascend from 1 or more"):
        choices("a", [1.0, 2.0], [[1], [2]], (2, 2))
    with pytest.raises(ConfigError, match=r"ranks \(0, 2\) do not ascend"):
        choices("a", [1.0, 2.0], [[1], [2]], (0, 2))
    with pytest.raises(ConfigError, match=r"ranks \(\) do not ascend from 1 or more; expected at least one rank"):
        choices("a", [], np.zeros((0, 1)))
    with pytest.raises(ConfigError, match=r"energy of shape \(2,\) and costs of shape \(1, 1\) do not fit 2 ranks"):
        choices("a", [1.0, 2.0], [[1]])
    layer = choices("a", [1.0, 2.0], [[1], [2]])
    with pytest.raises(ConfigError, match=r"layers \['a', 'a'\] must have different names"):
        allocate([layer, layer], np.array([1]))
    with pytest.raises(ConfigError, match="layer 'a' has costs in 1 budgets, and 2 limits are given"):
        allocate([layer], np.array([1, 2]))
    for start, rank in (({}, None), ({"a": 3}, 3)):
        with pytest.raises(ConfigError, match=f"the start has rank {rank} for layer 'a'; expected one of its 2 ranks, 1 to 2"):
            allocate([layer], np.array([1]), start)
