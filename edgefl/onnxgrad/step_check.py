"""Compares a training graph with torch when it is written: the loss, and every tensor after one step.

Both compute the same step from the same values, on three samples. If the results differ from torch's float32 by more than rounding, torch
computes the step in float64 too. A result may differ from float64 by a multiple of torch's own float32 error, plus rounding. Norms are
compared, because single entries of activations near a kink, such as 0 for ReLU, depend on rounding. A difference counts if three draws of
the values show it.

Adam begins with three steps behind it and a second moment of the same size everywhere. Its step is then nearly linear in the gradient. Its
very first step would have the sign of the gradient alone, and turn rounding into a full step where a gradient is zero in theory, as of a
bias before BatchNorm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.errors import EdgeflError, InputError, first_line
from edgefl.onnxgrad.loss import Loss, Whole
from edgefl.onnxgrad.own_gradients import Judged
from edgefl.onnxgrad.roles import BETA, LEARNING_RATE, LOSS, OUT, SEED, STEP_COUNT, Roles, state_inputs
from edgefl.onnxgrad.session import computed
from edgefl.onnxgrad.step_rule import StepRule
from edgefl.onnxgrad.stepper import StepGraphs, session_of
from edgefl.util.fields import Fields, each, first, named, rows
from edgefl.util.stateless import called, restored

MULTIPLE = 64.0
"""A result may differ from float64 by this multiple of torch's float32 error."""
ROUNDING = 1e-5
"""And by this share of a tensor's change, or of the mean change of all tensors."""
LARGEST = 1e-2
"""But never by more than this share, whatever the error of float32."""
_QUICK = 5e-5
"""Takes its place when the results are compared with torch's float32, which has an error of its own."""
_SINGLE_ONLY = 1e-3
"""Takes the place of :data:`ROUNDING` if the network cannot be computed in float64."""
_LR, _BETA, _TRIES, _SAMPLES = 64.0, 0.75, 3, 3
_ADAM_STEPS, _SECOND_MOMENT = 3.0, 2.0**-6
Arrays = dict[str, np.ndarray]


def check_step(
    graphs: StepGraphs,
    network: nn.Module,
    losses: Sequence[Loss],
    batch: Mapping[str, Fields[Tensor]],
    shared: Mapping[str, Tensor],
    rule: StepRule,
    constants: Sequence[str],
) -> None:
    """Raise an EdgeflError unless each graph of ``graphs.steps`` computes the same as torch; it names the first tensor that differs.

    ``constants`` are the tensors that the graphs read and never change: torch's step may not change them either. The step
    starts from the values of ``network``, moved a little. Random numbers take the place of floats of ``batch`` and ``shared`` that are all
    equal. The network is left as it is.
    """
    for number, loss in enumerate(losses):
        for attempt in range(_TRIES):
            case = _Case.drawn(network, graphs.roles, batch, shared, attempt, constants)
            found = computed(session_of(graphs.steps[number], 1), case.feed(graphs.steps[number]))
            differing = _first_difference(case, loss, rule, found)
            if differing is None:
                break
        else:
            raise EdgeflError(
                f"{type(network).__name__} cannot be trained in ONNX: its training graph differs from torch: {differing}"
            )


@dataclass(frozen=True)
class _Case:
    """The values of a step: tensors of the network by name, inputs of the loss by name of the graph's input, and dropout's seed.

    ``constants`` are the tensors that the graph reads and does not change.
    """

    network: nn.Module
    roles: Roles
    tensors: Mapping[str, Tensor]
    inputs: Mapping[str, Fields[Tensor]]
    seed: float
    constants: Sequence[str]

    @classmethod
    def drawn(
        cls,
        network: nn.Module,
        roles: Roles,
        batch: Mapping[str, Fields[Tensor]],
        shared: Mapping[str, Tensor],
        attempt: int,
        constants: Sequence[str],
    ) -> "_Case":
        random = torch.Generator().manual_seed(attempt)
        own = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        tensors = {name: tensor.detach().clone() for name, tensor in own.items()}
        for name in roles.trained:
            value = tensors[name]
            spread = max(float(value.norm()) / max(1, value.numel()) ** 0.5, 0.1)
            tensors[name] = value.add(torch.rand(value.shape, generator=random) - 0.5, alpha=0.2 * spread)
        few = {name: rows(value, _rows(len(first(value)))) for name, value in batch.items()}
        inputs = {name: each(lambda part: _varied(part, random), value) for name, value in few.items()}
        inputs |= {name: _varied(value, random) for name, value in shared.items()}
        return cls(network, roles, tensors, inputs, float(attempt + 1), constants)

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

    def stepped(self, loss: Loss, rule: StepRule, kind: torch.dtype) -> Arrays:
        """Return the results of the step as torch computes them with real numbers of type ``kind``: output → value.

        Constant tensors are among them, as ``network.NAME``.
        """
        tensors = {n: t.to(kind) if t.is_floating_point() else t.clone() for n, t in self.tensors.items()}
        tensors = {n: t.clone() if t is self.tensors[n] else t for n, t in tensors.items()}
        inputs = [each(lambda t: t.to(kind) if t.is_floating_point() else t, value) for value in self.inputs.values()]
        trained = {name: tensors[name].requires_grad_() for name in self.roles.trained}

        def differentiated(*arguments: Any) -> Tensor:
            value = loss(*arguments)
            # Not after the call: gradient checkpointing runs parts of the network again, which must still have these tensors and masks.
            torch.autograd.backward(value)
            return value

        given = {f"network.{n}": t for n, t in tensors.items()}
        with restored(self.network), torch.enable_grad(), torch.random.fork_rng(devices=[]), Judged(self.network):
            value = called(Whole(self.network), given, (differentiated, inputs, torch.tensor(self.seed)))
        _optimizer(trained, rule).step()
        found = {LOSS: value, **{role + OUT: tensors[n] for n, role in {**self.roles.statistics, **self.roles.trained}.items()}}
        found |= {f"network.{name}": given[f"network.{name}"] for name in self.constants}
        return {name: tensor.detach().numpy() for name, tensor in found.items()}


