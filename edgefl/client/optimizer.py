"""The optimizer of clients: torch's fused kernels, which pass over each tensor once; and the clipping of a step's gradient.

A clipped gradient is min(1, C / (‖g‖ + 1e-6)) · g, with the norm of all tensors together, as by torch's ``clip_grad_norm_``. It is that of
the whole batch, with all terms of the loss, and in DP-SGD with the noise: what is made from a noisy gradient is as private. Weight decay
is added afterwards.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from edgefl.client.training import Training


def norms_of(parts: Sequence[Tensor]) -> Tensor:
    """Return the norms (rows,) of several gradients, of which each of ``parts`` has a tensor (rows, …).

    >>> norms_of([torch.tensor([3.0, 0.0]), torch.tensor([[0.0, 4.0], [1.0, 0.0]])])
    tensor([5., 1.])
    """
    several = [part if part.dim() > 1 else part[:, None] for part in parts]
    norms = [torch.linalg.vector_norm(part, dim=tuple(range(1, part.dim()))) for part in several]
    return torch.linalg.vector_norm(torch.stack(norms), dim=0)


def clipped(gradients: Mapping[str, Tensor | None], bound: float, stacked: bool = False) -> dict[str, Tensor | None]:
    """Return clipped gradients; of tensors (clients, …), ``stacked``, each client has a norm of its own.

    Nothing is changed in place, because two parameters may share a tensor.

    >>> clipped({"w": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0]), "unused": None}, 2.5)["w"]
    tensor([1.5000, 0.0000])
    """
    present = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    if not present:
        return dict(gradients)
    parts = list(present.values())
    one = torch.linalg.vector_norm  # of whole tensors, for the bits of torch's own function
    norm = norms_of(parts) if stacked else one(torch.stack([one(part) for part in parts]))
    factor = (bound / (norm + 1e-6)).clamp(max=1.0)
    factors = (factor.view(-1, *[1] * (part.dim() - 1)) if stacked else factor for part in parts)
    return {**gradients, **{name: part * scale for (name, part), scale in zip(present.items(), factors, strict=True)}}


def clipping(optimizer: torch.optim.Optimizer, module: nn.Module, bound: float) -> torch.optim.Optimizer:
    """Return ``optimizer``, which clips the gradient of ``module`` before every step."""

    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(module.parameters(), bound, foreach=False)

    optimizer.register_step_pre_hook(clip)
    return optimizer


def _zeros(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


class FusedOptimizer:
    """Updates tensors in place by SGD, with or without momentum, or by Adam, from gradients that it clips if ``training`` says so.

    Apart from rounding it equals :func:`edgefl.client.loop.optimizer_of`, for which costs are counted.

    Args:
        training: the optimizer's name, learning rate, momentum and weight decay, and the largest norm of a gradient.
        tensors: name → parameter of one client, or of several, stacked: (clients, …).
        decayed: names of the parameters that weight decay acts on.
        clients: how many clients are stacked; None: the parameters belong to one client.
        momenta: name → momentum that is handed on, of the same shape as the parameter, which is updated in place; empty: it begins with 0.
    """

    def __init__(
        self,
        training: Training,
        tensors: Mapping[str, Tensor],
        decayed: Collection[str],
        clients: int | None = None,
        momenta: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._training, self._tensors, self._stacked = training, tensors, clients is not None
        moments = {"sgd": 0, "momentum": 1, "adam": 2}[training.optimizer]
        self._state: list[Mapping[str, Tensor]] = [momenta] if momenta else [_zeros(tensors) for _ in range(moments)]
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
        if self._training.clip_gradient is not None:
            gradients = clipped(gradients, self._training.clip_gradient, self._stacked)
        first, last, _ = (rows or slice(None)).indices(len(self._steps))
        taken = self._steps[first]
        self._steps[first:last] = [taken + 1] * (last - first)
        for decay, names in self._groups.items():
            pairs = [(name, gradient) for name in names if (gradient := gradients[name]) is not None]
            if pairs:
                tensors, *state = (
                    [part[name] if rows is None else part[name][rows] for name, _ in pairs]
                    for part in (self._tensors, *self._state)
                )
                self._update(tensors, [gradient for _, gradient in pairs], state, decay, taken)

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
