"""The order in which images lie in memory during training: channels last if possible, which is faster on a CPU.

With another order, torch reorders the input of a convolution before and after it, and pooling is not vectorised. Shapes do not change,
results only in the last bits.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from edgefl.cost.trace import Loss
from edgefl.records import Batch


def layout_of(module: nn.Module, sample: Tensor) -> torch.memory_format:
    """Return the order for samples like ``sample`` (1, …): channels last for images on a CPU, if ``module`` runs with it.

    The module is run once, in evaluation mode.

    >>> layout_of(nn.Conv2d(3, 4, 3), torch.zeros(1, 3, 8, 8)), layout_of(nn.Linear(8, 4), torch.zeros(1, 8))
    (torch.channels_last, torch.contiguous_format)
    """
    if sample.dim() != 4 or not len(sample) or sample.device.type != "cpu":
        return torch.contiguous_format
    modes = [(part, part.training) for part in module.modules()]
    try:
        with torch.no_grad():
            module.eval()(sample.to(memory_format=torch.channels_last))
    except RuntimeError:  # as ``view`` raises of tensors that lie in another order
        return torch.contiguous_format
    finally:
        for part, training in modes:
            part.training = training
    return torch.channels_last


def lay_out(module: nn.Module, layout: torch.memory_format) -> None:
    """Bring the weights of the convolutions of ``module`` into ``layout``; values and parameters stay the same."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            part.weight.data = part.weight.data.to(memory_format=layout)


def in_layout(loss: Loss, layout: torch.memory_format) -> Loss:
    """Return ``loss``, with the images of a batch brought into ``layout`` first."""
    if layout is torch.contiguous_format:
        return loss

    def of_laid(module: nn.Module, batch: Batch) -> Tensor:
        return loss(module, replace(batch, x=batch.x.to(memory_format=layout)))

    return of_laid
