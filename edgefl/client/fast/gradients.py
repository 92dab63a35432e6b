"""How gradients are computed: by autograd, or from a capture of the step if steps of its kind are frequent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from edgefl.client.fast.capture import CaptureError, Inputs, Take, capture, gradient_of
from edgefl.cost.trace import Loss
from edgefl.models.base import named_tensors
from edgefl.records import Batch

Gradient = Callable[[Batch, float], Tensor]
"""Adds the gradient of a batch, times a share, to those of a network, and returns the loss."""

MANY = 16
"""A kind of step is captured at its 16th: a capture takes the time of about five."""


def written(module: nn.Module, loss: Loss, between: Callable[[], None] | None = None) -> Gradient:
    """Return the gradient of ``loss`` by autograd; ``between`` is called after each forward pass."""

    def gradient(batch: Batch, share: float) -> Tensor:
        value = loss(module, batch)
        del batch  # what autograd does not need of it is freed before gradients are allocated, as on a device
        if between is not None:
            between()
        (value if share == 1.0 else value * share).backward()
        return value.detach()

    return gradient


@dataclass
class _Kind:
    steps: int = 0
    captured: Take | None = None


@dataclass
class Captures:
    """The captures of this process, by kind of step. Whether a step is captured changes no bit of it."""

    _kinds: dict[Hashable, _Kind] = field(default_factory=dict)

    def of(self, kind: Hashable, take: Take, inputs: Inputs) -> Take | None:
        """Return ``take`` captured if steps of ``kind`` are frequent, else None; every call counts as a step.

        ``kind`` must tell apart everything that decides a step, except the tensors of ``inputs``, their number and shapes.
        """
        return self._after(MANY, kind, inputs, lambda: capture(take, inputs))

    def known(self, kind: Hashable, inputs: Inputs, make: Callable[[], Take]) -> Take:
        """Return what ``make`` captured for steps of ``kind`` at the first call; CaptureError if it could not."""
        if (captured := self._after(1, kind, inputs, make)) is None:
            raise CaptureError("steps of this kind cannot be captured")
        return captured

    def _after(self, steps: int, kind: Hashable, inputs: Inputs, make: Callable[[], Take]) -> Take | None:
        known = self._kinds.setdefault((kind, inputs.batch.x.shape), _Kind())
        known.steps += 1
        if known.steps == steps:
            with contextlib.suppress(CaptureError):
                known.captured = make()
        return known.captured

    def gradient(
        self, kind: Hashable, module: nn.Module, loss: Loss, parameters: Mapping[str, nn.Parameter], choices: int = 1
    ) -> Gradient:
        """Return the gradient of ``loss`` for ``parameters`` of ``module``, all that need one; the module is in training mode.

        ``choices`` is how many things a step may do, of which :attr:`Batch.draw` chooses one.
        """
        plain, tensors = written(module, loss), named_tensors(module)
        take = gradient_of(module, loss, list(parameters))

        def gradient(batch: Batch, share: float) -> Tensor:
            if share != 1.0:
                return plain(batch, share)
            chosen = 0 if batch.draw is None else min(int(batch.draw * choices), choices - 1)
            inputs = Inputs(tensors, batch)
            captured = self.of((kind, chosen), take, inputs)
            if captured is None:
                return plain(batch, share)
            value, *gradients = captured(inputs)
            for parameter, grad in zip(parameters.values(), gradients, strict=True):
                parameter.grad = grad
            assert value is not None  # a loss is a tensor
            return value

        return gradient
