"""What is done where a tier does not fit a device: micro-batches, smaller tiers, refusal, or sending it all the same; and the meter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_fleet import small, write_device, write_fleet
from torch import nn

from edgefl.client.job import Job
from edgefl.engine.inline import InlineEngine
from edgefl.errors import BudgetError
from edgefl.models.norm import splits_batches
from edgefl.planning.tier_costs import recomputed_cost, tier_cost
from edgefl.records import Tier
from edgefl.rng import generator
from edgefl.server.assign import PlanCosts, make_plan
from edgefl.server.assignment import Assignment, TierPolicy
from edgefl.server.forecast import Asked
from edgefl.wire.payload import decode, encode

BIG, HALF = Tier(1.0), Tier(0.5)
PARTS = (16, 8, 4, 2, 1)


def prepared(folder, memory_bytes=1e9, method="fedhm", tiers=(1.0, 0.5), **keys):
    """Return a run of one class of device that has ``memory_bytes``."""
    write_device(folder, "board", training_bytes=float(memory_bytes))
    profile = write_fleet(folder, {"board": 1.0}, behaviour={})
    return small(profile, method=method, model="cnn-digits", tiers=tiers, **keys)


@pytest.fixture(scope="module")
def roomy(tmp_path_factory):
    """A run on devices on which everything fits."""
    return prepared(tmp_path_factory.mktemp("fleet"))


@pytest.fixture(scope="module")
def costs(roomy):
    """(tier, samples at once or None) → cost."""
    return {(tier, parts): cost_of(roomy, tier, parts) for tier in (BIG, HALF) for parts in (None, *PARTS)}


@pytest.fixture(scope="module")
def memory(costs):
    """(tier, samples at once or None) → bytes of a training step."""
    return {key: cost.training_memory_bytes for key, cost in costs.items()}


def planned(roomy, costs, memory_bytes, order, tiers=(BIG, HALF)):
    """Return the run on devices that have ``memory_bytes``, under another order; nothing is traced again."""
    fleet = roomy.fleet
    device = fleet.classes[0].device
    figure = device.memory.training_bytes.model_copy(update={"value": float(memory_bytes)})
    device = device.model_copy(update={"memory": device.memory.model_copy(update={"training_bytes": figure})})
    fleet = fleet.model_copy(update={"classes": (fleet.classes[0].model_copy(update={"device": device}),)})
    plan_costs = PlanCosts({tier: costs[tier, None] for tier in tiers}, split=lambda tier, parts: costs[tier, parts])
    plan = make_plan(replace(roomy.plan.population, fleet=fleet), plan_costs, roomy.plan.workload, order)
    return replace(roomy, plan=plan)


def cost_of(run, tier, parts=None):
    training = run.clients.task.training
    return tier_cost(run.method, run.architecture, tier, replace(training, micro_batch=parts))


def expected(run, clients=range(12), turn=1):
    return run.forecast.expected(Asked(np.array(clients, np.int64), turn, 0.0), {})


# Which of the orders gives what ------------------------------------------------------------------------------------------------

WHOLE = (Assignment(BIG), Assignment(HALF))
IN_PARTS = (Assignment(BIG, 8), Assignment(HALF, 16))
# Whether the whole of both, the half tier alone, neither but parts of both, or nothing at all fits → order → what is given.
GIVEN = {
    "both": {("micro-batch", "tier"): WHOLE, ("tier",): WHOLE, ("refuse",): WHOLE, ("send",): WHOLE},
    "half": {
        ("micro-batch", "tier"): (Assignment(BIG, 16), Assignment(HALF)),
        ("micro-batch",): (Assignment(BIG, 16), Assignment(HALF)),
        ("micro-batch", "refuse"): (Assignment(BIG, 16), Assignment(HALF)),
        ("tier", "micro-batch"): (Assignment(HALF),),
        ("tier",): (Assignment(HALF),),
        ("tier", "send"): (Assignment(HALF),),
        ("refuse",): (None, Assignment(HALF)),
        ("send",): WHOLE,
    },
    "parts": {
        ("micro-batch", "tier"): IN_PARTS,
        ("tier", "micro-batch"): IN_PARTS,
        ("micro-batch",): IN_PARTS,
        ("micro-batch", "send"): IN_PARTS,
        ("tier",): (),
        ("tier", "refuse"): (),
        ("tier", "send"): (Assignment(HALF),),
        ("refuse",): (None, None),
        ("send",): WHOLE,
    },
    "nothing": {
        ("micro-batch", "tier"): (),
        ("tier", "micro-batch"): (),
        ("micro-batch",): (None, None),
        ("micro-batch", "send"): WHOLE,
        ("tier", "send"): (Assignment(HALF),),
        ("micro-batch", "tier", "send"): (Assignment(HALF),),
    },
}


def bytes_for(what, memory):
    return {
        "both": memory[BIG, None],
        "half": memory[HALF, None],
        "parts": memory[HALF, 16],
        "nothing": memory[HALF, 1] - 1,
    }[what]


@pytest.mark.parametrize(("what", "order"), [(what, order) for what, orders in GIVEN.items() for order in orders])
def test_what_a_device_is_given_follows_from_the_order(what, order, roomy, costs, memory):
    assert memory[BIG, None] > memory[HALF, None] > memory[BIG, 16] > memory[HALF, 16] > memory[BIG, 8] > memory[HALF, 1]
    have = bytes_for(what, memory)
    run = planned(roomy, costs, have, order)
    (cell,) = run.plan.classes
    assert cell.options == GIVEN[what][order]
    first = cell.options[0] if cell.options else None
    for outcome in expected(run):
        if first is None:
            assert (outcome.status, outcome.tier, outcome.timing) == ("refused", None, None)
            assert outcome.refusal[0].budget == "memory_bytes"
        else:
            assert (outcome.status, outcome.tier, outcome.micro_batch) == ("expected", first.tier, first.micro_batch)
            assert outcome.predicted_memory_bytes == memory[first.tier, first.micro_batch]
            assert outcome.memory_bytes == have
    if not any(cell.options):
        with pytest.raises(BudgetError, match="no device of the fleet fits any tier"):
            run.plan.require_someone()


def test_a_run_s_own_order_is_what_it_is_planned_by(memory, tmp_path):
    have = bytes_for("half", memory)
    assert prepared(tmp_path, have).plan.classes[0].options == (Assignment(BIG, 16), Assignment(HALF))
    assert prepared(tmp_path, have, on_shortfall=("tier", "micro-batch")).plan.classes[0].options == (Assignment(HALF),)
    with pytest.raises(BudgetError, match="no device of the fleet fits any tier"):
        prepared(tmp_path, bytes_for("parts", memory), on_shortfall=("tier",))


@pytest.mark.parametrize(
    ("policy", "shares"), [("uniform", None), ("dynamic", None), ("uniform", (0.5, 0.5)), ("dynamic", (0.5, 0.5))]
)
def test_a_tier_that_is_drawn_is_refused_where_nothing_stands_in_for_it(policy, shares, roomy, costs, memory):
    def given(order):
        run = planned(roomy, costs, bytes_for("half", memory), order)
        plan = replace(run.plan, policy=TierPolicy(policy, shares))
        return plan.assigned(np.arange(12), plan.class_plans_of(np.arange(12), 1), 1)

    refused, in_parts, sent = given(("refuse",)), given(("micro-batch",)), given(("send",))
    assert set(refused) == {None, Assignment(HALF)}
    assert set(given(("tier",))) == {Assignment(HALF)}
    assert [Assignment(BIG, 16) if fit is None else fit for fit in refused] == in_parts
    assert [Assignment(BIG) if fit is None else fit for fit in refused] == sent


def test_the_steps_of_the_planning_are_listed_in_their_order(roomy, costs, memory):
    def considered(what, order):
        (cell,) = planned(roomy, costs, bytes_for(what, memory), order).plan.classes
        return [(step.assignment.tier, step.assignment.micro_batch, bool(step.refusals)) for step in cell.attempts]

    assert considered("both", ("micro-batch", "tier")) == [(BIG, None, False), (HALF, None, False)]
    assert considered("half", ("micro-batch", "tier")) == [(BIG, None, True), (BIG, 16, False), (HALF, None, False)]
    assert considered("half", ("tier", "micro-batch")) == [(BIG, None, True), (HALF, None, False)]
    assert considered("parts", ("tier", "micro-batch")) == [
        (BIG, None, True), (HALF, None, True), (BIG, 16, True), (BIG, 8, False), (HALF, 16, False),
    ]  # fmt: skip
    assert considered("nothing", ("micro-batch", "send")) == [
        (BIG, None, True), (BIG, 1, True), (HALF, None, True), (HALF, 1, True),
    ]  # fmt: skip


def test_a_refusal_says_what_is_needed_and_what_there_is(roomy, costs, memory):
    have = bytes_for("half", memory)
    (short,) = planned(roomy, costs, have, ("refuse",)).plan.classes[0].refusals
    assert (short.budget, short.need, short.have, short.device, short.tier) == (
        "memory_bytes",
        memory[BIG, None],
        have,
        "board",
        1.0,
    )
    refusals = planned(roomy, costs, bytes_for("parts", memory), ("tier", "micro-batch")).plan.classes[0].refusals
    assert any(str(s).startswith("board cannot take tier 1 in micro-batches of 16: memory needs") for s in refusals)


def test_the_plan_fits_to_the_byte(roomy, costs, memory):
    for parts, fit in [(None, Assignment(BIG)), (16, Assignment(BIG, 16)), (1, Assignment(BIG, 1))]:
        exact = planned(roomy, costs, memory[BIG, parts], ("micro-batch",), (BIG,))
        assert exact.plan.classes[0].options == (fit,)
    less = planned(roomy, costs, memory[BIG, 16] - 1, ("micro-batch",), (BIG,))
    assert less.plan.classes[0].options == (Assignment(BIG, 8),)


def test_parts_may_be_too_small_for_the_deadline_where_larger_ones_fit_both(tmp_path):
    """Composition is paid in every pass: one sample at a time takes least memory, but longer than sixteen."""
    run = prepared(tmp_path, tiers=(0.5,))
    device, largest = run.plan.classes[0].device, run.clients.shards.largest

    def seconds(parts):
        cost, training = cost_of(run, HALF, parts), run.clients.task.training
        macs = cost.macs_of(largest, replace(training, micro_batch=parts).passes(largest))
        return 0.1 + cost.download_bytes / 1e6 + cost.upload_bytes / 0.5e6 + macs / device.training_macs_per_s

    assert seconds(16) < seconds(1)
    between_s = (seconds(16) + seconds(4)) / 2
    memory_bytes = cost_of(run, HALF, 16).training_memory_bytes
    found = prepared(tmp_path, memory_bytes, tiers=(0.5,), deadline_s=between_s, on_shortfall=("micro-batch",))
    assert found.plan.classes[0].options == (Assignment(HALF, 16),)
    with pytest.raises(BudgetError, match="in micro-batches of 4: deadline needs"):
        prepared(tmp_path, memory_bytes // 2, tiers=(0.5,), deadline_s=between_s, on_shortfall=("micro-batch",))


def test_what_is_no_matter_of_memory_is_not_split(tmp_path):
    run = prepared(tmp_path, tiers=(1.0,), deadline_s=0.5, on_shortfall=("micro-batch", "send"))
    (cell,) = run.plan.classes
    assert cell.options == (Assignment(BIG),)
    assert [step.assignment for step in cell.attempts] == [Assignment(BIG)]
    assert [short.budget for short in cell.refusals] == ["deadline_s"]


# Micro-batches -----------------------------------------------------------------------------------------------------------------


def trained(run, client, micro_batch=None, tier=BIG, memory_bytes=None, recompute=()):
    """Return a client's outcome, and the tensors that it sends."""
    state = run.first_state()
    submodel = run.method.submodel(state, tier, generator(0, 1, "submodel"), client)
    job = Job(1, client, run.method, tier, encode(submodel.tensors), None, memory_bytes, micro_batch, recompute=recompute)
    ((_, found),) = InlineEngine(run.clients).map([job])
    sent = decode(found.payload, run.method.upload_shapes(run.architecture, tier), "it") if found.payload else {}
    return found, sent


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


