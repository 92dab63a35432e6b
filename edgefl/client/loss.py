"""The loss that a client minimises: its method's, the user's or the paper's, with the terms of its objective."""

from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from edgefl.client.criterion import CROSS_ENTROPY, Criterion
from edgefl.client.objective import Objective
from edgefl.client.per_sample import per_sample
from edgefl.cost.trace import Loss
from edgefl.methods.base import Method
from edgefl.models.norm import SingleValues
from edgefl.records import Batch


def loss_of(method: Method, objective: Objective, criterion: Criterion = CROSS_ENTROPY, sample_clip: float | None = None) -> Loss:
    """Return the loss that a client minimises, a function of (network, batch): the method's loss plus the objective's terms.

    With ``sample_clip`` its gradient is the mean of clipped gradients of samples (:func:`edgefl.client.per_sample.per_sample`).
    """
    user_loss = criterion.loss

    def loss(module: nn.Module, batch: Batch) -> Tensor:
        single = not torch.compiler.is_exporting() and len(batch.y) == 1  # graphs have a free number of samples
        with SingleValues() if single else nullcontext():
            value = method.local_loss(module, batch if user_loss is None else replace(batch, loss=user_loss))
        return value + objective.term(module) if objective.adds else value

    return loss if sample_clip is None else per_sample(loss, sample_clip)
