"""Losses that torch's exporter cannot trace, or gets wrong: cross-entropy, the Gaussian and the CTC loss."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.detached import held, onnx_node
from edgefl.onnxgrad.errors import EdgeflError


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
        return _reduced(own, reduction)
    plain = _nll(logs, target, weight, None, ignore_index, None, reduction)
    if plain is None:
        plain = F.nll_loss(logs, target, weight, ignore_index=ignore_index, reduction=reduction)
    ignored, zero = target == ignore_index, logs.new_zeros(())
    even = torch.where(ignored, zero, -weighted.sum(1))
    if reduction == "mean":
        labels = torch.where(ignored, torch.zeros_like(target), target)
        shares = weighted.new_ones(target.shape) if weight is None else weight[labels]
        even = even.sum() / torch.where(ignored, zero, shares).sum()
    else:
        even = _reduced(even, reduction)
    return (1 - label_smoothing) * plain + label_smoothing / classes * even


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
    inputs = (input, target) if weight is None else (input, target, weight)
    return onnx_node(operator, inputs, target.shape, ignore_index=ignore_index, reduction="none")


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def _gaussian(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """Compute it without the check that ``var`` has no negative entry. The gradient passes the lower bound ``eps``, as in torch."""
    given = var if isinstance(var, Tensor) else torch.full_like(input, var)
    if given.dim() == input.dim() - 1:
        given = given.unsqueeze(-1)
    spread = given + held(given.clamp(min=eps) - given)
    loss = 0.5 * (torch.log(spread) + (input - target) ** 2 / spread)
    return _reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def _of_linear(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    ignore_index: int | None = None,
    options: Any = None,
    **others: Any,
) -> Tensor:
    """Compute cross-entropy of a linear layer without the chunks that ``options`` ask for."""
    classes, *outs, features = linear_weight.shape
    bias = None if linear_bias is None else linear_bias.reshape(-1)
    logits = F.linear(input, linear_weight.reshape(-1, features), bias).reshape(*input.shape[:-1], classes, *outs)
    single = logits.dim() == 1
    if single:
        logits, target = logits.unsqueeze(0), target.unsqueeze(0)
    given = {**others, "ignore_index": -100 if ignore_index is None else ignore_index}
    found = _cross_entropy(logits, target, **given)
    found = F.cross_entropy(logits, target, **given) if found is None else found
    return found.squeeze(0) if single and found.dim() else found


_NEVER = -1e30
"""The logarithm of probability 0: finite, so that differences are, too."""


def _aligned(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Compute the loss of Graves et al. (2006), −log Σ p(alignment), by their equation 6.

    As in torch, the gradient is that of log-probabilities made by ``log_softmax``: exp(log_probs) is added to it. For a sample without any
    alignment the loss is infinite, or 0 with ``zero_infinity``.
    """
    single = log_probs.dim() == 2
    log_probs = log_probs.unsqueeze(1) if single else log_probs
    steps = log_probs.shape[0]
    given = [
        (torch.tensor(value) if isinstance(value, (int, list, tuple)) else value).reshape(-1).to(torch.int64)
        for value in (input_lengths, target_lengths)
    ]
    lasts, counts = given
    if not single and targets.dim() != 2:
        raise EdgeflError("ctc_loss has an ONNX form for targets (samples, labels); pad the labels of each sample to one length")
    labels = (targets.reshape(1, -1) if single else targets).to(torch.int64)
    width = labels.shape[1]
    if not isinstance(steps, int) or not isinstance(width, int):
        raise EdgeflError("ctc_loss has an ONNX form for a fixed number of steps and of labels; pad both")
    used = torch.arange(width) < counts.unsqueeze(1)
    labels = torch.where(used, labels, blank)
    between = torch.full_like(labels, blank)
    # A blank before, between and behind the labels.
    states = torch.cat(
        [torch.stack([between, labels], 2).flatten(1), between[:, :1]] if width else [lasts.unsqueeze(1) * 0 + blank], 1
    )
    jumps = torch.cat([torch.zeros_like(states[:, :2]), states[:, 2:] != states[:, :-2]], 1) != 0  # not between two blanks
    known = torch.where(log_probs < _NEVER, _NEVER, log_probs)
    emitted = known.gather(2, states.unsqueeze(0).expand(steps, *states.shape))  # (steps, samples, states)
    places = torch.arange(2 * width + 1)
    sums = torch.where((places < 2) & (places <= 2 * counts.unsqueeze(1)), emitted[0], _NEVER)
    for step in range(1, steps):
        later = _sums(sums, jumps) + emitted[step]
        sums = torch.where((lasts > step).unsqueeze(1), later, sums)
    ends = (places == 2 * counts.unsqueeze(1)) | (places == 2 * counts.unsqueeze(1) - 1)
    loss = -torch.logsumexp(torch.where(ends, sums, _NEVER), 1)
    chances = log_probs.exp()
    inside = (torch.arange(steps).unsqueeze(1) < lasts).unsqueeze(2)
    loss = loss + torch.where(inside, chances - held(chances), 0).sum((0, 2))
    endless = loss > -_NEVER / 2
    loss = torch.where(endless, 0.0 if zero_infinity else torch.inf, loss)
    if reduction == "mean":
        return (loss / counts.clamp(min=1)).mean()
    return loss.sum() if reduction == "sum" else loss.squeeze(0) if single else loss


def _sums(sums: Tensor, jumps: Tensor) -> Tensor:
    """Return the log of the summed probabilities of the states before each state.

    They are the state itself, the one before and, where it ``jumps`` over a blank, the one before that.
    """
    wide = F.pad(sums, (2, 0), value=_NEVER)
    return torch.stack([sums, wide[:, 1:-1], torch.where(jumps, wide[:, :-2], _NEVER)]).logsumexp(0)


LOSSES: dict[Any, Callable[..., Tensor | None]] = {
    F.cross_entropy: _cross_entropy,
    F.nll_loss: _nll,
    F.gaussian_nll_loss: _gaussian,
    **{of: _of_linear for of in [getattr(F, "linear_cross_entropy", None)] if of is not None},  # not in older versions
    **dict.fromkeys((F.ctc_loss, torch.ctc_loss), _aligned),
}
"""Function of torch → the function here."""
