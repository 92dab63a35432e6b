"""The table of who wins under a budget: its runs, their stored curves, and the ranking made from them alone."""

from __future__ import annotations

import json

import pytest
from tool_modules import on_the_path, tool_of  # noqa: F401 - a fixture is used by its name

from edgefl.methods.create import create
from edgefl.report.evaluated import evaluated_of
from edgefl.report.run_files import read_rounds

CLASSES = [
    {"device": "a", "title": "Phone A", "clients": 4, "tier": 1.0},
    {"device": "b", "title": "Phone B", "clients": 6, "tier": None},
]


@pytest.fixture
def budget():
    return tool_of("papers.budget")


def curve(*accuracies, step_s=100.0):
    """Evaluated rounds of ``step_s`` seconds, 10 MB and 1 J each."""
    return [
        {
            "round": n,
            "simulated_s": n * step_s,
            "client_bytes": n * 10_000_000,
            "client_j": 1.0 * n,
            "macs": n,
            "accuracy": {"global": accuracy, "1": accuracy},
            "trained": {"a": n},
        }
        for n, accuracy in enumerate(accuracies, start=1)
    ]


def entry(run, points, accuracy=0.5, stale=False):
    figures = {
        "accuracy": {"global": accuracy},
        "local_accuracy": None,
        "samples": 60,
        "evaluated": 2000,
        "tiers": {"1": {}},
        "total": {},
        **({"curve": points, "classes": CLASSES} if points else {}),
    }
    return {**json.loads(json.dumps(run.stored(figures, "9.9.9"))), "stale": stale}


@pytest.mark.parametrize("scale", ["full", "quick", "smoke"])
def test_every_run_is_valid_there_once_and_has_a_curve_under_the_fleets_conditions(budget, scale):
    runs = budget.runs(scale)
    assert len({(run.row, run.column, run.seed) for run in runs}) == len(runs)
    for run in runs:
        config = run.config
        create(config.method, config.method_options, tiers=config.tiers)
        assert run.work > 0
        assert "/" not in run.row + run.column
        ideal = run.row in budget.ALONE
        assert config.conditions == ("ideal" if ideal else "fleet")
        assert config.profile == ("laptop" if ideal else run.column.partition(",")[0])
        assert config.rounds // config.eval_every >= (1 if ideal else budget.POINTS[scale])
    # All rows of a column have the same clients, samples and draws.
    own = {"method", "tiers", "clip_gradient"}
    for column in {run.column for run in runs}:
        shared = [json.dumps({k: v for k, v in r.settings.items() if k not in own}) for r in runs if r.column == column]
        assert len(set(shared)) == len(budget.SEEDS[scale])


def test_the_ranking_is_made_from_the_stored_curves(budget):
    runs = {(run.row, run.column, run.seed): run for run in budget.runs("full")}

    def stored(row, column, seed, points, **about):
        return entry(runs[row, column, seed], points, **about)

    phone, alone = "phone, digits", "alone, digits"
    entries = [
        # Round 6 ends at 600 s, which the budget allows; round 7 does not count.
        *(stored("FedHM", phone, seed, curve(0.1, 0.2, 0.3, 0.4, 0.5, 0.8 + seed / 100, 0.99)) for seed in range(3)),
        # 150 s a round: the fourth is the last.
        *(stored("HeteroFL", phone, seed, curve(0.2, 0.3, 0.9, 0.6 + seed / 90, 0.9, step_s=150)) for seed in range(3)),
        stored("FLANC", phone, 0, curve(0.1, step_s=700), stale=True),
        *(stored("full network alone", alone, seed, None, accuracy=0.95) for seed in range(3)),
        *(stored("smallest tier alone", alone, seed, None, accuracy=0.90 + seed / 1000) for seed in range(3)),
    ]
    text = budget.render(entries, "full")
    ranking = text.partition("**phone, digits**:")[2]
    # Four of ten clients have a model.
    assert "| FedHM | 1 | 32.4 ± 0.2 % | 0.0 ± 0.0 % | 81.0 ± 0.6 % | 60.0 % | 6 | time |" in ranking
    assert "| HeteroFL | 2 | 24.4 ± 0.3 % | 0.0 ± 0.0 % | 61.1 ± 0.6 % | 60.0 % | 4 | time |" in ranking
    assert "| FLANC † | – | – | – | – | 60.0 % | nothing fits | time |" in ranking
    assert (
        "FedHM is the best within 10 min 00 s, 100 MB a client and 1.00 kJ a client: mean accuracy over clients 32.4 ± 0.2 % (SE)"
        in ranking
    )
    assert "FLANC †: nothing fits: the first evaluated round ends after 11 min 40 s, 10.0 MB and 1.00 J a client" in ranking
    assert "| device class | clients | FedHM | HeteroFL |" in ranking
    assert "| Phone A | 4 | 81.0 ± 0.6 % (1) | 61.1 ± 0.6 % (1) |" in ranking
    assert "| Phone B | 6 | 0.0 ± 0.0 % (refused, no model) | 0.0 ± 0.0 % (refused, no model) |" in ranking
    assert "digits. Capacity: the full network alone reaches 95.0 %" in text
    assert "There is capacity to lose." in text
    assert "**lab, digits**: not run yet." in text
    assert "Full scale" in text


