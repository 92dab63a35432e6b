"""The largest tier of every class of a fleet: each is the plan of its device, and a ratio is traced once for all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from small_fleet import WITHOUT_ENERGY, write_device, write_fleet

from edgefl.errors import BudgetError, ConfigError
from edgefl.fleet.budget import Budget
from edgefl.planning import sub_models
from edgefl.planning.fleet_plan import plan_fleet
from edgefl.planning.plan import plan


@pytest.fixture
def fleet(tmp_path: Any) -> str:
    """Two devices that differ in memory and speed, one of them in two classes; rounds last at most a second."""
    write_device(tmp_path, "board", training_bytes=4e6)
    write_device(tmp_path, "slow", training_bytes=3.3e6, training=0.2)
    return write_fleet(tmp_path, {"board": 0.75, "slow": 0.25}, budget="round_deadline_s = 1.0")


def test_every_class_has_the_plan_of_its_device_within_the_limits_of_the_fleet(fleet, tmp_path, monkeypatch):
    traced: list[float] = []
    real = sub_models.cost_of

    def counting(*how: Any) -> Any:
        cost_at = real(*how)

        def cost(practice: Any, tier: Any, codec: str) -> Any:
            traced.append(tier.ratio)
            return cost_at(practice, tier, codec)

        return cost

    monkeypatch.setattr(sub_models, "cost_of", counting)
    rows = plan_fleet("cnn-digits", profile=fleet)
    assert len(traced) == len(set(traced))
    assert [(row.device, row.share) for row in rows] == [("board", 0.75), ("slow", 0.25)]
    for row in rows:
        (alone,) = plan("cnn-digits", device=str(tmp_path / f"{row.device}.toml"), budget=Budget(deadline_s=1.0))
        assert (row.ratio, row.uses) == (alone.ratio, alone.uses)
        assert (row.round_seconds_low, row.round_seconds_high) == (alone.round_seconds_low, alone.round_seconds_high)
        assert row.confidence == alone.confidence
    assert rows[0].ratio > rows[1].ratio


def test_a_class_without_a_tier_shows_the_smallest_and_no_class_at_all_is_status_3(fleet):
    board, slow = plan_fleet("cnn-digits", profile=fleet, budget=Budget(deadline_s=0.5))
    assert board.ratio is not None
    assert (slow.ratio, slow.tightest) == (None, "deadline_s")
    assert slow.need.startswith("deadline needs")
    with pytest.raises(
        BudgetError, match=r"(?s)no size of cnn-digits with fedhm fits a class of .*board: memory needs 2.78 MB, has 1 kB"
    ):
        plan_fleet("cnn-digits", profile=fleet, budget=Budget(memory_bytes=1e3))
    with pytest.raises(ConfigError, match="clock_margin"):
        plan_fleet("cnn-digits", profile=fleet, clock_margin=0.5)
    with pytest.raises(ConfigError, match="budget memory_bytes: got -1, expected a finite number above 0"):
        plan_fleet("cnn-digits", profile=fleet, budget=Budget(memory_bytes=-1))


def test_joules_are_no_limit_of_a_class_whose_energy_is_unknown(tmp_path):
    write_device(tmp_path, "dark", **WITHOUT_ENERGY)
    with pytest.raises(ConfigError, match="budget energy_j: dark: "):
        plan_fleet("cnn-digits", profile=write_fleet(tmp_path, {"dark": 1.0}), budget=Budget(energy_j=1.0))


def test_the_command_prints_a_row_per_class_and_its_json(fleet, called):
    status, out, _ = called("plan", "cnn-digits", "--profile", fleet, "--json")
    rows = json.loads(out)
    assert (status, [row["device"] for row in rows]) == (0, ["board", "slow"])
    assert {use["budget"] for use in rows[0]["uses"]} == {"memory_bytes", "deadline_s"}
    status, out, _ = called("plan", "cnn-digits", "--profile", fleet)
    assert status == 0
    assert "slow" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device", "raspberry-pi-4"], "--device plans for one device"),
        (["--allocate", "spectral"], "--allocate spectral plans for one device"),
        (["--seed", "3"], "--seed plans for one device"),
    ],
)
def test_what_is_about_one_device_is_refused_beside_a_fleet(flags, message, fleet, called):
    status, _, err = called("plan", "cnn-digits", "--profile", fleet, *flags)
    assert status == 2
    assert message in err
