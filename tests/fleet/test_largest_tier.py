"""The largest tier of a class: what its clients are given, and a class that is left out, in a fleet's file and as an axis of what-if."""

from __future__ import annotations

import numpy as np
import pytest
from small_fleet import small, write_device

from edgefl import RunConfig
from edgefl.errors import ConfigError, ProfileError
from edgefl.fleet.load import load_fleet
from edgefl.fleet.resolve import with_class_limits
from edgefl.planning.fleet_plan import plan_fleet
from edgefl.run.trained import without_training
from edgefl.run.whatif import whatif

MIX = 'name = "f"\ntitle = "F"\n[mix]\nmark = "assumed"\nsource = "made for a test"\n'


def fleet(folder, first: str = "", second: str = "", of: str = "meter") -> str:
    """Write a fleet of three quarters boards and a quarter meters; the keys of each class may be added."""
    for name in {"board", of}:
        write_device(folder, name)
    classes = (
        f'[[class]]\ndevice = "board.toml"\nshare = 0.75\n{first}\n[[class]]\ndevice = "{of}.toml"\nshare = 0.25\n{second}\n'
    )
    (path := folder / "fleet.toml").write_text(MIX + classes)
    return str(path)


def test_clients_get_no_tier_above_the_largest_of_their_class(tmp_path):
    path = fleet(tmp_path, "largest_tier = 0.5", "largest_tier = 0.3")
    run = small(path, method="heterofl", tiers=(1.0, 0.5, 0.25))
    assert [c.tier.ratio for c in run.plan.classes] == [0.5, 0.25]
    short = run.plan.classes[1].refusals
    assert [(refusal.budget, refusal.tier, refusal.have) for refusal in short] == [
        ("largest_tier", 1.0, 0.3),
        ("largest_tier", 0.5, 0.3),
    ]
    assert str(short[0]) == "meter cannot take tier 1: largest tier is 0.3"
    given = {c.expected.tier.ratio for record in without_training(run, 4) for c in record.clients if c.expected.tier}
    assert given == {0.5, 0.25}
    assert small(path, method="heterofl", tiers="auto").config.tiers == (0.5, 0.3)


def test_the_tiers_of_a_round_are_those_of_the_clients_that_may_be_asked(tmp_path):
    tiers = {"method": "heterofl", "tiers": (1.0, 0.5, 0.25), "clients": 12}
    run = small(fleet(tmp_path, "largest_tier = 0.5", "largest_tier = 0"), **tiers)
    assert {tier.ratio: share for tier, share in run.plan.shares().items()} == {0.5: 1.0}
    run = small(fleet(tmp_path, "largest_tier = 0.5", "largest_tier = 0.25"), **tiers)
    assert {tier.ratio: share for tier, share in run.plan.shares().items()} == {0.5: 0.75, 0.25: 0.25}


@pytest.mark.parametrize("sampler", ["uniform", "oort"])
def test_a_class_that_is_left_out_is_never_asked_and_others_take_its_places(sampler, tmp_path):
    run = small(fleet(tmp_path, second="largest_tier = 0"), clients=12, per_round=8, over_selection=1.25, sampler=sampler)
    boards = set(np.flatnonzero(run.plan.population.classes(np.arange(12)) == 0).tolist())
    assert len(boards) == 9
    asked = [record.clients for record in without_training(run, 5)]
    assert [len(clients) for clients in asked] == [9] * 5  # ten would be asked of twelve
    assert {c.client for clients in asked for c in clients} == boards


def test_a_round_that_wants_more_clients_than_may_be_asked_asks_all_of_them_at_once(tmp_path):
    run = small(fleet(tmp_path, second="largest_tier = 0"), clients=12, per_round=12, conditions="ideal")
    for record in without_training(run, 2):
        assert (len(record.clients), record.waited_s) == (9, 0.0)


