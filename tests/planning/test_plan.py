"""The largest sub-model within a budget: no plan exceeds it, and none of all keeps much more."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_networks import (
    BATCH,
    DEVICE,
    NEEDS,
    SAMPLES,
    convolutional,
    every_plan,
    filled,
    kept,
    linear,
    needs_of,
    networks,
    traced,
)
from torch import nn

from edgefl.errors import BudgetError, ConfigError, UnknownNameError
from edgefl.fleet.budget import Budget
from edgefl.methods.create import create
from edgefl.methods.ranks import hybrid_ranks, ranked
from edgefl.models.base import Architecture
from edgefl.planning.plan import plan
from edgefl.planning.profile import training_for
from edgefl.planning.sub_models import STEPS
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Tier
from edgefl.rng import torch_seeded
from edgefl.wire.payload import payload_bytes


@settings(max_examples=8)
@given(
    networks(), st.sets(st.sampled_from(NEEDS), min_size=1, max_size=3), st.floats(0.0, 1.1), st.sampled_from(["fp32", "int8"])
)
def test_no_budget_is_exceeded_and_the_spectral_plan_keeps_at_least_as_much(built, names, share, codec):
    network, shape = built
    smallest = needs_of(traced(network, shape, hybrid_ranks(network, 1 / STEPS), codec))
    largest = needs_of(traced(network, shape, {}, codec))
    # Beside a factorized network the whole one can need less memory.
    limits = {name: smallest[name] + share * max(0, largest[name] - smallest[name]) for name in names}
    options = {"batch_size": BATCH, "samples": SAMPLES, "codec": codec, "weights": network.state_dict()}
    found = plan(network, shape, device=DEVICE, budget=Budget(**limits), allocate="spectral", **options)
    for planned in found:
        needs = needs_of(traced(network, shape, planned.ranks, codec))
        assert all(needs[name] <= limit for name, limit in limits.items())
        assert {name: need for name, (need, _) in planned.uses.items()} == {name: needs[name] for name in planned.uses}
        assert planned.uses.keys() == names | {"memory_bytes"}
        some, whole = kept(network, planned.ranks)
        assert planned.energy_share == pytest.approx(some / whole if whole else 1.0, abs=1e-6)
    uniform, spectral = found
    assert (uniform.kind, spectral.kind) == ("uniform", "spectral")
    assert spectral.energy_share >= uniform.energy_share
    assert spectral.gap >= 0


def test_a_layer_that_no_rank_makes_smaller_stays_dense_in_a_spectral_plan():
    """2×2 weights have four numbers, and so have their factors of rank 1."""
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 8))
    limits = needs_of(traced(network, (2,), {"2": 1}))
    options = {"batch_size": BATCH, "samples": SAMPLES, "weights": network.state_dict()}
    for budget in (Budget(memory_bytes=limits["memory_bytes"]), Budget(upload_bytes=limits["upload_bytes"])):
        found = plan(network, (2,), device=DEVICE, budget=budget, allocate="spectral", **options)
        assert found[-1].kind == "spectral"
        assert set(found[-1].ranks) <= {"2"}


@settings(max_examples=5)
@given(networks(), st.sampled_from(["macs_forward", "memory_bytes", "upload_bytes"]), st.floats(0.1, 0.9))
def test_the_next_ratio_above_does_not_fit(built, name, share):
    network, shape = built
    smallest, largest = (needs_of(traced(network, shape, hybrid_ranks(network, ratio)))[name] for ratio in (1 / STEPS, 1.0))
    limit = smallest + share * (largest - smallest)
    (found,) = plan(network, shape, budget=Budget(**{name: limit}), batch_size=BATCH)
    assert needs_of(traced(network, shape, hybrid_ranks(network, found.ratio)))[name] <= limit
    if found.ratio < 1:
        above = round(found.ratio * STEPS + 1) / STEPS
        assert needs_of(traced(network, shape, hybrid_ranks(network, above)))[name] > limit


def test_a_larger_ratio_that_takes_fewer_macs_is_found():
    """Factors of a layer with a stride work at more positions than the dense layer, which takes over where factors would be larger."""
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.Conv2d(4, 16, 3, stride=2), nn.Conv2d(16, 8, 3), nn.Flatten(), nn.Linear(32, 3)
    )
    shape = (2, 11, 11)
    macs = {ratio: traced(network, shape, hybrid_ranks(network, ratio)).macs_forward for ratio in (0.667, 0.833, 0.834)}
    assert macs[0.667] < macs[0.834] < macs[0.833]
    for limit, ratio in ((macs[0.834], 0.874), (macs[0.834] - 1, 0.749)):
        assert plan(network, shape, budget=Budget(macs_forward=limit), batch_size=BATCH)[0].ratio == ratio


@pytest.mark.parametrize("name", ["macs_forward", "macs_train_step", "upload_bytes"])
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_no_plan_of_all_keeps_more_than_the_bound(name, share):
    """Not of memory: which moment is the peak depends on the plan, and the bound does not know it."""
    network, shape, plans = every_plan(linear, 6, 7, 5)
    costs = [needs[name] for _, needs in plans]
    limit = min(costs) + share * (max(costs) - min(costs))
    best = max(energy for energy, needs in plans if needs[name] <= limit)
    found = plan(
        network, shape, budget=Budget(**{name: limit}), allocate="spectral", weights=network.state_dict(), batch_size=BATCH
    )[-1]
    assert found.energy_share <= best + 1e-9
    assert found.energy_share + found.gap >= best - 1e-9


@pytest.mark.parametrize("widths", [(convolutional, 12, 4), (linear, 6, 30, 6)])
def test_a_budget_of_memory_is_used(widths):
    network, shape, plans = every_plan(*widths)
    needs = sorted(needs["memory_bytes"] for _, needs in plans)
    for limit in needs[len(needs) // 4 :: len(needs) // 3]:
        best = max(energy for energy, needs in plans if needs["memory_bytes"] <= limit)
        budget = Budget(memory_bytes=limit)
        found = plan(network, shape, budget=budget, allocate="spectral", weights=network.state_dict(), batch_size=BATCH)[-1]
        assert found.cost.training_memory_bytes <= limit
        assert 0.97 * best <= found.energy_share <= best + 1e-6


def test_the_whole_network_is_the_plan_of_a_budget_that_it_fills_to_the_byte():
    network, shape = linear(9, 8, 7)
    whole = needs_of(traced(network, shape, {}))
    for name in ("memory_bytes", "macs_forward", "upload_bytes"):
        (exact,) = plan(network, shape, budget=Budget(**{name: whole[name]}), batch_size=BATCH)
        assert exact.ratio == 1.0
        (less,) = plan(network, shape, budget=Budget(**{name: whole[name] - 1}), batch_size=BATCH)
        assert less.ratio < 1.0
        assert less.uses[name][0] <= whole[name] - 1


def test_the_smallest_plan_is_rank_1_everywhere_and_one_mac_less_fits_nothing():
    network, shape = linear(8, 8, 8)
    filled(network, 1)
    smallest = needs_of(traced(network, shape, hybrid_ranks(network, 1 / STEPS)))["macs_forward"]
    assert smallest == (8 + 8) + (8 + 8) + 8 * 3
    with pytest.raises(BudgetError, match=rf"forward MACs: needs {smallest}, has {smallest - 1} \(too little\)"):
        plan(network, shape, budget=Budget(macs_forward=smallest - 1), allocate="spectral")
    (uniform, spectral) = plan(network, shape, budget=Budget(macs_forward=smallest), allocate="spectral")
    assert uniform.ranks == spectral.ranks == {"0": 1, "2": 1}


class Inverted(nn.Module):
    """Linear layers behind an operation of unknown cost."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.first(x @ torch.linalg.inv(torch.eye(4, device=x.device))))


