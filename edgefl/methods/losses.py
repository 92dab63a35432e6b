"""Losses of classifiers: the mean cross-entropy, over all labels or over those of the client."""

import torch
from torch import Tensor, nn

from edgefl.records import Batch


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return the loss of ``batch``, a scalar: by default the mean cross-entropy, for ``logits`` (batch, classes)."""
    if batch.loss is not None:
        return batch.loss(logits, batch.y)
    return nn.functional.cross_entropy(logits, batch.y)


def masked_cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean cross-entropy, with logits of labels outside of ``batch.present`` (classes,) set to zero (HeteroFL, section 4).

    A loss of the user is not masked: its outputs need not be logits.

    >>> batch = Batch(torch.zeros(1, 4), torch.tensor([0]), present=torch.tensor([True, False]))
    >>> round(float(masked_cross_entropy(torch.tensor([[0.0, 9.0]]), batch)), 4)
    0.6931
    """
    if batch.present is None or batch.loss is not None:
        return cross_entropy(logits, batch)
    return cross_entropy(torch.where(batch.present, logits, logits.new_zeros(())), batch)
