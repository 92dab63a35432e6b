"""The values of one training step: as a graph reads them, and what torch computes from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from edgefl.onnxgrad.fields import Fields, each, first, named, rows
from edgefl.onnxgrad.loss import Loss, Whole
from edgefl.onnxgrad.own_gradients import Judged
from edgefl.onnxgrad.roles import BETA, LEARNING_RATE, LOSS, OUT, SEED, STEP_COUNT, Roles, StepRule, state_inputs
from edgefl.onnxgrad.stateless import called, restored
from edgefl.onnxgrad.stepper import session_of

Arrays = dict[str, np.ndarray]
SAMPLES = 3
_LR, _BETA = 64.0, 0.75
_ADAM_STEPS, _SECOND_MOMENT = 3.0, 2.0**-6
TRIES = 3
"""A difference counts if so many draws of the values show it."""
MULTIPLE = 64.0
"""A result may differ from float64 by this multiple of torch's float32 error."""
QUICK = 5e-5
"""Share by which results may differ that are compared with torch's float32, which has an error of its own."""
SINGLE_ONLY = 1e-3
"""The same if the network cannot be computed in float64."""


def norm_of(values: np.ndarray) -> float:
    """Return the Euclidean norm."""
    return float(np.linalg.norm(values))


class Nearness(Enum):
    """How near a case is to the values that a caller gave.

    ADDED adds to each weight up to a tenth of its tensor's size, at least of .1; inputs are normal numbers. SCALED changes each weight by
    up to a tenth, so that it has the same sign; inputs are between 0 and 1. OWN changes nothing.
    """

    ADDED = 0
    SCALED = 1
    OWN = 2


