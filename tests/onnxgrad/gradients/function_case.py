"""A function of torch behind a layer with weights: its training graph has the gradients of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edgefl.onnxgrad import Stepper, training_step


class Of(nn.Module):
    """A function between a layer with weights and one sum."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Conv2d(2, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the function's result for the layer's."""
        found: Tensor = self.function(self.layer(x))
        return found


def slope(network: nn.Module, x: Tensor) -> Tensor:
    """Return a loss with weights of both signs."""
    found = network(x).flatten(1)
    return (found * torch.sin(1.3 * torch.arange(found.shape[1]))).sum(1).mean() + found.square().mean()


def check_network(network: nn.Module, x: np.ndarray[Any, Any]) -> None:
    """Compare the graph's step from float32 weights with the gradients of torch in float64, for ``x`` and for its first sample."""
    example = torch.zeros_like(torch.from_numpy(x)[:2])
    graphs = training_step(network, lambda own, x: slope(own, x), {"x": example})
    names = dict(network.named_parameters())
    before = {name: parameter.detach().double() for name, parameter in names.items()}
    values = {f"p.{name}": parameter.detach().numpy().copy() for name, parameter in names.items()}
    double = network.double()
    for samples in (len(x), 1):
        stepper = Stepper(graphs, values, 1.0)
        loss = stepper.step(x[:samples])
        own = torch.from_numpy(x[:samples])
        double.zero_grad()
        expected = slope(double, own.double() if own.is_floating_point() else own)
        expected.backward()
        assert loss == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)  # hundreds of terms of both signs may cancel
        for name, parameter in double.named_parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            found = before[name] - torch.from_numpy(stepper.tensors()[f"p.{name}"]).double()
            torch.testing.assert_close(found, gradient, rtol=0, atol=2e-5 * float(gradient.abs().max()) + 1e-6)