def test_limits_of_a_class_are_axes_of_what_if_and_a_class_left_out_counts_as_not_included(tmp_path):
    """A policy that does not ask the meters may not seem to include more clients than one that asks all."""
    path = fleet(tmp_path)
    config = RunConfig(
        profile=path, model="mlp", method="heterofl", clients=12, per_round=6, rounds=4, conditions="ideal", tiers=(1.0, 0.5)
    )
    found = whatif(config, vary={"meter.largest_tier": (0, 0.5, 1), "board.download_bytes": (60_000, 1e9)})
    assert [row.label for row in found.rows][::2] == [
        f"meter {cap} · board download 60.0 kB" for cap in ("left out", "at most tier 0.5", "at most tier 1")
    ]
    out, half, whole = found.rows[1::2]
    assert (out.inclusion, out.inclusion_by_class, out.weakest) == (0.75, {"board": 1.0, "meter": 0.0}, "meter")
    assert (half.inclusion, whole.inclusion) == (1.0, 1.0)
    assert (out.uses["meter"].sessions, half.uses["meter"].sessions) == (0, whole.uses["meter"].sessions)
    assert half.uses["meter"].download_bytes < whole.uses["meter"].download_bytes
    assert {row.largest_trained for row in found.rows[:4:2]} == {0.5}  # whole boards exceed their bytes
    assert not found.needs
    again = fleet(tmp_path, second="largest_tier = 0")
    (same,) = whatif(config.model_copy(update={"profile": again})).rows
    assert (same.round_s, same.updates, same.inclusion) == (out.round_s, out.updates, out.inclusion)


def test_a_deadline_in_seconds_replaces_the_ratio_of_a_class(tmp_path):
    path = fleet(tmp_path, second="[class.budget]\nround_deadline_ratio = 3.0\nupload_bytes = 1e6")
    changed = with_class_limits(load_fleet(path), {"meter.round_deadline_s": 5}).classes
    assert [c.budget.round_deadline_ratio for c in changed] == [None, None]
    assert (changed[1].budget.round_deadline_s, changed[1].budget.upload_bytes) == (5, 1e6)
    assert changed[0] == load_fleet(path).classes[0]


def test_a_fleet_is_planned_without_classes_left_out_and_within_the_largest_tier(tmp_path):
    path = fleet(tmp_path, "largest_tier = 0.5", "largest_tier = 0")
    assert [(row.device, row.ratio) for row in plan_fleet("cnn-digits", (1, 8, 8), profile=path)] == [("board", 0.5)]


@pytest.mark.parametrize(
    ("first", "second", "of", "told"),
    [
        ("largest_tier = 1.5", "", "meter", "class.0.largest_tier must be at most 1, got 1.5"),
        ("largest_tier = -0.5", "", "meter", "class.0.largest_tier must be at least 0, got -0.5"),
        ('largest_tier = "half"', "", "meter", "class.0.largest_tier must be a number, got 'half'"),
        ("largest_tier = nan", "", "meter", "class.0.largest_tier must be a finite number, got nan"),
        ("largest_tier = 0", "largest_tier = 0", "meter", "largest_tier is 0 in all of them, so no client would be asked"),
        (
            "largest_tier = 0",
            "",
            "board",
            "class.0.largest_tier: another class of 'board' has another largest tier; give one of them",
        ),
    ],
)
def test_a_wrong_largest_tier_is_said_with_its_key(first, second, of, told, tmp_path):
    with pytest.raises(ProfileError, match=told):
        load_fleet(fleet(tmp_path, first, second, of))


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("watch.largest_tier", 0, r"watch.largest_tier: no class of the fleet is 'watch'; its classes are board, meter"),
        ("meter.tier", 0, "meter.tier: 'tier' is no limit of a class; expected largest_tier or round_deadline_s"),
        ("meter.largest_tier", 2, "meter.largest_tier must be at most 1, got 2"),
        ("meter.largest_tier", "none", "meter.largest_tier must be a number, got 'none'"),
        ("meter.energy_j", 0, "meter.budget.energy_j must be above 0, got 0"),
    ],
)
def test_a_wrong_limit_of_a_class_is_one_message(key, value, told, tmp_path):
    config = RunConfig(profile=fleet(tmp_path), model="mlp", method="fedavg", clients=8, rounds=1)
    with pytest.raises(ConfigError, match=told):
        whatif(config, vary={key: (value,)})
