"""Figures that a method reports of its rounds: drawn per layer, per tier and per band of ranks."""

from typing import Any

import pytest
from made_records import rounds_in, run_page, summary_in
from made_run import SECTIONS, make_rounds, make_summary, tier_row
from pages import Page, charts_of, data_of, drawn, rows, series

from edgefl.report.observed import observed_charts
from edgefl.report.page import vega
from edgefl.report.run_tables import compact_tiers
from edgefl.report.tier_notes import energy_sentence


def observing(*observed: Any) -> list[dict[str, Any]]:
    return [{**record, "observed": of} for record, of in zip(make_rounds(len(observed)), observed, strict=True)]


def test_what_a_method_says_of_its_layers_is_drawn() -> None:
    layers = {"conv1": {"effective_rank": 3.5, "draws": [2, 1]}, "conv2": {"effective_rank": 6.25, "draws": [2, 0, 1]}}
    later = {"conv1": {"effective_rank": 3.0, "draws": [1, 1]}, "conv2": {"effective_rank": 5.5, "draws": [2, 1, 0]}}
    rounds = observing({"kernels": layers}, {"kernels": later})
    rank, draws = observed_charts(rounds_in(rounds))
    assert (rank.title, rank.takeaway) == ("Effective rank per layer", "In round 2: conv1 3, conv2 5.5.")
    lines = rows(rank.spec, "line")
    assert series(lines, "value") == {"conv1": [3.5, 3.0], "conv2": [6.25, 5.5]}
    assert series(lines, "round") == {"conv1": [1, 2], "conv2": [1, 2]}
    cells = [(row["slot"].partition("|")[2], row["at"], row["value"]) for row in rows(draws.spec, "rect")]
    assert cells == [("conv1", 0, 3), ("conv1", 1, 2), ("conv2", 0, 4), ("conv2", 1, 1), ("conv2", 2, 1)]
    assert "the largest is kernel 0 of conv2, 4; its smallest is 1" in draws.takeaway
    rendered = run_page(make_summary(), rounds)
    assert [text for level, text in Page(rendered).headings if level == 2] == [
        *SECTIONS[:6],
        "Figures that fedhm reports of its rounds",
        *SECTIONS[6:],
    ]
    assert all(map(drawn, charts_of(rendered).values()))


def with_energy(*shares: float | None) -> dict[str, Any]:
    """A summary of tiers 1, 0.5 and 0.25 with shares of energy, smallest tier first."""
    summary = make_summary()
    tiers = zip((0.25, 0.5, 1.0), shares, (100, 150, 400), strict=False)
    summary["tiers"] = [
        tier_row(tier, "phone", "Phone", 3) | {"energy_share": of, "macs_train_step": macs} for tier, of, macs in tiers
    ]
    return summary


IDLE = (
    "Tier {} has learned almost nothing that tier {} cannot hold, but costs {} times the MACs: "
    "its extra ranks hold {} of the sum of squares of its factorized weights."
)
SHARES = "Sum of squares of the factorized weights: {} in the ranks of tier 0.25, {} in those that tier 0.5 adds, {}."


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ((0.6, 0.3, 0.1), SHARES.format("60.0 %", "30.0 %", "10.0 % in those that tier 1 adds")),
        ((0.5, 0.4), SHARES.format("50.0 %", "40.0 %", "10.0 % in ranks that no tier has")),
        ((0.6, 0.395, 0.005), IDLE.format("1", "0.5", "2.7", "0.5 %")),
        ((0.9999, 0.0001, 0.0), IDLE.format("1", "0.25", "4.0", "<0.1 %")),
        ((0.5, 0.001), IDLE.format("0.5", "0.25", "1.5", "0.2 %")),
        ((1.0,), ""),
        ((None, None, None), ""),
    ],
)
def test_what_larger_tiers_hold_is_a_sentence_below_the_tiers(shares: tuple[float | None, ...], sentence: str) -> None:
    summary = with_energy(*shares)
    assert energy_sentence(summary_in(summary).tiers) == sentence
    assert compact_tiers(summary_in(summary)).note == sentence
    text = Page(run_page(summary, make_rounds())).text
    assert sentence in text
    assert ("factorized weights" in text) == bool(sentence)


def test_energy_per_band_is_a_chart() -> None:
    figure = {"energy first held by tier 0.5": 0.75, "energy first held by tier 1": 0.25}
    rounds = observing({"energy": figure, "energy_by_layer": {"conv2": figure, "conv3": figure}})
    whole, *by_layer = observed_charts(rounds_in(rounds))
    assert whole.title == "Share of the factorized layers' energy per band of ranks"
    assert series(rows(whole.spec, "line"), "value") == {name: [value] for name, value in figure.items()}
    assert [chart.title for chart in by_layer] == [name.capitalize() for name in figure]
    assert series(rows(by_layer[1].spec, "line"), "value") == {"conv2": [0.25], "conv3": [0.25]}


def test_numbers_and_lists_are_lines_and_many_layers_a_map() -> None:
    number, clusters = observed_charts(
        rounds_in(observing({"matched": 2.5, "clusters": [3]}, {"matched": 3, "clusters": [2, 1]}))
    )
    assert series(rows(number.spec, "line"), "value") == {"matched": [2.5, 3.0]}
    assert clusters.takeaway == "In round 2: 0 2, 1 1."
    (ranks,) = observed_charts(rounds_in(observing({"rank": {f"layer{n}": n for n in range(12)}})))
    assert [row["value"] for row in rows(ranks.spec, "rect")] == list(range(12))
    assert ranks.takeaway.endswith("and 8 more.")


@pytest.mark.parametrize(
    "observed", [{}, {"note": "words"}, {"flag": True}, {"mixed": {"a": [1], "b": 2}}, {"deep": {"a": {"b": {"c": 1}}}}]
)
def test_what_has_no_known_form_is_left_out_without_harm(observed: dict[str, Any]) -> None:
    assert run_page(make_summary(), observing(observed, observed))


def test_names_in_observations_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    for observed in ({evil: 1}, {"rank": {evil: 1}}, {"draws": {evil: [1]}}, {"kernels": {evil: {evil: 1}}}):
        rendered = run_page(make_summary(), observing(observed))
        assert "<script>alert" not in rendered.replace(vega().packed, "")
        assert "<" not in data_of(rendered)
