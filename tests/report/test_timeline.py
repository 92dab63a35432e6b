"""A round on the clock: which clients are drawn, from when to when, and where the round closes."""

from dataclasses import replace
from typing import Any

import pytest
from made_fleet import busy, outcome, record, summary_of
from made_records import rounds_in, summary_in
from pages import drawn, heads, labels, layers, looks, rows

from edgefl.report.chart import Chart
from edgefl.report.timeline import Line, pick, timeline, timelines


def drawn_round(line: dict[str, Any]) -> Chart:
    (of,) = rounds_in([line])
    return timeline(summary_in(summary_of([line])), of)


def test_a_round_is_drawn_from_its_beginning_and_closed_where_it_closed() -> None:
    chart = drawn_round(busy())
    assert list(looks(layers(chart.spec, "bar")[0], "fill")) == ["download", "training", "upload"]
    bars, hatched = (layer["data"]["values"] for layer in layers(chart.spec, "bar"))
    # The late client ends after 7 s, the axis is in seconds, and the first client begins with the round.
    assert {row["start"] for row in bars if row["series"] == "download"} == {0.0}
    lengths = {
        (wasted, phase): sum(row["end"] - row["start"] for row in bars if row["series"] == phase and bool(row["hatch"]) == wasted)
        for wasted in (False, True)
        for phase in ("download", "training", "upload")
    }
    assert list(lengths.values()) == pytest.approx([4, 6.26, 4, 5, 7.75, 2.5])
    statuses = ("late", "dropped", "interrupted", "out_of_memory", "diverged")
    assert {row["hatch"] for row in hatched} == {f"url(#hatch-{status})" for status in statuses}
    assert hatched == [row for row in bars if row["hatch"]]
    limits = {row["series"]: row["at"] for layer in layers(chart.spec, "rule") for row in layer["data"]["values"]}
    assert limits == {"the round closes": 4.0, "deadline": 6.0}
    ends = {row["reason"]: row["at"] for row in rows(chart.spec, "point")}
    assert ends == pytest.approx({"dropped": 2.5, "diverged": 3.0, "out of memory": 1.25, "interrupted": 1.5, "late": 7.0})
    assert [row["reason"] for row in rows(chart.spec, "text") if "reason" in row] == list(ends)
    assert chart.takeaway == (
        "Round 7 closed after 4.00 s with 4 of 9; 1 was late, 4 were lost (1 dropped, 1 interrupted, 1 out of memory, 1 diverged). "
        "1 more was refused, so nothing was sent: 1 of class Slow phone. "
        "Before it, the server waited 10 min 00 s for clients to become eligible."
    )
    assert "out of memory" in drawn(chart.spec)


def test_a_round_that_closes_at_its_deadline_has_one_line_for_both() -> None:
    line = record(
        1, outcome(0, "fast", "trained"), outcome(1, "slow", "late", (1, 5, 1)), round_s=6.0, clock_s=6.0, deadline_s=6.0
    )
    (limit,) = rows(drawn_round(line).spec, "rule")
    assert limit == {"series": "the round closes at its deadline", "at": 6.0}


def test_lines_stand_under_their_class_from_early_to_late() -> None:
    spec = drawn_round(busy()).spec
    assert heads(spec) == ["Fast phone", "Slow phone"]
    assert labels(spec) == ["5", "0", "8", "1", "7", "6", "2", "3", "4"]
    places = layers(spec, "bar")[0]["encoding"]["y"]["scale"]["domain"]
    assert [
        place for place, slot in enumerate(places) if slot in {row["slot"] for row in rows(spec, "text") if "head" in row}
    ] == [0, 5]


def test_rounds_of_milliseconds_are_drawn_in_milliseconds() -> None:
    line = record(1, outcome(0, "fast", "trained", (0.001, 0.002, 0.001)), round_s=0.004, clock_s=0.004)
    (bars, _) = layers(drawn_round(line).spec, "bar")
    assert bars["encoding"]["x"]["title"] == "time in the round (ms)"
    assert [row["end"] - row["start"] for row in bars["data"]["values"]] == pytest.approx([1.0, 2.0, 1.0])


def test_a_straggler_leaves_the_chart_but_says_when_it_ends() -> None:
    line = record(1, outcome(0, "fast", "trained"), outcome(1, "slow", "late", (1, 398, 1)), clock_s=4.0, deadline_s=1000.0)
    chart = drawn_round(line)
    (end,) = rows(chart.spec, "point")
    assert (end["at"], end["reason"]) == (12.0, "late, 6 min 40 s")
    assert "deadline" not in {row["series"] for row in rows(chart.spec, "rule")}
    assert chart.takeaway.endswith("Its deadline, 16 min 40 s, lies beyond the chart.")


def test_where_the_server_steps_clients_begin_before_the_step() -> None:
    o = outcome(0, "fast", "trained", start_s=98.0, staleness=2)
    line = record(3, o, round_s=3.0, clock_s=102.0, deadline_s=5.0)
    chart = drawn_round(line)
    bars = layers(chart.spec, "bar")[0]
    assert bars["data"]["values"][0]["start"] == -1.0
    assert bars["encoding"]["x"]["scale"]["domain"][0] == -1.0
    assert "ended with a step of the server, 3.00 s after the one before, on all 1" in chart.takeaway
    assert chart.takeaway.endswith("Its deadline, 5.00 s, is each client's own.")


def test_many_clients_are_picked_from_every_class_and_outcome() -> None:
    lines = [Line(n, "fast", "", "trained", 0.0, {"download": 1.0, "training": n / 100, "upload": 1.0}) for n in range(500)]
    rare = [Line(500 + n, "slow", "", status, 0.0, {"download": 1.0}) for n, status in enumerate(("late", "crashed", "dropped"))]
    picked = pick([*lines, *rare])
    assert len(picked) == 40
    assert all(line in picked for line in rare)
    ends = sorted(line.client for line in picked if line.device == "fast")
    assert (ends[0], ends[-1], len(ends)) == (0, 499, 37)
    assert pick(lines[:40]) == lines[:40]
    # More outcomes than lines: still no more lines than there is room for.
    assert len(pick([replace(line, status=f"s{line.client}") for line in lines])) == 40


def test_the_round_in_which_most_happened_comes_first_among_at_most_eight() -> None:
    quiet = [record(n, outcome(0, "fast", "trained")) for n in range(1, 21)]
    silent = {key: value for key, value in busy(21).items() if key != "clients"}
    found = timelines(summary_in(summary_of(quiet)), rounds_in([*quiet[:12], busy(13), *quiet[13:], silent]))
    titles = [chart.title for chart in found.charts]
    assert len(titles) == 8
    assert titles[found.chosen] == "Round 13"
    assert {"Round 1", "Round 20"} <= set(titles)
    assert found.labels[found.chosen].startswith("13: 4 of ")
    (none,) = timelines(summary_in(summary_of(quiet)), rounds_in([silent])).charts
    assert none.spec is None
