"""Pipes and devices in the place of files that a configuration or a comparison names: one message, and no reader waits for their end."""

import os

import pytest

from edgefl import RunConfig, load_comparison
from edgefl.errors import InputError
from edgefl.run.prepare import prepare
from edgefl.server.checkpoint import of_file
from tests.command import told

SMALL = {"rounds": 1, "clients": 2, "local_epochs": 1, "data_share": 0.2, "method": "fedavg", "tiers": (1.0,), "model": "mlp"}
NAMED = {
    "weights": "w.safetensors",
    "model": "m.onnx",
    "dataset": "d.csv",
    "preprocessing": "p.json",
    "availability": "t.csv",
}
TABLE = "a,b,label\n" + "\n".join(f"{number},{number % 5},{number % 3}" for number in range(30))


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.csv").write_text(TABLE)


@pytest.mark.parametrize("key", NAMED)
def test_a_pipe_that_a_configuration_names_is_refused(key, tmp_path):
    os.mkfifo(tmp_path / NAMED[key])
    keys = {"dataset": "own.csv"} if key == "preprocessing" else {}
    with pytest.raises(InputError, match=r"cannot be read \(not a regular file\)"):
        prepare(RunConfig(**SMALL | keys | {key: NAMED[key]}))


def test_a_device_in_the_place_of_weights_does_not_fill_the_memory(tmp_path):
    (tmp_path / "w.safetensors").symlink_to("/dev/zero")
    with pytest.raises(InputError, match=r"cannot be read \(not a regular file\)"):
        prepare(RunConfig(**SMALL, weights="w.safetensors"))


def test_a_pipe_in_the_place_of_a_comparison_or_a_checkpoint_is_refused(tmp_path):
    for name, read in (("compare.json", lambda path: load_comparison(path.parent)), ("round-000001.safetensors", of_file)):
        os.mkfifo(tmp_path / name)
        with pytest.raises(InputError, match=r"cannot be read \(not a regular file\)"):
            read(tmp_path / name)


def test_a_file_that_does_not_fit_in_memory_is_a_message(monkeypatch):
    def full(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr("edgefl.cli.simulate.check_run", full)
    status, _, errors = told("simulate", "--dry-run")
    assert (status, errors) == (1, "Error: not enough memory: a file, a network or a fleet is too large for this computer\n")
