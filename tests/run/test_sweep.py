"""Sweeps: settings tried on validation samples, chosen for each method, and compared on the test samples."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from edgefl import RunConfig, load_run
from edgefl.cli.sweep import command
from edgefl.errors import ConfigError, OutOfTimeError
from edgefl.run import parallel
from edgefl.run.compare_entries import ComparedRun, Entry
from edgefl.run.folder import RunFolder
from edgefl.run.sweep import SweepTrial, _choices, points_of, sweep

SMALL = RunConfig(model="mlp", rounds=1, clients=3, local_epochs=1, data_share=0.2, bundle=False, profile="lab", tiers=(1.0, 0.5))


def test_the_best_setting_of_each_method_is_chosen_and_one_at_the_edge_is_marked():
    grid = {"lr": [0.1, 0.01, 1.0], "codec": ["fp32", "fp16"]}
    scores = {("a", 0.01): 0.5, ("a", 0.1): 0.7, ("a", 1.0): None, ("b", 0.01): 0.6, ("b", 0.1): 0.2, ("b", 1.0): 0.1}
    trials = [SweepTrial(method, {"lr": lr, "codec": "fp32"}, score) for (method, lr), score in scores.items()]
    a, b = _choices([*trials, SweepTrial("c", {"lr": 0.1, "codec": "fp32"}, None)], grid, max)
    assert (a.setting["lr"], a.score, a.at_edge) == (0.1, 0.7, ())
    assert (b.setting["lr"], b.score, b.at_edge) == (0.01, 0.6, ("lr",))
    assert _choices(trials, grid, min)[0].setting["lr"] == 0.01


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({}, "grid: it is empty; give at least one key"),
        ({"lr": []}, "grid: lr: expected different values, got none"),
        ({"lr": [0.1, 0.1]}, "grid: lr: expected different values, got 0.1, 0.1"),
        ({"rate": [1]}, "grid: rate is no key of training or of the server; known: local_epochs,"),
        ({"clients": [1]}, "grid: clients is no key of training"),
    ],
)
def test_a_grid_that_is_wrong_is_refused(grid, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        points_of(grid)
    with pytest.raises(ConfigError, match=message):
        sweep(["fedavg"], grid, SMALL, tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid", "lr"], "'lr' is not of the form KEY=V1,V2"),
        (["--grid", "lr=log:1:0.1:3"], "log:1:0.1:3: expected log:LEAST:LARGEST:COUNT"),
        (["--grid", "lr=-1"], "lr"),
        (["--grid", "lr=0.1", "--grid", "lr=0.2"], "lr is there twice"),
        (["--grid", "lr=0.1", "--jobs", "0"], "jobs must be at least 1, got 0"),
        (["--grid", "lr=0.1", "--max-hours", "0"], "max_hours 0.0, expected at least one job and a positive number of hours"),
    ],
)
def test_the_command_refuses_a_wrong_grid(arguments, message, tmp_path):
    found = CliRunner().invoke(command, ["--methods", "fedavg", *arguments, "--out", str(tmp_path / "s")])
    assert found.exit_code != 0
    assert message in " ".join(f"{found.output} {found.exception}".split())
    assert not (tmp_path / "s").exists()


def test_a_sweep_tries_on_validation_samples_and_compares_on_the_test_samples(tmp_path):
    found = sweep(["fedavg@0.5", "heterofl"], {"lr": [0.0001, 0.05]}, SMALL, tmp_path / "s", seeds=(0, 1))
    assert [(trial.method, trial.setting["lr"]) for trial in found.trials] == [
        ("fedavg@0.5", 0.0001),
        ("heterofl", 0.0001),
        ("fedavg@0.5", 0.05),
        ("heterofl", 0.05),
    ]
    assert {choice.method: choice.setting for choice in found.choices} == {"fedavg@0.5": {"lr": 0.05}, "heterofl": {"lr": 0.05}}
    assert all(choice.at_edge == ("lr",) for choice in found.choices)
    assert [row.seeds for row in found.comparison.methods] == [(0, 1), (0, 1)]

    def share(folder: str) -> float:
        return RunConfig.load(tmp_path / "s" / folder / "heterofl" / "seed-0" / "config.toml", {}).validation_share

    assert (share("trials/lr=0.05"), share("comparison")) == (0.1, 0.0)
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())["choices"] == found.choices.to_dict()
    said: list[str] = []
    again = sweep(
        ["fedavg@0.5", "heterofl"], {"lr": [0.0001, 0.05]}, SMALL, tmp_path / "s", seeds=(0, 1), resume=True, notify=said.append
    )
    assert again.choices == found.choices
    assert all("the run is complete; nothing left to do" in text for text in said)


FAILING = """
def picky(outputs, targets):
    return float("nan") if outputs.abs().max() > 1e3 else float((outputs.argmax(1) == targets).float().mean())

