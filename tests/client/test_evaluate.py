"""How models are evaluated: the same outputs however images lie in memory, and for networks that insist on one layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from edgefl.client import evaluate
from edgefl.data.sources import Split
from edgefl.models.base import Architecture


def images(count: int, shape: tuple[int, ...] = (1, 28, 28)) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, *shape)).astype(np.float32)


@pytest.mark.parametrize(("model", "shape"), [("cnn-digits", (1, 8, 8)), ("cnn-femnist", (1, 28, 28)), ("resnet9", (3, 32, 32))])
def test_outputs_are_those_of_one_plain_pass(model, shape):
    network, x = Architecture(model, shape, 10).build().eval(), images(37, shape)
    before = {name: tensor.stride() for name, tensor in network.state_dict().items()}
    found = evaluate.outputs(network, x, 8)
    with torch.no_grad():
        np.testing.assert_allclose(found, network(torch.from_numpy(x)).numpy(), rtol=1e-4, atol=1e-5)
    assert {name: tensor.stride() for name, tensor in network.state_dict().items()} == before


class Viewing(nn.Module):
    """What a user may write: it fails where channels lie last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).view(len(x), -1)


def test_a_network_that_views_its_features_is_evaluated_too():
    network, x = Viewing(), images(5)
    with torch.no_grad():
        assert np.array_equal(evaluate.outputs(network, x, 2)[:2], network(torch.from_numpy(x[:2])).numpy())


def test_an_error_of_the_network_is_not_hidden():
    with pytest.raises(RuntimeError, match="channels"):
        evaluate.outputs(nn.Conv2d(3, 1, 1), images(2), 2)


def test_samples_that_cannot_be_written_are_evaluated_without_a_warning():
    x = images(3)
    x.setflags(write=False)
    assert 0.0 <= evaluate.accuracy(Viewing(), Split(x, np.array([0, 1, 2])), 2) <= 1.0
