"""What a device is given where a tier does not fit: the order of micro-batches, smaller tiers, refusal and sending."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_fleet import expected
from tight_runs import BIG, HALF, cost_of, planned, prepared

from edgefl.errors import BudgetError
from edgefl.server.assignment import Assignment, TierPolicy

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
