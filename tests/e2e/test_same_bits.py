"""One seed, one result: in this process or in workers, after a worker's death, and after a stop, for every method and every axis."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from covering import Row, pairwise
from runs import checkpoint_of, lines_of, stopped_after

from edgefl import RunConfig
from edgefl.contrib.attacks.adversary import lacks_of
from edgefl.contrib.secagg.feature import check_secure
from edgefl.data.digits import digits
from edgefl.engine.pool import PoolEngine
from edgefl.errors import ConfigError
from edgefl.fleet.conditions import Conditions
from edgefl.methods.axes import AXES, choices, conflict
from edgefl.methods.create import create
from edgefl.registry import methods
from edgefl.run.checks import check_axes

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers need Linux or macOS")

ROUNDS = 3
SMALL = {
    "profile": "lab", "rounds": ROUNDS, "clients": 6, "per_round": 4, "local_epochs": 1, "data_share": 0.1, "model": "mlp",
    "eval_every": ROUNDS, "seed": 5,
}  # fmt: skip
PAIRED = ("runtime", "objective", "server_optimizer", "codec", "tier_assignment", "mode")
"""Axes of which every pair of choices is run."""
TURNS = ("secure_aggregation", "defence", "privacy", "adversary", "method", "optimizer")
"""Axes of which every choice is run, with some choices of the others: all pairs would take minutes."""
NEEDED = {
    "scaffold": {"optimizer": "sgd", "weight_decay": 0},
    "depthfl": {"model": "cnn-tiny"},
    "last-blocks": {"model": "cnn-tiny"},
    "secagg": {"clients": 12, "per_round": 10},
    "secagg+": {"clients": 12, "per_round": 10},
    "central": {"noise_multiplier": 0.5, "clip_norm": 1.0},
    "local": {"noise_multiplier": 0.5, "privacy_clip": 1.0},
    "example": {"noise_multiplier": 0.5, "privacy_clip": 1.0},
}
"""What a choice needs of the other keys: a perceptron has one block only, and sums of few clients are not secure."""

samples = cache(digits)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """In its second round with jobs, every pool loses a worker after the first outcome; return the numbers of the dead processes."""
    dead: list[int] = []
    run, rounds = PoolEngine._run, dict[int, int]()

    def dying(self: PoolEngine, *given) -> Iterator:
        rounds[id(self)] = rounds.get(id(self), 0) + 1
        for place, outcome in enumerate(run(self, *given)):
            if place == 0 and rounds[id(self)] == 2:
                dead.append(next(worker.pid for worker in self._live.values() if worker.pid))
                os.kill(dead[-1], signal.SIGKILL)
            yield outcome

    monkeypatch.setattr(PoolEngine, "_run", dying)
    return dead


def check(config: RunConfig, folder: Path, killed: list[int]) -> None:
    """Run in this process. Run in two workers of which one dies, stop, resume in new workers. Compare records and checkpoints."""
    whole = stopped_after(config, folder / "inline", ROUNDS)
    pool = config.model_copy(update={"engine": "pool", "workers": 2})
    other = stopped_after(pool, folder / "pool", ROUNDS - 1)
    assert len(killed) == 1
    names = [checkpoint_of(whole, round_).name for round_ in range(1, ROUNDS + 1)]
    assert [checkpoint_of(other, round_).name for round_ in range(1, ROUNDS)] == names[:-1], "workers, or the death of one"
    stopped_after(pool, other, ROUNDS, resume=True)
    # A checkpoint's name has the hash of its content: the weights, and a link to what clients store.
    assert checkpoint_of(other, ROUNDS).name == names[-1], "the stop"
    lines = lines_of(whole)
    assert lines_of(other) == lines
    assert any(client["status"] == "trained" for client in lines[-1]["clients"]), "nothing was trained after the stop"


def config_of(row: Row) -> RunConfig | None:
    """Return the configuration of a row, None if edgefl refuses it."""
    needed = {key: value for choice in row.values() for key, value in NEEDED.get(choice, {}).items()}
    hostile = {"adversary": f"{row['adversary']}:0.3"} if "adversary" in row else {}
    try:
        config = RunConfig.of({**SMALL, **row, **hostile, **needed})
        method = create(row["method"])
        check_axes(method, config)
        check_secure(config, Conditions(), most=1)
    except ConfigError:
        return None
    hostile_needs = conflict(lacks_of(samples(), False, method), "adversary", row.get("adversary", "noise"))
    return None if hostile and hostile_needs else config


@cache
def rows() -> list[Row]:
    """Return rows that have every pair of choices of :data:`PAIRED`; choices of :data:`TURNS` take turns, and more rows have the rest."""
    axes = {axis: choices(axis) for axis in PAIRED}
    used = {axis: dict.fromkeys(methods.names() if axis == "method" else choices(axis), 0) for axis in TURNS}

    def filled(row: Row) -> Row:
        for axis in [axis for axis in TURNS if axis not in row]:
            fitting = [choice for choice in used[axis] if config_of({"method": "fedavg", **row, axis: choice}) is not None]
            row |= {axis: min(fitting, key=used[axis].__getitem__)} if fitting else {}
        for axis in [axis for axis in TURNS if axis in row]:
            used[axis][row[axis]] += 1
        return row

    found = [filled(row) for row in pairwise(axes, lambda row: config_of({**row, "method": "fedavg"}) is not None)]
    left = [{axis: choice} for axis in AXES if axis in TURNS for choice, count in used[axis].items() if not count]
    return found + [filled(row) for row in left]


def other_methods() -> list[str]:
    """Return the methods that no row has."""
    return sorted({*methods.names()} - {row["method"] for row in rows()})


@pytest.mark.parametrize("name", other_methods())
def test_every_other_method_comes_to_the_same_bits(name: str, tmp_path: Path, killed: list[int]) -> None:
    config = config_of({"method": name})
    assert config is not None
    check(config, tmp_path, killed)


def test_every_choice_is_in_a_row() -> None:
    assert set(AXES) <= {*PAIRED, *TURNS}, "a new axis: add it to one of the two"
    used = {(axis, choice) for row in rows() for axis, choice in row.items()}
    assert {(axis, choice) for axis in AXES for choice in choices(axis)} <= used


@pytest.mark.parametrize("row", rows(), ids=lambda row: "-".join(row.values()))
def test_every_pair_of_choices_comes_to_the_same_bits(row: Row, tmp_path: Path, killed: list[int]) -> None:
    config = config_of(row)
    assert config is not None
    check(config, tmp_path, killed)
