"""Sweeps: settings tried on validation samples, chosen for each method, and compared on the test samples."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from edgefl import RunConfig
from edgefl.cli.sweep import command
from edgefl.errors import ConfigError
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
        (["--grid", "lr=0.1", "--grid", "lr=0.2"], "a key is there twice"),
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