def _rows(count: int) -> list[int]:
    """Return the samples of an example that are computed: another number than was traced."""
    return [i % count for i in range(_SAMPLES if count != _SAMPLES else _SAMPLES + 1)]


def _varied(value: Tensor, random: torch.Generator) -> Tensor:
    """Return an input, with random numbers if it has floats that are all equal or not finite."""
    if not value.is_floating_point() or (bool(value.isfinite().all()) and bool((value != value.flatten()[:1]).any())):
        return value
    return torch.randn(value.shape, generator=random).to(value.dtype)


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


def _first_difference(case: _Case, loss: Loss, rule: StepRule, found: Arrays) -> str | None:
    """Return what differs first: the loss, statistics in the order of the network, parameters likewise; None: nothing."""
    try:
        single = case.stepped(loss, rule, torch.float32)
    except EdgeflError as error:
        raise InputError(f"{type(case.network).__name__} cannot be trained in ONNX: {error}") from error
    except Exception as error:  # networks raise many types
        raise EdgeflError(f"torch cannot compute a step of {type(case.network).__name__}: {first_line(error)}") from error
    if changed := [name for name in case.constants if not _same(single[f"network.{name}"], case.tensors[name])]:
        return f"{changed[0]} changes in a step, and a training graph changes no buffers but the statistics of BatchNorm"
    if not (differing := _differing(case, found, single, {}, _QUICK)):
        return None
    try:
        exact = case.stepped(loss, rule, torch.float64)
        differing = _differing(case, found, exact, single)
    except Exception:  # noqa: BLE001 - as above; such networks mix their own float32 with the float64 of their weights
        exact, differing = single, _differing(case, found, single, {}, _SINGLE_ONLY)
    return _described(case, differing, found, exact) if differing else None


def _differing(case: _Case, found: Arrays, exact: Arrays, single: Arrays, rounding: float = ROUNDING) -> list[str]:
    """Return the outputs of ``found`` that are farther from ``exact`` than the results ``single``, and rounding, allow."""
    before = {role + OUT: case.tensors[name].numpy() for name, role in case.roles.trained.items()}
    changes = {name: _norm(exact[name] - before[name]) for name in before}
    mean = (sum(change**2 for change in changes.values()) / max(1, sum(value.size for value in before.values()))) ** 0.5
    differing = []
    for name, value in exact.items():
        if name not in found:  # a constant, or a statistic that the graph does not read
            continue
        step = changes[name] + value.size**0.5 * mean if name in before else max(_norm(value), 1e-3)
        own = _norm(single[name] - value) if name in single else 0.0
        allowed = (
            min(MULTIPLE * own, LARGEST * step) + rounding * step + 2**-21 * (_norm(before[name]) if name in before else 0.0)
        )
        if not _norm(found[name] - value) <= allowed < np.inf:
            differing.append(name)
    return differing


def _same(values: np.ndarray, before: Tensor) -> bool:
    return np.array_equal(values, before.numpy().astype(values.dtype), equal_nan=True)


def _norm(values: np.ndarray) -> float:
    return float(np.linalg.norm(values))


def _described(case: _Case, differing: Sequence[str], found: Arrays, exact: Arrays) -> str:
    names = {role + OUT: name for name, role in case.roles.tensors.items()}
    first = next((name for name in differing if name in names), None)
    texts = []
    if LOSS in differing:
        texts.append(f"loss {float(found[LOSS]):.6g}, torch {float(exact[LOSS]):.6g}")
    if first is not None:
        layer = names[first].rpartition(".")[0]
        kind = type(case.network.get_submodule(layer)).__name__
        place = np.unravel_index(np.argmax(np.abs(found[first] - exact[first])), exact[first].shape)
        at = f"{names[first]}{[int(i) for i in place]}" if place else names[first]
        texts.append(
            f"{at} of layer {layer or 'itself'} ({kind}) after a step: {found[first][place]:.6g}, torch {exact[first][place]:.6g}"
        )
    return "; ".join(texts)
