"""Normalizations."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Check, Operator, Rule


def _batch_norm(node: Operator, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    epsilon, momentum = node.get("epsilon", 1e-5), 1 - node.get("momentum", 0.9)
    training = node.training or bool(node.get("training_mode", 0))
    return F.batch_norm(x, mean, var, scale, bias, training, momentum, epsilon)


def _group_norm(node: Operator, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups = node.get("num_groups")
    if node.opset < 21:  # one scale a group; since then one a channel
        scale, bias = (v.repeat_interleave(x.shape[1] // groups) for v in (scale, bias))
    return F.group_norm(x, groups, scale, bias, node.get("epsilon", 1e-5))


def _instance_norm(node: Operator, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.instance_norm(x, weight=scale, bias=bias, eps=node.get("epsilon", 1e-5))


def _layer_norm(node: Operator, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    shape, epsilon = list(x.shape[node.get("axis", -1) :]), node.get("epsilon", 1e-5)
    if list(scale.shape) == shape and (bias is None or list(bias.shape) == shape):
        return F.layer_norm(x, shape, scale, bias, epsilon)
    y = F.layer_norm(x, shape, None, None, epsilon) * scale
    return y if bias is None else y + bias


def _rms_norm(node: Operator, x: Tensor, scale: Tensor) -> Tensor:
    shape, epsilon = list(x.shape[node.get("axis", -1) :]), node.get("epsilon", 1e-5)
    return F.rms_norm(x, shape, None, epsilon) * scale


RULES: dict[str, Rule] = {
    "BatchNormalization": _batch_norm, "GroupNormalization": _group_norm, "LayerNormalization": _layer_norm,
    "InstanceNormalization": _instance_norm, "RMSNormalization": _rms_norm,
}  # fmt: skip
CHECKS: dict[str, Check] = dict.fromkeys(("BatchNormalization", "LayerNormalization"), Operator.only_first_output)
STATISTICS: dict[str, tuple[int, ...]] = {"BatchNormalization": (3, 4)}