# Recomputation -----------------------------------------------------------------------------------------------------------------


def test_a_step_that_computes_activations_again_is_the_same_step_and_holds_what_was_predicted(tmp_path):
    run = prepared(tmp_path, method="fedavg", norm="batch", tiers=(1.0,))
    training = run.clients.task.training
    cost = recomputed_cost(run.method, run.architecture, BIG, training)
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


# Devices that change -----------------------------------------------------------------------------------------------------------


def test_devices_are_in_their_states_as_often_as_the_profile_says_and_stay_in_them_for_a_round(tmp_path):
    write_device(tmp_path, "board")
    states = (("busy", 0.25, 0.5, 0.8), ("free", 0.6, 1, 1), ("slow", 0.15, 1, 0.5))
    profile = write_fleet(tmp_path, {"board": 1.0}, behaviour={}, states=states)
    run = small(profile, clients=20_000, partition="index:5", dynamic_devices=True)
    names = [state.name for state in run.plan.states]
    assert names == ["free", "slow", "busy"]  # by what is left of the device
    everyone = np.arange(20_000)
    found = run.plan.population.states(everyone, run.plan.states, 3)
    for name, chance in (("free", 0.6), ("slow", 0.15), ("busy", 0.25)):
        share = float((found == names.index(name)).mean())
        assert abs(share - chance) < 4 * (chance * (1 - chance) / 20_000) ** 0.5
    again = run.plan.population.states(everyone[::-1], run.plan.states, 3)[::-1]
    assert (again == found).all()
    assert (run.plan.population.states(everyone, run.plan.states, 4) != found).mean() > 0.3
    assert run.forecast.class_plan_of(17, 3).state.name == names[found[17]]


