"""Whole runs of a fleet whose clients come late, wait, are lost and are too small: stopped and resumed, and the same on every host."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from edgefl import RunConfig, simulate
from edgefl.files import sha256, shared
from edgefl.records import RoundRecord
from edgefl.server.checkpoint import Checkpoint

SMALL: dict[str, Any] = {
    "method": "fedavg", "model": "mlp", "rounds": 3, "clients": 8, "per_round": 3, "local_epochs": 1, "data_share": 0.25, "eval_every": 3,
    "seed": 1,
}  # fmt: skip
ASYNC: dict[str, Any] = {"mode": "async", "per_round": 4, "buffer": 2}
TIERS = {"tiers": (1.0, 0.5)}
# A session of this network takes a phone about 0.13 s: some clients leave in the midst of one, and then all wait for half an hour.
_STRETCHES = [(c, begin, end) for c in range(8) for begin, end in ((0, 0.1 + 0.05 * c), (1800, 3000))]
TRACE = (
    "client,from,to,state\n" + "".join(f"{c},{begin},{end:g},eligible\n" for c, begin, end in _STRETCHES) + "0,3600,3601,none\n"
)


class StopError(Exception):
    pass


def figure(value: float) -> str:
    return f'{{ value = {value}, mark = "assumed", source = "made up for a test" }}'


def device(folder: Path, name: str, like: str, **changed: float) -> str:
    """Write a device as ``like``, some figures changed, and return its path beside the fleet."""
    text = (shared("profiles") / "devices" / f"{like}.toml").read_text(encoding="utf-8")
    lines = [f'name = "{name}"' if line.startswith("name =") else line for line in text.splitlines()]
    for key, value in changed.items():
        (place,) = [i for i, line in enumerate(lines) if line.startswith(f"{key} =")]
        lines[place] = f"{key} = {figure(value)}"
    (folder / f"{name}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"./{name}.toml"


def fleet(folder: Path, name: str, *classes: tuple[str, float], more: str = "") -> str:
    """Write a fleet of (device, share) and return its path."""
    parts = [f'name = "{name}"\ntitle = "{name}"\n[mix]\nmark = "assumed"\nsource = "made up for a test"\n']
    parts += [f'[[class]]\ndevice = "{path}"\nshare = {share}\n' for path, share in classes]
    (folder / f"{name}.toml").write_text("\n".join(parts) + more, encoding="utf-8")
    return str(folder / f"{name}.toml")


def lines_of(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if key != "host_s"} for line in lines]


def sessions_of(folder: Path) -> list[dict[str, Any]]:
    return [client for line in lines_of(folder) for client in line["clients"]]


def model_of(folder: Path) -> str:
    return sha256((folder / "model.safetensors").read_bytes())


def edgefl(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgefl.cli.main", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def flags_of(values: dict[str, Any]) -> list[str]:
    def text(value: Any) -> str:
        return ",".join(f"{part}" for part in value) if isinstance(value, tuple) else f"{value}"

    return [f"--{key.replace('_', '-')}={text(value)}" for key, value in values.items()]


def stopped_after(config: RunConfig, folder: Path, round_: int, resume: bool = False) -> Path:
    def stop(record: RoundRecord) -> None:
        if record.round == round_:
            raise StopError

    with pytest.raises(StopError):
        simulate(config, folder, resume=resume, on_round=stop)
    return folder


def checkpoint_of(folder: Path, round_: int) -> Path:
    (found,) = (folder / "checkpoints").glob(f"round-{round_:06d}-*")
    return found


def battery_fleet(folder: Path) -> str:
    # A session takes about 0.02 J: of 0.1 J a client gives away from nothing to 0.08 J a day.
    return fleet(folder, "weak", (device(folder, "weak-phone", "low-end-phone", battery_wh=0.1 / 3600), 1.0))


def trace_file(folder: Path) -> str:
    (folder / "trace.csv").write_text(TRACE, encoding="utf-8")
    return str(folder / "trace.csv")


STOPPED: dict[str, dict[str, Any]] = {
    "a buffer, two sizes": {**ASYNC, **TIERS, "method": "heterofl"},
    "a buffer, personal factors": {**ASYNC, "method": "pfedpara", "rounds": 4},
    "a buffer, networks drawn for each client": {**ASYNC, "method": "splitmix", "tiers": (1.0, 0.25)},
    "a buffer, server momentum": {**ASYNC, "server_optimizer": "avgm", "objective": "prox"},
    "a buffer and nights": {**ASYNC, "availability": "daily", "start_hour": 22, "clients": 30, "deadline_s": 1},
    "a buffer and a trace": {**ASYNC, "availability": trace_file, "rounds": 5},
    "nights": {"availability": "daily", "start_hour": 12, "per_round": 4},
    "a trace": {"availability": trace_file, "rounds": 4},
    "devices that change": {**TIERS, "method": "heterofl", "dynamic_devices": True, "tier_assignment": "dynamic"},
    "batteries": {"profile": battery_fleet, "rounds": 5, "over_selection": 1, "per_round": 5},
    "late clients": {"over_selection": 2.5, "rounds": 4},
}


def config_of(values: dict[str, Any], folder: Path) -> RunConfig:
    return RunConfig.of({**SMALL, **{key: value(folder) if callable(value) else value for key, value in values.items()}})


@pytest.mark.parametrize("what", STOPPED)
def test_a_run_stopped_after_any_round_goes_on_to_the_same_bits(what: str, tmp_path: Path) -> None:
    config = config_of(STOPPED[what], tmp_path)
    last = config.rounds
    whole = stopped_after(config, tmp_path / "whole", last)
    expected = lines_of(whole)
    for stop in range(1, last):
        folder = stopped_after(config, tmp_path / f"stopped-{stop}", stop)
        stopped_after(config, folder, last, resume=True)
        assert lines_of(folder) == expected
        # Its name ends in its content's hash: model, clock, batteries, who is at work, and what clients keep.
        assert checkpoint_of(folder, last).name == checkpoint_of(whole, last).name
    _what_it_is_about_happened(what, config, whole, tmp_path)


def _what_it_is_about_happened(what: str, config: RunConfig, whole: Path, folder: Path) -> None:
    found = sessions_of(whole)
    statuses = Counter(session["status"] for session in found)
    between = Checkpoint.of_file(checkpoint_of(folder / "stopped-1", config.rounds - 1)).fleet
    assert statuses["trained"] > 1
    if config.mode == "async":
        assert between["flights"]
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
        assert between["drained_j"]
        assert any(short["budget"] == "battery_j" for session in found for short in session["refusal"])
    if what == "late clients":
        assert statuses["late"]
        assert between["busy"]