def test_an_operation_of_unknown_cost_is_named():
    with pytest.raises(
        BudgetError, match=r"no size of Inverted with heterofl fits: the cost of .*aten.linalg_inv_ex is not known"
    ):
        plan(Inverted(), (4,), method="heterofl", budget=Budget(macs_forward=1e9))


def test_the_same_plan_every_time_and_from_a_factory_as_from_a_module():
    network, shape = convolutional(6, 8)
    options = {"budget": Budget(macs_forward=9_000), "allocate": "spectral", "weights": network.state_dict()}
    first = [planned.to_dict() for planned in plan(network, shape, **options)]
    assert [planned.to_dict() for planned in plan(network, shape, **options)] == first
    assert [planned.to_dict() for planned in plan(lambda: convolutional(6, 8)[0], shape, **options)] == first


def test_heterofl_is_planned_by_its_widths():
    (found,) = plan("cnn-digits", (1, 8, 8), budget=Budget(upload_bytes=100_000), method="heterofl")
    architecture, method = Architecture("cnn-digits", (1, 8, 8), 10), create("heterofl")
    training = replace(training_for(32, None, "momentum"), clip_gradient=method.clip_gradient)
    cost, above = (tier_cost(method, architecture, Tier(ratio), training) for ratio in (found.ratio, found.ratio + 1 / STEPS))
    assert found.cost == cost
    assert cost.upload_bytes <= 100_000 < above.upload_bytes
    assert (found.ranks, found.energy_share, found.gap) == ({}, None, None)
    with pytest.raises(ConfigError, match="allocate: spectral gives every layer a rank, which heterofl does not have; use fedhm"):
        plan("cnn-digits", (1, 8, 8), budget=Budget(upload_bytes=100_000), method="heterofl", allocate="spectral")


