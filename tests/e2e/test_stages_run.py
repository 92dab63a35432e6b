"""Runs that say where their time went, and are stopped at any moment: killed, interrupted, on a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import edgefl
from runs import lines_of, stopped_after

from edgefl import RunConfig, simulate
from edgefl.errors import StorageError
from edgefl.report import html
from edgefl.report.run_files import read_rounds, read_trained
from edgefl.rng import generator
from edgefl.server import checkpoint

# Clients keep something, so that their store has to go along with the checkpoints.
VALUES = {
    "method": "fedper", "profile": "lab", "rounds": 12, "clients": 4, "per_round": 2, "local_epochs": 1, "data_share": 0.05,
    "model": "mlp", "eval_samples": 20, "seed": 1, "tiers": (1.0,), "conditions": "ideal",
}  # fmt: skip
# A process that imports torch once. Each line that it reads starts a run in a process of its own, which prints its number and its rounds.
RUNS = """
import os, sys, torch
from edgefl import RunConfig, simulate
torch.set_num_threads(1)
for _ in sys.stdin:
    if process := os.fork():
        os.waitpid(process, 0)
        print("ended", flush=True)
    else:
        print(os.getpid(), flush=True)
        simulate(RunConfig.of({values!r}), sys.argv[1], resume=True, on_round=lambda record: print(record.round, flush=True))
        os._exit(0)
