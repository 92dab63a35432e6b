"""The gradient of a step, by autograd or, if steps of its kind are frequent, by replay of a capture."""

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from edgefl.client.fast.capture import CaptureError, Inputs, Take, capture, gradient_of
from edgefl.cost.trace import Loss
from edgefl.models.base import named_tensors
from edgefl.onnxgrad.stateless import settled
from edgefl.records import Batch

Gradient = Callable[[Batch, float], Tensor]
"""Adds the gradient of a batch's mean loss, times a share, to the ``grad`` of a network's parameters; returns the loss, a scalar."""

MANY = 16
"""A step is captured when it is the 16th of its kind. A capture takes as long as about five steps."""


def written(module: nn.Module, loss: Loss, between: Callable[[], None] | None = None) -> Gradient:
    """Return the gradient of ``loss`` by autograd; ``between`` is called after each forward pass."""

    def gradient(batch: Batch, share: float) -> Tensor:
        value = loss(module, batch)
        del batch  # frees what autograd does not need before gradients are allocated, as on a device
        if between is not None:
            between()
        (value if share == 1.0 else value * share).backward()
        return value.detach()

    return gradient


@dataclass
class Captures:
    """The captures of this process, by kind of step. Captured or not, a step has the same bits."""

    _steps: Counter[Hashable] = field(default_factory=Counter)
    _captured: dict[Hashable, Take] = field(default_factory=dict)

    def of(
        self, kind: Hashable, take: Take, inputs: Inputs, steps: int = MANY, make: Callable[[Take, Inputs], Take] = capture
    ) -> Take | None:
        """Return ``take`` captured by ``make`` from the call number ``steps`` on; None before, and if it cannot be captured.

        Every call counts as a step. Two steps of one ``kind`` must differ in the tensors of ``inputs`` only. A batch of another shape is a
        kind of its own.
        """
        key = kind, inputs.batch.y.shape
        self._steps[key] += 1
        if self._steps[key] == steps:
            with contextlib.suppress(CaptureError):
                self._captured[key] = make(take, inputs)
        return self._captured.get(key)

    def gradient(
        self, kind: Hashable, module: nn.Module, loss: Loss, parameters: Mapping[str, nn.Parameter], choices: int = 1
    ) -> Gradient:
        """Return the gradient of ``loss``; ``parameters`` are all of ``module`` that need one, and the module is in training mode.

        If a method chooses at random in every step, :attr:`Batch.draw` selects one of ``choices``: each is a kind of its own.
        """
        plain, tensors = written(module, loss), named_tensors(module)
        buffers, take = dict(module.named_buffers()), gradient_of(module, loss, list(parameters))
        settles = True

        def gradient(batch: Batch, share: float) -> Tensor:
            nonlocal settles
            captured = None
            if share == 1.0 and settles:
                chosen = 0 if batch.draw is None else min(int(batch.draw * choices), choices - 1)
                captured = self.of((kind, chosen), take, inputs := Inputs(tensors, batch))
            if captured is None:
                computed = plain(batch, share)
                settles = settles and settled(module, buffers)
                return computed
            value, *gradients = captured(inputs)
            for parameter, grad in zip(parameters.values(), gradients, strict=True):
                parameter.grad = grad
            assert value is not None  # a loss is a tensor
            return value

        return gradient
