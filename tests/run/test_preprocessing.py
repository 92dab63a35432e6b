"""Weights and how samples are prepared belong together: the choice must be made, and round 0 shows what they are worth."""

import json

import numpy as np
import pytest
import safetensors.torch
import torch

from edgefl import RunConfig
from edgefl.data.given import Reading
from edgefl.data.mix import load
from edgefl.data.prescribed import prescribed
from edgefl.errors import ConfigError, DataError
from edgefl.run.prepare import prepare
from edgefl.util.units import human_percent

N = 80
RUN = ("--model", "mlp", "--method", "fedavg", "--tiers", "1", "--partition", "iid", "--clients", "3", "--rounds", "1")


@pytest.fixture
def own(tmp_path):
    """Raw values far from 0, and weights that separate them as they are."""
    rng, y = np.random.default_rng(0), np.arange(N) % 2
    np.savez(tmp_path / "own.npz", x=(rng.normal(size=(N, 3)) * 0.1 + 5 + 2 * y[:, None]).astype(np.float32), y=y)
    return tmp_path / "own.npz"


@pytest.fixture
def weights(tmp_path, own):
    config = RunConfig(dataset=str(own), model="mlp", method="fedavg", tiers=(1.0,), clients=3, partition="iid")
    module = prepare(config).architecture.build()
    tensors = {name: torch.zeros_like(tensor) for name, tensor in module.state_dict().items()}
    first, bias, last, end = tensors
    tensors[first][0] = 1.0  # the sum of a sample, 15 or 21, minus 18
    tensors[bias][0] = -18.0
    tensors[last][1, 0] = 1.0
    tensors[end][0] = 0.5
    safetensors.torch.save_file(tensors, tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def test_the_choice_is_made_recorded_and_round_0_is_said(own, weights, tmp_path, called):
    run = ("simulate", "--data", str(own), "--weights", str(weights), *RUN)
    status, _, errors = called(*run, "--out", str(tmp_path / "none"))
    assert (status, "would be normalised by its own mean" in errors, "give --preprocessing (none" in errors) == (2, True, True)
    (tmp_path / "how.json").write_text(json.dumps({"scale": 1, "mean": [5, 5, 5], "std": 0.1}))
    for name, given, before in (("raw", "none", 1.0), ("file", str(tmp_path / "how.json"), 0.5)):
        out = tmp_path / name
        status, _, errors = called(*run, "--preprocessing", given, "--lr", "0.001", "--out", str(out))
        assert status == 0, errors
        summary = json.loads((out / "summary.json").read_text())
        assert summary["before_training"] >= before
        assert f"before training: {human_percent(summary['before_training'])}" in errors
        assert "Before training" in (out / "report.html").read_text()
        note = json.loads((out / "bundle" / "manifest.json").read_text())["preprocessing"]
        assert note == {
            "scale": 1,
            "raw": "float32",
            **({"mean": 0.0, "std": 1.0} if given == "none" else {"mean": [5, 5, 5], "std": 0.1}),
        }
    again = ("simulate", "--out", str(tmp_path / "raw"), "--resume", "--rounds", "2")
    assert called(*again)[0] == 0
    assert called("export", str(tmp_path / "raw"), "--format", "weights", "--out", str(tmp_path / "weights"))[0] == 0
    exported = next((tmp_path / "weights").iterdir())
    assert json.loads(prescribed("from-weights", str(exported))) == {"mean": 0.0, "scale": 1.0, "std": 1.0}


def test_samples_are_as_they_were_or_as_a_file_says(own, tmp_path):
    x = np.load(own)["x"]
    data = load(str(own), reading=Reading(preprocessing=prescribed("none")))
    found = np.concatenate([np.asarray(data.train.x), np.asarray(data.test.x)])
    assert np.array_equal(np.sort(found, axis=0), np.sort(x, axis=0))
    assert "as it was prescribed" in data.record.scaling[0]
    processor = {
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.2, 0.2, 0.1],
        "size": 8,
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    pixels = np.random.default_rng(0).integers(0, 256, (N, 3, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "pixels.npz", x=pixels, y=np.arange(N) % 2)
    how = prescribed(str(tmp_path / "preprocessor_config.json"))
    data = load(str(tmp_path / "pixels.npz"), reading=Reading(preprocessing=how))
    expected = (pixels / 255 - np.reshape([0.5, 0.4, 0.3], (3, 1, 1))) / np.reshape([0.2, 0.2, 0.1], (3, 1, 1))
    assert np.allclose(
        np.sort(np.concatenate([np.asarray(data.train.x), np.asarray(data.test.x)]), axis=0), np.sort(expected, axis=0), atol=1e-6
    )
    assert data.preprocessing == json.loads(how)


def test_what_prescribes_nothing_is_refused(own, tmp_path):
    (tmp_path / "how.json").write_text('{"mean": 1}')
    with pytest.raises(DataError, match="no scale, std; expected scale, mean and std"):
        prescribed(str(tmp_path / "how.json"))
    (tmp_path / "how.json").write_text("{")
    with pytest.raises(DataError, match="how.json: not valid JSON"):
        prescribed(str(tmp_path / "how.json"))
    with pytest.raises(DataError, match="none.json: cannot be read"):
        prescribed(str(tmp_path / "none.json"))
    with pytest.raises(DataError, match="std: got 0, expected a number or one for each channel, none of them 0"):
        prescribed('{"scale": 1, "mean": 0, "std": 0}')
    with pytest.raises(DataError, match="its metadata have no 'preprocessing'"):
        prescribed("from-weights", str(own))
    with pytest.raises(DataError, match="from-weights, but there are no weights"):
        prescribed("from-weights")
    with pytest.raises(DataError, match="2 values of mean, expected one, or one for each of 3 channels"):
        load(str(own), reading=Reading(preprocessing='{"scale": 1, "mean": [1, 2], "std": 1}'))
    with pytest.raises(ConfigError, match="preprocessing: digits has its own"):
        load("digits", reading=Reading(preprocessing=prescribed("none")))