@pytest.mark.parametrize("method", ["splitmix", "fjord"])
def test_a_plan_costs_what_a_run_with_its_tier_costs(method):
    (found,) = plan("cnn-digits", (1, 8, 8), budget=Budget(upload_bytes=60_000), method=method)
    assert found.cost == tier_cost(
        create(method, tiers=(found.ratio,)),
        Architecture("cnn-digits", (1, 8, 8), 10),
        Tier(found.ratio),
        training_for(32, None, "momentum"),
    )


def test_relative_errors_spare_layers_with_small_weights():
    """Two equal layers, one with weights a hundred times smaller: absolutely its error is nothing, relatively as much as the other's."""

    def net():
        return nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 16, 3), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(256, 4))

    with torch_seeded(np.random.default_rng(0)):
        tensors = {name: tensor.detach().clone() for name, tensor in net().state_dict().items()}
    tensors["1.weight"] *= 0.01
    kept = {}
    for error in ("absolute", "relative"):
        plans = plan(net, (3, 8, 8), budget=Budget(macs_forward=40_000), allocate="spectral", weights=tensors, error=error)
        kept[error] = plans[-1].ranks.get("1", 99)
    assert kept["absolute"] == 1
    assert kept["relative"] > 1
    with pytest.raises(UnknownNameError, match="unknown error 'squared'"):
        plan(net, (3, 8, 8), budget=Budget(macs_forward=1e6), error="squared")


def test_counters_of_batches_are_sent_by_no_plan():
    """BatchNorm's integer counter stays where it is, whether one ratio or a rank per layer made the sub-model."""

    def net():
        layers = (nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 16, 3), nn.Conv2d(16, 16, 3))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 4))

    for planned in plan(net, (3, 8, 8), budget=Budget(macs_forward=60_000), allocate="spectral"):
        tensors = ranked(net(), dict(planned.ranks)).state_dict()
        sent = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name != "1.num_batches_tracked"}
        assert planned.cost.upload_bytes == payload_bytes(sent)
