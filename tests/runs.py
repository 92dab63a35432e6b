"""Runs that are stopped after a round or killed, and what their folders contain."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from edgefl import RunConfig, simulate
from edgefl.records import RoundRecord
from edgefl.util.files import sha256


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


def killed(folder: Path, checkpoints: str, *flags: str) -> None:
    """Kill a run in a process of its own as soon as its folder has a checkpoint whose name matches ``checkpoints``."""
    command = [sys.executable, "-m", "edgefl.cli.main", "simulate", "--out", str(folder), *flags]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    until_s = time.monotonic() + 120
    while not list(folder.glob(f"checkpoints/{checkpoints}")) and time.monotonic() < until_s:
        time.sleep(0.005)  # the moment of the kill is the only thing that waits
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "summary.json").exists()


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds of a run without the time that this host took."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if key not in ("host_s", "stages")} for line in lines]


def checkpoint_of(folder: Path, round_: int) -> Path:
    """Return the checkpoint of a round; its name ends in the hash of its content."""
    (found,) = (folder / "checkpoints").glob(f"round-{round_:06d}-*")
    return found


def model_of(folder: Path) -> str:
    """Return the hash of a run's model."""
    return sha256((folder / "model.safetensors").read_bytes())
