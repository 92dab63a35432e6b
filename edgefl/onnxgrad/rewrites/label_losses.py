"""Cross-entropy that torch's exporter gets wrong: with smoothed or soft labels, and one value for each; used while a module is traced."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.graphs import OPSET


def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor | None:
    """Compute it by the log of softmax, but with plain labels as the operator with a rule."""
    if size_average is not None or reduce is not None:
        return None
    if input.dim() == 1:  # the logits of one sample
        batch = input.unsqueeze(0), target.unsqueeze(0), weight, None, ignore_index, None, reduction, label_smoothing
        found = _cross_entropy(*batch)
        return (F.cross_entropy(*batch) if found is None else found).reshape(())
    soft = target.is_floating_point()
    if not isinstance(input.shape[1], int) and not soft and input.dim() == 2 and weight is None:
        return _among_samples(input, target, ignore_index, reduction, label_smoothing)
    if not soft and not label_smoothing:
        return _each("SoftmaxCrossEntropyLoss", input, target, weight, ignore_index) if reduction == "none" else None
    classes, logs = input.shape[1], input.log_softmax(1)
    weighted = logs if weight is None else logs * weight.reshape(-1, *[1] * (input.dim() - 2))
    if soft:
        own = -(weighted * (target * (1 - label_smoothing) + label_smoothing / classes)).sum(1)
        return own.mean() if reduction == "mean" else _reduced(own, reduction)
    plain = _nll(logs, target, weight, None, ignore_index, None, reduction)
    if plain is None:
        plain = F.nll_loss(logs, target, weight, ignore_index=ignore_index, reduction=reduction)
    ignored, zero = target == ignore_index, logs.new_zeros(())
    even = torch.where(ignored, zero, -weighted.sum(1))
    if reduction == "mean":
        shares = (
            weighted.new_ones(target.shape) if weight is None else weight[torch.where(ignored, torch.zeros_like(target), target)]
        )
        even = even.sum() / torch.where(ignored, zero, shares).sum()
    return (1 - label_smoothing) * plain + label_smoothing / classes * _reduced(even, reduction)


def _among_samples(input: Tensor, target: Tensor, ignore_index: int, reduction: str, smoothing: float) -> Tensor:
    """Compute the loss of logits (samples, classes) whose classes are the samples of the batch, as in contrastive learning."""
    logs = input.log_softmax(1)
    ignored = target == ignore_index
    own = -logs.gather(1, torch.where(ignored, 0, target).unsqueeze(1)).squeeze(1)
    if smoothing:
        own = (1 - smoothing) * own - smoothing * logs.mean(1)
    own = torch.where(ignored, 0, own)
    return own.sum() / (~ignored).to(input.dtype).sum() if reduction == "mean" else _reduced(own, reduction)


def _nll(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor | None:
    if input.dim() < 2 or size_average is not None or reduce is not None or reduction != "none":
        return None
    return _each("NegativeLogLikelihoodLoss", input, target, weight, ignore_index)


def _each(operator: str, input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """Return the loss of each label, of its own shape: the exporter takes it for a scalar."""
    found: Tensor = torch.onnx.ops.symbolic(
        operator,
        (input, target) if weight is None else (input, target, weight),
        {"ignore_index": ignore_index, "reduction": "none"},
        dtype=input.dtype,
        shape=target.shape,
        version=OPSET,
    )
    return found


def _reduced(value: Tensor, reduction: str) -> Tensor:
    """Return the sum if it is asked for; a mean is computed before."""
    return value.sum() if reduction == "sum" else value


LABEL_LOSSES: dict[Any, Callable[..., Tensor | None]] = {F.cross_entropy: _cross_entropy, F.nll_loss: _nll}
"""Function of torch → the function here."""
