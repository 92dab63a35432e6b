"""A run that continues to more rounds has the bits of a run of so many rounds, whenever it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runs import lines_of, stopped_after

from edgefl.config import RunConfig
from edgefl.errors import CheckpointError
from edgefl.run.folder import RunFolder, resumed_config
from edgefl.run.simulate import simulate

SMALL = {
    "clients": 6,
    "per_round": 3,
    "local_epochs": 1,
    "tiers": (1.0, 0.5),
    "profile": "phone",
    "model": "mlp",
    "rounds": 3,
    "bundle": False,
}
RUNS = {
    "last round evaluated": {"eval_every": 2, "eval_samples": 50},
    "networks of clients": {"method": "fedper", "tiers": (1.0,)},
    "async": {"method": "heterofl", "mode": "async"},
    "memory of the server and of clients": {
        "method": "fedavg",
        "tiers": (1.0,),
        "server_optimizer": "adam",
        "objective": "scaffold",
        "optimizer": "sgd",
        "weight_decay": 0,
    },
    "noise": {"method": "fedavg", "tiers": (1.0,), "privacy": "central", "noise_multiplier": 0.5, "clip_norm": 1.0},
}

NETWORK = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, {width}), nn.ReLU(), nn.Linear({width}, 10))
"""


def config(**more: Any) -> RunConfig:
    return RunConfig.of({**SMALL, **more})


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same(one: Path, other: Path) -> None:
    assert lines_of(one) == lines_of(other)
    for name in ("model.safetensors", "config.toml"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


@pytest.mark.parametrize("more", RUNS.values(), ids=RUNS)
def test_a_longer_run_has_the_bits_of_one_that_never_ended(tmp_path: Path, more: dict[str, Any]) -> None:
    straight = simulate(config(**more, rounds=6), tmp_path / "straight").folder
    short = simulate(config(**more), tmp_path / "short").folder
    cut = stopped_after(config(**more, rounds=6), short, 4, resume=True)
    assert RunFolder(cut).summary() is None
    longer = simulate(config(**more, rounds=6), cut, resume=True)
    same(longer.folder, straight)
    assert longer.summary["rounds"] == 6


def test_one_round_continues_and_so_does_a_run_that_was_stopped(tmp_path: Path) -> None:
    straight = simulate(config(), tmp_path / "straight").folder
    same(simulate(config(), simulate(config(rounds=1), tmp_path / "one").folder, resume=True).folder, straight)
    stopped = stopped_after(config(rounds=2), tmp_path / "stopped", 1)
    same(simulate(config(), stopped, resume=True).folder, straight)


def test_a_kill_before_the_first_further_round_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = simulate(config(), tmp_path / "run").folder
    before = content(folder)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "start", killed)
        with pytest.raises(KeyboardInterrupt):
            simulate(config(rounds=6), folder, resume=True)
    again = simulate(config(), folder, resume=True)
    assert again.summary["rounds"] == 3
    assert (folder / "model.safetensors").read_bytes() == before["model.safetensors"]
    assert len(list((folder / "checkpoints").iterdir())) == 3


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ({}, {"rounds": 2}, "rounds was 3, now 2, and a run continues only to more rounds"),
        ({"lr_schedule": "cosine"}, {"lr_schedule": "cosine", "rounds": 6},
         "rounds was 3, now 6, and with lr_schedule cosine the learning rate of every round depends on their number"),
        ({"lr_schedule": "step"}, {"lr_schedule": "step", "rounds": 6}, "with lr_schedule step the learning rate"),
        ({}, {"rounds": 6, "lr": 0.3}, "lr was 0.05, now 0.3"),
    ],
)  # fmt: skip
def test_a_run_whose_first_rounds_would_differ_is_refused_and_left_alone(
    tmp_path: Path, first: dict[str, Any], then: dict[str, Any], message: str
) -> None:
    folder = simulate(config(**first), tmp_path / "run").folder
    before = content(folder)
    with pytest.raises(CheckpointError, match=message):
        simulate(config(**then), folder, resume=True)
    assert content(folder) == before


@pytest.mark.parametrize("damaged", [True, False])
def test_a_run_without_earlier_checkpoints_is_refused_and_left_alone(tmp_path: Path, damaged: bool) -> None:
    folder = simulate(config(), tmp_path / "run").folder
    for path in sorted((folder / "checkpoints").iterdir())[:2]:
        if damaged:
            path.write_bytes(path.read_bytes()[:-1])
        else:
            path.unlink()
    before = content(folder)
    with pytest.raises(CheckpointError, match="holds no whole checkpoint before round 3, from which it could continue"):
        simulate(config(rounds=6), folder, resume=True)
    assert content(folder) == before


def test_a_run_whose_clients_lost_what_they_stored_is_refused_and_left_alone(tmp_path: Path) -> None:
    own = {"method": "fedper", "tiers": (1.0,), "rounds": 2}
    folder = simulate(config(**own), tmp_path / "run").folder
    (folder / "clients.sqlite").unlink()
    before = content(folder)
    with pytest.raises(CheckpointError, match="clients.sqlite: the store of clients' tensors up to round 1 is missing"):
        simulate(config(**own | {"rounds": 6}), folder, resume=True)
    assert content(folder) == before


def test_a_run_whose_network_has_other_shapes_now_is_refused_and_left_alone(tmp_path: Path) -> None:
    source = tmp_path / "net.py"
    source.write_text(NETWORK.format(width=8))
    own = {"model": f"{source}:make", "method": "fedavg", "tiers": (1.0,), "rounds": 2}
    folder = simulate(config(**own), tmp_path / "run").folder
    source.write_text(NETWORK.format(width=16))
    before = content(folder)
    with pytest.raises(CheckpointError, match="checkpoints: .*; restore the source that the run began with"):
        simulate(config(**own | {"rounds": 6}), folder, resume=True)
    assert content(folder) == before


def test_the_command_line_gives_the_run_more_rounds_and_nothing_else(tmp_path: Path) -> None:
    folder = stopped_after(config(), tmp_path / "run", 1)
    assert resumed_config(folder, {"rounds": 6}) == resumed_config(folder, {}).model_copy(update={"rounds": 6})
    with pytest.raises(
        CheckpointError, match="the run has rounds = 3, got 2, and a run continues only to more rounds; resume without it"
    ):
        resumed_config(folder, {"rounds": 2})
    with pytest.raises(CheckpointError, match=r"the run has lr = 0.05, got 0.3; resume without it"):
        resumed_config(folder, {"rounds": 6, "lr": 0.3})
