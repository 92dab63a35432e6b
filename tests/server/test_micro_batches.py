"""Micro-batches and recomputation: the same step, less memory, and more passes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_fleet import expected
from tight_runs import BIG, HALF, cost_of, planned, prepared, trained
from torch import nn

from edgefl.errors import BudgetError
from edgefl.models.norm import splits_batches
from edgefl.planning.practice import Practice
from edgefl.planning.tier_costs import recomputed_cost
from edgefl.rng import generator
from edgefl.server.assign import PlanCosts, make_plan
from edgefl.server.assignment import Assignment


def test_a_step_in_parts_is_the_same_step_and_holds_less(tmp_path):
    run = prepared(tmp_path, tiers=(0.5,))
    client = max(range(12), key=run.clients.shards.size)
    start = run.method.submodel(run.first_state(), HALF, generator(0, 1, "submodel"), client).tensors
    whole, sent = trained(run, client, tier=HALF)
    for parts in (16, 5, 1):
        split, in_parts = trained(run, client, parts, HALF)
        assert (split.steps, whole.steps) == (5, 5)
        assert split.train_loss == pytest.approx(whole.train_loss, rel=1e-4)
        for name, tensor in sent.items():
            assert torch.allclose(in_parts[name], tensor, rtol=1e-4, atol=1e-5)
            assert not torch.allclose(in_parts[name], start[name], rtol=1e-4, atol=1e-5)
        assert split.measured_training_memory_bytes == cost_of(run, HALF, parts).training_memory_bytes
        assert split.measured_training_memory_bytes < whole.measured_training_memory_bytes


def test_a_step_that_computes_activations_again_is_the_same_step_and_holds_what_was_predicted(tmp_path):
    run = prepared(tmp_path, method="fedavg", norm="batch", tiers=(1.0,))
    training = run.clients.task.training
    cost = recomputed_cost(Practice(run.method, run.architecture, training), BIG, "fp32")
    client = max(range(12), key=run.clients.shards.size)
    whole, sent = trained(run, client)
    again, after = trained(run, client, recompute=cost.recompute)
    assert again.train_loss == whole.train_loss
    assert all(torch.equal(after[name], tensor) for name, tensor in sent.items())
    assert again.measured_training_memory_bytes == cost.training_memory_bytes < whole.measured_training_memory_bytes
    assert again.measured_peak_activation_bytes == cost.peak_activation_bytes_training
    short, _ = trained(
        replace(run, clients=metering(run.clients)), client, None, BIG, cost.training_memory_bytes - 1, cost.recompute
    )
    assert short.status == "out_of_memory"


def metering(clients):
    return type(clients)(replace(clients.task, enforce="meter"), clients.data)


def test_recomputation_is_tried_in_the_order_that_the_user_gives(roomy, costs, memory):
    layers = ("conv2",)
    less = {None: memory[BIG, 16] + 1, 16: memory[HALF, 1]}

    def recomputed(tier, parts):
        # The small tier gains nothing; the large one fits where half a batch does, and in parts where nothing else does.
        if tier == HALF or parts not in less:
            return costs[tier, parts]
        return replace(costs[tier, parts], recompute=layers, training_memory_bytes=less[parts])

    def given(memory_bytes, order):
        run = planned(roomy, costs, memory_bytes, order)
        whole = {tier: costs[tier, None] for tier in (BIG, HALF)}
        plan_costs = PlanCosts(whole, split=lambda tier, parts: costs[tier, parts], recomputed=recomputed)
        (found,) = make_plan(run.plan.population, plan_costs, run.plan.workload, order).classes
        return found

    again = Assignment(BIG, None, layers)
    have = less[None]
    assert given(have, ("recompute", "micro-batch", "tier")).options[0] == again
    assert given(have, ("micro-batch", "recompute", "tier")).options[0] == Assignment(BIG, 16)
    assert given(have, ("tier", "recompute")).options == (again,)
    assert given(have, ("recompute",)).options == (again, None)
    # Alone, neither remedy suffices for this.
    both = given(memory[HALF, 1], ("recompute", "micro-batch"))
    assert both.options[0] == Assignment(BIG, 16, layers)
    assert any("tier 1 with recomputation: memory needs" in str(short) for short in both.refusals)


def test_parts_cost_more_passes(tmp_path, memory):
    run = prepared(tmp_path, memory[HALF, 16], tiers=(0.5,))
    whole = cost_of(run, HALF)
    assert whole.macs_compose > 0
    for outcome in expected(run):
        full, rest = divmod(outcome.samples, 32)
        passes = 2 * full + (rest > 0) + (rest > 16)
        assert outcome.micro_batch == 16
        assert outcome.macs == outcome.samples * (whole.macs_forward + whole.macs_backward) + passes * whole.macs_compose
        assert run.plan.cost(Assignment(HALF, 16)).macs_of(outcome.samples, passes) == outcome.macs
        assert outcome.timing.train_s == pytest.approx(outcome.macs / 0.5e9)


@pytest.mark.parametrize("norm", ["batch", "static"])
def test_batches_whose_statistics_matter_are_never_split(norm, tmp_path):
    keys = {"tiers": (1.0, 0.5), "method": "heterofl", "norm": norm}
    run = prepared(tmp_path, **keys)
    need = cost_of(run, BIG).training_memory_bytes
    assert prepared(tmp_path, need - 1, **keys, on_shortfall=("micro-batch", "tier")).plan.classes[0].options == (
        Assignment(HALF),
    )
    assert prepared(tmp_path, need - 1, **keys, on_shortfall=("micro-batch",)).plan.classes[0].options == (None, Assignment(HALF))
    with pytest.raises(BudgetError):
        prepared(tmp_path, need // 8, **keys)


def test_networks_with_batch_normalisation_are_told_from_others():
    assert not splits_batches(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2))))
    assert splits_batches(nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.LayerNorm(4)))
