"""Short runs on a Ray cluster, and what must be equal after two of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
from command import flags_of
from ray_nodes import RayNodes
from runs import checkpoint_of, lines_of

from edgefl import RunConfig

ROUNDS = 5
RUN: dict[str, Any] = {
    "profile": "phone",
    "rounds": ROUNDS,
    "clients": 10,
    "per_round": 8,
    "local_epochs": 1,
    "eval_every": ROUNDS,
}


def on(nodes: RayNodes, **options: Any) -> RunConfig:
    """Return a run on the cluster."""
    return RunConfig(**{**RUN, "engine": "ray", "ray_address": nodes.address, **options})


def words_of(config: RunConfig) -> list[str]:
    """Return the words of the command that starts a run."""
    return ["simulate", *flags_of(config.model_dump(exclude_unset=True, exclude={"plugins"}))]


def assert_equal(one: Path, other: Path, rounds: int = ROUNDS) -> None:
    """Check that two runs have the same records and the same checkpoint."""
    assert lines_of(one) == lines_of(other)
    assert checkpoint_of(one, rounds).read_bytes() == checkpoint_of(other, rounds).read_bytes()


def actors(nodes: RayNodes) -> list[psutil.Process]:
    """Return the processes that hold the engine's workers."""
    return nodes.processes(b"ray::Node")
