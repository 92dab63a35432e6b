"""The engine by trial: what is measured is kept, what is chosen is said, and a run goes on with what it began with."""

import json
from dataclasses import replace

import pytest

from edgefl import RunConfig, compare, simulate
from edgefl.config import changed
from edgefl.errors import CheckpointError, ConfigError
from edgefl.run import engine_choice as choosing
from edgefl.run.engine_choice import EngineTrial, choose
from edgefl.run.folder import RunFolder, resumed_config
from edgefl.run.prepare import prepare

SHORT = {
    "dataset": "digits", "model": "mlp", "method": "fedavg", "tiers": (1.0,), "rounds": 2, "clients": 6, "per_round": 4,
    "local_epochs": 1, "seed": 3, "conditions": "ideal", "profile": "laptop",
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("recalling")


def test_a_trial_measures_both_ways_and_is_stored(recalling, monkeypatch):
    run = prepare(RunConfig.of(SHORT))
    choice = choose(run)
    (path,) = (recalling / "trials").iterdir()
    stored = json.loads(path.read_bytes().partition(b"\n")[2])
    assert 0 < stored["alone_s"] < 1
    assert 0 < stored["together_s"] < 1

    def again(*given):
        raise AssertionError("measured twice")

    monkeypatch.setattr(choosing, "tried", again)
    assert choose(run) == choice
    path.write_text("{")  # a file that is cut is no trial
    with pytest.raises(AssertionError, match="measured twice"):
        choose(run)


def test_a_cache_that_cannot_be_written_costs_a_trial_and_nothing_else(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert choose(prepare(RunConfig.of(SHORT))).engine in ("inline", "group")


@pytest.mark.parametrize(
    ("trial", "rounds", "engine", "workers"),
    [
        (EngineTrial(0.001, 0.0005), 1, "group", 1),
        (EngineTrial(0.001, 0.00099), 1, "inline", 1),
        (EngineTrial(0.001, None), 1, "inline", 1),
        (EngineTrial(0.5, None), 100, "pool", 3),
        (EngineTrial(0.01, 0.005), 1000, "group", 3),
    ],
)
def test_long_runs_take_workers_and_steps_that_gain_are_taken_together(monkeypatch, trial, rounds, engine, workers):
    monkeypatch.setattr(choosing, "tried", lambda *given: trial)
    monkeypatch.setattr(choosing, "usable_threads", lambda: 3)
    run = prepare(RunConfig.of(SHORT))
    choice = choose(replace(run, config=run.config.model_copy(update={"rounds": rounds})))
    assert (choice.engine, choice.workers) == (engine, workers)


@pytest.mark.parametrize(
    ("rounds", "cores", "more", "engine", "workers"),
    [
        (2, 3, {}, "inline", 1),
        (2000, 3, {}, "pool", 3),
        (2000, 9, {}, "pool", 4),  # of four clients a round
        (2000, 1, {}, "inline", 1),
        (2000, 3, {"loss": "object:f"}, "inline", 1),
    ],
)
def test_a_run_that_names_no_engine_takes_all_cores_if_it_is_long(monkeypatch, rounds, cores, more, engine, workers):
    monkeypatch.setattr(choosing, "usable_threads", lambda: cores)
    run = prepare(RunConfig.of(SHORT))
    asked = replace(run, config=run.config.model_copy(update={"rounds": rounds, **more}))
    assert choosing.usual(asked) == (engine, workers)


def test_both_engines_of_a_run_that_names_none_have_the_same_bits(tmp_path, monkeypatch):
    config = RunConfig.of({**SHORT, "bundle": False})
    for limit_s in (1e9, 0.0):
        monkeypatch.setattr(choosing, "LONG_RUN_S", limit_s)
        monkeypatch.setattr(choosing, "usable_threads", lambda: 2)
        simulate(config, tmp_path / str(limit_s))
    folders = [RunFolder(tmp_path / str(limit_s)) for limit_s in (1e9, 0.0)]
    assert [(folder.config().engine, folder.config().workers) for folder in folders] == [("inline", 1), ("pool", 2)]
    first, second = ((folder.path / "model.safetensors").read_bytes() for folder in folders)
    assert first == second


@pytest.mark.parametrize("given", [{"engine": "inline"}, {"workers": 1}])
def test_a_run_that_names_its_engine_or_its_workers_has_them(tmp_path, monkeypatch, given):
    monkeypatch.setattr(choosing, "usual", None)
    result = simulate(RunConfig.of({**SHORT, "bundle": False, **given}), tmp_path / "run")
    assert RunFolder(result.folder).config().engine == "inline"


def test_where_steps_cannot_be_taken_together_no_trial_says_otherwise():
    run = prepare(RunConfig.of({**SHORT, "method": "fjord", "tiers": (1.0, 0.5)}))
    assert choosing.tried(run, run.tiers[0], 1).together_s is None


def test_a_run_says_what_it_took_and_goes_on_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(choosing, "tried", lambda *given: EngineTrial(0.001, 0.0001))
    said = []
    config = RunConfig.of({**SHORT, "engine": "auto"})
    result = simulate(config, tmp_path / "run", notify=said.append)
    assert any(line.startswith("engine group, 1 worker: a step takes 1.00 ms, among 5 0.10 ms") for line in said)
    stored = RunConfig.load(result.folder / "config.toml", {})
    assert (stored.engine, stored.workers) == ("group", 1)
    monkeypatch.setattr(choosing, "tried", lambda *given: EngineTrial(0.001, None))
    assert resumed_config(result.folder, {"engine": "auto"}).engine == "group"
    simulate(config, tmp_path / "run", resume=True)
    with pytest.raises(CheckpointError, match="engine was 'group', now 'inline'"):
        simulate(RunConfig.of({**SHORT, "engine": "inline"}), tmp_path / "run", resume=True)


def test_a_comparison_goes_on_with_what_its_runs_took(tmp_path, monkeypatch):
    monkeypatch.setattr(choosing, "choose", lambda run: choosing.EngineChoice("group", 1, "it is fastest"))
    config = RunConfig.of({**SHORT, "rounds": 1, "data_share": 0.1, "engine": "auto"})
    compare(["fedavg"], config, tmp_path / "both")
    (again,) = compare(["fedavg"], config, tmp_path / "both", resume=True).methods
    assert again.failures == ()
    assert RunFolder(tmp_path / "both" / "fedavg" / "seed-3").config().engine == "group"


def test_alone_and_together_differ_by_rounding_only(tmp_path):
    runs = {name: simulate(RunConfig.of({**SHORT, "engine": name}), tmp_path / name) for name in ("inline", "group")}
    lines = {
        name: [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()] for name, run in runs.items()
    }
    for one, other in zip(lines["inline"], lines["group"], strict=True):
        for first, second in zip(one["clients"], other["clients"], strict=True):
            loss = first.pop("train_loss"), second.pop("train_loss")
            assert loss[0] == pytest.approx(loss[1], rel=1e-4)
            assert first == second
        assert one["clock_s"] == other["clock_s"]
    assert runs["inline"].global_accuracy == pytest.approx(runs["group"].global_accuracy, abs=0.01)


def test_groups_have_the_same_bits_for_any_number_of_workers(tmp_path):
    for workers in (1, 2):
        simulate(RunConfig.of({**SHORT, "engine": "group", "workers": workers}), tmp_path / str(workers))
    first, second = ((tmp_path / str(n) / "model.safetensors").read_bytes() for n in (1, 2))
    assert first == second


def test_what_takes_clients_one_by_one_refuses_groups():
    with pytest.raises(ConfigError, match="enforce hard trains them one by one"):
        RunConfig.of({"engine": "group", "enforce": "hard"})
    with pytest.raises(ConfigError, match="runtime onnx trains them one by one"):
        RunConfig.of({"engine": "group", "runtime": "onnx"})
    assert changed(RunConfig(engine="group", workers=2), RunConfig(engine="group")) == []


def test_a_device_that_is_not_there_is_refused():
    import torch

    with pytest.raises(ConfigError, match="cuda trains in torch"):
        prepare(RunConfig.of({**SHORT, "device": "cuda", "runtime": "onnx"}))
    if torch.cuda.is_available():
        assert prepare(RunConfig.of({**SHORT, "device": "cuda"})).clients.device.type == "cuda"
        return
    with pytest.raises(ConfigError, match="torch finds no CUDA device here"):
        prepare(RunConfig.of({**SHORT, "device": "cuda"}))
