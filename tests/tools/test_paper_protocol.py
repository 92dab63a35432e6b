"""How the papers' tables are made: paired differences, settings chosen on validation samples, equal draws, and a hash of what decides."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from made_records import rounds_in
from paper_entries import entry_of, table_at
from tool_modules import on_the_path, tool_of  # noqa: F401 - a fixture is used by its name

import edgefl.client.client
from edgefl.rng import generator
from edgefl.run.prepare import prepare
from edgefl.run.trained import without_training


def paired():
    return tool_of("papers.paired")


def by_seed(*values):
    return dict(enumerate(values))


# By hand: differences d, mean m, standard error s = √(Σ(d − m)²/(n − 1))/√n. At 5 %, Student's t is 12.7 for two seeds, 4.30 for three
# and 3.18 for four.
@pytest.mark.parametrize(
    ("above", "below", "mean", "error", "verdict"),
    [
        # d = 1, 2, 3: m = 2, s = 1/√3 = .577; t = 3.46 < 4.30, which two degrees of freedom want
        ((5, 7, 9), (4, 5, 6), 2.0, 0.57735, "not decided"),
        # d = 2, 2, 3: m = 7/3, s = 1/3; t = 7
        ((6, 7, 9), (4, 5, 6), 7 / 3, 0.33333, "shown"),
        # d = −2, −2, −3
        ((4, 5, 6), (6, 7, 9), -7 / 3, 0.33333, "reversed"),
        # d = 4, −1, 3: m = 2, s = √((4 + 9 + 1)/2)/√3 = √7/√3 = 1.528
        ((4, -1, 3), (0, 0, 0), 2.0, 1.52753, "not decided"),
        # d = 1, 2, 4, 3: m = 2.5, s = √((2.25 + .25 + 2.25 + .25)/3)/√4 = .6455; t = 3.87 > 3.18
        ((1, 2, 4, 3), (0, 0, 0, 0), 2.5, 0.6455, "shown"),
        # d = 3, 1: m = 2, s = √2/√2 = 1; one degree of freedom wants 12.7
        ((3, 1), (0, 0), 2.0, 1.0, "not decided"),
        ((2, 2), (2, 2), 0.0, 0.0, "not decided"),
        # Equal differences have no spread: the signs of two or three of them decide nothing, those of six do (2/64).
        ((3, 3), (2, 2), 1.0, 0.0, "not decided"),
        ((3,) * 6, (2,) * 6, 1.0, 0.0, "shown"),
        ((90,), (10,), 80.0, None, "not decided"),
    ],
)
def test_an_ordering_is_decided_by_students_t(above, below, mean, error, verdict):
    found = paired().difference(by_seed(*map(float, above)), by_seed(*map(float, below)))
    assert found.mean == pytest.approx(mean)
    assert (found.error is None) if error is None else math.isclose(found.error, error, abs_tol=1e-5)
    assert (found.verdict, found.seeds) == (verdict, len(above))


def test_only_seeds_of_both_rows_are_paired():
    found = paired().difference({0: 0.8, 1: 0.7, 5: 0.1}, {1: 0.6, 0: 0.6, 9: 0.9})
    assert found.seeds == 2
    assert found.mean == pytest.approx(0.15)
    assert paired().difference({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize(
    ("full", "smallest", "sentence"),
    [
        ((0.9, 0.92), (0.8, 0.81), r"91\.0 %.*80\.5 %.*\+10\.5 ± 0\.5 points\. There is capacity to lose"),
        ((0.9, 0.92), (0.93, 0.9), r"−0\.5 ± 2\.5 points\. They tie: \*\*tiers cannot be compared here"),
        ((0.8, 0.81), (0.9, 0.92), r"−10\.5 ± 0\.5 points\. The smallest tier is the better one: \*\*tiers cannot be compared"),
        ((0.9,), (0.8,), r"\+10\.0 points\. One seed does not decide"),
        (
            (0.9, 0.5),
            (0.8,),
            r"reaches 90\.0 %, the smallest tier alone 80\.0 %\. .*\+10\.0 points\. One seed",
        ),  # those that both have
        ((), (0.8,), r"have not both been run"),
    ],
)
def test_a_table_says_whether_there_is_capacity_to_lose(full, smallest, sentence):
    text = paired().capacity(by_seed(*full), by_seed(*smallest))
    assert re.search(sentence, text), text


def trials_of(table, run, rate_to_accuracy):
    entries = []
    for trial in table.tuning.trials(run):
        entry = entry_of(trial)
        entry["figures"]["score"] = rate_to_accuracy[trial.settings["lr"]]
        entries.append(entry)
    return entries


def test_the_best_trial_gives_a_row_its_settings_and_is_stored_with_it():
    table = table_at("pfedpara", "full")
    run = table.runs[0]
    entries = trials_of(table, run, {0.03: 0.8, 0.01: 0.8, 0.1: None})
    assert table.tuning.resolved(run, entries[:-1]) is None, "a trial is missing"
    found = table.tuning.resolved(run, entries)
    assert found.settings["lr"] == 0.03, "the first of equals; one that diverged is out"
    assert found.stored({}, "1")["chosen"] == {
        "choice": {"lr": 0.03},
        "validation": [{"lr": 0.03, "accuracy": 0.8}, {"lr": 0.01, "accuracy": 0.8}, {"lr": 0.1, "accuracy": None}],
        "share": 0.1,
        "rounds": 10,
    }
    entries[1]["inputs"] = "0" * 16
    assert table.tuning.resolved(run, entries) is None, "a trial by other code"


def test_a_column_may_have_the_choice_of_another_one():
    table = table_at("flanc", "full")
    run = next(run for run in table.runs if run.column != "IID")
    same = next(other for other in table.runs if (other.row, other.column) == (run.row, "IID"))
    assert {trial.column for trial in table.trials([])} == {"IID"}
    found = table.tuning.resolved(run, trials_of(table, same, {0.01: 0.8, 0.003: 0.9, 0.03: 0.7}), table.runs)
    assert (found.column, found.settings["lr"], found.chosen["column"]) == (run.column, 0.003, "IID")


def test_rows_that_are_one_on_a_column_are_made_once_there_and_tuned_alike():
    """A loss that omits the labels that a client lacks is another one only for clients that lack some."""
    table = table_at("flanc", "full")
    assert {run.column for run in table.runs if "unmasked" in run.row} == {"3 classes a client"}
    assert {run.column for run in table_at("flanc", "quick").runs if "unmasked" in run.row} == {"3 classes a client", "IID"}
    unmasked = next(run for run in table.runs if run.row == "FedHM, unmasked loss")
    assert [(other.row, other.column) for other in table.tuning.tuned(unmasked, table.runs)] == [("FedHM", "IID")]
    masked = [run for run in table.runs if (run.row, run.column) == ("FedHM", "IID")]
    assert {run.seed for run in masked} == {0, 1, 2}
    for run in masked:
        ready = prepare(run.config)
        labels = [ready.data.train.y[ready.clients.shards.own(client)] for client in range(run.config.clients)]
        assert all(len(np.unique(of)) == 10 for of in labels)


def test_one_rate_for_all_rows_has_the_best_mean_and_trains_every_row():
    table = table_at("factorized", "full")
    entries = []
    rows = [run for run in table.runs if run.column == "IID" and run.seed == 0]
    for place, run in enumerate(rows):
        own = {0.01: 0.8, 0.003: 0.9 if place else 0.6, 0.001: 0.1, 0.03: None if place == 1 else 1.0}
        entries += trials_of(table, run, own)
    assert table.tuning.resolved(table.runs[0], entries[:-1], table.runs) is None, "a trial of another row is missing"
    found = table.resolved(entries)
    assert {run.settings["lr"] for run in found.values()} == {0.003}
    chosen = found["FedAvg", "IID, permuted"].chosen
    assert chosen["rows"] == [run.row for run in rows]
    assert chosen["validation"][3] == {"lr": 0.03, "accuracy": None}, "a row has diverged"


@pytest.mark.parametrize(
    ("accuracies", "rates", "chosen"),
    [
        ({0.1: 0.8, 0.03: 0.7, 0.3: 0.6, 0.01: 0.5}, [], 0.1),
        ({0.1: 0.8, 0.03: 0.7, 0.3: 0.9, 0.01: 0.5, 1.0: 0.4}, [1.0], 0.3),
        ({0.1: 0.8, 0.03: 0.7, 0.3: 0.9, 0.01: 0.5, 1.0: 0.95, 3.0: None}, [1.0, 3.0], 1.0),
        ({0.1: 0.1, 0.03: 0.7, 0.3: None, 0.01: 0.8, 0.003: 0.85, 0.001: 0.85}, [0.003, 0.001], 0.003),
    ],
)
def test_a_grid_grows_while_its_edge_is_best(accuracies, rates, chosen):
    table = table_at("fedpara-pooled", "full")
    run, entries = table.runs[0], []
    while due := table.trials(entries, [run]):
        for trial in due:
            entries.append(entry_of(trial))
            entries[-1]["figures"]["score"] = accuracies[trial.settings["lr"]]
        assert len(entries) <= len(accuracies)
    assert [entry["settings"]["lr"] for entry in entries] == [0.1, 0.03, 0.3, 0.01, *rates]
    found = table.tuning.resolved(run, entries, table.runs)
    assert found.settings["lr"] == chosen
    assert found.chosen.get("grown", []) == rates


def test_a_grid_ends_to_grow_at_eight_rates():
    table, entries = table_at("fedpara-pooled", "full"), []
    while due := table.trials(entries, table.runs[:1]):
        entries += map(entry_of, due)  # their accuracies grow with the rate
    assert max(entry["settings"]["lr"] for entry in entries) == 30.0
    assert table.tuning.resolved(table.runs[0], entries, table.runs).settings["lr"] == 30.0


def test_a_row_without_a_trial_that_trained_is_refused():
    table = table_at("pfedpara", "full")
    with pytest.raises(
        ValueError, match=r"pFedPara, 2 classes: all settings of the trials have diverged: give the table smaller rates"
    ):
        table.tuning.resolved(table.runs[0], trials_of(table, table.runs[0], dict.fromkeys((0.03, 0.01, 0.1))))


@pytest.mark.parametrize("scale", ["smoke", "quick"])
def test_rows_of_a_table_have_the_same_clients_samples_and_tiers_at_a_seed(scale):
    first = None
    for run in table_at("flanc", scale).runs:
        if (run.column, run.seed, run.row) not in {
            ("3 classes a client", 0, row) for row in ("HeteroFL", "FLANC", "PriSM", "FedHM")
        }:
            continue
        ready = prepare(type(run.config).of({**run.settings, "conditions": "ideal", "rounds": 3, "eval_every": 3}))
        numbers = {f"{tier.ratio:g}": place for place, tier in enumerate(ready.tiers)}
        rounds = [
            [(c.client, numbers[f"{c.expected.tier.ratio:g}"], c.expected.samples) for c in record.clients]
            for record in without_training(ready, 3)
        ]
        samples = [ready.clients.shards.own(client) for client in range(ready.config.clients)]
        first = first or (rounds, samples)
        assert rounds == first[0], run.row
        assert all(map(np.array_equal, samples, first[1])), run.row


def test_rows_of_a_table_shuffle_their_samples_alike(tmp_path, monkeypatch):
    drawn = []

    def recorded(seed, *key):
        if key[-1] == "train":
            drawn.append((seed, *key))
        return generator(seed, *key)

    monkeypatch.setattr(edgefl.client.client, "generator", recorded)
    found = {}
    for run in table_at("factorized", "smoke").runs:
        if run.row in ("FedAvg", "Factorized-FL β") and run.column == "IID":
            drawn.clear()
            tool_of("papers.training").figures({**run.settings, "lr": 0.01}, run.local, tmp_path / run.row)
            found[run.row] = list(drawn)
    assert len(found["FedAvg"]) == 20
    assert found["FedAvg"] == found["Factorized-FL β"]


@pytest.fixture
def own_package(tmp_path, monkeypatch):
    """A module of a method in the place of the package's, and the hash of a run with it."""
    inputs = tool_of("papers.inputs")
    folder = tmp_path / "edgefl" / "methods"
    folder.mkdir(parents=True)
    monkeypatch.setattr(inputs, "PACKAGE", folder.parent)

    def hashed(**files):
        for old in folder.glob("*.py"):
            old.unlink()
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        inputs._parsed.cache_clear()
        inputs._source_of.cache_clear()
        return inputs._source_of(("edgefl.methods.own",))

    yield hashed
    inputs._parsed.cache_clear()
    inputs._source_of.cache_clear()


