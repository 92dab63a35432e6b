"""BatchNorm with running statistics in training, in a form that exports as what it does.

torch's exporter turns it into the inference operator, and says so nowhere: the graph would normalise with the running statistics, and
never change them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.onnx.ops
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from edgefl.errors import EdgeflError
from edgefl.onnxgrad.exporter import OPSET


@contextmanager
def exportable(network: nn.Module) -> Iterator[None]:
    """Within the context, layers of ``network`` that keep running statistics export as the operator in training mode and their update.

    What a graph computes is torch's: normalised by the batch's variance over n, kept: the one over n − 1. Only for export: called in
    torch, the layers return nothing of use.

    Raises:
        EdgeflError: a layer's momentum is None: the mean over all batches needs their count, which no training graph has.
    """
    named = {n: m for n, m in network.named_modules() if isinstance(m, _BatchNorm) and m.track_running_stats}
    if counting := [name for name, layer in named.items() if layer.momentum is None]:
        raise EdgeflError(f"layer {counting[0]}: BatchNorm with momentum None cannot be trained in ONNX, expected a number")
    layers: list[Any] = list(named.values())
    for layer in layers:
        layer.forward = _Forward(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


class _Forward:
    """A layer's ``forward``, in training with its statistics as results."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        layer = self.layer
        if not layer.training:
            result: Tensor = type(layer).forward(layer, x)
            return result
        normal, mean, variance = _normalised(x, layer)
        count = x.numel() / x.shape[1]
        share = layer.momentum
        layer.running_mean.copy_((1 - share) * layer.running_mean + share * mean)
        layer.running_var.copy_((1 - share) * layer.running_var + share * variance * (count / (count - 1)))
        return normal


def _normalised(x: Tensor, layer: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the node that normalises by the batch, with the mean and the variance (over n) that it found."""
    channels = layer.num_features
    weight = x.new_ones(channels) if layer.weight is None else layer.weight
    bias = x.new_zeros(channels) if layer.bias is None else layer.bias
    found = torch.onnx.ops.symbolic_multi_out(
        "BatchNormalization",
        (x, weight, bias, layer.running_mean, layer.running_var),
        attrs={"training_mode": 1, "momentum": 0.0, "epsilon": layer.eps},
        dtypes=(x.dtype,) * 3,
        shapes=(x.shape, (channels,), (channels,)),
        version=OPSET,
    )
    return found[0], found[1], found[2]