picky.better = "higher"
"""


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A sweep with two jobs: of two equal methods, and with a rate at which the metric is no number."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "own.py").write_text(FAILING)
    config = SMALL.model_copy(update={"metric": f"{folder / 'own.py'}:picky", "validation_share": 0.2})
    asked = ["fedavg", "fedavg@1"], {"lr": [0.05, 1e6]}, config
    said: list[str] = []
    return asked, folder, sweep(*asked, folder / "two", jobs=2, notify=said.append), said


def test_runs_in_processes_are_those_of_one(several, tmp_path):
    asked, folder, found, _ = several
    alone = sweep(*asked, tmp_path / "one")
    assert alone.trials == found.trials
    for path in sorted((folder / "two").rglob("model.safetensors")):
        assert path.read_bytes() == (tmp_path / "one" / path.relative_to(folder / "two")).read_bytes()


def test_a_run_that_fails_does_not_stop_the_others(several):
    _, _, found, said = several
    assert [(trial.setting["lr"], trial.score is None) for trial in found.trials] == [
        (0.05, False), (0.05, False), (1e6, True), (1e6, True),
    ]  # fmt: skip
    assert any("failed: round 1" in text for text in said), said
    assert {choice.setting["lr"] for choice in found.choices} == {0.05}


def test_runs_of_one_configuration_are_made_once_and_copied(several):
    _, folder, _, said = several
    first, second = (folder / "two" / "comparison" / method / "seed-0" for method in ("fedavg", "fedavg@1"))
    assert load_run(first).summary == load_run(second).summary  # with the seconds of this computer
    assert not [text for text in said if text.startswith("fedavg@1, seed 0: ")]


def test_the_comparison_is_made_on_the_test_samples_whatever_share_validates(several):
    _, folder, _, _ = several
    homes = [folder / "two" / of / "fedavg" / "seed-0" for of in ("trials/lr=0.05", "comparison")]
    assert [RunFolder(home).config().validation_share for home in homes] == [0.2, 0.0]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_ends_when_its_hours_are_over_and_continues(jobs, tmp_path):
    asked = ["fedavg"], {"lr": [0.01, 0.05]}, SMALL.model_copy(update={"rounds": 2})
    with pytest.raises(OutOfTimeError, match=r"1e-09 hours are over; complete runs and checkpoints stay: continue with --resume"):
        sweep(*asked, tmp_path / "s", jobs=jobs, max_hours=1e-9)
    if jobs == 1:
        assert len(sweep(*asked, tmp_path / "s", resume=True).trials) == 2
    assert OutOfTimeError.exit_code == 3


def test_an_object_of_this_process_needs_one_job(tmp_path):
    config = SMALL.model_copy(update={"metric": RunConfig(metric=lambda outputs, targets: 1.0).metric})
    part = ComparedRun(0, Entry("fedavg"), 0, config, "")
    with pytest.raises(ConfigError, match="jobs: .* names an object of this process, which other processes cannot import"):
        parallel._check_importable([parallel.PlannedRun(part, tmp_path)])
