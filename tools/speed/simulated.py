"""Rounds of edgefl, as a user gets them from ``edgefl.simulate``: when each began, what it took, what was learnt."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import edgefl
from edgefl.records import RoundRecord
from speed.work import BATCH_SIZE, HELD_OUT, LR, MOMENTUM, SEED, Material, Work

CLIENTS_OWN = ("start", "train", "meter", "wait", "evaluate")
"""Stages of the server's thread that are no work of the server's in a round: it trains itself, waits for others to, or evaluates."""


class EnoughError(Exception):
    """Raised after the last round: what comes then, the bundle and the report, is not timed here."""


def config_of(work: Work, used: Material, rounds: int, **changes: Any) -> edgefl.RunConfig:
    """Return the configuration of a work: the defaults, except what makes it equal to the work of the bare loops.

    These are a fleet of one class whose devices all answer, no weight decay, and no evaluation before the last round.
    """
    values: dict[str, Any] = {
        "profile": "laptop",
        "conditions": "ideal",
        "method": "fedavg",
        "dataset": used.dataset,
        "data_dir": used.data_dir,
        "partition": used.partition,
        "model": used.model,
        "norm": "none",
        "clients": work.clients,
        "per_round": work.per_round,
        "rounds": rounds,
        "local_epochs": 1,
        "batch_size": BATCH_SIZE,
        "lr": LR,
        "momentum": MOMENTUM,
        "weight_decay": 0.0,
        "eval_every": rounds,
        "eval_samples": HELD_OUT,
        "seed": SEED,
    }
    return edgefl.RunConfig.of({**values, **changes})


def play(config: edgefl.RunConfig) -> dict[str, Any]:
    """Play the rounds and return what they took; the last, which is evaluated, is one more than those that are timed.

    ``marks`` are when rounds began and the last timed one ended, in seconds since 1970. The first is when ``config.toml`` was written:
    a run does that just before it starts workers and clients, so that the first round has all that comes with it. ``samples`` and ``macs``
    are those trained in each round, ``server_s`` the seconds of the server's own work, None of a version that does not tell.
    """
    marks: list[float] = []
    records: list[RoundRecord] = []

    def on_round(record: RoundRecord) -> None:
        marks.append(time.time())
        records.append(record)
        if record.round == config.rounds:
            raise EnoughError

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        with contextlib.suppress(EnoughError):
            edgefl.simulate(config, out, on_round=on_round)
        first = (out / "config.toml").stat().st_mtime
        lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    done = [[c.expected for c in record.clients if c.status == "trained"] for record in records]
    return {
        "dataset": config.dataset,
        "marks": [first, *marks[:-1]],
        "samples": [sum(e.samples for e in expected) for expected in done][:-1],
        "macs": [sum(e.macs for e in expected) for expected in done][:-1],
        "server_s": [server_s(line.get("stages")) for line in lines][:-1],
        "accuracy": records[-1].accuracy["global"],
    }


def server_s(stages: Mapping[str, Any] | None) -> float | None:
    """Return the server's own seconds of a round, from the stages in its record.

    >>> server_s({"server": {"encode": 0.25, "wait": 3.0, "aggregate": 0.5}, "workers": {"1": {"train": 2.0}}})
    0.75
    """
    if not stages:
        return None
    return sum(seconds for stage, seconds in stages["server"].items() if stage not in CLIENTS_OWN)
