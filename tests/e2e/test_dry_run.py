"""Dry runs: the sessions of a run that trains, for a million clients, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from command import edgefl, flags_of
from fleet_runs import ASYNC, SMALL, STOPPED, TIERS, battery_fleet, config_of
from pages import Page
from runs import lines_of, stopped_after

from edgefl import RunConfig, export, load_run
from edgefl.errors import CheckpointError, InputError
from edgefl.run.dry_run import dry_run
from edgefl.util.lock import only_writer

DRY = {
    **SMALL,
    "per_round": 100,
    "rounds": 5,
    "partition": "index:60",
    "availability": "daily",
    "data_share": 1.0,
    "eval_every": 5,
}


@pytest.mark.parametrize("rounds", [3, 33])
def test_assignments_of_tiers_are_compared_in_the_same_first_rounds(tmp_path: Path, rounds: int) -> None:
    keys = {"method": "heterofl", **TIERS, "per_round": 10, "clients": 40, "partition": "index:60", "rounds": rounds}
    config = RunConfig.of({**SMALL, **keys})
    own, *others = dry_run(config, tmp_path / "dry").summary["policies"]
    lines = lines_of(tmp_path / "dry")[:30]
    assert own["round_s"] == median(line["round_s"] for line in lines)
    assert [row["rounds"] for row in (own, *others)] == [len(lines)] * 3
    for device, share in own["inclusion"].items():
        groups = [group for line in lines for group in line["groups"] if group["device"] == device]
        trained = sum(group["clients"] for group in groups if group["status"] == "trained")
        assert share == trained / sum(group["clients"] for group in groups)


# What a process waited for says of its children is the peak of the largest: a process in between has only this one.
_PEAK = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(done.returncode)
"""


def peak_of(*args: str) -> tuple[int, float, str, str]:
    """Return exit status, peak memory in MB, output and errors of a command."""
    command = [sys.executable, "-c", _PEAK, sys.executable, "-m", "edgefl.cli.main", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    peak = done.stderr.splitlines()[-1]
    return done.returncode, int(peak) / (1024 if sys.platform == "linux" else 1024**2), done.stdout, done.stderr


def test_a_dry_run_of_a_million_takes_no_more_memory_than_one_of_a_thousand(tmp_path: Path) -> None:
    peaks = {}
    for clients in (1_000, 1_000_000):
        out = tmp_path / str(clients)
        flags = flags_of({**DRY, "clients": clients})
        status, peaks[clients], output, errors = peak_of("simulate", "--dry-run", "--json", *flags, "--out", str(out))
        assert status == 0, errors
        summary = json.loads(output)
        assert summary["dry_run"] is True
        assert summary == json.loads((out / "summary.json").read_text(encoding="utf-8"))
        assert {path.name for path in out.iterdir()} == {"dry-run.toml", "rounds.jsonl", "summary.json", "report.html"}
        assert Page((out / "report.html").read_text(encoding="utf-8")).headings
        assert sum(row["clients"] for row in summary["participation"]) == clients
    assert peaks[1_000_000] - peaks[1_000] <= 50


REHEARSED: dict[str, dict[str, Any]] = {
    "rounds": {"over_selection": 2, "dynamic_devices": True},
    "nights": STOPPED["nights"],
    "a buffer and a trace": STOPPED["a buffer and a trace"],
    "batteries": STOPPED["batteries"],
    "tiers that change": {**TIERS, "method": "fjord", "tier_assignment": "dynamic", "tier_shares": (0.3, 0.7)},
}
_TRAINED_ONLY = ("steps", "train_loss", "measured_peak_activation_bytes", "measured_training_memory_bytes")


@pytest.mark.parametrize("what", REHEARSED)
def test_a_dry_run_has_the_sessions_of_a_run_that_trains(what: str, tmp_path: Path) -> None:
    config = config_of({**REHEARSED[what], "rounds": 4, "eval_every": 4}, tmp_path)
    real = stopped_after(config, tmp_path / "real", 4)
    dry = [dry_run(config, tmp_path / f"dry-{turn}").folder for turn in (1, 2)]
    assert lines_of(dry[0]) == lines_of(dry[1])
    expected = lines_of(real)
    for line in expected:
        line["accuracy"] = {}
        line.pop("observed", None)
        for session in line["clients"]:
            session.update(dict.fromkeys(_TRAINED_ONLY, None), steps=0)
    assert lines_of(dry[0]) == expected


def test_a_dry_run_is_complete_and_nothing_else(tmp_path: Path) -> None:
    out = dry_run(RunConfig.of(SMALL), tmp_path / "dry").folder
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert not {"model.safetensors", "checkpoints", "bundle", "clients.sqlite"} & {*before}
    again = edgefl("simulate", "--resume", "--out", str(out))
    assert again.returncode == 2
    assert "holds no config.toml: not a run folder" in again.stderr
    with pytest.raises(CheckpointError, match="holds no config.toml"):
        export(out, tmp_path / "bundle")
    with pytest.raises(InputError, match="dry: a dry run trains nothing, and has no accuracy"):
        load_run(out).global_accuracy  # noqa: B018 - the error is what is asked for
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize("mode", [{}, ASYNC])
def test_the_clock_goes_on_while_all_are_refused(mode: dict[str, Any], tmp_path: Path) -> None:
    """Batteries that are empty are charged in the following night."""
    config = config_of({**SMALL, "profile": battery_fleet, "rounds": 200, "eval_every": 200, **mode}, tmp_path)
    lines = lines_of(dry_run(config, tmp_path / "dry").folder)
    assert lines[-1]["clock_s"] > 24 * 3600
    assert any(line["trained"] for line in lines if line["clock_s"] > 24 * 3600)


def test_two_dry_runs_do_not_write_to_one_folder(tmp_path: Path) -> None:
    config = RunConfig(rounds=1, clients=10, per_round=2)
    with only_writer(tmp_path / "dry"), pytest.raises(CheckpointError, match=r"dry: process \d+ on .* is writing to it; wait"):
        dry_run(config, tmp_path / "dry")
    assert dry_run(config, tmp_path / "dry").summary["rounds"] == 1
    assert not list((tmp_path / "dry").glob(".*"))
