"""Descent of a module on one batch."""

from torch import nn
from torch.optim import SGD

from edgefl.methods.base import Method
from edgefl.records import Batch


def descended(method: Method, module: nn.Module, batch: Batch, lr: float, steps: int) -> list[float]:
    """Take steps of SGD with momentum 0.9 on the loss of ``method``, and return the losses."""
    optimizer = SGD(module.parameters(), lr=lr, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = method.local_loss(module, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