"""
KILLS = 6


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traced")
    result = simulate(RunConfig.of(VALUES), folder / "run", trace=folder / "trace.json")
    return result.folder


def outcome(folder: Path) -> tuple[object, ...]:
    """Return what must not depend on how often a run was stopped: rounds, and checkpoints by the hashes in their names."""
    return lines_of(folder), sorted(path.name for path in folder.glob("checkpoints/*"))


def test_a_summary_says_where_the_time_went(finished):
    summary, rounds = read_trained(finished / "summary.json"), read_rounds(finished / "rounds.jsonl")
    server = summary.host_stages["server"]
    # fmt: off
    assert server.keys() >= {
        "prepare", "select", "factorize", "encode", "keep", "wait", "decode", "aggregate", "evaluate", "checkpoint", "record", "bundle",
        "report",
    }
    # fmt: on
    assert summary.host_stages["background"]["checkpoint"] > 0
    assert sum(server.values()) > summary.host_s
    for name, taken_s in server.items():
        assert taken_s >= sum(line.stages["server"].get(name, 0.0) for line in rounds) - 1e-4
    assert "Where this computer" in (page := (finished / "report.html").read_text())
    assert html.render(summary, rounds) == page


def test_stages_add_up_to_the_time_of_a_run(tmp_path):
    started = time.perf_counter()
    result = simulate(RunConfig.of({**VALUES, "rounds": 2}), tmp_path / "run")
    passed_s = time.perf_counter() - started
    assert sum(result.summary["host_stages"]["server"].values()) == pytest.approx(passed_s, abs=0.05 + 0.02 * passed_s)


def test_a_trace_holds_every_stage_of_every_round(finished):
    events = json.loads((finished.parent / "trace.json").read_text())
    names = {event["name"] for event in events if event["ph"] == "X"}
    assert names >= read_trained(finished / "summary.json").host_stages["server"].keys() - {"other"}
    written = [e["args"]["round"] for e in events if e["ph"] == "X" and e["name"] == "record"]
    assert written == [*range(1, 13)]
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 0}
    assert threads >= {"main", "checkpoints"}


def test_a_trace_changes_nothing(finished, tmp_path):
    assert outcome(stopped_after(RunConfig.of(VALUES), tmp_path / "run", 12)) == outcome(finished)


def test_killed_again_and_again_a_run_ends_with_the_same_bits(finished, tmp_path):
    folder, command = tmp_path / "run", [sys.executable, "-c", RUNS.format(values=VALUES), str(tmp_path / "run")]
    moments_s = generator(0, "kills").uniform(0.0, 0.03, KILLS)  # from the end of a round to somewhere in the next one
    seen = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runs:
        assert runs.stdin is not None
        assert runs.stdout is not None
        for moment_s in moments_s:
            runs.stdin.write("run\n")
            runs.stdin.flush()
            process = int(runs.stdout.readline())
            seen.append(runs.stdout.readline())
            time.sleep(moment_s)
            os.kill(process, signal.SIGKILL)
            assert "ended\n" in iter(runs.stdout.readline, "")
            assert not (folder / "summary.json").exists()
    assert all(seen)
    simulate(RunConfig.of(VALUES), folder, resume=True)
    assert outcome(folder) == outcome(finished)
    assert (folder / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()
    assert [path.name for path in folder.glob("clients*")] == ["clients.sqlite"]


def test_a_resumed_run_counts_the_time_of_every_part(finished, tmp_path):
    folder = tmp_path / "run"
    stopped_after(RunConfig.of(VALUES), folder, 2)
    first = [line.stages for line in read_rounds(folder / "rounds.jsonl")][:2]
    summary = simulate(RunConfig.of(VALUES), folder, resume=True, trace=tmp_path / "trace.json").summary
    assert [line.stages for line in read_rounds(folder / "rounds.jsonl")][:2] == first
    waited_s = sum(line.stages["server"]["wait"] for line in read_rounds(folder / "rounds.jsonl"))
    assert summary["host_stages"]["server"]["wait"] == pytest.approx(waited_s, abs=1e-4)
    events = json.loads((tmp_path / "trace.json").read_text())
    assert [e["args"]["round"] for e in events if e["ph"] == "X" and e["name"] == "record"] == [*range(3, 13)]
    assert outcome(folder) == outcome(finished)


def test_after_an_interruption_the_checkpoint_of_the_last_round_is_there(finished, tmp_path):
    folder = tmp_path / "run"

    def stop(record):
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(RunConfig.of(VALUES), folder, on_round=stop)
    restored = checkpoint.restore(folder / "checkpoints")
    assert restored is not None
    assert restored.state.round == 3
    stopped_after(RunConfig.of(VALUES), folder, 12, resume=True)
    assert outcome(folder) == outcome(finished)


@pytest.mark.parametrize("failing", [1, 5, 12])
def test_a_full_disk_ends_the_run_and_what_was_there_goes_on(finished, tmp_path, monkeypatch, failing):
    folder, real = tmp_path / "run", checkpoint.save

    def save(at, state, announce):
        if state.round == failing:
            raise StorageError(f"{at}: no space left on the device; free some, or give another folder")
        return real(at, state, announce)

    monkeypatch.setattr(checkpoint, "save", save)
    with pytest.raises(StorageError, match="no space left"):
        simulate(RunConfig.of(VALUES), folder)
    monkeypatch.undo()
    assert not (folder / "summary.json").exists()
    stopped_after(RunConfig.of(VALUES), folder, 12, resume=True)
    assert outcome(folder) == outcome(finished)


def test_a_trace_that_cannot_be_written_ends_the_run_which_can_be_resumed(tmp_path, finished):
    with pytest.raises(StorageError, match="no space left"):
        simulate(RunConfig.of(VALUES), tmp_path / "full", trace="/dev/full")
    assert not (tmp_path / "full").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--trace", "missing/trace.json"], "there is no folder missing; make it first"),
        (["--trace", "."], "is a folder; give the name of a file for the trace"),
        (["--trace", "trace.json", "--dry-run"], "no client trains with --dry-run"),
    ],
)
def test_a_wrong_place_for_a_trace_is_refused_before_anything_is_written(flags, message, tmp_path):
    found = edgefl("simulate", "--out", "run", *flags, cwd=tmp_path)
    assert found.returncode == 2
    assert message in found.stderr
    assert list(tmp_path.iterdir()) == []