CODE = '''"""A method."""
from edgefl.methods.parts import mean
import os

def step(x):
    """Add one."""
    return mean(x) + 1  # one
'''
PARTS = "def mean(x):\n    return sum(x) / len(x)\n"


def test_the_hash_follows_the_code_and_not_its_prose(own_package):
    first = own_package(own=CODE, parts=PARTS)
    prose = (
        CODE.replace("A method.", "Another text.")
        .replace("Add one.", "Adds 1.")
        .replace("# one", "")
        .replace("import os\n", "\n\n")
    )
    assert own_package(own=prose, parts=PARTS) == first
    assert own_package(own=f"{CODE}\n{PARTS}".replace("from edgefl.methods.parts import mean\n", "")) == first, (
        "moved to another file"
    )
    assert own_package(own=CODE.replace("+ 1", "+ 2"), parts=PARTS) != first
    assert own_package(own=CODE, parts=PARTS.replace("len(x)", "4")) != first, "a module that it imports"
    assert own_package(own=CODE, parts=PARTS, other="x = 1\n") == first, "one that it does not import"


def test_the_hash_follows_the_settings():
    inputs = tool_of("papers.inputs").inputs
    settings = dict(table_at("flanc", "quick").runs[0].settings)
    first = inputs(settings)
    assert len(first) == 16
    assert inputs({**settings, "tiers": list(settings["tiers"])}) == first
    assert inputs({**settings, "seed": 7}) != first
    assert inputs({**settings, "method": "fjord"}) != first
    assert inputs({**settings, "momentum": 0.5}) != first
    assert inputs({**settings, "momentum": 0.9}) == first, "the default, written or not"


