"""How models are evaluated: the same outputs however images lie in memory, and for networks that insist on one layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from edgefl.client import evaluate
from edgefl.data.sources import Split
from edgefl.models.base import Architecture
from edgefl.rng import generator, torch_seeded
from edgefl.util.compute import in_parallel


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


class Counting(nn.Module):
    """A network whose output depends on the batches before: by an attribute, a buffer, or torch's generator."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.calls = kind, 0
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "attribute":
            self.calls += 1
        elif self.kind == "buffer":
            self.batches += 1
        drawn = torch.rand(()) if self.kind == "generator" else 0.0
        return x.flatten(1)[:, :3] + self.calls + self.batches + drawn


@pytest.mark.parametrize("kind", ["attribute", "buffer", "generator"])
def test_batches_that_depend_on_those_before_come_one_after_the_other(kind):
    found = []
    for threads in (1, 4):
        with torch_seeded(generator(0, "evaluated")):
            found.append(evaluate.outputs(Counting(kind), images(40), 2, threads))
    assert np.array_equal(*found)
    assert len(np.unique(found[0][:, 0] - images(40).reshape(40, -1)[:, 0])) > 10


@pytest.mark.parametrize(("model", "shape"), [("cnn-fashion", (1, 28, 28)), ("resnet9", (3, 32, 32)), ("lstm-imdb", (80,))])
def test_threads_leave_the_bits_alone(model, shape, monkeypatch):
    network = Architecture(model, shape, 2).build()
    x = images(75, shape) if len(shape) == 3 else np.random.default_rng(1).integers(0, 100, (75, *shape))
    used = []
    monkeypatch.setattr(evaluate, "in_parallel", lambda tasks, threads: used.append(threads) or in_parallel(tasks, threads))
    assert np.array_equal(evaluate.outputs(network, x, 8), evaluate.outputs(network, x, 8, 2))
    assert used == [2]
    assert torch.get_num_threads() == 1


def test_threads_do_not_record_gradients_and_do_not_hide_errors():
    class Odd(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not torch.is_grad_enabled()
            if x[0, 0] == 6:
                raise ValueError("odd")
            return super().forward(x)

    x = np.arange(16.0, dtype=np.float32).reshape(8, 2)
    with pytest.raises(ValueError, match="odd"):
        evaluate.outputs(Odd(2, 2), x, 1, 2)
    assert evaluate.outputs(Odd(2, 2), x + 1, 1, 2).shape == (8, 2)
