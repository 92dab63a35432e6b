"""Whole runs of a fleet whose clients come late, wait, are lost and are too small: stopped and resumed, and the same on every host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from command import edgefl
from pages import Page
from runs import checkpoint_of, lines_of, stopped_after

from edgefl import RunConfig, export, simulate
from edgefl.errors import CheckpointError
from edgefl.run.dry_run import dry_run
from edgefl.server.checkpoint import of_file
from edgefl.util.files import sha256, shared

SMALL: dict[str, Any] = {
    "method": "fedavg", "model": "mlp", "rounds": 3, "clients": 8, "per_round": 3, "local_epochs": 1, "data_share": 0.25, "eval_every": 3,
    "seed": 1,
}  # fmt: skip
ASYNC: dict[str, Any] = {"mode": "async", "per_round": 4, "buffer": 2}
TIERS = {"tiers": (1.0, 0.5)}
# A session of this network takes a phone about 0.2 s: some clients leave in the midst of one, and then all wait for half an hour.
_STRETCHES = [(c, begin, end) for c in range(8) for begin, end in ((0, 0.17 + 0.05 * c), (1800, 3000))]
TRACE = (
    "client,from,to,state\n" + "".join(f"{c},{begin},{end:g},eligible\n" for c, begin, end in _STRETCHES) + "0,3600,3601,none\n"
)


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


def sessions_of(folder: Path) -> list[dict[str, Any]]:
    return [client for line in lines_of(folder) for client in line["clients"]]


def model_of(folder: Path) -> str:
    return sha256((folder / "model.safetensors").read_bytes())


def flags_of(values: dict[str, Any]) -> list[str]:
    def text(value: Any) -> str:
        return ",".join(f"{part}" for part in value) if isinstance(value, tuple) else f"{value}"

    switches = {"dynamic_devices": "--dynamic-devices"}
    return [switches.get(key, f"--{key.replace('_', '-')}={text(value)}") for key, value in values.items()]


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
    "a buffer, changes of factors": {
        **ASYNC,
        "method": "fedhm",
        "model": "cnn-digits",
        "method_options": {"aggregation": "residual"},
    },
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
    command = [sys.executable, "-m", "edgefl.cli.main", "simulate", "--out", str(folder), *flags_of(values)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(folder.glob("checkpoints/round-000003-*")) and time.monotonic() < deadline:
        time.sleep(0.005)  # the moment of the kill is the only thing that waits
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "summary.json").exists()
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


# The perceptron's largest tier takes 296,056 bytes, the convolutional network's 3,350,912; with half of each batch 2,110,212, with half
# of the widths 1,532,160.
TINY_BYTES, TINY_CONVOLUTIONAL_BYTES = 250_000, 2_300_000


def fleet_with_tiny(folder: Path, training_bytes: float) -> str:
    tiny = device(folder, "tiny", "low-end-phone", training_bytes=training_bytes)
    return fleet(folder, "tiny-and-large", (tiny, 0.5), ("flagship-phone", 0.5))


ENFORCED: dict[str, Any] = {**SMALL, "conditions": "ideal", "over_selection": 1}


def of_tiny(folder: Path) -> list[dict[str, Any]]:
    found = [session for session in sessions_of(folder) if session["device"] == "tiny"]
    assert found
    return found


def test_what_is_sent_to_a_device_that_is_too_small_is_metered_away(tmp_path: Path) -> None:
    profile = fleet_with_tiny(tmp_path, TINY_BYTES)
    runs = {step: tmp_path / step for step in ("send", "refuse")}
    done = edgefl("simulate", *flags_of({**ENFORCED, "profile": profile, "on_shortfall": "send"}), "--out", str(runs["send"]))
    assert done.returncode == 0, done.stderr
    simulate(RunConfig.of({**ENFORCED, "profile": profile, "on_shortfall": ("refuse",)}), runs["refuse"])
    sent, refused = of_tiny(runs["send"]), of_tiny(runs["refuse"])
    assert {session["status"] for session in sent} == {"out_of_memory"}
    assert {session["status"] for session in refused} == {"refused"}
    for session in sent:
        assert session["tier"] == 1
        assert session["memory_bytes"] == TINY_BYTES
        assert session["predicted_memory_bytes"] > TINY_BYTES
        assert TINY_BYTES < session["measured_training_memory_bytes"] <= session["predicted_memory_bytes"]
        # It had been sent the model and worked for a step: that was for nothing.
        assert session["download_bytes"] > session["upload_bytes"] == 0
        assert session["macs"] > 0
        assert session["energy_j"] > 0
    for session in refused:
        assert (session["download_bytes"], session["macs"], session["energy_j"]) == (0, 0, None)
        assert {short["budget"] for short in session["refusal"]} == {"memory_bytes"}
    # Whoever was killed or refused left no trace in the model.
    assert model_of(runs["send"]) == model_of(runs["refuse"])
    first, second = (lines_of(runs[step]) for step in ("send", "refuse"))
    assert [line["useful"] for line in first] == [line["useful"] for line in second]
    assert [line["round_s"] for line in first] == [line["round_s"] for line in second]
    assert all(line["wasted"]["clients"] == 0 for line in second)


def test_a_limit_of_the_system_ends_them_and_leaves_the_same_model(tmp_path: Path) -> None:
    # Less than half of what it needs: what a process had freed before, and uses again, is not seen to grow.
    limit_bytes = 1_400_000
    profile = fleet_with_tiny(tmp_path, limit_bytes)
    common = {**ENFORCED, "profile": profile, "model": "cnn-digits", "rounds": 2}
    folders = {}
    for level, steps in (("hard", "send"), ("meter", "send"), ("plan", "refuse")):
        folders[level] = stopped_after(RunConfig.of({**common, "enforce": level, "on_shortfall": (steps,)}), tmp_path / level, 2)
    statuses = {level: {session["status"] for session in of_tiny(folder)} for level, folder in folders.items()}
    assert statuses == {"hard": {"out_of_memory"}, "meter": {"out_of_memory"}, "plan": {"refused"}}
    assert all(session["host_memory_bytes"] > limit_bytes for session in of_tiny(folders["hard"]))
    last = [of_file(checkpoint_of(folder, 2)).model.tensors for folder in folders.values()]
    assert all(torch.equal(tensor, other[name]) for other in last[1:] for name, tensor in last[0].items())
    # What is charged to whoever was ended is the same, whichever way it was found out.
    hard, metered = (lines_of(folders[level]) for level in ("hard", "meter"))
    assert [line["wasted"] for line in hard] == [line["wasted"] for line in metered]


@pytest.mark.parametrize(
    ("steps", "tier", "micro_batch"),
    [
        (("micro-batch", "tier"), 1, 16),
        (("micro-batch", "refuse"), 1, 16),
        (("tier", "micro-batch"), 0.5, None),
        (("tier",), 0.5, None),
        (("tier", "send"), 0.5, None),
        (("micro-batch", "send"), 1, 16),
    ],
)
def test_a_device_that_is_too_small_takes_what_the_order_says(
    steps: tuple[str, ...], tier: float, micro_batch: int | None, tmp_path: Path
) -> None:
    profile = fleet_with_tiny(tmp_path, TINY_CONVOLUTIONAL_BYTES)
    values = {
        **ENFORCED,
        **TIERS,
        "method": "heterofl",
        "model": "cnn-digits",
        "profile": profile,
        "on_shortfall": steps,
        "eval_every": 3,
    }
    folder = stopped_after(RunConfig.of(values), tmp_path / "meter", 3)
    for session in of_tiny(folder):
        assert (session["status"], session["tier"], session["micro_batch"]) == ("trained", tier, micro_batch)
        assert session["measured_training_memory_bytes"] <= session["predicted_memory_bytes"] <= TINY_CONVOLUTIONAL_BYTES
    if "send" not in steps:
        planned = stopped_after(RunConfig.of({**values, "enforce": "plan"}), tmp_path / "plan", 3)
        assert lines_of(planned) == lines_of(folder)
        assert checkpoint_of(planned, 3).name == checkpoint_of(folder, 3).name


DRY = {
    **SMALL,
    "per_round": 100,
    "rounds": 5,
    "partition": "index:60",
    "availability": "daily",
    "data_share": 1.0,
    "eval_every": 5,
}


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
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize("mode", [{}, ASYNC])
def test_the_clock_goes_on_while_all_are_refused(mode: dict[str, Any], tmp_path: Path) -> None:
    """Batteries that are empty are charged in the following night."""
    config = config_of({**SMALL, "profile": battery_fleet, "rounds": 200, "eval_every": 200, **mode}, tmp_path)
    lines = lines_of(dry_run(config, tmp_path / "dry").folder)
    assert lines[-1]["clock_s"] > 24 * 3600
    assert any(line["trained"] for line in lines if line["clock_s"] > 24 * 3600)
