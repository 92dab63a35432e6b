"""Probes: code that computes the same confirms stored runs, and code that computes something else makes them stale."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from paper_entries import entry_of, table_at
from tool_modules import on_the_path, tool_of  # noqa: F401 - a fixture is used by its name

from edgefl.client.training import Training
from edgefl.data.shards import TEST_SAMPLES
from edgefl.factor import basis
from edgefl.methods.fedavg import FedAvg

CELLS = {"fedavg": ("factorized", "FedAvg/IID/0"), "flanc": ("flanc", "FLANC/3 classes a client/0")}


def run_of(name):
    table, cell = CELLS[name]
    (run,) = (run for run in table_at(table, "full").runs if run.name(table) == f"{table}/{cell}")
    uneven = {"partition": "dirichlet:0.5"} if name == "fedavg" else {}
    return replace(run, settings={**run.settings, **uneven, "lr_schedule": "step"})


@pytest.fixture(scope="module")
def probes(on_the_path):  # noqa: F811 - the fixture
    """Return name → the probe of this code, made once."""
    probe = tool_of("papers.probe")
    return {name: probe.probe(run_of(name).settings, run_of(name).local) for name in CELLS}


@pytest.fixture
def stored(tmp_path, probes):
    """Store runs with probes as if by other code; return the files by name."""
    paths = {}
    for name in CELLS:
        run, path = run_of(name), tmp_path / f"{name}.jsonl"
        entry = {**entry_of(run), "inputs": "0" * 16, "probe": probes[name]}
        tool_of("papers.store").save(path, {"full": [entry]})
        paths[name] = path
    tool_of("papers.probe")._probe.cache_clear()
    yield paths
    tool_of("papers.probe")._probe.cache_clear()


def confirmed(path, scale=None):
    said = []
    tool_of("papers.confirm").confirm(path, said.append, scale)
    return said


def line_of(path):
    ((entry,),) = tool_of("papers.store").load(path).values()
    return entry


@pytest.mark.parametrize("name", CELLS)
def test_code_that_computes_the_same_confirms_a_run(name, stored, monkeypatch):
    run, path = run_of(name), stored[name]
    current = tool_of("papers.tuning").current
    assert current(run, line_of(path)) is None
    assert confirmed(path) == [f"{name}: 1 confirmed"]
    assert current(run, line_of(path)) is not None
    monkeypatch.setattr(tool_of("papers.confirm"), "probe", None)  # is not needed again
    assert confirmed(path) == []
    assert line_of(path)["confirmed"] == [tool_of("papers.inputs").inputs(dict(run.settings))]


@pytest.mark.parametrize("made_by_it", [True, False])
def test_where_another_processor_made_a_line_the_code_before_decides_on_this_one(made_by_it, stored, monkeypatch):
    run, path, store, module = run_of("fedavg"), stored["fedavg"], tool_of("papers.store"), tool_of("papers.confirm")
    line = line_of(path)
    amplified = {**line["probe"], "train_loss": [loss * 1.01 for loss in line["probe"]["train_loss"]]}
    hashed = tool_of("papers.inputs").inputs(dict(run.settings)) if made_by_it else "0" * 16
    store.save(path, {"full": [{**line, "probe": amplified, "inputs": hashed}]})
    monkeypatch.setattr(module, "of_this_code", lambda settings, entry: False)  # as if the code had changed since
    said: list[str] = []
    module.confirm(path, said.append, before=Path(__file__).parents[2])
    assert said[-1] == f"fedavg: 1 {'confirmed' if made_by_it else 'stale'}"


def test_a_stopped_command_keeps_what_it_has_confirmed(stored, monkeypatch):
    path, module, store = stored["fedavg"], tool_of("papers.confirm"), tool_of("papers.store")
    line = line_of(path)
    store.save(path, {"full": [line, {**line, "column": "later"}]})
    monkeypatch.setattr(module, "STORED_AT_ONCE", 1)
    found = iter([line["probe"]])

    def probe(settings, local):
        if (first := next(found, None)) is None:
            raise KeyboardInterrupt
        return first

    monkeypatch.setattr(module, "probe", probe)
    with pytest.raises(KeyboardInterrupt):
        confirmed(path)
    assert sorted(["confirmed" in entry for entry in store.load(path)["full"]]) == [False, True]


def another_decay(patch):
    at = Training.at

    def twice_as_far(self, round_):
        found = at(self, round_)
        return replace(found, lr=2 * found.lr) if round_ == 4 else found  # of the probe's four rounds, two are after the step

    patch.setattr(Training, "at", twice_as_far)


def another_weight(patch):
    patch.setattr(FedAvg, "weighs_samples", False)


def another_penalty(patch):
    penalty = basis.orthogonality
    patch.setattr(basis, "orthogonality", lambda *given: 1.5 * penalty(*given))


@pytest.mark.parametrize(("name", "change"), [("fedavg", another_decay), ("fedavg", another_weight), ("flanc", another_penalty)])
def test_another_algorithm_makes_a_run_stale(name, change, stored, monkeypatch):
    change(monkeypatch)
    first, last = confirmed(stored[name])
    assert ") is stale: " in first
    assert ", stored " in first
    assert last == f"{name}: 1 stale"
    assert "confirmed" not in line_of(stored[name])


def test_a_run_that_this_version_refuses_or_that_has_no_probe_is_stale(stored):
    path, store = stored["fedavg"], tool_of("papers.store")
    entry = line_of(path)
    store.save(path, {"full": [{**entry, "settings": {**entry["settings"], "method": "nothing"}}]})
    first, last = confirmed(path)
    assert "is stale: this version refuses it: unknown method 'nothing'; known: " in first
    assert last == "fedavg: 1 stale"
    store.save(path, {"full": [{key: value for key, value in entry.items() if key != "probe"}]})
    assert confirmed(path, "quick") == []
    assert confirmed(path) == ["fedavg: 1 stale without a probe"]


def test_lines_of_this_code_get_a_probe_afterwards_and_others_do_not(stored, probes):
    run, path, store = run_of("fedavg"), stored["fedavg"], tool_of("papers.store")
    other = {**entry_of(run.at_seed(1)), "inputs": "0" * 16}
    store.save(path, {"full": [entry_of(run), other]})
    said = []
    tool_of("papers.confirm").probe_stored(path, said.append)
    assert said == ["fedavg: 1 lines have a probe now; 1 without one were made by other code"]
    found = {entry["seed"]: entry.get("probe") for entry in store.load(path)["full"]}
    assert found == {0: probes["fedavg"], 1: None}


def test_seeds_and_rates_share_a_probe_and_settings_do_not():
    settings_of, settings = tool_of("papers.probe").probe_settings, dict(run_of("flanc").settings)
    first = settings_of(settings)
    assert first == settings_of({**settings, "seed": 5, "lr": 0.3, "rounds": 7})
    for change in ({"partition": "iid"}, {"norm": "none"}, {"weight_decay": 0.0}, {"method": "fjord"}, {"lr_schedule": "cosine"}):
        assert settings_of({**settings, **change}) != first


@pytest.mark.parametrize("factor", [1 + 1e-5, 1 - 1e-5])
def test_rounding_of_another_processor_is_no_difference_and_a_small_change_is(probes, factor):
    difference = tool_of("papers.probe").difference
    before = probes["fedavg"]
    near = {**before, "train_loss": [factor * loss for loss in before["train_loss"]]}
    assert difference(before, near) is None
    far = {**before, "held_out_loss": [loss * (1 + 300 * (factor - 1)) for loss in before["held_out_loss"]]}
    assert "held_out_loss: " in difference(before, far)
    more = {**before, "accuracy": [0.0, *before["accuracy"]]}
    assert re.fullmatch(r"accuracy: \d figures, stored \d", difference(before, more))
    assert difference(before, {**before, "train_loss": [float("nan")] * len(before["train_loss"])}) is not None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda probe: {**probe, "train_loss": []},
            r"line 1: probe: train_loss: got \[\], expected a list of numbers; delete the",
        ),
        (lambda probe: {"accuracy": [0.5]}, r"probe: train_loss: got None, expected a list of numbers"),
        (lambda probe: {**probe, "held_out_loss": [1, "x"]}, r"probe: held_out_loss: got \[1, 'x'\], expected"),
        (lambda probe: "cut", r"probe: train_loss: got None"),
    ],
)
def test_a_cut_probe_is_refused(stored, damage, message):
    path = stored["fedavg"]
    line = json.loads(path.read_text())
    path.write_text(json.dumps({**line, "probe": damage(line["probe"])}))
    with pytest.raises(tool_of("papers.store").ResultsError, match=message):
        confirmed(path)


def test_a_probe_evaluates_clients_on_all_held_out_samples_of_their_own(tmp_path, on_the_path):  # noqa: F811 - the fixture
    """The settings of a probe ask for few held-out samples, which would change the figures of clients with models of their own."""
    settings = {**tool_of("papers.probe").probe_settings(run_of("fedavg").settings), "rounds": 1, "eval_every": 1}
    sizes = {}
    for own in (None, TEST_SAMPLES):
        with tool_of("papers.training").trained_in(tmp_path / str(own), settings, True, test_samples=own) as (trained, _):
            sizes[own] = [len(trained.run.clients.shards.test(client)) for client in range(settings["clients"])]
    assert max(sizes[None]) < min(sizes[TEST_SAMPLES]) <= TEST_SAMPLES
