"""Functions at the borders of their pieces: the gradient of a training graph there is that of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.onnxgrad import Stepper, training_step

Function = Callable[[Tensor], Tensor]


class Family(nn.Module):
    """Functions of one input, each behind a shift of its own, whose gradient is that of the function."""

    def __init__(self, functions: Mapping[str, Function], size: int) -> None:
        super().__init__()
        self.functions = functions
        self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(size)) for _ in functions)

    def forward(self, x: Tensor) -> Tensor:
        """Return a shifted input: only the family's loss counts."""
        return x + self.shifts[0]


def loss(network: Family, x: Tensor) -> Tensor:
    """Return the sum of all functions' entries, with weights of both signs."""
    total = torch.zeros(())
    for shift, function in zip(network.shifts, network.functions.values(), strict=True):
        found = function(x + shift).flatten(1)
        weights = torch.sin(1.3 * torch.arange(found.shape[1], dtype=found.dtype) + 0.5)
        total = total + (found * weights).sum(1).mean()
    return total


def check_borders(functions: Mapping[str, Function], rows: Sequence[Sequence[float]], example: Tensor | None = None) -> None:
    """Compare the gradients of a graph, exported from ordinary values, with torch's for each row, and for all rows that are finite."""
    size = len(rows[0])
    ordinary = torch.linspace(0.15, 0.85, 2 * size).reshape(2, size) if example is None else example
    graphs = training_step(Family(functions, size), loss, {"x": ordinary})
    whole = torch.tensor(rows, dtype=torch.float32)
    for batch in (*(row[None] for row in whole), whole[whole.isfinite().all(1)]):
        network = Family(functions, size)
        stepper = Stepper(graphs, {f"p.shifts.{i}": np.zeros(size, np.float32) for i in range(len(functions))}, lr=1.0)
        stepper.step(batch.numpy())
        loss(network, batch).backward()
        for i, (name, shift) in enumerate(zip(functions, network.shifts, strict=True)):
            found, value = -stepper.tensors()[f"p.shifts.{i}"], gradient(shift)
            scale = max(1.0, float(np.abs(np.nan_to_num(value, posinf=0, neginf=0)).max()))
            message = f"{name} at {batch.tolist()}"
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5 * scale, equal_nan=True, err_msg=message)


def gradient(shift: nn.Parameter) -> np.ndarray[Any, Any]:
    """Return the gradient of a parameter; 0 if the loss does not depend on it."""
    return np.zeros(shift.shape, np.float32) if shift.grad is None else shift.grad.numpy()