def test_what_other_apps_leave_of_memory_and_speed_decides_the_tier(tmp_path, memory):
    states = (("free", 0.4, 1, 1), ("busy", 0.3, 0.6, 1), ("saving", 0.3, 1, 0.25))
    heavy = {"method": "heterofl", "model": "cnn-digits", "tiers": (1.0, 0.5), "on_shortfall": ("tier",), "clients": 60}
    write_device(tmp_path, "board")
    profile = write_fleet(tmp_path, {"board": 1.0}, behaviour={}, states=states)
    run = small(profile, **heavy)
    needs = {tier: cost.training_memory_bytes for tier, cost in run.plan.costs.items()}
    seconds = {tier: run.plan.timing(run.plan.classes[0].device, tier, run.clients.shards.largest).total_s for tier in needs}
    assert needs[HALF] < 0.6 * needs[BIG]
    write_device(tmp_path, "board", training_bytes=float(needs[BIG]))
    run = small(profile, **heavy, dynamic_devices=True, deadline_s=1.01 * seconds[BIG])
    given = {state.state.name: state.options for state in run.plan.class_plans[0]}
    assert given == {"free": (Assignment(BIG), Assignment(HALF)), "busy": (Assignment(HALF),), "saving": (Assignment(HALF),)}
    assert [state.refusals[0].budget for state in run.plan.class_plans[0] if state.refusals] == ["memory_bytes", "deadline_s"]
    for turn in (1, 2):
        for outcome in expected(run, range(60), turn):
            assert outcome.tier == (BIG if outcome.state == "free" else HALF)
            assert outcome.memory_bytes == needs[BIG] * (0.6 if outcome.state == "busy" else 1)
            speed = 0.25 if outcome.state == "saving" else 1
            assert outcome.timing.train_s == pytest.approx(outcome.macs / 0.5e9 / speed)


