"""Losses that methods build theirs from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edgefl.records import Batch


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of a batch, for ``logits`` (batch, classes)."""
    return nn.functional.cross_entropy(logits, batch.y)


def masked_cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return cross-entropy with the logits of labels that the client has none of set to zero (HeteroFL, section 4)."""
    if batch.present is None:
        return cross_entropy(logits, batch)
    return cross_entropy(torch.where(batch.present, logits, logits.new_zeros(())), batch)
