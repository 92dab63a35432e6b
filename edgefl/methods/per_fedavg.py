"""Per-FedAvg: clients train a common model that becomes good on their own data after a few gradient steps."""

import copy
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from edgefl.factor.gradient import called_with, gradients
from edgefl.methods.axes import Need
from edgefl.methods.fedavg import FedAvg
from edgefl.methods.losses import cross_entropy
from edgefl.methods.options import MethodConfig
from edgefl.methods.personal import Personal
from edgefl.records import Batch
from edgefl.registry import method
from edgefl.util.fields import Fields, rows

CHUNK = 32
"""Samples in a batch while a model is adapted."""


class PerFedAvgConfig(MethodConfig):
    """Options of Per-FedAvg.

    Attributes:
        alpha: α, the rate of the inner step. The outer rate β is the run's ``lr``.
        adapt_steps: inner steps of a client before it uses the deployed model.
    """

    alpha: float = Field(0.01, gt=0, allow_inf_nan=False)
    adapt_steps: int = Field(1, ge=0)


@method("per-fedavg")
class PerFedAvg(Personal, FedAvg):
    """First-order MAML on clients, FedAvg on the server (Fallah et al. 2020, Algorithm 1 without the Hessian term).

    f(w, D) is the mean cross-entropy on the samples D. A step splits its batch into halves D and D'. It computes w̃ = w − α∇f(w, D), then
    w ← w − β∇f(w̃, D'): the gradient at w̃ is applied at w. The halves of an odd batch share the middle sample, and a batch of one is both
    halves. Before a client uses the deployed model, it takes ``adapt_steps`` steps of rate α on all of its samples. A round's costs do not
    contain these steps.

    Differs from the paper: only the first-order variant is implemented. Clients are averaged by samples; Algorithm 1 has the plain mean.
    """

    config: PerFedAvgConfig
    title = "Per-FedAvg (first order)"
    paper = "Fallah et al., Personalized Federated Learning with Theoretical Guarantees, NeurIPS 2020, Algorithm 1"
    personalised = True
    lacks: ClassVar[Mapping[Need, str]] = {
        "own_loss": "its clients adapt their models by cross-entropy",
        "sample_losses": "its loss adapts the weights to one half of a batch and is taken on the other",
    }

    def local_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return f(w − α∇f(w, D), D'). With ∇f(w, D) as a constant, its gradient by w is the first-order one."""
        half = (batch.y.shape[0] + 1) // 2  # not len: in an exported graph the batch size is symbolic
        first, second = (Batch(rows(batch.x, part), batch.y[part], batch.present) for part in (slice(half), slice(-half, None)))
        parameters = dict(module.named_parameters())
        inner = cross_entropy(module(first.x), first)
        # A parameter that the forward pass does not use has a gradient of zeros.
        slopes = gradients(inner, list(parameters.values()))
        adapted = {name: w - self.config.alpha * g for (name, w), g in zip(parameters.items(), slopes, strict=True)}
        return cross_entropy(called_with(module, adapted, second.x), second)

    def adapt(self, module: nn.Module, x: Fields[Tensor], y: Tensor) -> nn.Module:
        """Return a copy of ``module`` after ``adapt_steps`` steps of rate α on the mean loss of all samples ``x`` (n, …), ``y`` (n,)."""
        adapted = copy.deepcopy(module).train()
        parameters = list(adapted.parameters())
        for _ in range(self.config.adapt_steps):
            adapted.zero_grad()
            for part in torch.arange(len(y)).split(CHUNK):
                batch = Batch(rows(x, part), y[part])
                loss = cross_entropy(adapted(batch.x), batch) * (len(part) / len(y))
                loss.backward()
            with torch.no_grad():
                for parameter in parameters:
                    if parameter.grad is not None:
                        parameter.sub_(self.config.alpha * parameter.grad)
        adapted.zero_grad()
        return adapted.eval()