def test_what_has_not_been_run_is_a_word(budget):
    assert tool_of("paper_tables").rendered("budget", {}).startswith("Not run yet")
    one = budget.runs("quick")[0]
    text = tool_of("paper_tables").rendered("budget", {"quick": [entry(one, curve(0.5))]})
    assert "Stale" in text
    assert "**lab, Fashion-MNIST**: not run yet." in text


def test_a_run_on_a_fleet_stores_its_curve_although_clients_are_lost(budget, tmp_path):
    figures = tool_of("papers.training").figures
    run = next(run for run in budget.runs("smoke") if (run.row, run.column) == ("HeteroFL", "phone, digits"))
    found = figures({**run.settings, "rounds": 4, "eval_every": 2}, run.local, tmp_path / "fleet")
    rounds = [json.loads(line) for line in (tmp_path / "fleet" / "rounds.jsonl").read_text().splitlines()]
    assert any(client["status"] != "trained" for record in rounds for client in record["clients"])
    assert [point["round"] for point in found["curve"]] == [2, 4]
    assert found["curve"] == [point.to_dict() for point in evaluated_of(read_rounds(tmp_path / "fleet" / "rounds.jsonl"))]
    assert found["accuracy"] == found["curve"][-1]["accuracy"]
    assert [row["device"] for row in found["classes"]] == ["flagship-phone", "mid-range-phone", "low-end-phone"]
    assert set(found["tiers"]) == {f"{row['tier']:g}" for row in found["classes"]}
    assert json.loads(json.dumps(found)) == found
    ideal = figures({**run.settings, "conditions": "ideal", "rounds": 1}, run.local, tmp_path / "ideal")
    assert "curve" not in ideal


def test_the_hash_of_a_run_on_a_fleet_follows_its_profile_and_the_clock(budget):
    inputs = tool_of("papers.inputs")
    runs = {(run.row, run.column): run for run in budget.runs("full")}
    fleet, ideal = runs["HeteroFL", "phone, digits"], runs["smallest tier alone", "alone, digits"]
    decide = {
        "edgefl.fleet.clock",
        "edgefl.fleet.time_model",
        "edgefl.server.schedule",
        "edgefl.server.forecast",
        "edgefl.cost.trace",
    }
    assert decide <= set(inputs.roots(fleet.config))
    assert not decide & set(inputs.roots(ideal.config))
    settings = dict(fleet.settings)
    assert inputs.inputs({**settings, "profile": "lab"}) != inputs.inputs(settings) == inputs.inputs(dict(settings))


def test_the_probe_of_a_run_on_a_fleet_has_its_costs_and_bears_lost_clients(budget):
    run = next(run for run in budget.runs("smoke") if (run.row, run.column) == ("HeteroFL", "phone, digits"))
    probe = tool_of("papers.probe").probe
    fleet, ideal = (probe({**run.settings, "conditions": conditions}, run.local) for conditions in ("fleet", "ideal"))
    clocks = fleet["train_loss"][-16::4]
    assert len(clocks) == 4
    assert clocks == sorted(clocks)
    assert max(ideal["train_loss"]) < 10, "losses alone"
