"""Who wins under a budget: by-hand runs whose costs are known, ranks and ties, Pareto fronts, and what tables, page and command say."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from compared import of_json, with_summary
from made_records import rounds_in, summary_in
from pages import Page, charts_of, drawn, layers, printed, series
from pydantic import TypeAdapter

import edgefl
from edgefl.cli.compare import command
from edgefl.config import RunConfig
from edgefl.errors import BudgetError, CheckpointError, ConfigError
from edgefl.report.compare_page import compare_page
from edgefl.report.compare_page_budget import budget_table, class_table, front_text
from edgefl.report.compare_tables import paper_text
from edgefl.report.comparison import ComparisonSummary, MethodResult, Played, comparison_of
from edgefl.report.evaluated import evaluated_of
from edgefl.report.ranks import ranked
from edgefl.report.run_budget import RunBudget
from edgefl.report.verdict_words import verdict_notes, winner
from edgefl.run.compare import _check_fits, compare
from edgefl.run.compare_entries import ComparisonRequest

SMALL = RunConfig(rounds=1, clients=4, local_epochs=1, model="mlp", data_share=0.3)
Line = tuple[int, str, int, float | None]
"""A client, its status, the bytes that it sends (and as many that it receives), and its joules."""


def line(number: int, accuracy: float | None, clock_s: float, *clients: Line) -> dict[str, Any]:
    """A round at the end of which tier .5 is .1 less accurate than tier 1; clients 0 and 1 have phones, 2 and 3 have boards."""
    return {
        "round": number,
        "clock_s": clock_s,
        "accuracy": {} if accuracy is None else {"global": accuracy, "1": accuracy, "0.5": accuracy - 0.1},
        "macs": 1000,
        "download_bytes": sum(client[2] for client in clients),
        "upload_bytes": sum(client[2] for client in clients),
        "energy_j": sum(client[3] or 0.0 for client in clients),
        "clients": [
            {
                "client": n,
                "status": status,
                "tier": 1.0 if n < 2 else 0.5,
                "device": "phone" if n < 2 else "board",
                "download_bytes": sent,
                "upload_bytes": sent,
                "energy_j": joules,
                "download_s": None if joules is None else 1.0,
            }
            for n, status, sent, joules in clients
        ],
    }


def played(rounds: list[dict[str, Any]], seed: int = 0) -> Played:
    """A finished run of four clients: two phones with tier 1, two boards with tier .5."""
    tiers = [{"tier": tier, "params": 10, "uncounted_ops": []} for tier in (1.0, 0.5)]
    classes = [
        {"device": device, "title": device.title(), "clients": 2, "tier": tier, "statuses": {}}
        for device, tier in (("phone", 1.0), ("board", 0.5))
    ]
    about = {"accuracy_of": "global", "model": "mlp", "dataset": "digits", "download_bytes": 1, "upload_bytes": 1, "host_s": 1.0}
    return Played(seed, summary_in({**about, "tiers": tiers, "participation": classes}), rounds_in(rounds))


def even(accuracies: list[float | None], seed: int = 0, step_s: float = 10.0, sent: int = 50, joules: float = 1.0) -> Played:
    """A run in which phone 0 and board 2 train in every round, with the same costs."""
    costs = (("trained", sent, joules), ("trained", sent, joules))
    return played(
        [line(n, a, n * step_s, (0, *costs[0]), (2, *costs[1])) for n, a in enumerate(accuracies, start=1)],
        seed,
    )


def row_of(label: str) -> MethodResult:
    return MethodResult(label=label, method=label, title=label.title(), options={}, tiers_why="because", failures=())


def summary_of(runs: dict[str, list[Played]], target: float | None = None, **budget: float) -> dict[str, Any]:
    contenders = [(row_of(label), own) for label, own in runs.items()]
    return comparison_of(contenders, [0], (1.0, 0.5), RunBudget(**budget), target, "global").to_dict()


def within(runs: dict[str, list[Played]], target: float | None = None, **budget: float) -> dict[str, Any]:
    found: dict[str, Any] = summary_of(runs, target, **budget)["verdict"]
    return found


def notes_of(summary: dict[str, Any]) -> str:
    return "\n".join(verdict_notes(of_json(summary)))


def rows_of(found: dict[str, Any]) -> dict[str, Any]:
    return {row["label"]: row for row in found["methods"]}


def test_costs_are_those_of_the_client_that_used_most_wasted_sessions_included() -> None:
    rounds = [
        line(1, None, 5.0, (0, "trained", 10, 1.0), (1, "late", 30, 2.0), (2, "refused", 0, None)),
        line(2, 0.5, 9.0, (0, "trained", 10, 4.0), (1, "dropped", 5, 0.5), (3, "trained", 1, 0.1)),
        line(3, 0.4, 20.0, (0, "trained", 40, 1.0)),
    ]
    two, three = evaluated_of(rounds_in(rounds))
    # Client 1 has moved 2 · 35 bytes without ever training; client 0 has spent 1 + 4 J.
    assert (two.round, two.simulated_s, two.client_bytes, two.client_j, two.macs) == (2, 9.0, 70, 5.0, 2000)
    assert dict(two.trained) == {"board": 1, "phone": 1}
    assert (three.client_bytes, three.client_j, three.macs) == (120, 6.0, 3000)


@pytest.mark.parametrize(
    ("budget", "round_", "limited_by"),
    [
        ({"s": 30}, 3, ["simulated_s"]),  # a budget is met by what equals it
        ({"s": 29.9}, 2, ["simulated_s"]),  # between two rounds: the one before, nothing is interpolated
        ({"bytes": 199}, 1, ["client_bytes"]),
        ({"j": 2}, 2, ["client_j"]),
        ({"s": 35, "bytes": 250, "j": 3.5}, 2, ["client_bytes"]),
        ({"s": 25, "bytes": 250, "j": 3}, 2, ["simulated_s", "client_bytes"]),
    ],
)
def test_the_last_evaluated_model_within_all_budgets_counts(budget: dict[str, float], round_: int, limited_by: list[str]) -> None:
    # 10 s, 100 bytes and 1 J a round; accuracy goes up and down, and the last within the budget counts, not the best.
    row = rows_of(within({"a": [even([0.5, 0.8, 0.6, 0.9])]}, **budget))["a"]
    assert row["rounds"] == [round_]
    assert row["accuracy"]["mean"] == [0.5, 0.8, 0.6, 0.9][round_ - 1]
    assert (row["limited_by"], row["ended_at"]) == (limited_by, None)


def test_rounds_that_were_not_evaluated_do_not_count() -> None:
    row = rows_of(within({"a": [even([None, 0.8, None, 0.9])]}, s=35))["a"]
    assert (row["rounds"], row["accuracy"]["mean"], row["first"]["simulated_s"]) == ([2], 0.8, 20)


def test_a_run_that_ends_within_the_budget_counts_and_says_how_much_it_used() -> None:
    summary = summary_of({"short": [even([0.5, 0.7])]}, s=100, bytes=250)
    row = summary["verdict"]["methods"][0]
    # 200 of 250 bytes is the larger share.
    assert (row["rounds"], row["accuracy"]["mean"], row["ended_at"], row["limited_by"]) == ([2], 0.7, 0.8, [])
    assert "short: ended early, at 80.0 % of the budget" in notes_of(summary)
    assert "limit none (80.0 % used)" in budget_table(of_json(summary)).to_plain()


def test_the_cost_of_a_target_is_that_of_the_first_round_with_it_or_the_best_accuracy_is_shown() -> None:
    summary = summary_of({"a": [even([0.5, 0.8, 0.7, 0.9])], "b": [even([0.4, 0.75, 0.6, 0.6])]}, target=0.8)
    rows = rows_of(summary["verdict"])
    assert {key: value["mean"] for key, value in rows["a"]["to_target"].items()} == {
        "simulated_s": 20,
        "client_bytes": 200,
        "client_j": 2,
        "macs": 2000,
    }
    assert (rows["b"]["to_target"], rows["b"]["reached"], rows["b"]["best"]["mean"]) == (None, 0, 0.75)
    assert "b: 80.0 % not reached; best 75.0 %" in notes_of(summary)
    assert rows["a"]["accuracy"]["mean"] == 0.9  # without a budget: at the end
    assert rows["a"]["ended_at"] is None
    assert "until 80.0 % time not reached, bytes –" in budget_table(of_json(summary)).to_plain()


def test_seeds_give_means_with_standard_errors_and_a_target_counts_if_all_reach_it() -> None:
    runs = {"a": [even([0.5, 0.7], 0), even([0.5, 0.9], 1)], "b": [even([0.5, 0.8], 0), even([0.8, 0.8], 1, step_s=5)]}
    summary = summary_of(runs, target=0.8, s=20)
    rows = rows_of(summary["verdict"])
    assert rows["a"]["accuracy"] == {"mean": pytest.approx(0.8), "error": pytest.approx(0.1), "values": [0.7, 0.9]}
    assert (rows["a"]["reached"], rows["a"]["to_target"]) == (1, None)
    assert "a: 80.0 % reached in 1 of 2 seeds; best 80.0 ± 10.0 % (SE)" in notes_of(summary)
    assert "until 80.0 %, ± SE time reached in 1 of 2 seeds, bytes –" in budget_table(of_json(summary)).to_plain()
    assert rows["b"]["to_target"]["simulated_s"] == {"mean": 12.5, "error": pytest.approx(7.5), "values": [20, 5]}
    assert rows["b"]["ended_at"] == 0.5  # of the seed that ended earliest within the budget


def test_methods_that_the_seeds_cannot_tell_apart_share_a_rank() -> None:
    best, close, noisy = {0: 0.90, 1: 0.80, 2: 0.85}, {0: 0.881, 1: 0.780, 2: 0.829}, {0: 0.88, 1: 0.83, 2: 0.82}
    # About .02 lower at every seed is decided although the spread over seeds is larger; noisy differs by .02, −.03 and .03.
    ranks, pairs = ranked({"close": close, "noisy": noisy, "best": best})
    assert ranks == {"best": 1, "noisy": 1, "close": 3}
    assert [(pair.above, pair.below, pair.decided) for pair in pairs] == [
        ("best", "noisy", False),
        ("best", "close", True),
        ("noisy", "close", False),
    ]
    # One seed decides nothing, and neither do three equal differences: signs alone give p = 1/4.
    assert ranked({"a": {0: 0.5}, "b": {0: 0.6}, "c": {0: 0.5}})[0] == {"b": 1, "a": 1, "c": 1}
    equal, (pair,) = ranked({"a": {0: 0.9, 1: 0.8, 2: 0.7}, "b": {0: 0.88, 1: 0.78, 2: 0.68}})
    assert (equal, pair.p, pair.test) == ({"a": 1, "b": 1}, 0.25, "permutation")


def test_the_best_is_named_and_ties_and_single_seeds_are_said() -> None:
    one = summary_of({"a": [even([0.5])], "b": [even([0.6])]}, s=10)
    assert [row["label"] for row in one["verdict"]["methods"]] == ["b", "a"]
    assert winner(of_json(one)) == "b has the best global accuracy 60.0 % within 10.0 s, with one seed, which decides nothing."
    assert "one seed gives no error, so the order is not decided; give more --seeds" in notes_of(one)
    two = summary_of({"a": [even([0.5]), even([0.7], 1)], "b": [even([0.7]), even([0.55], 1)]}, bytes=1e6)
    assert winner(of_json(two)) == (
        "b and a are tied within 1.00 MB a client: global accuracy 62.5 ± 7.5 % (SE) for b; the difference to a is 2.5 points, "
        "95 % interval −219.9 to +224.9, p = 0.910 by Student's t of 2 seeds."
    )
    assert [row[1] for row in budget_table(of_json(two)).rows] == ["1 =", "1 ="]
    sure = {"a": [even([0.9 + 0.001 * n], n) for n in range(3)], "b": [even([0.5 - 0.002 * n], n) for n in range(3)]}
    assert winner(of_json(summary_of(sure))).startswith("a is the best at the end of the runs: global accuracy 90.1 ± 0.1 % (SE)")


def test_a_method_that_does_not_fit_is_a_row_with_what_it_needs() -> None:
    summary = summary_of({"slow": [even([0.9], step_s=50)], "quick": [even([0.5])], "none": []}, s=20)
    rows = rows_of(summary["verdict"])
    assert list(rows) == ["quick", "slow", "none"]
    assert (rows["slow"]["rank"], rows["slow"]["accuracy"], rows["slow"]["rounds"]) == (None, None, [None])
    assert "slow: nothing fits: the first evaluated round ends after 50.0 s, 100 B and 1.00 J a client" in notes_of(summary)
    assert "nothing fits" in printed(budget_table(of_json(summary)), 80)
    # A method counts only if every seed fits.
    mixed = summary_of({"a": [even([0.9]), even([0.9], 1, step_s=50)], "b": [even([0.5])]}, s=20)
    assert rows_of(mixed["verdict"])["a"]["accuracy"] is None
    assert "a: fits in 1 of 2 seeds" in notes_of(mixed)


def test_where_nothing_fits_the_error_says_what_each_method_needs(tmp_path: Path) -> None:
    def found(**budget: float) -> ComparisonSummary:
        contenders = [(row_of("slow"), [even([0.9], step_s=50)]), (row_of("quick"), [even([0.5])])]
        return comparison_of(contenders, [0], (1.0,), RunBudget(**budget))

    _check_fits(found(s=20), tmp_path)
    with pytest.raises(
        BudgetError, match=r"within 9\.00 s:\nquick: .* 10\.0 s.*\n?slow: .* 50\.0 s|within 9\.00 s:\nslow: .*\nquick: "
    ):
        _check_fits(found(s=9), tmp_path)


def test_device_classes_have_their_tiers_accuracy_and_the_share_that_trained() -> None:
    rounds = [
        line(1, 0.6, 10, (0, "trained", 1, 1.0), (2, "late", 1, 1.0)),
        line(2, 0.8, 20, (1, "trained", 1, 1.0), (3, "trained", 1, 1.0)),
        line(3, 0.9, 30, (2, "trained", 1, 1.0)),
    ]
    summary = summary_of({"a": [played(rounds)]}, s=20)
    phone, board = summary["verdict"]["methods"][0]["classes"]
    assert (phone["accuracy"]["mean"], phone["trained_share"]["mean"]) == (0.8, 1)
    assert (board["tiers"], board["accuracy"]["mean"], board["trained_share"]["mean"]) == ([0.5], pytest.approx(0.7), 0.5)
    assert class_table(of_json(summary)).rows[1] == ("a", "Board", "2", "0.5", "70.0 %", "50.0 %")
    assert "device classes least trained 50.0 %" in budget_table(of_json(summary)).to_plain()


def test_a_class_has_the_tiers_that_fit_it_with_the_data_of_every_seed() -> None:
    first, second = even([0.6, 0.8], 0), even([0.5, 0.9], 1)
    phone, other = second.summary.participation
    second = with_summary(second, participation=(phone, replace(other, tier=1.0)))
    summary = summary_of({"a": [first, second]}, s=20)
    board = summary["verdict"]["methods"][0]["classes"][1]
    assert (board["tiers"], board["accuracy"]["values"]) == ([0.5, 1.0], pytest.approx([0.7, 0.9]))
    assert class_table(of_json(summary)).rows[1][3] == "0.5 / 1"


def test_the_front_is_the_best_method_of_every_budget_up_to_the_whole() -> None:
    cheap = even([0.3, 0.6, 0.52], step_s=10, sent=10)
    good = even([0.5, 0.55, 0.9], step_s=15, sent=100)
    bad = even([0.2, 0.2, 0.2], step_s=20, sent=200)
    summary = summary_of({"cheap": [cheap], "good": [good], "bad": [bad]}, s=45)
    found = summary["verdict"]
    fronts = {axis: [(p["label"], p["cost"], p["accuracy"]) for p in points] for axis, points in found["fronts"].items()}
    # At 30 s the last round of cheap is .52, so the best falls to good's .55: what counts is the last round, as in the ranks.
    assert fronts["simulated_s"] == [
        *(("cheap", 10, 0.3), ("good", 15, 0.5), ("cheap", 20, 0.6), ("good", 30, 0.55), ("good", 45, 0.9)),
    ]
    assert fronts["client_bytes"] == [
        ("cheap", 20, 0.3),
        ("cheap", 40, 0.6),
        ("cheap", 60, 0.52),
        ("good", 400, 0.55),
        ("good", 600, 0.9),
    ]
    on = {row["label"]: row["fronts"] for row in found["methods"]}
    assert on["good"] == ["simulated_s", "client_bytes", "client_j"]
    assert on["bad"] == []
    assert front_text(of_json(summary), "client_bytes") == (
        "Best mean for a budget of bytes: cheap from 20 B, then good from 400 B. "
        "With the whole budget, good has the best mean, 90.0 %, from 600 B on."
    )
    # Beyond a smaller budget nothing is on a front; of equal points both are.
    assert {p["label"] for p in within({"cheap": [cheap], "good": [good]}, s=14)["fronts"]["client_bytes"]} == {"cheap"}
    assert {p["label"] for p in within({"a": [cheap], "b": [cheap]}, s=30)["fronts"]["client_j"]} == {"a", "b"}


def test_methods_that_coincide_are_named_together() -> None:
    low, same = even([0.3, 0.4], sent=10), even([0.5, 0.9], sent=100)
    found = summary_of({"low": [low], "a": [same], "b": [same]}, s=45)
    assert front_text(of_json(found), "client_bytes") == (
        "Best mean for a budget of bytes: low from 20 B, then a and b from 200 B. "
        "With the whole budget, a and b have the best mean, 90.0 %, from 400 B on."
    )
    alone = summary_of({"a": [same], "b": [same]})
    assert front_text(of_json(alone), "client_j") == (
        "a and b have the best mean for every budget of energy. At the end, a and b have the best mean, 90.0 %, from 2.00 J on."
    )


def test_each_run_counts_with_its_own_rounds_in_rank_front_line_and_sentence() -> None:
    """Only one run of ``fast`` has a second round within 25 s; the fronts took rounds that every run affords, and ranks did not."""
    fast = [even([0.3, 0.9], 0, step_s=10), even([0.3, 0.9], 1, step_s=20)]
    slow = [even([0.5, 0.5], 0, step_s=10), even([0.5, 0.5], 1, step_s=10)]
    summary = summary_of({"fast": fast, "slow": slow}, s=25)
    found = summary["verdict"]
    best = found["methods"][0]
    assert (best["label"], best["accuracy"]["mean"], best["rounds"]) == ("fast", pytest.approx(0.6), [2, 1])
    for axis, points in found["fronts"].items():
        assert (points[-1]["label"], points[-1]["accuracy"]) == ("fast", best["accuracy"]["mean"])
        assert best["steps"][axis][-1]["accuracy"] == best["accuracy"]["mean"]
        assert "fast has the best mean, 60.0 %" in front_text(of_json(summary), axis)
    assert "60.0 ± 30.0 % (SE) for fast" in winner(of_json(summary))


def test_a_method_that_one_run_cannot_afford_is_on_no_front() -> None:
    a, b = [even([0.9], 0, sent=40), even([0.9], 1, sent=55)], [even([0.5], 0), even([0.5], 1)]
    found = summary_of({"a": a, "b": b}, bytes=100)
    under = found["verdict"]
    assert {point["label"] for points in under["fronts"].values() for point in points} == {"b"}
    assert [(row["label"], row["rank"], len(row["fronts"])) for row in under["methods"]] == [("b", 1, 3), ("a", None, 0)]
    assert "a: fits in 1 of 2 seeds: the first evaluated round ends after 10.0 s, 110 B and" in notes_of(found)
    assert (
        winner(of_json(found)) == "b is the only method with a result within 100 B a client: global accuracy 50.0 ± 0.0 % (SE)."
    )


def three() -> dict[str, Any]:
    return summary_of(
        {
            "fedhm": [even([0.5, 0.8, 0.85], 0), even([0.5, 0.7, 0.9], 1)],
            "heterofl": [even([0.4, 0.6, 0.7], 0, sent=90), even([0.45, 0.6, 0.75], 1, sent=90)],
            "factorized-fl": [even([0.3], 0, step_s=90), even([0.3], 1, step_s=90)],
        },
        target=0.72,
        s=20,
        bytes=1000,
        j=1e3,
    )


def test_the_terminal_table_fits_80_columns() -> None:
    text = printed(budget_table(of_json(three())), 80)
    assert max(map(len, text.splitlines())) <= 80
    for said in ("Within 20.0 s, 1.00 kB a client and 1.00 kJ a client", "75.0 ± 5.0 %", "until 72.0 %", "nothing fits"):
        assert said in " ".join(text.split())


def test_the_page_ranks_and_draws_the_fronts_also_without_a_budget() -> None:
    page = compare_page(of_json(three()))
    text = " ".join(Page(page).text.split())
    assert (
        "fedhm and heterofl are tied within 20.0 s, 1.00 kB a client and 1.00 kJ a client: global accuracy 75.0 ± 5.0 % (SE)"
        in text
    )
    assert "heterofl: 72.0 % reached in 1 of 2 seeds" in text
    assert (2, "Which method wins under the budget") in Page(page).headings
    charts = charts_of(page)
    assert all(drawn(charts[f"front-{axis}"]) for axis in ("simulated_s", "client_bytes", "client_j"))
    chart = charts["front-simulated_s"]
    curve, front = layers(chart, "line")
    assert curve["mark"]["interpolate"] == "step-after"
    assert series(curve["data"]["values"], "simulated_s")["fedhm"] == [10, 20]
    assert (front["mark"]["interpolate"], [p["simulated_s"] for p in front["data"]["values"]]) == ("step-after", [10, 20])
    assert [rule["data"]["values"] for rule in layers(chart, "rule")] == [[{"simulated_s": 20}], [{"accuracy": 0.72}]]
    bare = comparison_of([(row_of("a"), [even([0.5])])], [0], (1.0,)).to_dict()
    assert (bare["verdict"]["rank_by"], bare["verdict"]["budget"]["s"]) == ("clients", None)
    assert (2, "Which method wins") in Page(compare_page(of_json(bare))).headings


@pytest.mark.parametrize("rank_by", ["clients", "worst", "global"])
def test_the_tables_for_a_paper_fit_a_column_and_need_booktabs_only(rank_by: str) -> None:
    summary = three()
    summary["verdict"]["rank_by"] = rank_by
    summary["verdict"]["methods"][0]["label"] = "heterofl_@.125"
    summary["verdict"]["methods"][1]["refused"] = 0.351
    text = paper_text(of_json(summary))
    notes = [line for line in text.splitlines() if line.startswith("% ")]
    assert "± is the standard error over seeds; p is that of the difference to the first method, corrected." in notes[2]
    ranking, target = re.findall(r"\\begin\{tabular\}\{([lr]+)\}\n(.*?)\n\\end\{tabular\}", text, re.DOTALL)
    assert set(re.findall(r"\\([a-z]+)", text)) == {
        *("footnotesize", "setlength", "tabcolsep", "begin", "toprule", "midrule", "bottomrule", "end", "pm"),
    }
    for kinds, body in (ranking, target):
        lines = [line.removesuffix(r" \\").split(" & ") for line in body.splitlines() if not line.startswith("\\")]
        assert {len(line) for line in lines} == {len(kinds)}
        # A digit of Computer Modern at \\footnotesize is 4.25 pt wide, a letter about as much; a column of IEEE is 252 pt wide.
        shown = [[re.sub(r"\$\\pm\$", "±", cell).replace("\\", "") for cell in line] for line in lines]
        width_pt = sum(4.25 * max(map(len, column)) for column in zip(*shown, strict=True)) + 2 * 3 * len(kinds)
        assert width_pt <= 252


def test_the_json_form_is_that_of_the_records() -> None:
    summary = three()
    assert TypeAdapter(ComparisonSummary).validate_json(json.dumps(summary)).to_dict() == summary
    found = summary["verdict"]
    assert found["budget"] == {"s": 20, "bytes": 1000, "j": 1000}
    assert found["target_accuracy"] == 0.72
    assert [step["cost"] for step in found["methods"][0]["steps"]["simulated_s"]] == [10, 20]


@pytest.mark.parametrize("values", [{"s": 0}, {"bytes": -1}, {"j": float("nan")}, {"s": float("inf")}, {"j": True}, {"s": "10"}])
def test_a_limit_that_is_no_number_above_0_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"budget: {next(iter(values))} must be a finite number above 0, got"):
        RunBudget(**values)


@pytest.mark.parametrize("target", [0, -0.1, 1.01, 85, float("nan"), True, "0.8"])
def test_a_target_outside_0_to_1_is_refused_before_anything_is_written(target: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"target_accuracy must be a share in \(0, 1\], such as 0.85, got"):
        compare(["fedavg"], SMALL, tmp_path / "c", target_accuracy=target)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--budget-s", "0", "is not a time above 0, such as 600, 10min or 2h"),
        ("--budget-s", "nan", "is not a time above 0"),
        ("--budget-s", "-5", "is not a time above 0"),
        ("--budget-s", "10MB", "is in bytes, expected a time above 0"),
        ("--budget-s", "2 parsecs", "is not a time above 0"),
        ("--budget-bytes", "10s", "is a time, expected a number of bytes above 0, such as 100MB or 64KiB"),
        ("--budget-bytes", "1e999", "is not a number of bytes above 0"),
        ("--budget-j", "5min", "is a time, expected an energy above 0, such as 30 (joules) or 1kJ"),
        ("--budget-j", "", "is not an energy above 0"),
        ("--target-accuracy", "0", "is not a share above 0 and at most 1, such as 0.85 or 85%"),
        ("--target-accuracy", "85", "is not a share above 0"),
        ("--target-accuracy", "101%", "is not a share above 0"),
        ("--target-accuracy", "nan", "is not a share above 0"),
    ],
)
def test_the_command_names_flag_value_and_expectation(flag: str, value: str, expected: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--methods", "fedavg", "--out", str(tmp_path / "c"), f"{flag}={value}"])
    assert result.exit_code == 2
    assert f"Invalid value for '{flag}': {value!r} {expected}" in " ".join(result.output.split())
    assert not (tmp_path / "c").exists()


def test_help_has_the_budget_under_a_heading_of_its_own() -> None:
    text = CliRunner().invoke(command, ["--help"], terminal_width=100).output
    own = text.partition("Budget of a run")[2]
    assert all(flag in own for flag in ("--budget-s", "--budget-bytes", "--budget-j", "--target-accuracy"))


def test_budget_and_target_are_stored_for_resume(tmp_path: Path) -> None:
    asked = ComparisonRequest(
        ("fedhm",), SMALL.model_copy(update={"tiers": (1.0,)}), (0,), {}, edgefl.RunBudget(s=600, j=2.5), 0.85, "worst"
    )
    path = tmp_path / "comparison.toml"
    path.write_text(asked.to_toml())
    assert ComparisonRequest.of_file(path) == asked
    for wrong in ("\ns = 600", "\nseconds = 600"), ("\ns = 600", "\ns = -1"), ("0.85", "85"), ("worst", "best"):
        path.write_text(asked.to_toml().replace(*wrong))
        with pytest.raises(CheckpointError, match=r"comparison\.toml: .*; expected a table budget with s, bytes and j"):
            ComparisonRequest.of_file(path)


def test_epsilon_adversaries_and_the_defence_are_shown_where_there_are_any():
    played = even([0.5])
    bare = comparison_of([(row_of("a"), [played])], [0], (1.0,))
    spent = with_summary(played, privacy=summary_in({"privacy": {"epsilon": 7.5}}).privacy)
    private = comparison_of([(row_of("a"), [spent]), (row_of("b"), [played])], [0], (1.0,))
    assert [row.epsilon for row in private.methods] == [7.5, None]
    page = compare_page(replace(private, adversary="sybil:0.2", defence="median"))
    assert all(text in page for text in ("7.5", "ε", "sybil:0.2", "median"))
    assert not any(text in compare_page(bare) for text in ("ε", "adversary", "defence"))