def test_the_hash_has_what_decides_a_result_and_nothing_else():
    inputs = tool_of("papers.inputs")
    modules = inputs.modules(tuple(inputs.roots(table_at("flanc", "quick").runs[0].config)))
    named = {"methods.heterofl", "methods.averaging", "factor.width", "models.cnn", "models.norm", "data.shards", "data.partition",
             "data.fashion_mnist", "client.optimizer", "client.objectives", "rng"}  # fmt: skip
    assert {f"edgefl.{name}" for name in named} <= modules
    others = ("methods.flanc", "methods.fedhm", "client.fast", "engine", "report", "cost", "cli.", "bundle", "planning")
    assert not [module for module in modules if module.startswith(tuple(f"edgefl.{name}" for name in others))]


def test_mean_and_best_are_those_of_the_evaluated_rounds():
    late = tool_of("papers.training").late
    rounds = rounds_in([{}, {"accuracy": {"global": 0.5, "1": 0.25}}, {}, {"accuracy": {"global": 0.75, "1": 0.125}}])
    assert late(rounds) == {"late": {"mean": {"global": 0.625, "1": 0.1875}, "best": {"global": 0.75, "1": 0.25}, "rounds": 2}}


def test_only_late_rounds_are_evaluated(tmp_path):
    training = tool_of("papers.training")
    settings = {
        "method": "fedavg",
        "tiers": (1.0,),
        "dataset": "digits",
        "model": "mlp",
        "clients": 4,
        "per_round": 2,
        "rounds": 5,
        "local_epochs": 1,
        "data_share": 0.1,
        "eval_every": 2,
        "eval_samples": 20,
        "profile": "laptop",
    }
    with training.trained_in(tmp_path / "run", settings, local=False, since=3) as (_, rounds):
        assert [bool(line.accuracy) for line in rounds] == [False, False, False, True, True]
    assert training.figures(settings, False, tmp_path / "run", since=3)["late"]["rounds"] == 2
