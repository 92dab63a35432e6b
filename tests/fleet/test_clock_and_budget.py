"""The clock and the budgets of a fleet: seconds and joules of a round, and limits at their exact values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.fleet.budget import Budget, budget_of, shortfalls, use
from edgefl.fleet.clock import inference_j, inference_s, round_timing
from edgefl.fleet.load import load_device, load_fleet
from edgefl.fleet.profile import FleetBudget
from edgefl.records import BUDGETS, Cost, Tier


def cost(**changes) -> Cost:
    values = {
        "batch_size": 10, "micro_batch": 10, "params": 100, "macs_forward": 1_000_000, "macs_backward_input": 900_000,
        "macs_backward_weight": 1_100_000, "macs_compose": 500_000,
        "elementwise_ops": 10, "elementwise_ops_backward": 10, "elementwise_ops_step": 100,
        "peak_activation_bytes_inference": 1000, "peak_activation_bytes_training": 5000, "parameter_bytes": 400, "buffer_bytes": 0,
        "gradient_bytes": 400, "optimizer_bytes": 400, "training_memory_bytes": 6200, "download_bytes": 100_000, "upload_bytes": 50_000,
    }  # fmt: skip
    return Cost(**(values | changes))


def test_a_round_costs_what_the_formulas_say(folder):
    """By hand: 40 samples in 4 steps are 40·3 M + 4·0.5 M = 122 M MACs, at 0.5 G/s 0.244 s, with 3 W. The other 0.3 s take 0.25 W."""
    board = load_device(str(folder / "board.toml"))
    timing = round_timing(board, cost(), samples=40, passes=4, updates=4)
    assert timing.download_s == pytest.approx(0.05 + 100_000 / 1e6)
    assert timing.upload_s == pytest.approx(0.05 + 50_000 / 0.5e6)
    assert timing.train_s == pytest.approx(0.244)
    assert timing.total_s == pytest.approx(0.544)
    assert timing.compute_j == pytest.approx(3 * 0.244 + 0.25 * 0.3)
    assert timing.radio_j == pytest.approx(100_000 * 100e-9 + 50_000 * 300e-9)


def test_work_beyond_the_burst_is_throttled(folder):
    """3,000 M MACs per pass · 2 = 6 G at 0.5 G/s would take 12 s: 10 at the full rate, the other 2 at half of it."""
    board = load_device(str(folder / "board.toml"))
    slow = cost(macs_forward=1_000_000, macs_backward_input=1_000_000, macs_backward_weight=1_000_000, macs_compose=0)
    assert round_timing(board, slow, samples=2000, passes=1, updates=1).train_s == pytest.approx(10 + 2 / 0.5)
    assert inference_s(board, cost(macs_forward=4_000_000)) == pytest.approx(0.002)
    assert inference_j(board, cost(macs_forward=4_000_000)) == pytest.approx(3 * 0.002)


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_more_work_never_takes_less_time(samples, more):
    device = load_device("low-end-phone")
    less, greater = (round_timing(device, cost(), s, 1, 1) for s in (samples, samples + more))
    assert less.total_s <= greater.total_s
    assert less.total_j <= greater.total_j


def test_each_budget_is_checked_at_its_exact_limit(folder):
    board = load_device(str(folder / "board.toml"))
    timing = round_timing(board, cost(), 40, 4, 4)
    exact = Budget(6200, timing.total_s, 100_000, 50_000, timing.total_j)
    assert shortfalls(cost(), timing, exact, "board", Tier(0.5)) == ()
    tight = {"memory_bytes": 6199, "deadline_s": 0.5, "download_bytes": 99_999, "upload_bytes": 49_999, "energy_j": 0.1}
    for name, have in tight.items():
        (short,) = shortfalls(cost(), timing, Budget(**(vars(exact) | {name: have})), "board", Tier(0.5))
        assert (short.budget, short.have, short.need > have) == (name, have, True)
        assert f"board cannot take tier 0.5: {BUDGETS[name]} needs" in str(short)
    assert use(cost(), timing, Budget(12_400)) == {"memory_bytes": (6200, 12_400)}


def test_uncounted_operations_meet_no_budget(folder):
    timing = round_timing(load_device(str(folder / "board.toml")), cost(), 1, 1, 1)
    (short,) = shortfalls(cost(uncounted_ops=("aten.odd",)), timing, Budget(1e9), "board", Tier(1.0))
    assert short.budget == "uncounted_ops"


def test_a_class_has_its_own_limits_and_the_fleets_elsewhere(folder):
    fleet = load_fleet(str(folder / "fleet.toml"))
    board, laptop = (budget_of(c, fleet.budget, 2.0) for c in fleet.classes)
    assert (board.deadline_s, board.upload_bytes, board.memory_bytes) == (60, 1000, 800_000)
    assert (laptop.deadline_s, laptop.upload_bytes) == (60, None)
    relative = FleetBudget(round_deadline_ratio=1.5)
    assert budget_of(fleet.classes[1], relative, 2.0).deadline_s == 3.0
