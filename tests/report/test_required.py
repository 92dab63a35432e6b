"""Requirements on policies: what they say, which policies keep them, and a month of a device by hand."""

from __future__ import annotations

import html
from typing import Any

import pytest
from report.test_policy_advice import policy, result

from edgefl.errors import InputError
from edgefl.report.device_month import device_months
from edgefl.report.month_table import month_table, too_many_rounds
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
METERS = USE | {"clients": 100, "sessions": 50, "energy_j": None}
"""In ten rounds: five sessions of each phone, half a session of each meter."""


def found(goal: Goal, *rows: dict[str, Any]) -> dict[str, Any]:
    known = result(*rows, rounds_per_day=goal.rounds_per_day)
    return known | {"required": required(goal.resolved(known["titles"]), goal.minimize, known).to_dict()}


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
    assert judged["required"]["taken"] == taken
    answer = answer_of_whatif(judged)
    assert answer.advice.startswith(f"Take “{taken}”.")
    assert taken in {row["label"] for row in able_rows(judged)}
    assert f"“{taken}” has the lowest" in answer.found


def test_without_a_figure_to_minimize_the_advice_is_about_the_policies_that_are_left():
    judged = found(Goal(("meter >= 20 %",)), CHEAP, FAIR, DEAR)
    assert required_sentence(judged) == "“fair” and “dear” meet the requirement."
    assert "cheap" not in answer_of_whatif(judged).found + answer_of_whatif(judged).advice
    assert whatif_table(judged).rows[0][-1] == "meter >= 20 %: 0 %"
    assert compact_whatif(judged).rows[1][-1] == ""


def test_a_requirement_that_nothing_meets_is_named_with_what_the_nearest_policy_has():
    judged = found(Goal(("meter >= 60 %", "joules <= 4J"), "bytes"), CHEAP, FAIR, DEAR)
    assert judged["required"]["nearest"] == "fair"
    assert judged["required"]["taken"] == ""
    lacks = "it misses “meter >= 60 %” (it has 30.0 %) and “joules <= 4J” (it has 8.00 J)."
    told = f"No policy meets all requirements. “fair” comes nearest: {lacks}"
    assert answer_of_whatif(judged).found == told
    assert answer_of_whatif(judged).advice == "Relax a requirement, or give other policies."
    assert told in html.unescape(render(judged)).replace("\xa0", " ")


def test_what_is_unknown_meets_no_bound():
    judged = found(Goal(("joules <= 1 GJ",)), policy("a", energy_j=None), policy("b"))
    assert judged["required"]["missed"] == {"a": {"joules <= 1 GJ": "unknown"}}


def test_a_month_of_a_device_is_the_mean_of_its_class_in_thirty_days():
    """24 rounds a day are 720 a month, 72 times the ten that were simulated: a phone has 5 · 72 sessions."""
    goal = Goal(("bytes <= 150MB/month", "sessions of meter >= 30/month"), rounds_per_day=24)
    judged = found(goal, policy("hourly", uses={"phone": USE, "meter": METERS}))
    phone, meter = (device_months(judged, judged["rows"][0])[device] for device in ("phone", "meter"))
    assert (phone.sessions, phone.updates, phone.bytes, phone.energy_j, phone.device_s) == (360, 180, 144e6, 720, 1800)
    assert (meter.sessions, meter.bytes, meter.energy_j) == (36, 5.76e6, None)
    assert judged["required"]["missed"] == {}
    assert found(Goal(("bytes <= 143MB/month",), rounds_per_day=24), *judged["rows"])["required"]["missed"] == {
        "hourly": {"bytes <= 143MB/month": "144 MB/month"}
    }
    table = month_table(judged)
    assert table is not None
    assert table.rows[0] == ("1: hourly", "Phone", "24", "360", "180", "144 MB", "720 J", "30 min 00 s")


def test_a_day_with_too_many_rounds_has_as_many_as_fit():
    judged = found(
        Goal(rounds_per_day=3000), policy("a", uses={"phone": USE}), policy("b", rounds_per_hour=130.0, uses={"phone": USE})
    )
    assert too_many_rounds(judged) == "A day has no time for 3.00 k rounds under “a” (2.40 k): months are of as many as fit."
    assert device_months(judged, judged["rows"][0])["phone"].sessions == 5 * 240 * 30


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
            {"requirements": ("joles of meter <= 2J/month",), "rounds_per_day": 1.0},
            "there is no quantity 'joles'; did you mean 'joules'?",
        ),
        ({"requirements": ("bytes <= 5 J",)}, "requirement 'bytes <= 5 J': '5 J' is in joules, expected a number of bytes"),
        ({"requirements": ("meter >= 120 %",)}, "'120 %' is not a share"),
        ({"requirements": ("updates >= nan",)}, "'nan' is not a number such as 20"),
        ({"requirements": ("round <= 3s/month",), "rounds_per_day": 1.0}, "round has no value per month"),
        (
            {"requirements": ("bytes of meter <= 3MB",)},
            "bytes of a class are per device and month: give a value such as 20/month",
        ),
        ({"requirements": ("bytes <= 3MB/month",)}, "a month needs --rounds-per-day"),
        ({"minimize": "money"}, "minimize 'money': expected joules, bytes, round or waste"),
    ],
)
def test_a_goal_that_is_none_is_refused(goal, message):
    with pytest.raises(InputError, match=message):
        Goal(**goal).resolved({"phone": "Phone", "meter": "NB-IoT meter"})
