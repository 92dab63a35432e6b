"""The tables of a run: tiers in a terminal and in plain lines, and this computer's time by stage."""

import re

import pytest
from made_records import run_page, summary_in
from made_run import SECTIONS, make_rounds, make_summary
from pages import Page, printed

from edgefl.report.run_tables import class_table, compact_tiers, stage_table, tier_table


def test_the_tier_table_has_a_text_for_every_column_largest_tier_first() -> None:
    summary = make_summary()
    summary["tiers"].reverse()
    table = tier_table(summary_in(summary))
    assert [row[0] for row in table.rows] == ["1", "0.5", "0.25"]
    assert {len(row) for row in table.rows} == {len(table.columns)}
    half = {f"{c.group} {c.head}".strip(): text for c, text in zip(table.columns, table.rows[1], strict=True)}
    assert half["peak activations training, measured"] == "–"
    assert half["MACs per step composition"] == "48.0 k"
    assert half["round on its device budget used"] == "77.0 % deadline"


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_table_fits_and_cuts_nothing(width: int) -> None:
    text = printed(compact_tiers(summary_in(make_summary())), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for figure in (
        "96.8 %",
        "38.4 k",
        "1.20 M",
        "112 M",
        "1.92 MB",
        "1.86 MB",
        "155 kB",
        "1 min 11 s",
        "8.51 J",
        "92.0 %",
    ):
        assert figure in text
    assert "deadline" in text


def test_a_device_title_is_no_markup_in_the_terminal() -> None:
    summary = make_summary()
    summary["tiers"][0]["device_title"] = "[red]"
    assert "[red]" in printed(compact_tiers(summary_in(summary)), 80)


def test_plain_lines_hold_the_same_figures() -> None:
    summary = make_summary()
    first, *rest = compact_tiers(summary_in(summary)).to_plain().splitlines()
    assert len(rest) == 2
    assert first.startswith("tier 1; device Flagship phone; accuracy 96.8 %; params 38.4 k; MACs forward 1.20 M, step 112 M")
    assert first.endswith("a round time 1 min 11 s, energy 8.51 J; budget used 92.0 %, deadline")
    summary["tiers"][2]["uncounted_ops"] = ["Erf"]
    assert compact_tiers(summary_in(summary)).to_plain().endswith("Not counted, so no budget can be claimed met: tier 0.25: Erf")


def test_a_tier_that_no_class_takes_has_dashes() -> None:
    summary = make_summary()
    keys = ("device", "device_title", "round_seconds", "round_joules", "budget_share", "limiting_budget")
    summary["tiers"][1] |= dict.fromkeys(keys)
    line = compact_tiers(summary_in(summary)).to_plain().splitlines()[1]
    assert "device –;" in line
    assert "a round time –, energy –; budget used –" in line
    assert run_page(summary, make_rounds())


def test_a_clock_margin_is_said_where_a_need_contains_it() -> None:
    summary = make_summary()
    assert "clock margin" not in Page(run_page(summary, make_rounds())).text
    half = next(item for item in summary["classes"] if item["tier"] == 0.5)
    for entry in (half["budgets"][1], half["refusals"][0]):
        entry["clock_margin"] = 1.5
    table = class_table(summary_in({**summary, "classes": [half]}))
    assert table.rows[0][-2:] == (
        "memory: 640 kB of 25.6 MB (2.5 %)\ndeadline: 1 min 02 s with a clock margin of 1.5, of 1 min 20 s (77.0 %)",
        "tier 1: deadline needs 1 min 42 s with a clock margin of 1.5, has 1 min 20 s",
    )
    text = Page(run_page({**summary, "clock_margin": 1.5}, make_rounds())).text
    assert "1.5: tiers were assigned as if training took 1.5 times as long" in text


def test_the_page_says_where_this_computer_s_time_went() -> None:
    rendered = run_page(make_summary(), make_rounds())
    page = Page(rendered)
    assert [text for level, text in page.headings if level == 2] == SECTIONS
    rows = [
        row
        for row in re.findall(r'<tr role="row">(.*?)</tr>', rendered.replace("\xa0", " "))
        if "held-out samples</th>" in row or "local training" in row
    ]
    assert [re.sub(r"(<[^>]*>)+", "|", row) for row in rows] == [
        "|train: local training|–|–|–|49.0 s|",
        "|evaluate: accuracies on held-out samples|9.00 s|22.5 %|–|–|",
    ]
    assert "in 2 worker processes" in rendered
    assert "report: summary and page" not in rendered
    assert "<b>of a later" not in rendered


def test_a_run_in_one_process_has_no_empty_columns() -> None:
    table = stage_table({"server": {"wait": 0.0}})
    assert tuple(column.group for column in table.columns) == ("stage", "this process", "share")
    assert stage_table({"server": {}}).rows == ()
