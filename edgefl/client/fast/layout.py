"""The order in which images lie in memory while a network works on them: channels last where it can, which torch is quicker with on a CPU.

A convolution whose input lies channel by channel is reordered before and after it; pooling such an input has no vectorised form. Shapes and
results stay what they are, but for the last bits.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from edgefl.cost.trace import Loss
from edgefl.records import Batch


def layout_of(module: nn.Module, sample: Tensor) -> torch.memory_format:
    """Return the order for samples like ``sample`` (1, …): channels last if they are images, on a CPU, and ``module`` allows it.

    The module is asked for its output in evaluation mode; it is left in the mode that it was in.

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
    """Let the weights of the convolutions of ``module`` lie in ``layout``; they stay the same parameters with the same values."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            part.weight.data = part.weight.data.to(memory_format=layout)


def in_layout(loss: Loss, layout: torch.memory_format) -> Loss:
    """Return ``loss`` of batches whose images are brought into ``layout`` first."""
    if layout is torch.contiguous_format:
        return loss

    def of_laid(module: nn.Module, batch: Batch) -> Tensor:
        return loss(module, replace(batch, x=batch.x.to(memory_format=layout)))

    return of_laid
