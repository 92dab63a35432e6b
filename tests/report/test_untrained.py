"""Tiers that no client trained: what the tables say of them, and what the page advises."""

from typing import Any

import pytest
from made_records import rounds_in, run_page, summary_in
from made_run import make_rounds, make_summary, tier_row
from pages import Page

from edgefl.report.answer import answer_of_run
from edgefl.report.run_tables import compact_tiers, key_figures
from edgefl.report.tier_notes import leave_out, untrained_sentence


def tiers(*rows: tuple[float, int | None, int | None, float | None]) -> dict[str, Any]:
    """A summary of tiers: number, clients of classes that take it, updates used, and accuracy."""
    made = make_summary()
    made["tiers"] = [
        tier_row(number, "phone", "Phone", 3) | {"clients": clients, "updates": updates, "accuracy": accuracy}
        for number, clients, updates, accuracy in rows
    ]
    return made


IDLE = tiers((1.0, 3, 30, 0.9), (0.5, 7, 70, 0.93), (0.25, 0, 0, 0.2))


@pytest.mark.parametrize(
    ("summary", "sentence"),
    [
        (IDLE, "No client trained tier 0.25: no device class takes it."),
        (tiers((1.0, 3, 30, 0.9), (0.5, 0, 0, 0.3), (0.25, 0, 0, 0.2)),
         "No client trained tiers 0.5 and 0.25: no device class takes them."),
        (tiers((1.0, 3, 30, 0.9), (0.5, 2, 0, 0.3)), "No update of tier 0.5 was used."),
        (tiers((1.0, None, 30, 0.9), (0.5, None, 0, 0.3)), "No update of tier 0.5 was used."),
        (tiers((1.0, 3, 30, 0.9), (0.5, 7, 70, 0.93)), ""),
        (tiers((1.0, 3, 0, 0.1), (0.5, 0, 0, 0.1)), ""),  # the answer of the page says that no update was used
        (tiers((1.0, 3, None, 0.9), (0.5, 0, None, 0.3)), ""),  # a summary of an earlier version
    ],
)  # fmt: skip
def test_tiers_that_nobody_trained_are_named(summary: dict[str, Any], sentence: str) -> None:
    assert untrained_sentence(summary_in(summary).tiers) == sentence
    assert sentence in (compact_tiers(summary_in(summary)).note or "")
    text = Page(run_page(summary, make_rounds())).text
    assert sentence in text
    assert ("No client trained" in text or "No update of" in text) == bool(sentence)


@pytest.mark.parametrize(
    ("summary", "advice"),
    [
        (IDLE, "Leave out tier 0.25 (--tiers 1,0.5): no device class takes it, "
               "and without training of its own it reaches 20.0 %."),
        (tiers((1.0, 3, 30, 0.9), (0.5, 0, 0, 0.3), (0.25, 0, 0, 0.2)),
         "Leave out tiers 0.5 and 0.25 (--tiers 1): no device class takes them, "
         "and without training of their own they reach 30.0 % and 20.0 %."),
        (tiers((1.0, 3, 30, 0.9), (0.5, 0, 0, 0.87)), ""),  # nearly as good: cut out of a tier that was trained
        (tiers((1.0, 3, 30, 0.9), (0.5, 0, 0, None)), ""),
        (tiers((1.0, None, 30, 0.9), (0.5, None, 0, 0.2)), ""),  # drawn at random: more rounds would train it
    ],
)  # fmt: skip
def test_a_useless_tier_is_left_out(summary: dict[str, Any], advice: str) -> None:
    assert leave_out(summary_in(summary)) == advice
    assert (answer_of_run(summary_in(summary | {"classes": []}), rounds_in(make_rounds())).advice == advice) == bool(advice)


def test_where_clients_draw_their_tiers_the_answer_has_those_they_drew() -> None:
    drawn = tiers((1.0, None, 20, 0.9), (0.5, None, 10, 0.8), (0.25, None, 0, 0.7)) | {"tier_assignment": "uniform"}
    drawn["participation"] = [
        {"title": "Phone", "device": "phone", "tier": 1.0, "sessions": 31, "statuses": {"trained": 30, "late": 1}}
    ]
    used = [("phone", 0.5, "trained"), ("phone", 1.0, "trained"), ("phone", 0.25, "late"), ("board", 0.25, "trained")]
    groups = [{"device": device, "tier": tier, "status": status, "clients": 10} for device, tier, status in used]
    lines = [{**line, "groups": groups} for line in make_rounds()]
    assert answer_of_run(summary_in(drawn), rounds_in(lines)).found.endswith("; Phone trained tiers 1 and 0.5.")
    figures = key_figures(summary_in(drawn))
    of = {column.group: [row[n] for row in figures.rows] for n, column in enumerate(figures.columns)}
    assert of["clients"] == ["–"] * 3
    assert of["updates used"] == ["20", "10", "0"]