@dataclass(frozen=True)
class Case:
    """The values of a step.

    Attributes:
        network: what is trained; it is left as it is.
        roles: which tensor is which input of the graph.
        loss, rule: what is differentiated, and the optimizer.
        tensors: values of the network's tensors, by name.
        inputs: inputs of the loss, by name.
        seed: dropout's.
        constants: the tensors that the graph reads and does not change.
    """

    network: nn.Module
    roles: Roles
    loss: Loss
    rule: StepRule
    tensors: Mapping[str, Tensor]
    inputs: Mapping[str, Fields[Tensor]]
    seed: float
    constants: Sequence[str]

    def drawn(self, attempt: int, near: Nearness) -> "Case":
        """Return a case with values near these. Random floats take the place of floats of an input that are all equal."""
        random = torch.Generator().manual_seed(attempt)
        moved = {name: _moved(self.tensors[name].detach(), near, random) for name in self.roles.trained}
        tensors = {name: moved[name] if name in moved else tensor.detach().clone() for name, tensor in self.tensors.items()}
        shared = self.roles.shared
        few = {n: value if n in shared else rows(value, _rows(len(first(value)))) for n, value in self.inputs.items()}
        inputs = {name: each(lambda part: _varied(part, near, random), value) for name, value in few.items()}
        return replace(self, tensors=tensors, inputs=inputs, seed=float(attempt + 1))

    def feed(self, graph: bytes) -> Arrays:
        """Return the inputs of a training graph."""
        scalars = {LEARNING_RATE: _LR, BETA: _BETA, SEED: self.seed, STEP_COUNT: _ADAM_STEPS}
        seconds = {state_inputs(name, "adam")[1] for name in self.roles.trained}
        known = {role: self.tensors[name].float().numpy() for name, role in self.roles.tensors.items()}
        known |= {name: part.numpy() for key, value in self.inputs.items() for name, part in named(value, key).items()}
        known |= {name: np.array(value, np.float32) for name, value in scalars.items()}
        inputs = session_of(graph, 1).get_inputs()
        states = {
            i.name: np.full(i.shape, _SECOND_MOMENT * (i.name in seconds), np.float32) for i in inputs if i.name not in known
        }
        return {i.name: known[i.name] for i in inputs if i.name in known} | states

    def stepped(self, kind: torch.dtype) -> Arrays:
        """Return the results of the step as torch computes them with real numbers of type ``kind``: output → value.

        Tensors that the graph does not change are among them, as ``network.NAME``.
        """
        value, tensors = self._differentiated(kind)
        _optimizer({name: tensors[name] for name in self.roles.trained}, self.rule).step()
        found = {LOSS: value, **{role + OUT: tensors[n] for n, role in {**self.roles.statistics, **self.roles.trained}.items()}}
        found |= {f"network.{name}": tensors[name] for name in (*self.constants, *self.others)}
        return {name: tensor.detach().numpy() for name, tensor in found.items()}

    @property
    def others(self) -> list[str]:
        """The buffers that are no inputs of the graph, such as a counter, except those of normalisations, which nothing reads."""
        others = self.tensors.keys() - self.roles.tensors.keys()
        layers = {name: self.network.get_submodule(name.rpartition(".")[0]) for name in others}
        return sorted(name for name, layer in layers.items() if name not in self.constants and not isinstance(layer, _NormBase))

    def gradients(self, kind: torch.dtype) -> Arrays:
        """Return loss, statistics and gradients, with decay, as torch computes them; a gradient has the name of its parameter's output."""
        rule, (value, tensors) = self.rule, self._differentiated(kind)
        found = {LOSS: value, **{role + OUT: tensors[name] for name, role in self.roles.statistics.items()}}
        for name, role in self.roles.trained.items():
            gradient, decay = tensors[name].grad, rule.weight_decay * (rule.decayed is None or name in rule.decayed)
            own = tensors[name].detach()
            found[role + OUT] = torch.zeros_like(own) if gradient is None else gradient.add(own, alpha=decay)
        return {name: tensor.detach().numpy() for name, tensor in found.items()}

    def gradients_in(self, found: Arrays) -> Arrays:
        """Return the same from what a training graph computes."""
        known = {name: value for name, value in found.items() if name == LOSS}
        known |= {role + OUT: found[role + OUT] for role in self.roles.statistics.values() if role + OUT in found}
        for name, role in self.roles.trained.items():
            if self.rule.optimizer == "sgd":
                known[role + OUT] = (self.tensors[name].numpy() - found[role + OUT]) / _LR
            else:
                share = 1.0 if self.rule.optimizer == "momentum" else 1 - _BETA
                known[role + OUT] = found[state_inputs(name, self.rule.optimizer)[0] + OUT] / share
        return known

    def entry(self, name: str, place: Sequence[Any]) -> str:
        """Return what messages call an entry of a tensor of the network."""
        layer = name.rpartition(".")[0]
        kind = type(self.network.get_submodule(layer)).__name__
        at = f"{name}{[int(i) for i in place]}" if len(place) else name
        return f"{at} of layer {layer or 'itself'} ({kind})"

    def _differentiated(self, kind: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, and the network's tensors with gradients, clipped as the rule says."""
        tensors = {n: t.to(kind) if t.is_floating_point() else t.clone() for n, t in self.tensors.items()}
        tensors = {n: t.clone() if t is self.tensors[n] else t for n, t in tensors.items()}
        inputs = [each(lambda t: t.to(kind) if t.is_floating_point() else t, value) for value in self.inputs.values()]
        for name in self.roles.trained:
            tensors[name].requires_grad_()

        def differentiated(*arguments: Any) -> Tensor:
            value = self.loss(*arguments)
            # Not after the call: gradient checkpointing runs parts of the network again, which must still have these tensors and masks.
            torch.autograd.backward(value)
            return value

        given = {f"network.{n}": t for n, t in tensors.items()}
        with restored(self.network), torch.enable_grad(), torch.random.fork_rng(devices=[]), Judged(self.network):
            value = called(Whole(self.network), given, (differentiated, inputs, torch.tensor(self.seed)))
        found = {name: given[f"network.{name}"] for name in tensors}
        if self.rule.clip_norm is not None:
            nn.utils.clip_grad_norm_([found[name] for name in self.roles.trained], self.rule.clip_norm)
        return value, found


def _rows(count: int) -> list[int]:
    """Return the samples of an example that are computed: another number than was traced."""
    return [i % count for i in range(SAMPLES if count != SAMPLES else SAMPLES + 1)]


def _moved(value: Tensor, near: Nearness, random: torch.Generator) -> Tensor:
    if near is Nearness.OWN:
        return value.clone()
    moves = torch.rand(value.shape, generator=random, dtype=value.dtype).sub_(0.5)
    if near is Nearness.SCALED:
        return moves.mul_(0.2).add_(1).mul_(value)
    return moves.mul_(0.2 * max(float(value.norm()) / max(1, value.numel()) ** 0.5, 0.1)).add_(value)


def _varied(value: Tensor, near: Nearness, random: torch.Generator) -> Tensor:
    """Return an input, with random numbers if it has floats that are all equal or not finite."""
    if near is Nearness.OWN or not value.is_floating_point():
        return value
    if bool(value.isfinite().all()) and bool((value != value.flatten()[:1]).any()):
        return value
    return (torch.randn if near is Nearness.ADDED else torch.rand)(value.shape, generator=random).to(value.dtype)


def _optimizer(trained: Mapping[str, Tensor], rule: StepRule) -> torch.optim.Optimizer:
    decayed = trained.keys() if rule.decayed is None else rule.decayed
    groups = [
        {"params": [p for name, p in trained.items() if (name in decayed) == decays], "weight_decay": rule.weight_decay * decays}
        for decays in (True, False)
    ]
    if rule.optimizer == "adam":
        adam = torch.optim.Adam(groups, lr=_LR, betas=(_BETA, 0.999))
        for p in trained.values():
            moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.full_like(p, _SECOND_MOMENT)}
            adam.state[p] = {"step": torch.tensor(_ADAM_STEPS), **moments}
        return adam
    return torch.optim.SGD(groups, lr=_LR, momentum=_BETA if rule.optimizer == "momentum" else 0.0)
