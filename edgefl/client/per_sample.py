"""DP-SGD on a client: the gradient of every sample is clipped, their sum gets noise, and the mean takes the step.

The step is that of Abadi et al. (2016, Deep Learning with Differential Privacy)::

    ḡ = ( Σᵢ gᵢ · min(1, C/‖gᵢ‖) + N(0, (zC)²) ) / B

with the samples i of a batch, B of them, and all trained parameters together in ‖gᵢ‖. Momentum, weight decay and Adam's moments use ḡ only.

Differs from the paper: batches are those of shuffled epochs, each sample once in an epoch. Per-sample gradients are computed by
:func:`torch.func.vmap`. They are all alive at once, B times the trained parameters: costs count that memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from edgefl.client.fast.capture import Whole, computed
from edgefl.client.optimizer import norms_of
from edgefl.cost.trace import Loss
from edgefl.cost.uncompiled import uncompiled
from edgefl.records import Batch
from edgefl.util.fields import Fields, each, first


def per_sample(loss: Loss, clip: float) -> Loss:
    """Return ``loss`` with another gradient: the mean of the gradients of single samples, each clipped to the norm ``clip``.

    Batches of micro-batches add up, as with ``loss`` itself. No operation of the network or of ``loss`` may mix samples.

    >>> layer, batch = nn.Linear(1, 1, bias=False), Batch(torch.tensor([[3.0], [-0.5]]), torch.zeros(2, 1))
    >>> per_sample(lambda module, batch: module(batch.x).mean(), clip=1.0)(layer, batch).backward()
    >>> layer.weight.grad  # (1 − 0.5) / 2
    tensor([[0.2500]])
    """

    def private(module: nn.Module, batch: Batch) -> Tensor:
        trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        gradients, values = _of_samples(module, loss, trained, batch)
        value: Tensor = _MeanOfClipped.apply(values, clip, *trained.values(), *(gradients[name] for name in trained))  # type: ignore[no-untyped-call]
        return value

    return private


def _of_samples(
    module: nn.Module, loss: Loss, trained: Mapping[str, Tensor], batch: Batch
) -> tuple[Mapping[str, Tensor], Tensor]:
    """Return name → gradients (batch, …) of the samples' losses, and the losses (batch,)."""
    whole, samples = Whole(module, loss), len(first(batch.x))
    # A network that predicts every next token has several targets for a sample, one after the other.
    y = batch.y if len(batch.y) == samples else batch.y.view(samples, -1)

    def of_one(leaves: Mapping[str, Tensor], x: Fields[Tensor], y: Tensor) -> Tensor:
        single = replace(batch, x=each(lambda part: part.unsqueeze(0), x), y=y.unsqueeze(0) if len(batch.y) == samples else y)
        value: Tensor = computed(whole, {**buffers, **leaves}, single)
        return value

    leaves, buffers = {name: tensor.detach() for name, tensor in trained.items()}, dict(module.named_buffers())
    with uncompiled():
        gradients, values = vmap(grad_and_value(of_one), in_dims=(None, 0, 0), randomness="different")(leaves, batch.x, y)
    return gradients, values


class _MeanOfClipped(torch.autograd.Function):
    """The mean of losses. Its gradient with respect to the parameters is the mean of the clipped gradients, which come with them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, clip: float, *tensors: Tensor) -> Tensor:
        ctx.clip, ctx.parameters = clip, len(tensors) // 2
        ctx.save_for_backward(*tensors[ctx.parameters :])
        return values.mean()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        gradients: Sequence[Tensor] = ctx.saved_tensors
        norms = norms_of(gradients)
        scale = ctx.clip / norms.clamp_min(ctx.clip) * (outer[0] / len(norms))
        means = (
            part.mul_(scale.view(-1, *[1] * (part.dim() - 1))).sum(0) for part in gradients
        )  # in place: they are not needed again
        return None, None, *means, *[None] * ctx.parameters


@dataclass
class StepNoise:
    """The noise of every step of a client: N(0, (zC)²) on the sum of a batch's gradients, so a B-th of it on their mean.

    Attributes:
        std: zC.
        generator: draws the noise; None, while costs are counted: torch's own.
    """

    std: float
    generator: torch.Generator | None = None

    @torch.no_grad()
    def add(self, module: nn.Module, samples: int) -> None:
        """Add the noise to the gradients of ``module``, the mean over a batch of ``samples``."""
        for parameter in module.parameters():
            if parameter.grad is not None:
                noise = torch.empty_like(parameter.grad).normal_(0.0, self.std / samples, generator=self.generator)
                parameter.grad.add_(noise)
                del noise  # freed before the next one, on a device too


def noising(optimizer: torch.optim.Optimizer, noise: StepNoise, module: nn.Module, samples: int) -> torch.optim.Optimizer:
    """Return ``optimizer``, which adds ``noise`` to the gradients of ``module`` before every step."""
    optimizer.register_step_pre_hook(lambda *_: noise.add(module, samples))
    return optimizer
