"""Norm clipping: a client's change is scaled down to a bound, so that no single client moves the model further.

The change is Δ = update − sent, over all tensors of the update together. These are pure functions: a worker that adds up updates and a
server that holds each of them get the same bits.
"""

import math

import torch
from torch import Tensor

from edgefl.methods.state import Tensors


def change_of(update: Tensors, sent: Tensors) -> dict[str, Tensor]:
    """Return name → Δ in float64. A tensor that was not sent counts in full, as if zeros had been sent.

    >>> change_of({"w": torch.tensor([1.0, 5.0])}, {"w": torch.tensor([1.0, 1.0])})["w"].tolist()
    [0.0, 4.0]
    """
    return {name: tensor.double() - sent[name].double() if name in sent else tensor.double() for name, tensor in update.items()}


def norm_of(change: Tensors) -> float:
    """Return ‖Δ‖₂ over all tensors together, computed in float64; the order of the tensors does not matter.

    >>> norm_of({"w": torch.tensor([3.0, 0.0]), "b": torch.tensor([-4.0])})
    5.0
    """
    return math.sqrt(math.fsum(float(tensor.double().square().sum()) for tensor in change.values()))


def clipped(update: Tensors, sent: Tensors, bound: float) -> tuple[Tensors, float]:
    """Return sent + min(1, C/‖Δ‖)·Δ, and ‖Δ‖ before clipping.

    McMahan et al. 2018, Learning Differentially Private Recurrent Language Models.

    An update within the bound is returned as it is. Otherwise the change of the result has the norm C, apart from the rounding of each
    value to its dtype.

    Args:
        update: name → tensor that the client sent back, float32.
        sent: name → tensor that the client received, of the same shape; tensors that are not in ``update`` are ignored.
        bound: C, positive.

    >>> tensors, norm = clipped({"w": torch.tensor([4.0, -3.0])}, {"w": torch.tensor([1.0, 1.0])}, 2.5)
    >>> tensors["w"].tolist(), norm
    ([2.5, -1.0], 5.0)
    """
    change = change_of(update, sent)
    norm = norm_of(change)
    if norm <= bound:
        return update, norm
    scale = bound / norm
    start = {name: sent[name].double() if name in sent else torch.zeros_like(change[name]) for name in change}
    return {name: (start[name] + scale * delta).to(update[name].dtype) for name, delta in change.items()}, norm


def adapted(bound: float, within: float, quantile: float, rate: float) -> float:
    """Return the bound of the next round, C·exp(−η(b̄ − γ)).

    Andrew et al. 2021, Differentially Private Learning with Adaptive Clipping: the geometric update.

    Args:
        bound: C, the bound of this round.
        within: b̄, the share of this round's changes whose norm was at most C. It may have noise.
        quantile: γ, the share that the bound converges to.
        rate: η_C, the rate of the geometric update.

    >>> adapted(1.0, within=0.5, quantile=0.5, rate=0.2)
    1.0
    >>> round(adapted(1.0, within=0.0, quantile=0.5, rate=0.2), 6)
    1.105171
    """
    return bound * math.exp(-rate * (within - quantile))
