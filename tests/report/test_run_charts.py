"""The charts of a run: drawn, one colour per tier, and over the right axes."""

import pytest
from made_records import rounds_in, run_page, summary_in
from made_run import make_rounds, make_summary
from pages import charts_of, drawn, labels, layers, looks, rows, series

from edgefl.report.fleet_charts import outcome_charts
from edgefl.report.run_charts import accuracy_charts, budget_chart


def test_charts_pass_vega_lite_s_schema_and_are_drawn() -> None:
    for spec in charts_of(run_page(make_summary(), make_rounds())).values():
        assert drawn(spec).startswith("<svg")


def test_a_tier_has_one_colour_in_every_chart() -> None:
    charts = charts_of(run_page(make_summary(), make_rounds()))
    lines = looks(layers(charts["accuracy-bytes"], "line")[0], "color")
    (bars,) = layers(charts["cost-compute"], "bar")
    assert looks(bars, "fill").items() <= lines.items()
    assert [row["series"] for row in bars["data"]["values"]] == list(looks(bars, "fill")) == ["tier 1", "tier 0.5", "tier 0.25"]
    assert labels(charts["cost-compute"]) == ["tier 1", "tier 0.5", "tier 0.25"]
    assert len(set(lines.values())) == len(lines) == 4
    assert lines["tier 1"] == "var(--tier-0)"
    assert [row["colour"] for row in rows(charts["budget-use"], "bar")[:2]] == [lines["tier 1"]] * 2


def test_accuracy_is_drawn_over_all_bytes_up_to_each_evaluated_round() -> None:
    rounds = make_rounds(4)
    sent = [record["download_bytes"] + record["upload_bytes"] for record in rounds]
    charts = accuracy_charts(summary_in(make_summary()), rounds_in(rounds))
    shown = [rows(chart.spec, "line") for chart in charts]
    assert [layers(chart.spec, "line")[0]["encoding"]["x"]["field"] for chart in charts] == ["round", "bytes", "clock"]
    assert series(shown[0], "round")["tier 1"] == [2, 4]
    assert series(shown[1], "bytes")["tier 1"] == [sum(sent[:2]), sum(sent)]
    assert series(shown[2], "clock")["tier 1"] == pytest.approx([142.4 / 60, 284.8 / 60])
    assert series(shown[0], "accuracy")["global"] == [rounds[1]["accuracy"]["global"], rounds[3]["accuracy"]["global"]]


def test_a_budget_far_exceeded_is_cut_but_says_its_figure() -> None:
    summary = make_summary()
    summary["classes"][3]["refusals"][0]["need"] = 64e6
    spec = budget_chart(summary_in(summary)).spec
    (bars,) = layers(spec, "bar")
    assert bars["data"]["values"][-1]["share"] == 1.5 == bars["encoding"]["x"]["scale"]["domain"][1]
    assert bars["data"]["values"][-1]["text"] == "10,000 %"
    assert layers(spec, "rule")[0]["encoding"]["x"]["datum"] == 1
    assert "10,000 %" in drawn(spec)


def test_outcomes_count_every_client_turn() -> None:
    rounds = make_rounds()
    per_round, per_class = (rows(chart.spec, "bar") for chart in outcome_charts(summary_in(make_summary()), rounds_in(rounds)))
    assert sum(row["value"] for row in per_round) == sum(len(record["clients"]) for record in rounds)
    assert sum(row["value"] for row in per_class) == 300
    assert series(per_round, "value")["trained"] == [record["trained"] for record in rounds]
