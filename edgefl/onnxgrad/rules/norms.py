"""Normalizations, over the batch, over channels or over the values of a sample."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Check, Operator, Rule


def _batch_norm(node: Operator, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    epsilon, momentum = node.get("epsilon", 1e-5), 1 - node.get("momentum", 0.9)
    training = node.training or bool(node.get("training_mode", 0))
    return F.batch_norm(x, mean, var, scale, bias, training, momentum, epsilon)


def _group_norm(node: Operator, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups = node.get("num_groups")
    if node.opset < 21:  # one scale for each group; newer sets have one for each channel
        scale, bias = (v.repeat_interleave(x.shape[1] // groups) for v in (scale, bias))
    return F.group_norm(x, groups, scale, bias, node.get("epsilon", 1e-5))


def _layer_norm(node: Operator, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = node.get("axis", -1) % x.dim()
    shape, epsilon = list(x.shape[axis:]), node.get("epsilon", 1e-5)
    if list(scale.shape) == shape and (bias is None or list(bias.shape) == shape):
        y = F.layer_norm(x, shape, scale, bias, epsilon)
    else:
        y = F.layer_norm(x, shape, None, None, epsilon) * scale
        y = y if bias is None else y + bias
    if not any(node.wanted[1:]):
        return (y,)
    mean = x.mean(list(range(axis, x.dim())), keepdim=True)
    variance = (x - mean).square().mean(list(range(axis, x.dim())), keepdim=True)
    return y, mean, (variance + epsilon).rsqrt()


def _rms_norm(node: Operator, x: Tensor, scale: Tensor) -> Tensor:
    return F.rms_norm(x, list(x.shape[node.get("axis", -1) :]), None, node.get("epsilon", 1e-5)) * scale


def _local_response_norm(node: Operator, x: Tensor) -> Tensor:
    size, exponent = node.get("size"), node.get("beta", 0.75)
    begin, end = (size - 1) // 2, size // 2
    squares = F.pad(x.square().flatten(2).unsqueeze(1), (0, 0, begin, end))
    mean = F.avg_pool2d(squares, (size, 1), 1).reshape(x.shape)
    return x / (node.get("bias", 1.0) + node.get("alpha", 1e-4) * mean).pow(exponent)


def _lp_normalization(node: Operator, x: Tensor) -> Tensor:
    axis, order = node.get("axis", -1), node.get("p", 2)
    norm = torch.linalg.vector_norm(x, order, axis, True)
    return torch.where(norm == 0, 0.0, x / torch.where(norm == 0, 1.0, norm))


def _mean_variance(node: Operator, x: Tensor) -> Tensor:
    axes = node.get("axes", [0, 2, 3])
    centred, values = x - x.mean(axes, True), math.prod(x.shape[axis] for axis in axes)
    return centred / (torch.linalg.vector_norm(centred, 2, axes, True) / math.sqrt(values) + 1e-9)


RULES: dict[str, Rule] = {
    "BatchNormalization": _batch_norm, "GroupNormalization": _group_norm, "LayerNormalization": _layer_norm,
    "InstanceNormalization": lambda node, x, scale, bias: F.instance_norm(x, weight=scale, bias=bias, eps=node.get("epsilon", 1e-5)),
    "RMSNormalization": _rms_norm, "LRN": _local_response_norm, "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance,
}  # fmt: skip
ATTRIBUTES = {
    "BatchNormalization": "epsilon momentum training_mode", "GroupNormalization": "epsilon num_groups",
    "LayerNormalization": "axis epsilon", "InstanceNormalization": "epsilon", "RMSNormalization": "axis epsilon",
    "LRN": "alpha beta bias size", "LpNormalization": "axis p", "MeanVarianceNormalization": "axes",
}  # fmt: skip
WEIGHTS = {"BatchNormalization": (1, 2)}
STATISTICS: dict[str, tuple[int, ...]] = {"BatchNormalization": (3, 4)}
CHECKS: dict[str, Check] = {"BatchNormalization": Operator.only_first_output}
