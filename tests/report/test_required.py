"""Requirements on policies: what they say, which policies keep them, and a month of a device by hand."""

from __future__ import annotations

import html
from dataclasses import replace
from typing import Any

import pytest
from report.test_policy_advice import policy, result

from edgefl.errors import InputError
from edgefl.report.device_month import device_months
from edgefl.report.month_table import month_table, reach_table, span_sentence
from edgefl.report.policies import PolicyOutcome, Required, WhatIf
from edgefl.report.required import Goal, able_rows, required, required_sentence
from edgefl.report.whatif_page import answer_of_whatif, compact_whatif, render, whatif_table

USE = {
    "clients": 4,
    "sessions": 20,
    "updates": 10,
    "download_bytes": 6e6,
    "upload_bytes": 2e6,
    "energy_j": 40.0,
    "device_s": 100.0,
}
REACH = {
    "days": 30.0,
    "trained": 1,
    "asked": 2,
    "lost": {"late": 7, "dropped": 1},
    "bytes_median": 300.0,
    "bytes_p90": 900.0,
    "energy_j_median": None,
    "energy_j_p90": None,
    "updates_days": 12.5,
}
_CHANGE = "more rounds a day, or more clients a round; a longer deadline, a smaller tier or less over-selection"


def of_calendar(days: float) -> dict[str, Any]:
    """What a policy has beside its figures if ten rounds took some days of a calendar."""
    reach = REACH | {"days": min(30.0, days)}
    own = {"began": "day 1 00:00", "ended": "day 9 12:00", "reach": {"phone": reach, "meter": reach}}
    return own | {"rounds": 10, "days": days}


METERS = USE | {"clients": 100, "sessions": 50, "energy_j": None}
"""In ten rounds: five sessions of each phone, half a session of each meter."""


def found(goal: Goal, *rows: PolicyOutcome) -> WhatIf:
    known = result(*rows)
    return replace(known, required=required(goal.resolved(known.titles, True), goal.minimize, known))


def left(judged: WhatIf) -> Required:
    """What the requirements leave."""
    assert judged.required is not None
    return judged.required


CHEAP = policy("cheap", energy_j=3.0, inclusion_by_class={"phone": 0.9, "meter": 0.0}, weakest_inclusion=0.0)
FAIR = policy("fair", energy_j=8.0, inclusion_by_class={"phone": 0.4, "meter": 0.3}, weakest_inclusion=0.3, round_s=50.0)
DEAR = policy("dear", energy_j=20.0, inclusion_by_class={"phone": 0.5, "meter": 0.5})


@pytest.mark.parametrize(
    ("requirements", "minimize", "taken"),
    [
        ((), "joules", "cheap"),
        (("meter >= 20 %",), "joules", "fair"),
        (("NB-IoT Meter >= 0.5",), "joules", "dear"),
        (("inclusion of meter >= 20%", "phone >= 45 %"), "joules", "dear"),
        (("weakest >= 0.1", "round <= 40s"), "joules", "dear"),
        (("joules <= 10 J", "waste <= 25 %"), "round", "cheap"),
        (("updates >= 100",), "waste", "cheap"),
    ],
)
def test_of_the_policies_that_keep_all_bounds_the_one_with_the_least_is_taken(requirements, minimize, taken):
    judged = found(Goal(requirements, minimize), CHEAP, FAIR, DEAR)
    assert left(judged).taken == taken
    answer = answer_of_whatif(judged)
    assert answer.advice.startswith(f"Take “{taken}”.")
    assert taken in {row.label for row in able_rows(judged)}
    assert f"“{taken}” has the lowest" in answer.found


def test_without_a_figure_to_minimize_the_advice_is_about_the_policies_that_are_left():
    judged = found(Goal(("meter >= 20 %",)), CHEAP, FAIR, DEAR)
    assert required_sentence(judged) == "“fair” and “dear” meet the requirement."
    assert "cheap" not in answer_of_whatif(judged).found + answer_of_whatif(judged).advice
    assert whatif_table(judged).rows[0][-1] == "meter >= 20 %: 0 %"
    assert compact_whatif(judged).rows[1][-1] == "–"


def test_a_requirement_that_nothing_meets_is_named_with_what_the_nearest_policy_has():
    judged = found(Goal(("meter >= 60 %", "joules <= 4J"), "bytes"), CHEAP, FAIR, DEAR)
    assert left(judged).nearest == "fair"
    assert left(judged).taken == ""
    lacks = "it misses “meter >= 60 %” (it has 30.0 %) and “joules <= 4J” (it has 8.00 J)."
    told = f"No policy meets all requirements. “fair” comes nearest: {lacks}"
    assert answer_of_whatif(judged).found == told
    assert answer_of_whatif(judged).advice == "Relax a requirement, or give other policies."
    assert told in html.unescape(render(judged)).replace("\xa0", " ")


def test_what_is_unknown_meets_no_bound():
    judged = found(Goal(("joules <= 1 GJ",)), policy("a", energy_j=None), policy("b"))
    assert left(judged).missed == {"a": {"joules <= 1 GJ": "unknown"}}


