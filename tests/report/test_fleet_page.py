"""What a run's page shows of its fleet: patterns, tiers as they are taken, the steps of planning, and the clock."""

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import get_args

import pytest
from made_fleet import EVIL, SHORT, a_plan, busy, dry, outcome, record, summary_of, whatif
from made_records import dry_run_page, rounds_in, run_page, summary_in
from pages import Page, charts_of, data_of, drawn, printed

from edgefl.records import Status, Tier
from edgefl.report import html, whatif_page
from edgefl.report.results import Results
from edgefl.report.run_rows import TierResult
from edgefl.report.run_tables import compact_tiers, tier_table
from edgefl.report.summary import tier_rows
from edgefl.report.words import STATUSES, status_name, taken_as


def test_every_status_has_a_look_of_its_own_that_the_page_has_colours_for() -> None:
    assert set(STATUSES) == set(get_args(Status))
    css = (Path(html.__file__).parent / "page.css.j2").read_text(encoding="utf-8")
    for look in STATUSES.values():
        assert css.count(f"{look.colour[4:-1]}: #") == 2, "one colour for light, one for dark"
    for own in ("colour", "symbol", "meaning"):
        assert len({getattr(look, own) for look in STATUSES.values()}) == len(STATUSES)
    patterns = [look.pattern for status, look in STATUSES.items() if status not in ("trained", "refused")]
    assert len(set(patterns)) == len(patterns)
    assert "" not in patterns


def test_the_pages_name_every_status_of_a_session() -> None:
    docs = Path(__file__).parents[2] / "docs"
    statuses = {status_name(status) for status in get_args(Status)}
    glossary, fleet = ((docs / name).read_text(encoding="utf-8").splitlines() for name in ("glossary.md", "fleet.md"))
    (session,) = (line for line in glossary if line.startswith("| **session**"))
    assert set(re.findall(r"\*([a-z ]+)\*", session.split("|")[2])) == statuses
    (recorded,) = (line.split("|")[3] for line in fleet if line.startswith("| `clients[].status`"))
    assert set(map(status_name, re.findall(r"`(\w+)`", recorded))) == statuses


def test_every_pattern_of_a_chart_is_on_the_page() -> None:
    rounds = [busy(), busy(8)]
    rounds[1]["groups"][0]["status"] = rounds[1]["clients"][0]["status"] = "of the future"
    for rendered in (run_page(summary_of(rounds), rounds), dry_run_page(*dry())):
        used = set(re.findall(r"url\(#([\w-]+)\)", data_of(rendered)))
        assert used <= set(re.findall(r'<pattern id="([\w-]+)"', rendered))
        assert {"hatch-late", "status-late"} <= used
    assert {"waiting", "untrained"} <= set(re.findall(r'<pattern id="([\w-]+)"', rendered))


def test_tiers_are_shown_as_they_are_taken() -> None:
    measured = {"measured_training_memory_bytes": 390_000, "micro_batch": 8}
    other = {"measured_training_memory_bytes": 1_900_000}
    line = record(1, outcome(0, "slow", "trained", **measured), outcome(1, "slow", "trained", **other))
    full, half = tier_rows(a_plan(), {Tier(1.0): TierResult(0.9, 0.9, 7)}, rounds_in([line]), False)
    assert (full.micro_batch, full.accuracy, half.accuracy) == (None, 0.9, None)
    # Predicted and measured are of the same way of taking it: eight samples at once.
    assert (half.micro_batch, half.training_memory_bytes, half.measured_training_memory_bytes) == (8, 400_000, 390_000)
    assert half.budget_share == 0.4
    assert taken_as(half) == "0.5, 8 at once"
    summary = summary_in(summary_of([line]))
    assert [row[0] for row in tier_table(summary).rows] == ["1", "0.5, 8 at once"]
    assert compact_tiers(summary).to_plain().splitlines()[1].startswith("tier 0.5, 8 at once; device Slow phone")
    assert "0.5, 8 at once" in printed(compact_tiers(summary), 80)


@pytest.mark.parametrize(("learning", "updates"), [((False, False), [1, 0]), ((True, False), [1, 1]), ((False, True), [1, 1])])
def test_updates_of_a_tier_count_for_the_other_tiers_that_learn_from_them_too(
    learning: tuple[bool, bool], updates: list[int]
) -> None:
    line = record(1, outcome(0, "fast", "trained"), outcome(1, "slow", "late"), outcome(2, "slow", "refused"))
    rows = tier_rows(a_plan(), {}, rounds_in([line]), *learning)
    assert [row.updates for row in rows] == updates


def test_the_steps_of_planning_are_listed_in_their_order() -> None:
    summary = summary_of([busy()])
    slow = summary["classes"][1]
    assert slow["considered"] == [
        {"tier": 0.5, "micro_batch": None, "refusals": [asdict(SHORT)], "recompute": []},
        {"tier": 0.5, "micro_batch": 8, "refusals": [], "recompute": []},
    ]
    text = Page(run_page(summary, [busy()])).text
    for expected in ("How each class got its tier", "memory needs 2 MB, has 1 MB", "the whole batch", "given", "fits"):
        assert expected in text


def test_the_page_of_a_run_says_it_all_in_charts_that_vega_lite_accepts() -> None:
    rounds = [busy(), record(8, outcome(0, "fast", "trained"))]
    rendered = run_page(summary_of(rounds), rounds)
    page = Page(rendered)
    assert all(map(drawn, charts_of(rendered).values()))
    assert page.tags.count("figure") == len(charts_of(rendered)) + 3  # no accuracy was drawn
    for text in (
        "Energy end to end",
        "J end to end",
        "Useful work",
        "out of memory: it went over its device's memory",
        "1 was late",
    ):
        assert text in re.sub(r"\s+", " ", page.text)
    assert page.tags.count("select") == 2
    assert {("for", "round"), ("for", "over")} <= set(page.attributes)
    assert [name for name, _ in page.attributes].count("hidden") == 3


def test_the_page_of_real_devices_has_a_real_clock() -> None:
    rounds = [{**busy(), "observed": {"setup_bytes": 70}}]
    real, simulated = (Page(run_page(summary_of(some), some)).text for some in (rounds, [busy()]))
    assert "Its bars are download, training and upload on the real clock." in real
    assert "on the simulated clock" in simulated
    assert "imulated" not in real


def test_names_are_escaped_on_every_page() -> None:
    summary, rounds = dry()
    for item in (*summary["classes"], *summary["participation"]):
        item["title"] = EVIL
    summary["policies"][0]["policy"] = summary["availability"] = summary["fleet"] = EVIL
    rounds[0]["clients"][5] |= {"status": EVIL, "state": EVIL}
    rounds[0]["groups"][0]["status"] = EVIL
    first, second, *others = whatif().rows
    rows = Results([first, replace(second, label=EVIL), *others])
    result = replace(whatif(), titles={"slow": EVIL}, profile=EVIL, fleet_title=EVIL, rows=rows)
    for rendered in (dry_run_page(summary, rounds), whatif_page.render(result)):
        assert "<script>alert" not in rendered
        assert "<" not in data_of(rendered)
        assert all(map(drawn, charts_of(rendered).values()))
        assert "alert(1)" in rendered
