"""Progress of the Python client: a line for each step, and a file from which an interrupted training continues to the same bits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from edgefl_client import Checkpoint, InputError, Training, read_bundle, train
from handmade import Regression, samples
from python_client import called
from spoiled_bundles import edit_train
from torch_free import CLIENT

HOW = Training(epochs=4, batch_size=4, seed=3)


class StoppedError(Exception):
    """What ends a training in the middle."""


def stop_at(step: int):
    def on_step(number: int, loss: float, seconds: float) -> None:
        if number == step:
            raise StoppedError

    return on_step


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("flip", [False, True])
def test_an_interrupted_training_ends_with_the_same_bits(optimizer, flip, tmp_path):
    model = Regression(optimizer=optimizer, width=2, shape=(1, 2, 3))
    folder = model.write(tmp_path / "b")
    if flip:
        edit_train(folder, augment="flip")
    bundle, (x, y) = read_bundle(folder), samples(10, model.shape, model.classes)
    whole = train(bundle, "0.5", x, y, HOW)
    checkpoint = Checkpoint(tmp_path / "progress", 2)
    for step in (5, 8):  # of 12; the first loses one step, the second none
        with pytest.raises(StoppedError):
            train(bundle, "0.5", x, y, HOW, checkpoint=checkpoint, on_step=stop_at(step))
    numbers: list[int] = []
    again = train(bundle, "0.5", x, y, HOW, checkpoint=checkpoint, on_step=lambda number, loss, seconds: numbers.append(number))
    assert numbers == [9, 10, 11, 12]
    assert again.losses == whole.losses
    for name, tensor in whole.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], tensor)


def test_progress_of_another_training_is_refused(tmp_path):
    model = Regression()
    bundle, (x, y) = read_bundle(model.write(tmp_path / "b")), samples(10, model.shape, model.classes)
    checkpoint = Checkpoint(tmp_path / "progress", 1)
    with pytest.raises(StoppedError):
        train(bundle, "0.5", x, y, HOW, checkpoint=checkpoint, on_step=stop_at(2))
    for how, labels in ((Training(epochs=4, batch_size=4, seed=4), y), (HOW, np.roll(y, 1))):
        with pytest.raises(InputError, match="progress: of another training: bundle, tier, data or settings differ; delete it"):
            train(bundle, "0.5", x, labels, how, checkpoint=checkpoint)
    checkpoint.path.write_bytes(b"cut")
    with pytest.raises(InputError, match="progress: not the progress of a training"):
        train(bundle, "0.5", x, y, HOW, checkpoint=checkpoint)


@pytest.fixture
def data(tmp_path) -> Path:
    x, y = samples(40)
    np.savez(tmp_path / "own.npz", x=x, y=y)
    return tmp_path / "own.npz"


def test_a_line_for_each_step(data, tmp_path, capsys):
    order = ("train", Regression().write(tmp_path / "b"), "0.5", data, "--out", tmp_path / "s", "--epochs", 1, "--batch-size", 20)
    status, _, errors = called(capsys, *order, "--progress", "json")
    assert status == 0
    assert [json.loads(line)["step"] for line in errors.splitlines()] == [1, 2]
    assert json.loads(errors.splitlines()[0]).keys() == {"step", "steps", "loss", "seconds"}
    assert called(capsys, *order, "--progress", "text")[2].startswith("step 1 of 2: loss ")


KILLED = """
import os, sys
from pathlib import Path

sys.path[:0] = [{client!r}, {tests!r}]
from edgefl_client import Checkpoint, Training, read_bundle, train
from handmade import samples

x, y = samples(40)
end = lambda number, loss, seconds: os.kill(os.getpid(), {signal}) if number == 12 else None
train(read_bundle(Path({bundle!r})), "0.5", x, y, Training(epochs=2, batch_size=4), None, "", Checkpoint(Path({progress!r}), 5), end)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_client_that_is_killed_loses_the_steps_since_the_last_that_were_stored(how, tmp_path):
    folder, progress = Regression().write(tmp_path / "b"), tmp_path / "progress"
    parts = {
        "client": str(CLIENT.parent),
        "tests": str(Path(__file__).parents[1]),
        "bundle": str(folder),
        "progress": str(progress),
    }
    ended = subprocess.run([sys.executable, "-c", KILLED.format(signal=int(how), **parts)], capture_output=True, check=False)
    assert ended.returncode == -how, ended.stderr
    bundle, (x, y), numbers = read_bundle(folder), samples(40), []
    settings = Training(epochs=2, batch_size=4)
    again = train(bundle, "0.5", x, y, settings, None, "", Checkpoint(progress, 5), lambda number, *_: numbers.append(number))
    assert numbers == list(range(11, 21))
    whole = train(bundle, "0.5", x, y, settings)
    assert all(np.array_equal(again.tensors[name], tensor) for name, tensor in whole.tensors.items())


def test_the_command_deletes_progress_that_is_not_needed_any_more(data, tmp_path, capsys):
    order = (
        "train",
        Regression().write(tmp_path / "b"),
        "0.5",
        data,
        "--out",
        tmp_path / "s",
        "--checkpoint",
        tmp_path / "progress",
    )
    assert called(capsys, *order, "--checkpoint-every", 1)[0] == 0
    assert not (tmp_path / "progress").exists()
    assert (tmp_path / "s").exists()
