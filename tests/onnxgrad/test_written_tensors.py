"""Networks whose forward pass writes over tensors, of which a graph would not know at the next step, are refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from edgefl.errors import EdgeflError
from edgefl.onnxgrad import training_step


def in_no_grad(net: Net) -> None:
    with torch.no_grad():
        net.layer.weight.clamp_(-1, 1)


def by_data(net: Net) -> None:
    net.layer.weight.data.clamp_(-1, 1)


def by_detach(net: Net) -> None:
    net.layer.weight.detach().clamp_(-1, 1)


def by_item(net: Net) -> None:
    net.layer.weight.data[0] = 0


def by_new_data(net: Net) -> None:
    net.layer.weight.data = net.layer.weight.data.clamp(-1, 1)


def count_unread(net: Net) -> None:
    net.seen += 1


def nothing(net: Net) -> None:
    """Read the data only."""
    net.scale = net.layer.weight.data.clamp(-1, 1).sum()


class Net(nn.Module):
    """A layer with weights below 1, so that clamps have no effect at first, and counters."""

    def __init__(self, write: Callable[[Net], None]) -> None:
        super().__init__()
        self.layer, self.write = nn.Linear(3, 2), write
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.write(self)
        found: Tensor = self.layer(x)
        return found


class Counting(nn.Module):
    """Divides by the number of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        found: Tensor = self.layer(x) / self.calls
        return found


def trained(net: nn.Module) -> None:
    training_step(net, lambda own, x: own(x).square().mean(), {"x": torch.rand(4, 3)})


@pytest.mark.parametrize("write", [in_no_grad, by_data, by_detach, by_item, by_new_data])
def test_a_parameter_that_forward_writes_over_is_refused(write: Callable[[Net], None]) -> None:
    with pytest.raises(EdgeflError, match=r"Net cannot be trained in ONNX: forward writes over (layer\.weight|a parameter)"):
        trained(Net(write))


@pytest.mark.parametrize("write", [count_unread, nothing])
def test_what_the_loss_does_not_read_may_change(write: Callable[[Net], None]) -> None:
    trained(Net(write))


def test_a_counter_that_the_next_step_reads_is_refused() -> None:
    with pytest.raises(EdgeflError, match="from the second step on: calls changes in a step, and a graph keeps its first value"):
        trained(Counting())


def test_a_network_may_return_its_input() -> None:
    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x

    training_step(Same(), lambda own, x: (own(x) * own.scale).square().mean(), {"x": torch.rand(4, 3)})
