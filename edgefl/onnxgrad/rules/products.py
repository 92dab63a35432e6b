"""Matrix products, reductions of axes to one value, running sums, the places of the largest values, and losses."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Array, Choices, Operator, Rule, numbers, simple


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


_NEVER = torch.iinfo(torch.int64).min


def _nll(node: Operator, x: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    return F.nll_loss(
        x, labels.long(), weight, ignore_index=node.get("ignore_index", _NEVER), reduction=node.get("reduction", "mean")
    )


def _cross_entropy(node: Operator, x: Tensor, labels: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    shares = x.log_softmax(1)
    return _nll(node, shares, labels, weight), shares


RULES: dict[str, Rule] = {
    "MatMul": simple(torch.matmul), "Gemm": _gemm, "Det": simple(torch.linalg.det),
    "Einsum": lambda node, *operands: torch.einsum(node.get("equation"), *operands),
    **{name: _reduce(function) for name, function in REDUCTIONS.items()},
    "ArgMax": _arg(torch.argmax), "ArgMin": _arg(torch.argmin), "TopK": _top_k,
    "CumSum": _running(torch.cumsum, 0), "CumProd": _running(torch.cumprod, 1),
    "NegativeLogLikelihoodLoss": _nll, "SoftmaxCrossEntropyLoss": _cross_entropy,
}  # fmt: skip
_LOSSES = "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"
ATTRIBUTES = {
    "Gemm": "alpha beta transA transB", "Einsum": "equation",
    **dict.fromkeys(REDUCTIONS, "axes keepdims noop_with_empty_axes"),
    **dict.fromkeys(("ArgMax", "ArgMin"), "axis keepdims select_last_index"), "TopK": "axis largest sorted",
    **dict.fromkeys(("CumSum", "CumProd"), "exclusive reverse"), **dict.fromkeys(_LOSSES, "ignore_index reduction"),
}  # fmt: skip
CHOICES: dict[str, Choices] = {name: {"reduction": ("none", "mean", "sum")} for name in _LOSSES}
KNOWN = dict.fromkeys((*REDUCTIONS, "TopK", "CumSum", "CumProd"), (1,))
WEIGHTS = {"Gemm": (1, 2)}
UNTRAINED: dict[str, tuple[int, ...]] = dict.fromkeys(_LOSSES, (2,))
