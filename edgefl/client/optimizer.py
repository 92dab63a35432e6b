"""The optimizer of clients: torch's fused kernels, which pass over each tensor once."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from edgefl.client.training import Training


class FusedOptimizer:
    """Updates tensors in place by SGD, with or without momentum, or by Adam.

    Apart from rounding it equals :func:`edgefl.client.loop.optimizer_of`, for which costs are counted.

    Args:
        training: the optimizer's name, learning rate, momentum and weight decay.
        tensors: name → parameter of one client, or of several, stacked: (clients, …).
        decayed: names of the parameters that weight decay acts on.
        clients: how many clients are stacked; None: the parameters belong to one client.
    """

    def __init__(
        self, training: Training, tensors: Mapping[str, Tensor], decayed: Collection[str], clients: int | None = None
    ) -> None:
        self._training, self._tensors = training, tensors
        moments = {"sgd": 0, "momentum": 1, "adam": 2}[training.optimizer]
        self._state = [{name: torch.zeros_like(tensor) for name, tensor in tensors.items()} for _ in range(moments)]
        self._steps = [0] * (clients or 1)
        decays = {name: training.weight_decay if name in decayed else 0.0 for name in tensors}
        self._groups = {decay: [name for name in tensors if decays[name] == decay] for decay in sorted(set(decays.values()))}

    def step(self) -> None:
        """Update every parameter by its ``grad``, if it has one."""
        self.apply({name: tensor.grad for name, tensor in self._tensors.items()})

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for tensor in self._tensors.values():
            tensor.grad = None

    @torch.no_grad()
    def apply(self, gradients: Mapping[str, Tensor | None], rows: slice | None = None) -> None:
        """Update tensors by name → gradient (None: unchanged); ``rows`` are the clients to update, with equally many steps so far."""
        first, last, _ = (rows or slice(None)).indices(len(self._steps))
        taken = self._steps[first]
        self._steps[first:last] = [taken + 1] * (last - first)
        for decay, names in self._groups.items():
            given = [(name, gradient) for name in names if (gradient := gradients[name]) is not None]
            if given:
                tensors, *state = (
                    [part[name] if rows is None else part[name][rows] for name, _ in given]
                    for part in (self._tensors, *self._state)
                )
                self._update(tensors, [gradient for _, gradient in given], state, decay, taken)

    def _update(
        self, tensors: list[Tensor], gradients: list[Tensor], state: Sequence[list[Tensor]], decay: float, taken: int
    ) -> None:
        training = self._training
        common: dict[str, Any] = {"foreach": False, "fused": True, "lr": training.lr, "weight_decay": decay, "maximize": False}
        if training.optimizer == "adam":
            counts = [torch.tensor(float(taken), device=tensor.device) for tensor in tensors]
            adam(tensors, gradients, state[0], state[1], [], counts, amsgrad=False, beta1=0.9, beta2=0.999, eps=1e-8, **common)
            return
        momenta: list[Tensor | None] = [*state[0]] if state else [None] * len(tensors)
        momentum = training.momentum if state else 0.0
        sgd(tensors, gradients, momenta, has_sparse_grad=False, momentum=momentum, dampening=0.0, nesterov=False, **common)
