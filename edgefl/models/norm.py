"""Normalisation policies. They matter in federated learning, because clients have few samples of few labels.

- ``group``: GroupNorm. Statistics are those of one sample, in training and in inference.
- ``static``: static BatchNorm (HeteroFL, section 3). Statistics are those of the batch in training. For evaluation they are computed once,
  by queries to the clients (:func:`calibrate`); they never travel during training.
- ``batch``: BatchNorm with the statistics of the batch in training and in inference (PriSM). None are stored or shared.
- ``layer``: LayerNorm, over each token's channels in a transformer, and over all values of a sample in a feature map.
- ``none``: no normalisation.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from edgefl.util.fields import Fields

POLICIES = ("group", "static", "batch", "none", "layer")
CHANNELS_PER_GROUP = 8


def norm2d(policy: str, channels: int) -> nn.Module:
    """Return the normalisation of a feature map (batch, ``channels``, height, width) under ``policy``.

    >>> norm2d("group", 64).num_groups, type(norm2d("static", 64)).__name__
    (8, 'StaticBatchNorm')
    """
    if policy == "group":
        return nn.GroupNorm(groups_of(channels), channels)
    if policy == "layer":
        return nn.GroupNorm(1, channels)
    if policy == "none":
        return nn.Identity()
    return BatchStatisticsNorm(channels) if policy == "batch" else StaticBatchNorm(channels)


def groups_of(channels: int) -> int:
    """Return the largest number of equal groups with at least eight channels each; 1 below sixteen channels.

    >>> groups_of(64), groups_of(16), groups_of(4), groups_of(19)
    (8, 2, 1, 1)
    """
    return max(g for g in range(1, max(1, channels // CHANNELS_PER_GROUP) + 1) if channels % g == 0)


class _BatchTrained(nn.Module):
    """Normalises with the statistics of the batch in training; subclasses say how in evaluation. A single value becomes the bias."""

    eps = 1e-5

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` (batch, channels, …)."""
        if not self.training:
            return self._evaluated(x)
        if x.numel() == x.shape[1]:  # one value per channel has no variance, and torch refuses it: the limit is the bias
            return x * 0 + self.bias.view([1, -1] + [1] * (x.dim() - 2))
        return F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)

    def _evaluated(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class BatchStatisticsNorm(_BatchTrained):
    """BatchNorm with the statistics of the present batch, also in evaluation (``track_running_stats=False``)."""

    def _evaluated(self, x: Tensor) -> Tensor:
        # In plain operators, because ONNX has no batch normalisation with the statistics of the batch in inference.
        axes = [0, *range(2, x.dim())]
        mean = x.mean(axes, keepdim=True)
        variance = (x - mean).square().mean(axes, keepdim=True)
        shape = [1, -1] + [1] * (x.dim() - 2)
        return (x - mean) * torch.rsqrt(variance + self.eps) * self.weight.view(shape) + self.bias.view(shape)


class StaticBatchNorm(_BatchTrained):
    """BatchNorm without running statistics; evaluation uses those of :func:`calibrate`, buffers that are not in ``state_dict``."""

    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.register_buffer("mean", torch.zeros(channels), persistent=False)
        self.register_buffer("variance", torch.ones(channels), persistent=False)

    def _evaluated(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.variance, self.weight, self.bias, False, 0.0, self.eps)


class SingleValues(TorchFunctionMode):
    """Within this context, BatchNorm trains on one value per channel, which torch refuses, as training graphs do.

    The normalised value is the bias. A single value has no variance over n − 1, and leaves the running variance as it is.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``, or normalise a single value per channel."""
        if func is F.batch_norm and (normal := _single(*args, **(kwargs or {}))) is not None:
            return normal
        return func(*args, **(kwargs or {}))


def _single(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """Return the training result of ``torch.nn.functional.batch_norm`` for one value per channel; None for other inputs."""
    if not training or input.numel() != input.shape[1]:
        return None
    if running_mean is not None:
        running_mean.lerp_(input.detach().flatten(), momentum)
    shape = [1, -1] + [1] * (input.dim() - 2)
    normal = input - input  # zeros, with zeros as gradients
    scaled = normal if weight is None else normal * weight.view(shape)
    return scaled if bias is None else scaled + bias.view(shape)


def splits_batches(network: nn.Module) -> bool:
    """Return whether the summed gradients of a batch's parts equal those of the batch: not if normalisation mixes samples."""
    together = (_BatchTrained, nn.modules.batchnorm._BatchNorm)
    return not any(isinstance(layer, together) for layer in network.modules())


def needs_statistics(network: nn.Module) -> bool:
    """Return whether ``network`` has static BatchNorm layers, which must be calibrated before an evaluation."""
    return any(isinstance(layer, StaticBatchNorm) for layer in network.modules())


@torch.no_grad()
def calibrate(network: nn.Module, batches: Iterable[Fields[Tensor]]) -> None:
    """Set the statistics of every static BatchNorm, in place, over ``batches`` of samples (batch, …) in training mode; sums in float64."""
    layers = [layer for layer in network.modules() if isinstance(layer, StaticBatchNorm)]
    moments: dict[nn.Module, list[Any]] = {layer: [0, 0.0, 0.0] for layer in layers}  # count, sum and sum of squares per channel

    def add(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        values = inputs[0].double().transpose(0, 1).flatten(1)
        more = values.shape[1], values.sum(1), values.square().sum(1)
        moments[layer] = [before + now for before, now in zip(moments[layer], more, strict=True)]

    hooks = [layer.register_forward_pre_hook(add) for layer in layers]
    training = network.training
    network.train()
    try:
        for x in batches:
            network(x)
    finally:
        network.train(training)
        for hook in hooks:
            hook.remove()
    for layer in layers:
        count, total, squares = moments[layer]
        if count:
            mean = total / count
            layer.mean.copy_(mean)
            layer.variance.copy_((squares / count - mean.square()).clamp_min(0.0))
