"""What a plug-in's data set says of itself is checked before a run trains: bundles and reports repeat it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import edgefl
from edgefl.errors import ConfigError, NoBundleError
from edgefl.registry import datasets
from edgefl.run import bundle
from edgefl.run.checks import check_preparation

LARGEST = "of at most 4.6e+18"
WRONG = {
    "scale": ({"scale": float("nan")}, f"scale: got nan, expected a finite number {LARGEST}"),
    "several scales": ({"scale": [1.0, 2.0]}, f"scale: got [1.0, 2.0], expected a finite number {LARGEST}"),
    "deviation": (
        {"std": [1.0, 0.0]},
        f"std: got [1.0, 0.0], expected finite numbers, one or a list, {LARGEST}, and none of std is 0",
    ),
    "array": ({"mean": np.zeros(1)}, f"mean: got array([0.]), expected finite numbers, one or a list, {LARGEST}"),
    "large": ({"mean": -1e30}, f"mean: got -1e+30, expected finite numbers, one or a list, {LARGEST}"),
}


@pytest.fixture
def _forgotten() -> Any:
    """Forget the data set of a test: the registries are the process's."""
    yield
    for known in (datasets._plugged, datasets._loaded, datasets._facts):
        known.pop("mine", None)


DATA = """
import numpy as np
from edgefl.extend import Dataset, Split, dataset

def split(count):
    return Split(np.zeros((count, 1, 8, 8), np.float32), np.arange(count) % 2)

@dataset("mine")
def mine(data_dir=None):
    return Dataset("mine", "Mine", split(20), split(4), {names}, {preprocessing}, "mlp")
"""


@pytest.mark.parametrize(
    ("names", "preprocessing", "message"),
    [
        ("('a', 'b')", "{'std': 0.0}", "dataset mine: preprocessing: std: got 0.0, expected finite numbers"),
        ("(0, 1)", "{}", "dataset mine: class_names: got 0, expected texts"),
    ],
)
@pytest.mark.usefixtures("_forgotten")
def test_a_wrong_description_ends_the_run_before_anything_is_written(
    names: str, preprocessing: str, message: str, called: Any
) -> None:
    Path("mine.py").write_text(DATA.format(names=names, preprocessing=preprocessing), encoding="utf-8")
    status, output, errors = called("simulate", "--plugin=mine.py", "--data=mine", "--clients=2", "--out=run")
    assert (status, output, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"Error: {message}")
    assert not Path("run").exists()


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_preparation_names_key_value_and_expectation(case: str, tmp_path: Path) -> None:
    how, message = WRONG[case]
    with pytest.raises(ConfigError) as error:
        check_preparation("dataset x: ", {"ids": {}, "image": how}, {"ids": (3,), "image": (1, 8, 8)})
    assert str(error.value) == f"dataset x: preprocessing: input image: {message}"
    with pytest.raises(ConfigError) as error:
        edgefl.export_network(nn.Linear(4, 2), torch.zeros(2, 4), tmp_path / "bundle", preprocessing=how)
    assert str(error.value) == f"preprocessing: {message}"
    assert not (tmp_path / "bundle").exists()


def test_a_preparation_that_is_no_dictionary_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^preprocessing: input mask: got 1\.0, expected a dictionary for each input$"):
        check_preparation("", {"mask": 1.0}, {"mask": (3,)})


def test_a_run_whose_manifest_is_refused_finishes_without_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"input_shape": (0,), "preprocessing": {}}
    monkeypatch.setattr(bundle, "about_inputs", lambda *_: shape)
    config = edgefl.RunConfig(model="mlp", method="fedavg", tiers=(1.0,), rounds=1, clients=2, data_share=0.1)
    result = edgefl.simulate(config, tmp_path / "run")
    assert result.summary["no_bundle"].startswith("its manifest is refused: input_shape")
    with pytest.raises(NoBundleError, match="its manifest is refused: input_shape"):
        edgefl.export(tmp_path / "run", tmp_path / "bundle")
