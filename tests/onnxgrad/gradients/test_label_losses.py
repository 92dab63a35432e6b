"""Losses of labels that torch's exporter gets wrong: smoothed or soft labels, and one value for each label."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from function_case import Of, check_network
from gradient_case import draw
from torch import Tensor

WEIGHT = torch.tensor([0.5, 2.0, 1.0, 3.0])


def of_map(x: Tensor, **options: float) -> Tensor:
    """One label is ignored."""
    labels = torch.arange(35).reshape(1, 5, 7) % 4
    labels = torch.where(labels == 3, -100, labels).expand(x.shape[0], 5, 7)
    return F.cross_entropy(x, labels, weight=WEIGHT.to(x.dtype), **options).reshape(1, 1)  # type: ignore[arg-type]


def of_sample(x: Tensor, **options: float | str) -> Tensor:
    """Return the loss of one label for each sample."""
    return F.cross_entropy(x.mean((2, 3)), x[:, 0, 0, :4].argmax(1), **options)  # type: ignore[arg-type]


def soft(x: Tensor, **options: float) -> Tensor:
    """Return the loss of distributions, one for each place."""
    return F.cross_entropy(x, x.flip(3).softmax(1).detach(), **options).reshape(1, 1)  # type: ignore[arg-type]


FUNCTIONS = {
    "smoothed": lambda x: of_sample(x, label_smoothing=0.2).reshape(1, 1),
    "smoothed-sum": lambda x: of_sample(x, label_smoothing=0.2, reduction="sum").reshape(1, 1) / x.shape[0],
    "smoothed-each": lambda x: of_sample(x, label_smoothing=0.2, reduction="none").unsqueeze(1),
    "smoothed-weighted": lambda x: of_map(x, label_smoothing=0.1),
    "weighted": of_map,
    "soft": soft,
    "soft-smoothed": lambda x: soft(x, label_smoothing=0.3, weight=WEIGHT.to(x.dtype)),
    "each": lambda x: (of_sample(x, reduction="none") * x[:, 1, 2, 3]).unsqueeze(1),
    "each-nll": lambda x: F.nll_loss(x.log_softmax(1), (x[:, 0] > 0).long(), reduction="none").flatten(1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    check_network(Of(FUNCTIONS[name]), draw(3, 2, 5, 7).astype(np.float32))
