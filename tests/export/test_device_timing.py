"""What a device measures of a bundle for ``edgefl calibrate --from``: rows, repeats, ten minutes of load, and messages."""

from __future__ import annotations

import csv
import functools
import os
import subprocess
import sys
from pathlib import Path

import calibrate
import edgefl_timing
import numpy as np
import pytest
import safetensors.numpy
from edgefl_client import read_bundle
from handmade import Regression, changed
from python_client import ended
from spoiled_bundles import edit_tier, put
from torch_free import CLIENT

SCRIPT = CLIENT.parent / "calibrate.py"
COSTS = {"macs_forward": 18, "macs_backward": 18, "macs_compose": 5, "macs_inference": 16}
MODEL = {"model": "by-hand", "method": "fedavg"}
HEADER = "network,method,tier,batch,phase,seconds,sustained_seconds,low_seconds,high_seconds,repeats,input,classes,optimizer,macs"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = Regression().write(tmp_path / "bundle", **MODEL)
    edit_tier(folder, costs=COSTS)
    return folder


class Device:
    """A clock on which each run takes half a second, and twice that after five minutes."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.5 if self.now < 300 else 1.0
        return self.now


def measured(folder: Path, minutes: float = 0.0) -> tuple[list[edgefl_timing.Row], list[str]]:
    clock, said = Device(), list[str]()
    spread = functools.partial(calibrate.spread, clock=clock)
    return edgefl_timing.measure(read_bundle(folder), 1, 8.0, 60 * minutes, spread, said.append, clock), said


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    status, _, errors = ended(calibrate.main, capsys, *arguments)
    return status, errors


def test_a_row_per_phase_and_batch_has_the_median_of_its_repeats(bundle):
    rows, said = measured(bundle)
    assert [(row.phase, row.batch, row.macs) for row in rows] == [
        ("step", 4, 4 * 36 + 5), ("step", 1, 36 + 5), ("forward", 4, 64), ("forward", 1, 16),
    ]  # fmt: skip
    assert {(row.network, row.method, row.tier, row.input, row.classes) for row in rows} == {
        ("by-hand", "fedavg", "0.5", "1x2x3", 3)
    }
    assert [row.optimizer for row in rows] == ["momentum", "momentum", None, None]
    assert all((row.seconds, row.low_seconds, row.high_seconds, row.repeats) == (0.5, 0.5, 0.5, 5) for row in rows)
    assert all(row.sustained_seconds is None for row in rows)
    assert said[0] == "tier 0.5: step at batch 4: 0.5 s (0.5 to 0.5, 5 repeats)"


def test_ten_minutes_of_load_give_a_second_column(bundle):
    rows, said = measured(bundle, minutes=10)
    assert [(row.seconds, row.sustained_seconds) for row in rows] == [(0.5, 1.0)] * 4
    assert "keeping the device under load for 10 min: tier 0.5, step at batch 4" in said
    assert [line for line in said if line.endswith("of 10 min")] == [f"{n} of 10 min" for n in range(1, 10)]


def test_a_step_of_several_graphs_is_their_mean(tmp_path):
    rows, _ = measured(Regression(width=2, optimizer="sgd").write(tmp_path / "b", **MODEL))
    assert [row.seconds for row in rows] == [0.25, 0.25, 0.5, 0.5]
    assert [row.macs for row in rows] == [None] * 4


def test_weights_stay_finite_for_any_number_of_steps(tmp_path):
    for optimizer, objective in (("adam", "dyn"), ("momentum", "scaffold"), ("sgd", "prox")):
        model = Regression(optimizer=optimizer, objective=objective, strength=0.3, present=True)
        rows, _ = measured(model.write(tmp_path / optimizer, **MODEL), minutes=10)
        assert len(rows) == 4


def test_a_tier_without_a_training_graph_is_measured_in_inference_only(bundle):
    edit_tier(bundle, train=None)
    rows, said = measured(bundle, minutes=1)
    assert [(row.phase, row.batch) for row in rows] == [("forward", 4), ("forward", 1)]
    assert said[0] == "tier 0.5: the bundle has no training graph for it; only inference is measured"
    assert "keeping the device under load for 1 min: tier 0.5, forward at batch 4" in said


def test_a_batch_that_the_graph_does_not_take_is_left_out(bundle, monkeypatch):
    step = edgefl_timing.Steps.step

    def whole_batches_only(self, batch: dict[str, np.ndarray], number: int) -> float:
        if len(batch["y"]) < 4:
            raise edgefl_timing.ClientError("got 1 sample, expected 4")
        return step(self, batch, number)

    monkeypatch.setattr(edgefl_timing.Steps, "step", whole_batches_only)
    rows, said = measured(bundle)
    assert [(row.phase, row.batch) for row in rows] == [("step", 4), ("forward", 4), ("forward", 1)]
    assert "tier 0.5: batch 1 is left out: got 1 sample, expected 4" in said


def test_a_step_takes_the_samples_of_the_training_reference_repeated(bundle, monkeypatch):
    """Of a regression, their targets have the network's shape; of token ids, they are below its vocabulary."""
    step, taken = edgefl_timing.Steps.step, []

    def noted(self, batch: dict[str, np.ndarray], number: int) -> float:
        taken.append(batch)
        return step(self, batch, number)

    monkeypatch.setattr(edgefl_timing.Steps, "step", noted)
    measured(bundle)
    stored = safetensors.numpy.load_file(bundle / "0.5" / "train_reference.safetensors")
    assert len(stored["y"]) == 3
    assert taken[0].keys() == {"x", "y"}
    for name in ("x", "y"):
        np.testing.assert_array_equal(taken[0][name], stored[name][[0, 1, 2, 0]])


