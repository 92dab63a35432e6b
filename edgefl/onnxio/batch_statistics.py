"""BatchNorm with running statistics in training, in a form that exports as what it does.

torch's exporter turns it into the inference operator, and says so nowhere: the graph would normalise with the running statistics, and
never change them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def exportable(network: nn.Module) -> Iterator[None]:
    """Within the context, layers of ``network`` that keep running statistics compute the batch's, and the new running ones, in the open.

    The results are torch's: normalised by the batch's variance over n, kept: the one over n − 1.
    """
    layers: list[Any] = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for layer in layers:
        layer.forward = _Forward(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


class _Forward:
    """A layer's ``forward``, in training written out."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        layer, axes = self.layer, [0, *range(2, x.dim())]
        if not layer.training:
            result: Tensor = type(layer).forward(layer, x)
            return result
        normal = F.batch_norm(x, None, None, layer.weight, layer.bias, True, 0.0, layer.eps)
        mean, variance = x.mean(axes), (x - x.mean(axes, keepdim=True)).square().mean(axes)
        count = x.numel() / x.shape[1]
        if layer.momentum is None:
            layer.num_batches_tracked.add_(1)
        share = 1.0 / layer.num_batches_tracked if layer.momentum is None else layer.momentum
        layer.running_mean.copy_((1 - share) * layer.running_mean + share * mean)
        layer.running_var.copy_((1 - share) * layer.running_var + share * variance * (count / (count - 1)))
        return normal
