"""A run of a fleet that was stopped or killed goes on to the same bits, and is the same on every host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from command import flags_of
from fleet_runs import ASYNC, SMALL, STOPPED, TIERS, config_of, sessions_of
from runs import checkpoint_of, killed, lines_of, stopped_after

from edgefl import RunConfig
from edgefl.server.checkpoint import of_file


@pytest.mark.parametrize("what", STOPPED)
def test_a_run_stopped_after_any_round_goes_on_to_the_same_bits(what: str, tmp_path: Path) -> None:
    config = config_of(STOPPED[what], tmp_path)
    last = config.rounds
    whole = stopped_after(config, tmp_path / "whole", last)
    expected = lines_of(whole)
    folder = stopped_after(config, tmp_path / "stopped", 1)
    for stop in range(2, last + 1):
        stopped_after(config, folder, stop, resume=True)
    assert lines_of(folder) == expected
    # Its name ends in its content's hash: model, clock, batteries, who is at work, and what clients keep.
    assert checkpoint_of(folder, last).name == checkpoint_of(whole, last).name
    _what_it_is_about_happened(what, config, whole, tmp_path)


def _what_it_is_about_happened(what: str, config: RunConfig, whole: Path, folder: Path) -> None:
    found = sessions_of(whole)
    statuses = Counter(session["status"] for session in found)
    between = of_file(checkpoint_of(folder / "stopped", config.rounds - 1)).fleet
    assert statuses["trained"] > 1
    if config.mode == "async":
        assert between.sessions
        assert any(session["staleness"] for session in found)
    if what == "nights":
        assert sum(line["waited_s"] for line in lines_of(whole)) > 3600
    if "trace" in what:
        assert statuses["interrupted"]
        assert lines_of(whole)[0]["clock_s"] < 2
        assert 1800 <= lines_of(whole)[-1]["clock_s"] < 1802
    if config.dynamic_devices:
        assert len({session["state"] for session in found}) > 1
    if what == "batteries":
        assert between.drained_j
        assert any(short["budget"] == "battery_j" for session in found for short in session["refusal"])
    if what == "late clients":
        assert statuses["late"]
        assert between.busy


@contextmanager
def busy_host() -> Iterator[None]:
    """Let another process burn a processor meanwhile."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_old_factors_give_the_same_bits_on_every_engine(tmp_path: Path) -> None:
    values = {**STOPPED["a buffer, changes of factors"], "tier_assignment": "uniform", "rounds": 4, "tiers": (1.0, 0.5, 0.25)}
    found = []
    for engine in ({"engine": "inline"}, {"engine": "pool", "workers": 2}):
        folder = stopped_after(config_of({**values, **engine}, tmp_path), tmp_path / engine["engine"], 4)
        found.append((lines_of(folder), of_file(checkpoint_of(folder, 4)).model.tensors))
    (lines, tensors), (others, same) = found
    assert lines == others
    assert all(torch.equal(tensor, same[name]) for name, tensor in tensors.items())
    assert any(client["staleness"] and client["tier"] < 1 for line in lines for client in line["clients"])


def test_a_killed_asynchronous_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    values = {**SMALL, **ASYNC, "method": "pfedpara", "rounds": 12, "eval_every": 12}
    whole = stopped_after(RunConfig.of(values), tmp_path / "whole", 12)
    folder = tmp_path / "killed"
    killed(folder, "round-000003-*", *flags_of(values))
    stopped_after(RunConfig.of(values), folder, 12, resume=True)
    assert lines_of(folder) == lines_of(whole)
    assert checkpoint_of(folder, 12).name == checkpoint_of(whole, 12).name
    # Personal factors are in the chain of hashes that the checkpoint holds, what was sent to those still at work in the file itself.
    kept = of_file(checkpoint_of(folder, 12))
    assert kept.clients
    assert kept.fleet.sessions


MIXED: dict[str, Any] = {**SMALL, **TIERS, "method": "heterofl", "over_selection": 2, "dynamic_devices": True}


def test_simulated_figures_do_not_depend_on_the_host(tmp_path: Path) -> None:
    """With a process for every client that the system limits, and beside another one that burns the processor."""
    last = MIXED["rounds"]
    plain = stopped_after(RunConfig.of(MIXED), tmp_path / "inline", last)
    assert len({session["status"] for session in sessions_of(plain)}) > 2
    with busy_host():
        held = stopped_after(RunConfig.of({**MIXED, "enforce": "hard", "workers": 2}), tmp_path / "hard", last)
    assert lines_of(held) == lines_of(plain)
    assert checkpoint_of(held, last).name == checkpoint_of(plain, last).name


def test_nor_do_those_of_asynchronous_rounds(tmp_path: Path) -> None:
    """With several processes, started by one in which strings have other hashes."""
    values = {**MIXED, "over_selection": 1, "mode": "async", "buffer": 2}
    last = values["rounds"]
    plain = stopped_after(RunConfig.of(values), tmp_path / "inline", last)
    assert len({session["status"] for session in sessions_of(plain)}) > 2
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    command = [sys.executable, "-m", "edgefl.cli.main", "simulate", *flags_of({**values, "workers": 2})]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "pool")], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert lines_of(tmp_path / "pool") == lines_of(plain)
    assert checkpoint_of(tmp_path / "pool", last).name == checkpoint_of(plain, last).name
