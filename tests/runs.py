"""Runs that are stopped after a round, and what their folders contain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgefl import RunConfig, simulate
from edgefl.records import RoundRecord


class StopError(Exception):
    """Ends a run after a round, before its bundle and its report are made."""


def stopped_after(config: RunConfig, folder: Path, round_: int, **options: Any) -> Path:
    """Run until ``round_`` has ended and return the run's folder; ``options`` are those of ``simulate``."""

    def stop(record: RoundRecord) -> None:
        if record.round == round_:
            raise StopError

    with pytest.raises(StopError):
        simulate(config, folder, on_round=stop, **options)
    return folder


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds of a run without the time that this host took."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if key not in ("host_s", "stages")} for line in lines]


def checkpoint_of(folder: Path, round_: int) -> Path:
    """Return the checkpoint of a round; its name ends in the hash of its content."""
    (found,) = (folder / "checkpoints").glob(f"round-{round_:06d}-*")
    return found
