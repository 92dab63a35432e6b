"""Training graphs against torch: the loss and every gradient of one batch, in onnxruntime and in torch, against torch in float64."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from edgefl.bundle.tier_graphs import tier_graphs
from edgefl.client.loss import loss_of
from edgefl.client.objective import Objective
from edgefl.client.objectives import PLAIN
from edgefl.client.parts import first_personal
from edgefl.methods.base import Method
from edgefl.methods.capabilities import draws
from edgefl.methods.personal import personal_names, trained_network
from edgefl.models.base import Architecture, named_tensors
from edgefl.onnxgrad.roles import StepRule
from edgefl.onnxgrad.stepper import StepGraphs, Stepper
from edgefl.records import Batch, Tier
from edgefl.rng import generator
from edgefl.util.fields import each

LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-5, 1e-4


@dataclass(frozen=True)
class Parity:
    """How far onnxruntime and torch are from float64: the loss, absolute, and the worst gradient by its norm, with that of torch beside it.

    Errors of gradients are relative to the tensor's own norm, or where that is under a thousandth of the largest, to this: what scales a
    layer in front of a normalisation has a gradient of rounding errors only.
    """

    method: str
    model: str
    tier: float
    kind: int
    loss: float
    loss_error: float
    gradient_error: float
    torch_gradient_error: float
    worst: str

    @property
    def passes(self) -> bool:
        """Whether the row meets the tolerances."""
        bound = max(GRADIENT_TOLERANCE, 2 * self.torch_gradient_error)
        return self.loss_error <= LOSS_TOLERANCE * max(1.0, abs(self.loss)) and self.gradient_error <= bound


def measured(
    method: Method,
    name: str,
    architecture: Architecture,
    tiers: tuple[Tier, ...],
    tier: Tier,
    *,
    objective: Objective = PLAIN,
    samples: int = 6,
    seed: int = 0,
) -> Iterator[Parity]:
    """Yield a row for each kind of step of a tier, on a batch that has half of the labels."""
    rng = generator(seed, "parity", name, architecture.model, tier.label)
    state = method.init(architecture, tiers, generator(seed, "init"))
    module = trained_network(method, state, tier, first_personal(method, architecture, tier, seed), 0)
    shape = (samples, *architecture.input_shape)
    x: np.ndarray = rng.integers(architecture.vocabulary, size=shape) if architecture.vocabulary else rng.standard_normal(shape)
    y = rng.integers((architecture.classes + 1) // 2, size=samples)
    present = np.arange(architecture.classes) < (architecture.classes + 1) // 2
    x = x if architecture.vocabulary else x.astype(np.float32)
    names = {name: p for name, p in module.named_parameters() if name not in personal_names(method, module)}
    memory = {f"memory:{n}": torch.from_numpy(rng.standard_normal(tuple(p.shape))).float() * 0.01 for n, p in names.items()}
    objective.attach(module, names, memory, {})
    with torch.no_grad():  # away from where the round began, or a pull towards it is not seen
        for parameter in module.parameters():
            parameter.add_(torch.from_numpy(rng.standard_normal(tuple(parameter.shape))).float(), alpha=0.01)
    graphs = tier_graphs(method, architecture, tier, StepRule(), objective, parts=True).steps
    for kind, draw in enumerate(draws(method, tier)):
        batch = Batch(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(present), draw)
        exact, exact_loss = _in_torch(method, objective, module, batch, torch.float64)
        single, _ = _in_torch(method, objective, module, batch, torch.float32)
        gradients, loss = _in_onnx(graphs, module, x, y, present, kind)
        floor = 1e-3 * max(float(np.linalg.norm(g)) for g in exact.values())
        ours = {n: _off(gradients[graphs.roles.trained[n]], g, floor) for n, g in exact.items()}
        theirs = {n: _off(single[n], g, floor) for n, g in exact.items()}
        worst = max(ours, key=lambda n: ours[n] / max(GRADIENT_TOLERANCE, 2 * theirs[n]))
        yield Parity(
            name, architecture.model, tier.ratio, kind, exact_loss, abs(loss - exact_loss), ours[worst], theirs[worst], worst
        )


def _off(gradient: np.ndarray, exact: np.ndarray, floor: float) -> float:
    return float(np.linalg.norm(gradient - exact) / max(float(np.linalg.norm(exact)), floor, 1e-30))


def _in_torch(
    method: Method, objective: Objective, module: nn.Module, batch: Batch, dtype: torch.dtype
) -> tuple[dict[str, np.ndarray], float]:
    network = copy.deepcopy(module).to(dtype).train()
    x = each(lambda part: part.to(dtype) if part.is_floating_point() else part, batch.x)
    value = loss_of(method, objective)(network, Batch(x, batch.y, batch.present, batch.draw))
    value.backward()
    trained = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    return {name: (torch.zeros_like(p) if p.grad is None else p.grad).double().numpy() for name, p in trained}, value.item()


def _in_onnx(
    graphs: StepGraphs, module: nn.Module, x: np.ndarray, y: np.ndarray, present: np.ndarray, kind: int
) -> tuple[dict[str, np.ndarray], float]:
    """Return gradients by the graphs' names, and the loss."""
    tensors = named_tensors(module)
    arrays = {role: tensors[name].detach().numpy() for name, role in graphs.roles.tensors.items() if name in tensors}
    stepper = Stepper(graphs, {**arrays, "present": present}, 1.0, parts=True)
    loss = stepper.step(x, y, kind=kind)
    return stepper.sums(), loss