def test_a_month_of_a_device_is_the_mean_of_its_class_in_thirty_days():
    """24 rounds a day are 720 a month, 72 times the ten that were simulated: a phone has 5 · 72 sessions."""
    goal = Goal(("bytes <= 150MB/month", "sessions of meter >= 30/month"))
    judged = found(goal, policy("hourly", **of_calendar(10 / 24), uses={"phone": USE, "meter": METERS}))
    phone, meter = (device_months(judged.rows[0])[device] for device in ("phone", "meter"))
    assert (phone.sessions, phone.updates, phone.bytes, phone.energy_j, phone.device_s) == (360, 180, 144e6, 720, 1800)
    assert (meter.sessions, meter.bytes, meter.energy_j) == (36, 5.76e6, None)
    assert left(judged).missed == {}
    assert left(found(Goal(("bytes <= 143MB/month",)), *judged.rows)).missed == {
        "hourly": {"bytes <= 143MB/month": "144 MB/month"}
    }
    table = month_table(judged)
    assert table is not None
    assert table.rows[0] == ("1: hourly", "Phone", "24", "360", "180", "144 MB", "–", "–", "24.0 J", "–", "30 min 00 s")


def test_of_thirty_days_the_page_shows_single_devices_batteries_and_metered_bytes():
    use = USE | {"battery_j": 48.0, "metered": True}
    row = policy("a", **{**of_calendar(30), "reach": {"phone": REACH}}, uses={"phone": use})
    table = month_table(found(Goal(), row))
    assert table is not None
    (cells,) = table.rows
    assert cells[3:6] == ("5", "2.50", "2.00 MB")
    assert cells[6:] == ("300 B", "900 B", "yes", "333 mJ", "0.7 %", "25.0 s")
    reached = reach_table(found(Goal(), row))
    assert reached is not None
    assert reached.rows[0] == ("1: a", "Phone", "25.0 %", "50.0 %", "12 d 12 h", _CHANGE)


def test_a_class_that_a_policy_leaves_out_would_take_part_with_a_larger_tier():
    reach = {"meter": REACH | {"trained": 0, "asked": 0, "lost": {}, "updates_days": None}}
    uses = {"meter": METERS | {"sessions": 0}}
    row = policy("a", **{**of_calendar(30), "reach": reach}, uses=uses, inclusion_by_class={"meter": 0.0})
    reached = reach_table(found(Goal(), row))
    assert reached is not None
    assert reached.rows[0] == ("1: a", "NB-IoT meter", "0 %", "100 %", "never", "a largest tier above 0")


def test_the_page_says_which_days_were_simulated_and_where_a_day_is_too_short():
    judged = result(policy("a", **of_calendar(5), uses={}), policy("b", **of_calendar(2), uses={}))
    judged = replace(judged, calendar="4 rounds a day", rounds_per_day=4.0)
    assert span_sentence(judged) == (
        "Simulated: 2 d 00 h to 5 d 00 h, from day 1 00:00 to day 9 12:00. Medians of a month, and who takes part in one, need 30 days: "
        "give more --rounds. A day has no time for 4 rounds under “a” (2): months are of as many as fit."
    )
    assert span_sentence(result(policy("a"))) == ""


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        (
            {"requirements": ("quick",)},
            "requirement 'quick': expected a quantity, <= or >=, and a value, such as “gateway >= 20 %”",
        ),
        ({"requirements": ("meter = 2",)}, "expected a quantity, <= or >="),
        (
            {"requirements": ("gatway >= 2 %",)},
            r"'gatway' is neither a quantity \(inclusion, .*\) nor a class of the fleet \(phone and meter\)",
        ),
        (
            {"requirements": ("joles of meter <= 2J/month",)},
            "there is no quantity 'joles'; did you mean 'joules'?",
        ),
        ({"requirements": ("bytes <= 5 J",)}, "requirement 'bytes <= 5 J': '5 J' is in joules, expected a number of bytes"),
        ({"requirements": ("meter >= 120 %",)}, "'120 %' is not a share"),
        ({"requirements": ("updates >= nan",)}, "'nan' is not a number such as 20"),
        ({"requirements": ("round <= 3s/month",)}, "round has no value per month"),
        (
            {"requirements": ("bytes of meter <= 3MB",)},
            "bytes of a class are per device and month: give a value such as 20/month",
        ),
        ({"minimize": "thrift"}, "minimize 'thrift': expected joules, bytes, round, waste or money"),
    ],
)
def test_a_goal_that_is_none_is_refused(goal, message):
    with pytest.raises(InputError, match=message):
        Goal(**goal).resolved({"phone": "Phone", "meter": "NB-IoT meter"}, True)


def test_a_month_needs_a_calendar():
    with pytest.raises(InputError, match="a month needs to know when rounds begin; give --rounds-per-day, or a fleet with a"):
        Goal(("bytes <= 3MB/month",)).resolved({}, False)
