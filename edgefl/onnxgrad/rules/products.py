"""Matrix products, reductions of axes to one value, running sums, the places of the largest values, normalizations and losses."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Array, Check, Choices, Operator, Rule, numbers, simple


def _gemm(node: Operator, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a, b = (m.t() if node.get(key, 0) else m for m, key in ((a, "transA"), (b, "transB")))
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if c is not None:
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)
    return a @ b if alpha == 1 else alpha * (a @ b)


Reduction = Callable[[Tensor, list[int], bool], Tensor]


def _reduce(function: Reduction) -> Rule:
    """Return a rule that reduces over the given axes; without axes over all, or none with ``noop_with_empty_axes``."""

    def rule(node: Operator, x: Tensor, given: Array | None = None) -> Tensor:
        axes = list(node.get("axes", ())) if given is None else numbers(given)
        if not axes and node.get("noop_with_empty_axes", 0):
            return x
        return function(x, axes or list(range(x.dim())), bool(node.get("keepdims", 1))).to(x.dtype)

    return rule


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = x.prod(axis, keep)
    return x


def _norm(order: int) -> Reduction:
    """Return a norm; torch's own has a gradient of 0 at 0, but takes no integers."""

    def reduction(x: Tensor, axes: list[int], keep: bool) -> Tensor:
        return torch.linalg.vector_norm(x if x.is_floating_point() else x.double(), order, axes, keep)

    return reduction


def _arg(function: Callable[..., Tensor]) -> Rule:
    def rule(node: Operator, x: Tensor) -> Tensor:
        axis, keep = node.get("axis", 0), bool(node.get("keepdims", 1))
        if node.get("select_last_index", 0):
            return x.shape[axis] - 1 - function(x.flip(axis), dim=axis, keepdim=keep)
        return function(x, dim=axis, keepdim=keep)

    return rule


def _running(function: Callable[..., Tensor], start: float) -> Rule:
    """Return a rule for a sum or product of the values up to each place, or before it with ``exclusive``."""

    def rule(node: Operator, x: Tensor, given: Array) -> Tensor:
        axis, backwards = int(given.item()) % x.dim(), bool(node.get("reverse", 0))
        x = x.flip(axis) if backwards else x
        if node.get("exclusive", 0):
            x = torch.cat([torch.full_like(x.narrow(axis, 0, 1), start), x.narrow(axis, 0, x.shape[axis] - 1)], axis)
        y = function(x, axis, dtype=x.dtype)
        return y.flip(axis) if backwards else y

    return rule


def _top_k(node: Operator, x: Tensor, k: Array) -> tuple[Tensor, Tensor]:
    axis, count, largest = node.get("axis", -1), int(k.item()), bool(node.get("largest", 1))
    if torch.compiler.is_exporting():  # as ONNX's own operator
        values, places = torch.topk(x, count, axis, largest)
        return values, places
    # Of equal values the one with the lower index comes first, which torch.topk does not promise.
    values, places = torch.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, count), places.narrow(axis, 0, count)


REDUCTIONS: dict[str, Reduction] = {
    "ReduceSum": torch.sum, "ReduceMean": torch.mean, "ReduceMax": torch.amax, "ReduceMin": torch.amin, "ReduceProd": _product,
    "ReduceLogSumExp": torch.logsumexp, "ReduceLogSum": lambda x, axes, keep: x.sum(axes, keep).log(),
    "ReduceL1": _norm(1), "ReduceL2": _norm(2), "ReduceSumSquare": lambda x, axes, keep: x.square().sum(axes, keep),
}  # fmt: skip


_LOSSES = "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"
_NEVER = torch.iinfo(torch.int64).min


def _nll(node: Operator, x: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    return F.nll_loss(
        x, labels.long(), weight, ignore_index=node.get("ignore_index", _NEVER), reduction=node.get("reduction", "mean")
    )


def _cross_entropy(node: Operator, x: Tensor, labels: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    shares = x.log_softmax(1)
    return _nll(node, shares, labels, weight), shares


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
    "MatMul": simple(torch.matmul), "Gemm": _gemm, "Det": simple(torch.linalg.det),
    "Einsum": lambda node, *operands: torch.einsum(node.get("equation"), *operands),
    **{name: _reduce(function) for name, function in REDUCTIONS.items()},
    "ArgMax": _arg(torch.argmax), "ArgMin": _arg(torch.argmin), "TopK": _top_k,
    "CumSum": _running(torch.cumsum, 0), "CumProd": _running(torch.cumprod, 1),
    "NegativeLogLikelihoodLoss": _nll, "SoftmaxCrossEntropyLoss": _cross_entropy,
    "BatchNormalization": _batch_norm, "GroupNormalization": _group_norm, "LayerNormalization": _layer_norm,
    "InstanceNormalization": lambda node, x, scale, bias: F.instance_norm(x, weight=scale, bias=bias, eps=node.get("epsilon", 1e-5)),
    "RMSNormalization": lambda node, x, scale: (
        F.rms_norm(x, list(x.shape[node.get("axis", -1) :]), None, node.get("epsilon", 1e-5)) * scale
    ),
    "LRN": _local_response_norm, "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance,
}  # fmt: skip
ATTRIBUTES = {
    "Gemm": "alpha beta transA transB", "Einsum": "equation",
    **dict.fromkeys(REDUCTIONS, "axes keepdims noop_with_empty_axes"),
    **dict.fromkeys(("ArgMax", "ArgMin"), "axis keepdims select_last_index"), "TopK": "axis largest sorted",
    **dict.fromkeys(("CumSum", "CumProd"), "exclusive reverse"), **dict.fromkeys(_LOSSES, "ignore_index reduction"),
    "BatchNormalization": "epsilon momentum training_mode", "GroupNormalization": "epsilon num_groups",
    "LayerNormalization": "axis epsilon", "InstanceNormalization": "epsilon", "RMSNormalization": "axis epsilon",
    "LRN": "alpha beta bias size", "LpNormalization": "axis p", "MeanVarianceNormalization": "axes",
}  # fmt: skip
CHOICES: dict[str, Choices] = {name: {"reduction": ("none", "mean", "sum")} for name in _LOSSES}
CHECKS: dict[str, Check] = {"BatchNormalization": Operator.only_first_output}
KNOWN = dict.fromkeys((*REDUCTIONS, "TopK", "CumSum", "CumProd"), (1,))
WEIGHTS = {"Gemm": (1, 2), "BatchNormalization": (1, 2)}
STATISTICS: dict[str, tuple[int, ...]] = {"BatchNormalization": (3, 4)}
UNTRAINED: dict[str, tuple[int, ...]] = dict.fromkeys(_LOSSES, (2,))
