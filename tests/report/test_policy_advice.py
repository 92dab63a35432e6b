"""The advice of a what-if: nobody's best is not named, and a class that nothing includes hears what it needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made_records import dry_in
from made_whatif import outcome_with, whatif_with

from edgefl.report.dry_page import _advice
from edgefl.report.learned import accuracy_text
from edgefl.report.policies import ClassNeed, PolicyOutcome, Required, WhatIf
from edgefl.report.policy_advice import deadline_sentence, excluded_sentence, for_speed, left_out, speed_sentence
from edgefl.report.surrogate import Curve, Taught, learned
from edgefl.report.whatif_page import answer_of_whatif


def policy(label: str, **changes: Any) -> PolicyOutcome:
    """One update a round of 36 s: 100 an hour."""
    values = {
        "deadline_s": 10.0, "over_selection": 1.3, "round_s": 36.0, "inclusion": 0.7, "inclusion_by_class": {"phone": 0.9, "meter": 0.5},
        "useful_share": 0.75, "wasted_share": 0.25, "weakest": "meter", "weakest_inclusion": 0.5, "energy_j": 10.0,
        "rounds_per_hour": 100.0, "updates": 10, "update_bytes": 1e6,
    }  # fmt: skip
    return outcome_with(label, **values | changes)


def result(*rows: PolicyOutcome, **changes: Any) -> WhatIf:
    titles = {"phone": "Phone", "meter": "NB-IoT meter"}
    return whatif_with(rows, profile="fleet.toml", clock_error=2.0, titles=titles, fleet_title="Meters in town", **changes)


FASTER = {"rounds_per_hour": 105.0, "wasted_share": 0.59, "energy_j": 22.0}
QUICK = policy("30 s", **FASTER)


@pytest.mark.parametrize(
    ("high", "told"), [(120.0, "100 useful updates an hour (90 to 120)"), (90.2, "100 useful updates an hour")]
)
def test_an_interval_is_told_if_its_ends_differ(high, told):
    alone = result(policy("10 s", updates_per_hour_low=90.1, updates_per_hour_high=high))
    assert speed_sentence(alone, alone.rows).endswith(told)


def test_a_policy_that_is_hardly_faster_and_much_dearer_is_not_the_advice():
    both = result(policy("10 s"), QUICK)
    assert for_speed(both, both.rows).label == "10 s"
    assert speed_sentence(both, both.rows) == (
        "Take “10 s” for speed: about 100 useful updates an hour; “30 s” has 5.0 % more, for 22.0 J instead of 10.0 J per "
        "useful update and 59.0 % instead of 25.0 % of the devices' time wasted"
    )


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({"rounds_per_hour": 150.0}, "30 s"),
        ({"rounds_per_hour": 150.0, "updates_per_hour_low": 90.0}, "10 s"),
        ({"energy_j": 5.0}, "30 s"),
        ({"wasted_share": 0.26, "energy_j": None}, "30 s"),
    ],
)
def test_speed_is_what_counts_where_the_difference_is_clear_or_nothing_is_cheaper_in_everything(changes, taken):
    """The other policy has up to 110 updates an hour by the differences between its rounds."""
    both = result(policy("10 s", updates_per_hour_low=95.0, updates_per_hour_high=110.0), policy("30 s", **FASTER | changes))
    assert for_speed(both, both.rows).label == taken


def test_a_class_that_no_policy_includes_hears_what_it_needs():
    need = ClassNeed(tier=0.25, session_s=7200.0, link_s=7100.0, link="NB-IoT")
    never = {"weakest_inclusion": 0.0, "inclusion_by_class": {"phone": 0.9, "meter": 0.0}}
    found = result(policy("5 s", **never), policy("10 s", **never), needs={"meter": need})
    answer = answer_of_whatif(found)
    assert "0 %" not in answer.advice
    assert "Meters in town" in answer.asked
    assert left_out(found) in answer.advice
    assert left_out(found) == (
        "No policy includes NB-IoT meter: a session of tier 0.25 takes 2 h 00 min, 1 h 58 min of it on NB-IoT. It needs a deadline "
        "above that, a smaller tier, or a faster link."
    )
    assert "other answers end the round" in left_out(replace(found, needs={"meter": replace(need, session_s=4.0, link_s=1.0)}))
    small = left_out(replace(found, needs={"meter": replace(need, short="memory needs 2 MB, has 1 MB")}))
    assert small.startswith("No policy includes NB-IoT meter: memory needs 2 MB, has 1 MB. Give it a smaller tier")


def test_a_deadline_that_decided_nothing_is_said_with_what_over_selection_leaves_out():
    found = result(policy("10 s", ended_by_deadline=0), policy("30 s", ended_by_deadline=0), policy("1 s", ended_by_deadline=3))
    assert deadline_sentence(found) == (
        "The deadline decided nothing under “10 s” and “30 s”: every round ended before it. With 1.3 clients asked per wanted answer, "
        "at most 76.9 % of the sessions can train, and the slowest do not."
    )
    assert (
        deadline_sentence(result(policy("none", deadline_s=None, ended_by_deadline=None), policy("1 s", ended_by_deadline=1)))
        == ""
    )


def test_a_range_that_passes_the_end_of_the_run_is_open_above():
    curve = Curve(((1.0, 0.2), (10.0, 0.4)))
    row = policy("a", rounds_per_hour=10.0, energy_j=1.0)
    near, far = (learned(curve, row, rounds, 0.3, Taught(frozenset((1.0,)), 1.0)) for rounds in (2, 6))
    assert (near.open, far.open, far.beyond) == (False, True, False)
    told = accuracy_text(far)
    assert told.endswith("–40.0 or more)")


def test_another_assignment_with_much_more_useful_time_is_not_kept_silent():
    def advice(useful, least=0.6):
        policies = [
            {"policy": "auto", "tiers": (1.0,), "useful_share": 0.42, "inclusion": {"slow": 0.6}},
            {"policy": "everybody the smallest", "tiers": (0.25,), "useful_share": useful, "inclusion": {"slow": least}},
        ]
        return _advice(dry_in({"policies": policies, "classes": [{"device": "slow", "title": "Slow"}], "rounds": 30}))

    assert advice(0.74) == (
        "Assign tiers as in “everybody the smallest” (tier 0.25): 74.0 % instead of 42.0 % of the devices' time is useful. The class "
        "that trains least trains as often, in 60.0 % of its sessions."
    )
    assert advice(0.43).startswith("Keep the assignment of tiers")
    assert "Less time is wasted under “everybody the smallest”" in advice(0.74, least=0.5)


def test_the_cheapest_policy_says_whom_it_leaves_out_if_others_include_them():
    out = policy("left out", inclusion_by_class={"phone": 0.9, "meter": 0.0}, energy_j=1.0)
    both = result(out, policy("all"))
    assert excluded_sentence(both, out) == " No session of NB-IoT meter trains under it."
    assert excluded_sentence(both, both.rows[1]) == ""
    assert excluded_sentence(result(out), out) == ""  # no policy includes them: that is said with what they need
    chosen = replace(both, required=Required(texts=(), missed={}, taken="left out", nearest="", minimize="joules"))
    assert answer_of_whatif(chosen).advice == "Take “left out”. No session of NB-IoT meter trains under it."
