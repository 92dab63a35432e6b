"""Runs whose clients keep models of their own: killed around a commit, without their file, exported from it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runs import stopped_after

from edgefl import RunConfig, export, simulate
from edgefl.errors import CheckpointError

VALUES = {
    "method": "fedper", "profile": "lab", "rounds": 3, "clients": 6, "per_round": 3, "local_epochs": 1, "data_share": 0.1,
    "model": "mlp", "eval_every": 3, "seed": 1, "tiers": (1.0,),
}  # fmt: skip

# Killed in round 2: when one of its three clients has kept something, and between commit and checkpoint.
KILLS = {
    "in the transaction": "clients.ClientStore.put = at(clients.ClientStore.put, 5)",
    "before the checkpoint": "checkpoint.save = at(checkpoint.save, 2)",
}
KILLED = """
import os, signal, sys
from edgefl import RunConfig, simulate
from edgefl.server import checkpoint
from edgefl.server import client_store as clients

def at(function, call):
    calls = iter(range(1, call + 1))
    def killing(*arguments):
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)
    return killing

{kill}
simulate(RunConfig.of({values!r}), sys.argv[1])
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return simulate(RunConfig.of(VALUES), tmp_path_factory.mktemp("run") / "whole").folder


def played_to_its_end(folder: Path, said: list[str]) -> set[str]:
    """Resume the run up to the bundle, and return the names of its checkpoints, which end in the hashes of their content."""
    return checkpoints_of(stopped_after(RunConfig.of(VALUES), folder, 3, resume=True, notify=said.append))


def checkpoints_of(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("checkpoints/*")}


def test_what_clients_keep_lies_in_one_file(finished):
    assert [path.name for path in finished.glob("clients*")] == ["clients.sqlite"]


@pytest.mark.parametrize("moment", KILLS)
def test_a_killed_run_goes_on_to_the_same_bits(finished, tmp_path, moment):
    folder = tmp_path / "killed"
    code = KILLED.format(kill=KILLS[moment], values=VALUES)
    assert subprocess.run([sys.executable, "-c", code, str(folder)], check=False).returncode == -signal.SIGKILL
    # Checkpoints are written while the next round is played: that of the first may still be on its way.
    assert {path.name[:12] for path in folder.glob("checkpoints/round-*")} <= {"round-000001"}
    assert played_to_its_end(folder, []) == checkpoints_of(finished)
    assert [path.name for path in folder.glob("clients*")] == ["clients.sqlite"]


def test_a_bundle_is_exported_from_what_clients_kept(finished, tmp_path):
    stored = (finished / "clients.sqlite").read_bytes()
    export(finished, tmp_path / "bundle")
    ours = {path.name: path.read_bytes() for path in (tmp_path / "bundle").rglob("*.onnx")}
    assert ours == {path.name: path.read_bytes() for path in (finished / "bundle").rglob("*.onnx")}
    assert (finished / "clients.sqlite").read_bytes() == stored


def test_without_what_clients_kept_neither_export_nor_resume_goes_on(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    (folder / "clients.sqlite").unlink()
    with pytest.raises(
        CheckpointError, match=r"clients\.sqlite: the store of clients' tensors up to round 3 is missing; restore the file or"
    ):
        export(folder, tmp_path / "bundle")
    (folder / "summary.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"clients\.sqlite: the store of clients' tensors up to round 3 is missing; restore the file or"
    ):
        simulate(RunConfig.of(VALUES), folder, resume=True)


def test_a_run_goes_back_to_the_checkpoint_before_a_damaged_one_with_what_clients_kept_then(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    (folder / "summary.json").unlink()
    newest = max(folder.glob("checkpoints/*"))
    newest.write_bytes(newest.read_bytes()[:-1])
    said: list[str] = []
    assert played_to_its_end(folder, said) == checkpoints_of(finished)
    assert "falling back to the checkpoint before it" in said[0]
