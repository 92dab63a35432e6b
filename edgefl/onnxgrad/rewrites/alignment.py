"""The CTC loss, as sums over alignments in steps of the sequence; used while a module is traced."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.detached import held
from edgefl.onnxgrad.errors import EdgeflError

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
    labels = targets.reshape(1, -1).to(torch.int64) if single else _rows(targets.to(torch.int64), counts)
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


def _rows(targets: Tensor, counts: Tensor) -> Tensor:
    """Return targets (samples, labels); refuse those of all samples in a row."""
    if targets.dim() != 2:
        raise EdgeflError("ctc_loss has an ONNX form for targets (samples, labels); pad the labels of each sample to one length")
    return targets


def _sums(sums: Tensor, jumps: Tensor) -> Tensor:
    """Return the log of the summed probabilities of the states before each state.

    They are the state itself, the one before and, where it ``jumps`` over a blank, the one before that.
    """
    wide = F.pad(sums, (2, 0), value=_NEVER)
    return torch.stack([sums, wide[:, 1:-1], torch.where(jumps, wide[:, :-2], _NEVER)]).logsumexp(0)


ALIGNMENT: dict[Any, Callable[..., Tensor | None]] = {F.ctc_loss: _aligned, torch.ctc_loss: _aligned}
"""Function of torch → the function here."""
