"""Devices that change: their states, and what other apps leave of memory and speed."""

from __future__ import annotations

import numpy as np
import pytest
from small_fleet import expected, small, write_device, write_fleet
from tight_runs import BIG, HALF

from edgefl.server.assignment import Assignment


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