def test_a_reference_without_samples_is_named(bundle):
    put(bundle, "train_reference.safetensors", safetensors.numpy.save({"x": np.zeros((0, 1, 2, 3), np.float32)}))
    with pytest.raises(edgefl_timing.InputError, match=r"train_reference\.safetensors: x: no sample, expected at least one"):
        measured(bundle)


def test_the_file_has_the_documented_columns(bundle, tmp_path, capsys):
    out = tmp_path / "steps.csv"
    status, errors = called(capsys, bundle, "--steps", out, "--sustained", "0.0001", "--seconds", "0.1", "--threads", "1")
    assert status == 0, errors
    assert "tier 0.5: step at batch 4: " in errors
    assert out.read_text().startswith(HEADER + "\nby-hand,fedavg,0.5,4,step,")
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == 4
    for row in rows:
        assert 0 < float(row["low_seconds"]) <= float(row["seconds"]) <= float(row["high_seconds"]) < 10
        assert 0 < float(row["sustained_seconds"]) < 10
        assert int(row["repeats"]) >= 5
    docs = (Path(__file__).parents[2] / "docs" / "on-device.md").read_text()
    section = docs.split("### steps.csv")[1].split("## ")[0]
    assert [column for column in HEADER.split(",") if f"`{column}`" not in section] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "s.csv", "--out", "x.toml"], "--steps: no profile is written with it: leave out --out and --name"),
        (["--sustained", "10"], "--sustained: expected with --steps FILE only"),
        (["--steps", "s.csv", "--sustained", "0"], "--sustained: got 0, expected minutes above 0, at most 1440"),
        (["--steps", "s.csv", "--sustained", "nan"], "--sustained: got nan, expected minutes above 0"),
        (["--steps", "s.csv", "--sustained", "x"], "argument --sustained: invalid float value: 'x'"),
        (["--steps", "s.csv", "--threads", "0"], "--threads of at least 1"),
        (["--steps", "."], "--steps: . is a folder"),
        (["--steps", "none/s.csv"], "--steps: none is no folder"),
    ],
)
def test_wrong_options_are_named(arguments, message, bundle, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    status, errors = called(capsys, bundle, *arguments)
    assert (status, message in errors) == (2, True), errors
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_wrong_bundles_and_missing_packages_are_one_message(bundle, tmp_path, monkeypatch, capsys):
    out = tmp_path / "s.csv"
    (bundle / "0.5" / "train.onnx").write_bytes(b"x")
    assert "train.onnx: changed" in called(capsys, bundle, "--steps", out)[1]
    changed(bundle, model=None)
    assert "model: got None, expected a value of type str" in called(capsys, bundle, "--steps", out)[1]
    changed(bundle, tiers=[], **MODEL)
    assert "tiers: none" in called(capsys, bundle, "--steps", out)[1]
    monkeypatch.setitem(sys.modules, "edgefl_timing", None)
    status, errors = called(capsys, bundle, "--steps", out)
    assert (status, "--steps: edgefl_timing is missing; expected the client's other files" in errors) == (2, True)
    assert not out.exists()


def test_it_runs_where_neither_torch_nor_edgefl_is(python, bundle, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(python), str(SCRIPT), str(bundle), "--steps", "steps.csv", "--seconds", "0.1", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "steps.csv").read_text().startswith(HEADER)