# The meter ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("micro_batch", "optimizer"), [(None, "momentum"), (8, "momentum"), (None, "adam")])
def test_a_step_that_holds_a_byte_more_than_the_device_has_is_the_last(micro_batch, optimizer, tmp_path):
    run = prepared(tmp_path, tiers=(1.0,), method="heterofl", optimizer=optimizer)
    client = max(range(12), key=run.clients.shards.size)
    free, _ = trained(run, client, micro_batch)
    peak = free.measured_training_memory_bytes
    exact, sent = trained(run, client, micro_batch, memory_bytes=float(peak))
    assert (exact.status, exact.train_loss, exact.payload) == ("trained", free.train_loss, free.payload)
    assert sent
    over, nothing = trained(run, client, micro_batch, memory_bytes=peak - 1.0)
    assert (over.status, over.steps, over.train_loss, over.payload, over.kept) == ("out_of_memory", 1, None, b"", b"")
    assert over.measured_training_memory_bytes == peak
    assert over.measured_peak_activation_bytes == free.measured_peak_activation_bytes
    assert nothing == {}


def test_what_a_client_that_ran_out_of_memory_would_have_kept_is_not_kept(tmp_path):
    run = prepared(tmp_path, tiers=(1.0,), method="fedper")
    kept, _ = trained(run, 3)
    assert kept.kept
    over, _ = trained(run, 3, memory_bytes=kept.measured_training_memory_bytes - 1.0)
    assert (over.status, over.kept) == ("out_of_memory", b"")


def test_only_a_metered_run_is_held_to_its_memory(tmp_path):
    run = prepared(tmp_path, tiers=(1.0,), method="heterofl", enforce="plan")
    found, _ = trained(run, 3, memory_bytes=1.0)
    assert found.status == "trained"


def test_the_smallest_tier_that_is_sent_although_it_does_not_fit_is_found_out(tmp_path, memory):
    """The plan foresees what the meter finds: to the byte, for clients of full batches."""
    run = prepared(tmp_path, memory[HALF, None] - 1, on_shortfall=("tier", "send"))
    full = next(c for c in range(12) if run.clients.shards.size(c) >= 32)
    (outcome,) = expected(run, [full])
    found, _ = trained(run, full, outcome.micro_batch, outcome.tier, outcome.memory_bytes)
    assert (found.status, found.measured_training_memory_bytes) == ("out_of_memory", outcome.predicted_memory_bytes)
