"""Networks whose output has several dimensions for each sample: autoencoders, and a class for each pixel."""

import numpy as np
import pytest
import safetensors.numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgefl import Dataset, RunConfig, simulate
from edgefl.bundle.verify import verify
from edgefl.client.criterion import Criterion
from edgefl.errors import ConfigError, DataError
from edgefl.run import prepare as preparing

KEYS = {
    "method": "heterofl",
    "tiers": (1.0, 0.5),
    "partition": "iid",
    "clients": 4,
    "per_round": 4,
    "rounds": 2,
    "batch_size": 8,
    "conditions": "ideal",
}


def hourglass() -> nn.Module:
    """Images (batch, 1, 8, 8) → images of the same size."""
    return nn.Sequential(nn.Conv2d(1, 8, 2, 2), nn.ReLU(), nn.ConvTranspose2d(8, 1, 2, 2))


def classes_of_pixels() -> nn.Module:
    """Images (batch, 1, 8, 8) → four classes for each pixel, (batch, 4, 8, 8)."""
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))


def of_shares(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of probabilities, whose targets lie in [0, 1]; torch refuses others."""
    return F.binary_cross_entropy(outputs.sigmoid(), targets)


def of_classes(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each pixel's class; torch refuses classes that there are not."""
    return F.cross_entropy(outputs, targets.long())


def right(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of pixels with the right class."""
    return (outputs.argmax(1) == targets).float().mean()


right.better = "higher"  # type: ignore[attr-defined]
of_classes.metric = right  # type: ignore[attr-defined]

IMAGES = np.random.default_rng(0).random((80, 1, 8, 8)).astype(np.float32)
CASES = {
    "autoencoder": ("hourglass", "of_shares", IMAGES, 64),
    "classes of pixels": ("classes_of_pixels", "of_classes", (IMAGES[:, 0] * 4).astype(np.int64), 256),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_with_wide_outputs_has_a_bundle_of_rows(case: str, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    network, loss, targets, outputs = CASES[case]
    data = Dataset.from_arrays(IMAGES, targets)
    monkeypatch.setattr(preparing, "load", lambda *of: data)
    names = {"model": f"{__name__}:{network}", "loss": f"{__name__}:{loss}"}
    result = simulate(RunConfig(**KEYS, **names), tmp_path / "run")
    again = simulate(RunConfig(**KEYS, **names, runtime="onnx"), tmp_path / "onnx")
    assert "no_bundle" not in result.summary
    for row, other in zip(result.summary["tiers"], again.summary["tiers"], strict=True):
        assert row["accuracy"] == pytest.approx(row["torch_accuracy"], rel=1e-4)
        assert other["accuracy"] == pytest.approx(row["accuracy"], rel=0.02)
    bundle = tmp_path / "run" / "bundle"
    assert verify(bundle).files
    reference = safetensors.numpy.load((bundle / "0.5" / "reference.safetensors").read_bytes())
    assert reference["logits"].shape == (4, outputs)


def test_targets_are_drawn_as_the_data_could_have_them() -> None:
    pixels = Criterion.of(f"{__name__}:of_classes", np.array([[0.0, 3.0], [1.0, 2.0]], np.float32))
    shares = Criterion.of(f"{__name__}:of_shares", np.array([[-0.5], [0.25]], np.float32))
    random = torch.Generator().manual_seed(0)
    assert set(pixels.drawn(50, 0, random).flatten().tolist()) == {0.0, 1.0, 2.0, 3.0}
    drawn = shares.drawn(50, 0, random)
    assert (drawn.shape, float(drawn.min()) >= -0.5, float(drawn.max()) <= 0.25) == ((50, 1), True, True)
    assert float(drawn.max() - drawn.min()) > 0.5
    assert set(Criterion().drawn(50, 3, random).tolist()) == {0, 1, 2}


def test_a_graphs_row_is_measured_in_the_networks_shape() -> None:
    classes = np.arange(6).reshape(1, 2, 3) % 4
    found = Criterion.of(f"{__name__}:of_classes", classes.astype(np.float32)).checked(
        nn.Sequential(nn.Flatten(), nn.Linear(6, 24), nn.Unflatten(1, (4, 2, 3))),
        torch.rand(1, 2, 3),
        torch.tensor(classes).float(),
        0,
    )
    logits = np.eye(4, dtype=np.float32)[classes].transpose(0, 3, 1, 2)
    assert (found.output, found.measured(logits, classes), found.measured(logits.reshape(1, 24), classes)) == (
        (4, 2, 3),
        1.0,
        1.0,
    )
    assert Criterion.read(found.fields()) == found


def test_labels_have_one_dimension_and_classes_one_row() -> None:
    with pytest.raises(DataError, match=r"labels of shape \(80, 1\), expected one label each"):
        Dataset.from_arrays(IMAGES, np.zeros((80, 1), np.int64))
    with pytest.raises(ConfigError, match=r"returns \(2, 4, 8, 8\) for 2 samples, expected one tensor \(batch, 3 classes\)"):
        Criterion.of(f"{__name__}:summed").checked(classes_of_pixels(), torch.rand(2, 1, 8, 8), torch.tensor([0, 2]), 3)


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that takes any shape."""
    return outputs.square().mean() + 0 * targets.float().mean()
