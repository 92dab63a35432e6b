"""The verdict of a comparison on planted cases with known truth: noise, refused classes, wrong clocks; and its sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from compared import contender, of_json
from made_records import rounds_in, summary_in
from pages import Page

from edgefl.errors import ConfigError
from edgefl.report.clock_draws import SURE
from edgefl.report.compare_answer import answer_of_comparison
from edgefl.report.compare_charts import accuracy_charts, colours_of, tier_chart
from edgefl.report.compare_page import compare_page
from edgefl.report.compare_page_budget import assignment_table, front_charts, front_text
from edgefl.report.compare_tables import footnote
from edgefl.report.comparison import Played, comparison_of
from edgefl.report.evaluated import CountedRun, check_rank_by
from edgefl.report.ranks import ranked
from edgefl.report.retimed import retimed
from edgefl.report.run_budget import RunBudget
from edgefl.report.verdict_words import leaders, rule_text, sure, verdict_notes, winner

PHONE, BOARD = "phone", "board"


def run(
    seed: int,
    scores: list[float],
    *,
    tiers: dict[str, float | None] | None = None,
    train_s: dict[str, float] | None = None,
    deadline_s: float | None = None,
    error: float = 1.0,
    updates: dict[float, int] | None = None,
    memory: float = 1e6,
    **about: Any,
) -> Played:
    """A run of two clients of each class in ``tiers``, with tier 1 or .5, which is .2 less accurate; one of each trains in every round."""
    tiers = tiers or {PHONE: 1.0, BOARD: 0.5}
    train_s = train_s or {PHONE: 1.0, BOARD: 1.0}
    rounds, clock_s = [], 0.0
    for number, score in enumerate(scores, start=1):
        clients = [
            client(at, device, tiers[device], train_s[device]) for at, device in ((0, PHONE), (2, BOARD)) if device in tiers
        ]
        times = [of["total_s"] for of in clients if of["status"] == "trained"]
        clock_s += max(times, default=0.0)
        accuracy = {"global": score, "1": score, "0.5": score - 0.2}
        spent = {"macs": 10, "download_bytes": 2, "upload_bytes": 2, "energy_j": 2.0, "deadline_s": deadline_s}
        rounds.append({"round": number, "clock_s": clock_s, "accuracy": accuracy, "clients": clients, **spent})
    size = {
        "params": 10,
        "uncounted_ops": [],
        "weights_bytes_inference": 800,
        "peak_activation_bytes_inference": 400,
        "batch_size": 4,
    }
    rows = [{"tier": tier, "updates": (updates or {}).get(tier, 9), **size} for tier in (1.0, 0.5)]
    classes = [
        {"device": device, "title": device.title(), "clients": 2, "tier": tier, "statuses": {"trained": 9}}
        for device, tier in tiers.items()
    ]
    memories = [{"budget": "memory_bytes", "need": 1, "have": memory}]
    plans = [{"device": d, "title": d.title(), "clock_error": error, "idle_w": 1.0, "budgets": memories} for d in tiers]
    shared = {"accuracy_of": "global", "model": "mlp", "dataset": "digits", "download_bytes": 1, "upload_bytes": 1, "host_s": 1.0}
    summary = {**shared, "per_round": 2, "tiers": rows, "participation": classes, "classes": plans, **about}
    return Played(seed, summary_in(summary), rounds_in(rounds))


def client(number: int, device: str, tier: float | None, train_s: float) -> dict[str, Any]:
    if tier is None:
        times: dict[str, Any] = {
            "status": "refused",
            **dict.fromkeys(("download_s", "train_s", "upload_s", "total_s", "energy_j")),
        }
    else:
        times = {"status": "trained", "download_s": 0.0, "train_s": train_s, "upload_s": 0.0, "total_s": train_s, "energy_j": 1.0}
    return {"client": number, "device": device, "tier": tier, "download_bytes": 1, "upload_bytes": 1, **times}


def compared(methods: dict[str, list[Played]], rank_by: Any = "clients", **asked: Any) -> dict[str, Any]:
    contenders = [contender(label, *runs) for label, runs in methods.items()]
    return comparison_of(contenders, [0], (1.0, 0.5), rank_by=rank_by, **asked).to_dict()


def rows_of(summary: dict[str, Any]) -> dict[str, Any]:
    return {row["label"]: row for row in summary["verdict"]["methods"]}


def equal(rng: np.random.Generator, labels: str, seeds: int) -> dict[str, dict[int, float]]:
    """Methods that are equally good; what is common to a seed cancels."""
    shared = rng.normal(0.6, 0.05, seeds)
    return {label: dict(enumerate(shared + rng.normal(0, 0.02, seeds))) for label in labels}


@pytest.mark.parametrize("seeds", [2, 3, 5, 8])
def test_of_200_comparisons_of_equal_methods_at_most_5_percent_have_a_winner(seeds: int) -> None:
    rng = np.random.default_rng(7)
    won = [[*ranked(equal(rng, "abcd", seeds))[0].values()].count(1) == 1 for _ in range(200)]
    assert sum(won) <= 10


@pytest.mark.parametrize(("labels", "seeds"), [("ab", 3), ("ab", 7), ("abc", 4), ("abcd", 8)])
def test_any_false_decision_has_the_stated_chance(labels: str, seeds: int) -> None:
    rng = np.random.default_rng(11)
    false = [any(pair.decided for pair in ranked(equal(rng, labels, seeds))[1]) for _ in range(1000)]
    assert np.mean(false) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 1000)


@pytest.mark.parametrize(("seeds", "least"), [(5, 0.9), (8, 0.95)])
def test_a_method_that_is_better_by_three_sigma_wins(seeds: int, least: float) -> None:
    rng = np.random.default_rng(3)
    won = 0
    for _ in range(100):
        shared = rng.normal(0.6, 0.05, seeds)
        values = {"better": dict(enumerate(shared + rng.normal(0.1, 0.02, seeds)))}
        values |= {label: dict(enumerate(shared + rng.normal(0, 0.02, seeds))) for label in "ab"}
        ranks, _ = ranked(values)
        won += [label for label, rank in ranks.items() if rank == 1] == ["better"]
    assert won >= 100 * least


def test_low_values_are_good_where_the_metric_says_so() -> None:
    values = {"a": {0: 1.0, 1: 1.1, 2: 1.05}, "b": {0: 3.0, 1: 3.2, 2: 3.1}}
    assert ranked(values, -1)[0] == {"a": 1, "b": 2}


def test_a_method_that_refuses_a_class_is_judged_by_all_its_clients() -> None:
    """``narrow`` has the better global model, and no tier for boards, which can run the smaller one."""
    narrow = [run(seed, [0.8 + 0.01 * seed], tiers={PHONE: 1.0, BOARD: None}, updates={0.5: 0}) for seed in range(3)]
    broad = [run(seed, [0.7 + 0.011 * seed]) for seed in range(3)]
    summary = compared({"narrow": narrow, "broad": broad})
    rows = rows_of(summary)
    # Boards of narrow can only run tier 1, which is trained: 0.8. With too little memory for it they have nothing.
    assert rows["narrow"]["refused"] == 0.5
    assert rows["narrow"]["clients_accuracy"]["mean"] == pytest.approx(0.81)
    starved = [run(seed, [0.8 + 0.01 * seed], tiers={PHONE: 1.0, BOARD: None}, updates={0.5: 0}, memory=850) for seed in range(3)]
    summary = compared({"narrow": starved, "broad": broad})
    rows = rows_of(summary)
    assert rows["narrow"]["clients_accuracy"]["mean"] == pytest.approx(0.405)
    assert (rows["narrow"]["worst_class"], rows["narrow"]["worst_accuracy"]["mean"]) == ("Board", 0)
    assert (rows["broad"]["clients_accuracy"]["mean"], rows["broad"]["refused"]) == (pytest.approx(0.611), 0)
    assert leaders(of_json(summary)) == ["broad"]
    assert leaders(of_json(compared({"narrow": starved, "broad": broad}, "worst"))) == ["broad"]
    assert leaders(of_json(compared({"narrow": starved, "broad": broad}, "global"))) == ["narrow"]
    assert [row[2:] for row in assignment_table(of_json(summary)).rows] == [("0.5", "refused, no model"), ("1", "1")][::-1]
    text = Page(compare_page(of_json(summary))).text
    assert "narrow: 50.0 % of clients are refused; Board has no model and counts as 0" in " ".join(text.split())
    assert "--tier-assignment uniform --conditions ideal" in text


def test_runs_on_other_fleets_have_no_tier_for_a_class_that_they_lack() -> None:
    both, phones = run(0, [0.9]), run(0, [0.8], tiers={PHONE: 1.0})
    rows = assignment_table(of_json(compared({"both": [both], "phones": [phones]}))).rows
    assert [(row[0], *row[2:]) for row in rows] == [("Phone", "1", "1"), ("Board", "0.5", "–")]
    assert len(assignment_table(of_json(compared({"phones": [phones], "both": [both]}))).rows) == 2


def test_a_tier_that_no_client_trained_serves_nobody_and_is_in_no_figure() -> None:
    idle = run(0, [0.9], updates={0.5: 0})
    summary = compared({"idle": [idle], "busy": [run(0, [0.6])]})
    row = rows_of(summary)["idle"]
    assert row["classes"][1]["runs"] == [["1"]]
    assert list(summary["methods"][0]["tier_accuracy"]) == ["1"]
    assert "0.5, not trained, runs 1" in str(assignment_table(of_json(summary)).rows)


def test_clients_with_drawn_tiers_count_by_their_sessions() -> None:
    mixed = run(0, [0.8, 0.8], tier_assignment="uniform")
    first, second = mixed.rounds
    phone, board = first.clients
    mixed = replace(mixed, rounds=[replace(first, clients=(replace(phone, tier=0.5), board)), second])
    row = rows_of(compared({"mixed": [mixed]}))["mixed"]
    assert row["classes"][0]["accuracy"]["mean"] == pytest.approx(0.7)  # half of .8, half of .6


def test_what_ranks_is_checked() -> None:
    with pytest.raises(ConfigError, match="rank_by: got 'mean', expected one of clients, worst, global"):
        check_rank_by("mean")


def flipping(error: float) -> dict[str, Any]:
    """``steady`` trains quickly everywhere; ``risky`` is better if its boards end four rounds in 12 s, and worse with three."""
    risky = [run(seed, [0.1, 0.2, 0.3, 0.9 + 0.001 * seed], train_s={PHONE: 1.0, BOARD: 2.9}, error=error) for seed in range(3)]
    steady = [run(seed, [0.1, 0.2, 0.3, 0.6 + 0.0011 * seed], train_s={PHONE: 0.1, BOARD: 0.1}, error=error) for seed in range(3)]
    return compared({"risky": risky, "steady": steady}, budget=RunBudget(s=12))


def test_a_clock_error_that_flips_the_order_is_said_with_the_device_to_measure() -> None:
    exact, wrong = flipping(1.0), flipping(3.0)
    assert (exact["verdict"]["clock"]["first"], exact["verdict"]["clock"]["decides"]) == ({"risky": 1.0}, None)
    assert sure(of_json(exact))
    clock = wrong["verdict"]["clock"]
    # Boards may take 12 / 11.6 times as long: the chance of less is Φ(ln(12 / 11.6) / (ln 3 / 1.645)) = .52.
    assert clock["first"]["risky"] == pytest.approx(0.52, abs=0.08)
    assert clock["first"]["risky"] + clock["first"]["steady"] == 1
    assert clock["decides"] == BOARD
    assert (leaders(of_json(wrong)), sure(of_json(wrong))) == (["risky"], False)
    advice = answer_of_comparison(of_json(wrong)).advice
    assert advice.startswith("Take risky. The clock may be wrong, and risky is first in ")
    assert advice.endswith(" of draws only: measure Board.")
    assert "of 200 draws: measure Board, off by up to 3 times." in " ".join(Page(compare_page(of_json(wrong))).text.split())


def test_a_deadline_that_a_wrong_clock_misses_costs_updates_and_a_budget_of_bytes_does_not() -> None:
    late = [run(0, [0.2, 0.4, 0.6, 0.8], train_s={PHONE: 1.0, BOARD: 1.9}, deadline_s=2.0, error=4.0)]
    early = [run(0, [0.2, 0.4, 0.6, 0.75], train_s={PHONE: 0.1, BOARD: 0.1}, deadline_s=2.0, error=4.0)]
    clock = compared({"late": late, "early": early})["verdict"]["clock"]
    assert 0.2 < clock["first"]["early"] < 0.8
    assert clock["decides"] == BOARD
    assert compared({"a": [run(0, [0.5])], "b": [run(0, [0.4])]}, budget=RunBudget(bytes=9))["verdict"]["clock"] is None
    overlapping = compared({"late": [run(0, [0.5], deadline_s=2.0, mode="async")], "early": early})
    assert overlapping["verdict"]["clock"] is None


def test_rounds_timed_again_with_a_right_clock_are_the_rounds_themselves() -> None:
    played = run(0, [0.2, 0.4], train_s={PHONE: 1.0, BOARD: 1.9}, deadline_s=2.0)
    again = retimed(played.rounds, 2, {PHONE: np.ones(3), BOARD: np.array([1.0, 2.0, 0.5])}, {BOARD: 2.0})
    assert again.clock_s[0].tolist() == [line.clock_s for line in played.rounds]
    # At twice the time the board is late, and the round lasts until the deadline; at half of it, the phone is the last.
    assert again.clock_s[1:].tolist() == [pytest.approx([2.0, 4.0]), pytest.approx([1.0, 2.0])]
    assert again.used.tolist() == [[2, 2], [1, 1], [2, 2]]
    assert again.client_j is not None
    assert again.client_j[:, 0].tolist() == pytest.approx([1.0, 1.0 + 2 * 1.9, 1.0])
    assert again.scores([0, 1], [0.2, 0.4])[0].tolist() == [0.2, 0.4]


def texts_of(summary: dict[str, Any]) -> Iterator[str]:
    """Every sentence of the page that is made from figures."""
    found = of_json(summary)
    answer = answer_of_comparison(found)
    charts = [*accuracy_charts(found), tier_chart(found), *front_charts(found, colours_of(found))]
    texts = [answer.asked, answer.found, answer.advice, winner(found), rule_text(found), *verdict_notes(found)]
    for text in [*texts, *(chart.takeaway for chart in charts), footnote(found)]:
        yield from re.split(r"(?<=[.;:]) ", text)


ERROR = {"name": "mean error", "better": "lower", "share": False}
CASES = {
    "budget": lambda: flipping(3.0),
    "end": lambda: compared(
        {"a": [run(n, [0.5, 0.7 + 0.01 * n]) for n in range(3)], "b": [run(n, [0.4, 0.5 - 0.01 * n]) for n in range(3)]}
    ),
    "tied": lambda: compared(
        {"a": [run(n, [0.7 + 0.1 * n]) for n in range(2)], "b": [run(n, [0.8 - 0.05 * n]) for n in range(2)]}
    ),
    "one seed": lambda: compared({"a": [run(0, [0.7])], "b": [run(0, [0.8])]}),
    "own rounds": lambda: compared(
        {
            "fast": [run(n, [0.4, 0.9], train_s={PHONE: t, BOARD: t}) for n, t in ((0, 1.0), (1, 2.0))],
            "slow": [run(n, [0.6, 0.6], train_s={PHONE: 1.0, BOARD: 1.0}) for n in (0, 1)],
        },
        budget=RunBudget(s=2.5),
    ),
    "own loss": lambda: compared(
        {
            label: [run(n, [2.0, last + 0.01 * n, 0.1], metric=ERROR) for n in range(3)]
            for label, last in (("near", 1.1), ("far", 1.6))
        },
        budget=RunBudget(s=2.5),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_sentence_of_the_page_agrees_with_compare_json(case: str) -> None:
    summary = CASES[case]()
    rows, first = summary["verdict"]["methods"], leaders(of_json(summary))
    best = rows[0]
    labels = [row["label"] for row in rows]
    figures = {f"{100 * value:.1f}" for value in numbers(summary)} | {
        f"{100 * abs(a - b):.1f}" for a in numbers(summary) for b in numbers(summary)
    }
    text = " ".join(Page(compare_page(of_json(summary))).text.split())
    named = re.compile(rf"\b({'|'.join(labels)}) (?:is|has) the best(?! weakest)")
    for sentence in filter(None, texts_of(summary)):
        assert sentence in text
        for percent in re.findall(r"(\d+\.\d) %", sentence):
            assert percent in figures, sentence
        if (said := named.search(sentence)) and not sentence.endswith("?"):
            assert said[1] == best["label"], sentence
        if "Seeds cannot tell" in sentence or re.search(rf"\b({'|'.join(labels)}) are tied", sentence):
            assert all(label in sentence for label in first), sentence
    for axis, points in summary["verdict"]["fronts"].items():
        assert {point["label"] for point in points if point["cost"] == points[-1]["cost"]} >= {best["label"]}
        assert points[-1]["accuracy"] == best["accuracy"]["mean"] == best["steps"][axis][-1]["accuracy"]
        assert f"{best['label']} has the best mean" in front_text(of_json(summary), axis)
    assert winner(of_json(summary)).startswith((best["label"], f"{first[0]} and"))
    assert answer_of_comparison(of_json(summary)).found.find(best["label"]) >= 0
    shares = summary["verdict"]["clock"]["first"] if summary["verdict"]["clock"] else {}
    assert sure(of_json(summary)) == (len(first) == 1 and shares.get(first[0], 1.0) >= SURE)


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [n for inner in value.values() for n in numbers(inner)]
    if isinstance(value, list):
        return [n for inner in value for n in numbers(inner)]
    return [value] if isinstance(value, float | int) and not isinstance(value, bool) and -1 <= value <= 1 else [0.95, 0.05]


def test_a_run_scores_by_clients_the_worst_class_or_the_global_model() -> None:
    played = run(0, [0.8])
    summary = compared({"a": [played]})
    row = rows_of(summary)["a"]
    assert [row[f"{key}_accuracy"]["mean"] for key in ("clients", "worst", "global")] == pytest.approx([0.7, 0.6, 0.8])
    assert CountedRun(0, (), ()).refused == 0
