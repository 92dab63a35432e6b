"""Losses whose checks or chunks torch's exporter cannot trace; used while a module is traced."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.detached import held
from edgefl.onnxgrad.rewrites.label_losses import LABEL_LOSSES


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
    found = LABEL_LOSSES[F.cross_entropy](logits, target, **given)
    found = F.cross_entropy(logits, target, **given) if found is None else found
    return found.squeeze(0) if single and found.dim() else found


LOSSES: dict[Any, Callable[..., Tensor | None]] = {
    F.gaussian_nll_loss: _gaussian,
    **{of: _of_linear for of in [getattr(F, "linear_cross_entropy", None)] if of is not None},  # not in older versions
}
"""Function of torch → the function here."""
