"""The page of a dry run: time, inclusion and no accuracies."""

import json
from pathlib import Path

import pytest
from made_fleet import dry, outcome, record, summary_of
from made_records import dry_in, dry_run_page, rounds_in
from pages import Page, charts_of, drawn, layers, looks, rows, series

from edgefl.errors import InputError
from edgefl.report import html
from edgefl.report.dry_page import answer_of_dry, hour_chart, policy_sentence, round_chart


def test_a_dry_run_has_a_page_without_accuracies() -> None:
    summary, rounds = dry()
    rendered = dry_run_page(summary, rounds)
    page = Page(rendered)
    assert all(map(drawn, charts_of(rendered).values()))
    assert {"rounds", "hours", "timeline-1", "timeline-30", "participation", "waste"} <= set(charts_of(rendered))
    assert [text for level, text in page.headings if level == 2] == [
        "Time",
        "What each assignment of tiers does to inclusion",
        "A round on the clock",
        "Who takes part",
        "Outcomes of clients",
        "Tiers and their costs",
    ]
    for text in ("Nothing was trained", "Clients that took part", "<0.1 % of 1,000,000", "10 h 00 min of it waiting for clients"):
        assert text in page.text
    assert "reaches" not in page.text
    assert rendered == dry_run_page(summary, rounds)


def test_rounds_of_a_dry_run_are_drawn_over_the_run_and_over_the_day() -> None:
    summary, rounds = dry()
    lasting = round_chart(rounds_in(rounds))
    assert lasting.takeaway == (
        "The median round lasts 4.00 s, the longest 4.00 s; the server waited 10 h 00 min in all for clients to become eligible."
    )
    chart = hour_chart(dry_in(summary), rounds_in(rounds))
    assert chart is not None
    bars = rows(chart.spec, "bar")
    # Rounds 1 to 3 are asked for at 22 h, 4 to 6 an hour later, and so on: one in three waits an hour.
    assert series(bars, "hour")["waiting"] == [0, 1, 2, 3, 4, 5, 6, 7, 22, 23]
    assert series(bars, "time")["waiting"] == pytest.approx([20.0] * 10)
    assert series(bars, "time")["the round"] == pytest.approx([4 / 60] * 10)
    assert looks(layers(chart.spec, "bar")[0], "fill")["waiting"] == "url(#waiting)"
    assert [row["time"] for row in rows(lasting.spec, "line")] == [4.0] * 30
    assert hour_chart(dry_in(summary | {"availability": "always"}), rounds_in(rounds)) is None
    assert hour_chart(dry_in(summary), rounds_in(rounds[:1])) is None
    assert round_chart([]).spec is None


def test_a_round_in_which_all_clients_are_refused_has_no_duration() -> None:
    summary, rounds = dry(3)
    refused = [record(4 + n, outcome(9, "slow", "refused"), round_s=0.0, waited_s=600.0) for n in range(4)]
    chart = round_chart(rounds_in([*rounds, *refused]))
    assert chart.takeaway == (
        "The median round lasts 4.00 s, the longest 4.00 s; the server waited 1 h 40 min in all for clients that may train. "
        "Not drawn: 4 rounds in which nothing was sent to any client."
    )
    assert [row["round"] for row in rows(chart.spec, "line")] == [1, 2, 3]
    assert "in a median round of 4.00 s" in answer_of_dry(dry_in(summary), rounds_in([*rounds, *refused])).found
    assert "Nothing was sent to any client in any round" in round_chart(rounds_in(refused)).takeaway


def test_the_policies_of_a_dry_run_are_compared_by_their_weakest_class() -> None:
    summary, rounds = dry()
    sentence = (
        "Under “auto” the class that trains least is Slow phone: 60.0 % of its sessions train; "
        "under “uniform” it is Slow phone, with 20.0 %."
    )
    assert policy_sentence(dry_in(summary)) == sentence
    for row in summary["policies"]:
        row["rounds"] = 30
    assert policy_sentence(dry_in(summary)) == sentence
    longer = {**summary, "rounds": 1000}
    assert policy_sentence(dry_in(longer)) == sentence.replace("Under", "In the first 30 of 1,000 rounds, under", 1)
    assert "Per tier assignment, in the first 30 of 1,000 rounds: the tiers in use" in Page(dry_run_page(longer, rounds)).text
    rendered = dry_run_page(summary, rounds)
    assert "--share: 0.2" in rendered
    assert "20.0 %" in Page(rendered).text
    assert "What each assignment of tiers" not in Page(dry_run_page(summary | {"policies": []}, rounds)).text


def test_a_dry_run_in_which_nothing_happened_has_a_page() -> None:
    refused = record(1, outcome(0, "slow", "refused"), round_s=0.0, clock_s=0.0)
    for rounds in ([], [refused]):
        text = Page(dry_run_page(summary_of(rounds, policies=[]), rounds)).text
        assert "Nothing was sent to any client" in text
        assert "No client's update was used" in text


def test_the_report_of_a_dry_run_can_be_written_anew(tmp_path: Path) -> None:
    summary, rounds = dry()
    summary |= {"dry_run": True}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rounds))
    assert html.write(tmp_path).read_text(encoding="utf-8") == dry_run_page(summary, rounds)
    summary["policies"][0]["inclusion"]["fast"] = "most"
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(InputError, match=r"policies\.0\.inclusion\.fast must be a number, got 'most'"):
        html.write(tmp_path)
