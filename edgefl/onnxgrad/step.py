"""The training step as one graph: forward, loss, backward and the optimizer's update, in standard operators."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnx.shape_inference
from torch import Tensor, nn

from edgefl.errors import EdgeflError
from edgefl.onnxgrad.autodiff import append_gradients, as_model, reads, tape_of
from edgefl.onnxgrad.exporter import OPSET
from edgefl.onnxgrad.gradients import Tape
from edgefl.onnxgrad.loss import Loss, LossGraph, loss_graph
from edgefl.onnxgrad.roles import BETA, LEARNING_RATE, LOSS, OUT, SHARE, STEP_COUNT, state_inputs, sum_input
from edgefl.onnxgrad.stepper import StepGraphs

ADAM_BETA2, ADAM_EPS = 0.999, 1e-8


@dataclass(frozen=True)
class StepRule:
    """How a step changes the parameters; ``decayed`` names those that decay (None: all)."""

    optimizer: Literal["momentum", "sgd", "adam"] = "sgd"
    weight_decay: float = 0.0
    decayed: Collection[str] | None = field(default=None)


def training_step(
    network: nn.Module,
    loss: Loss | Sequence[Loss],
    batch: Mapping[str, Tensor],
    rule: StepRule | None = None,
    *,
    shared: Mapping[str, Tensor] | None = None,
    parts: bool = False,
) -> StepGraphs:
    """Return the training step of a network: forward, loss, backward and update, in standard operators.

    Args:
        network: parameters with ``requires_grad`` are trained, running statistics are updated. Values do not matter.
        loss: (network, *batch, *shared) → scalar. Several losses are equally likely kinds of step.
        batch: examples, at least two samples each: name of the input → (samples, …). The number of samples is free in the graphs.
        rule: the optimizer; None: plain gradient descent.
        shared: examples of inputs that are the same for all samples of a batch.
        parts: add the graphs for batches that are taken in parts.

    Raises:
        EdgeflError: an operation has no ONNX form (named), or a loss depends on how many samples there are.
        InputError: an operator has no gradient rule; names operator and node.
    """
    graph, rule = loss_graph(network, [loss] if callable(loss) else loss, batch, shared), rule or StepRule()
    return StepGraphs(training_graphs(graph, rule), graph.roles, *(part_graphs(graph, rule) if parts else ()))


def training_graphs(graph: LossGraph, rule: StepRule) -> tuple[bytes, ...]:
    """Return one training graph for each loss of ``graph``, all with the same tensors as inputs and outputs.

    Inputs: those of ``graph`` that the loss reads, the optimizer's state, the scalar ``lr`` and, except for "sgd", the scalar ``beta``.
    Outputs: ``loss`` and, for every tensor that a step changes, its name with ``.out``.

    With "momentum" m ← β·m + g and p ← p − lr·m, where g is the gradient with the decay added. "adam" is Algorithm 1 of Kingma and Ba
    2015 with β₂ = 0.999 and ε = 1e-8. A parameter that the loss does not depend on comes out as it went in.

    Raises:
        InputError: an operator without a gradient rule; names operator and node.
    """
    return tuple(_step(graph, loss, rule) for loss in graph.losses)


def part_graphs(graph: LossGraph, rule: StepRule) -> tuple[tuple[bytes, ...], bytes]:
    """Return a step in parts, for batches that do not fit into memory at once.

    The first graphs, one for each loss, add up gradients: g ← g + share · gradient, where ``share`` is the part's share of the batch's
    samples. The last graph takes the optimizer's step with the sums g.
    """
    passes = tuple(_pass(graph, loss) for loss in graph.losses)
    tape = Tape(_NOTHING)
    tape.shapes |= _shapes(graph)
    update = _Update(tape, rule, graph)
    for name, value in graph.roles.trained.items():
        update.step(value, sum_input(name))
    update.finish()
    sums = [_value(sum_input(name), tape.shape(value)) for name, value in graph.roles.trained.items()]
    return passes, _checked(tape, sums, update.changed(), [], "update")


_NOTHING = onnx.helper.make_model(onnx.helper.make_graph([], "nothing", [], []))


def _step(graph: LossGraph, loss: str, rule: StepRule) -> bytes:
    tape, part = _tape(graph, loss)
    update = _Update(tape, rule, graph)
    found = append_gradients(tape, loss, list(graph.roles.trained.values()), update.step)
    for value in graph.roles.trained.values():
        if value not in found:
            update.keep(value)
    update.finish()
    return _checked(tape, part.graph.input, [*update.changed(), *graph.roles.statistics.values()], [LOSS], "train")


def _pass(graph: LossGraph, loss: str) -> bytes:
    tape, part = _tape(graph, loss)
    sums = {value: sum_input(name) for name, value in graph.roles.trained.items()}

    def add(value: str, gradient: str) -> None:
        tape.op("Add", sums[value], tape.op("Mul", gradient, SHARE), out=sums[value] + OUT)

    found = append_gradients(tape, loss, list(sums), add)
    for value, total in sums.items():
        if value not in found:
            tape.op("Identity", total, out=total + OUT)
    return _checked(tape, part.graph.input, [*sums.values(), *graph.roles.statistics.values()], [LOSS], "pass")


def _shapes(graph: LossGraph) -> dict[str, tuple[int, ...]]:
    """Return the sizes of a network's tensors, and of those that are stored beside each parameter, by their inputs."""
    shapes = {value: graph.shape(value) for value in graph.roles.tensors.values()}
    beside = {name: (sum_input(name), *state_inputs(name, "adam")) for name in graph.roles.trained}
    return shapes | {other: shapes[graph.roles.trained[name]] for name, others in beside.items() for other in others}


def _tape(graph: LossGraph, loss: str) -> tuple[Tape, onnx.ModelProto]:
    part = graph.part([loss, *(value + OUT for value in graph.roles.statistics.values())])
    tape = tape_of(part)
    tape.shapes |= _shapes(graph)
    if loss != LOSS:
        tape.op("Identity", loss, out=LOSS)
    return tape, part


def _checked(
    tape: Tape, inputs: Iterable[onnx.ValueInfoProto], changed: Sequence[str], results: Sequence[str], name: str
) -> bytes:
    """Return the model whose inputs are what its nodes read; tensors that it changes are inputs and outputs."""
    read = {name for node in tape.nodes for name in reads(node)}
    stored = [_value(name, tape.shapes.get(name, ())) for name in changed]
    scalars = [_value(name, ()) for name in (LEARNING_RATE, BETA, SHARE) if name in read]
    others = [value for value in inputs if value.name in read and value.name not in changed]
    outputs = [_value(name, ()) for name in results] + [_value(value.name + OUT, _sizes(value)) for value in stored]
    model = as_model(tape, [*others, *stored, *scalars], outputs, name, OPSET)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise EdgeflError(f"the training graph is not valid: {error}") from error
    return model.SerializeToString(deterministic=True)


def _value(name: str, shape: Sequence[int | None]) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


def _sizes(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


class _Update:
    """Writes a parameter's update as soon as its gradient is there, so that the gradient need not be stored any longer."""

    def __init__(self, tape: Tape, rule: StepRule, graph: LossGraph) -> None:
        self.tape, self.rule = tape, rule
        trained = graph.roles.trained
        decayed = trained.keys() if rule.decayed is None else rule.decayed
        self.decayed = {trained[name] for name in decayed if name in trained} if rule.weight_decay else set()
        self.states = {value: state_inputs(name, rule.optimizer) for name, value in trained.items()}
        self._corrections: tuple[str, str] | None = None

    def changed(self) -> list[str]:
        """Return the inputs of all tensors that a step changes."""
        counts = [STEP_COUNT] * (self.rule.optimizer == "adam")
        return [name for value, states in self.states.items() for name in (value, *states)] + counts

    def keep(self, value: str) -> None:
        """Hand a parameter through, with its state."""
        for name in (value, *self.states[value]):
            self.tape.op("Identity", name, out=name + OUT)

    def step(self, value: str, gradient: str) -> None:
        """Write the update of one parameter."""
        tape = self.tape
        if value in self.decayed:
            gradient = tape.op("Add", gradient, tape.op("Mul", value, tape.number(self.rule.weight_decay)))
        change = gradient
        if self.rule.optimizer == "momentum":
            (momentum,) = self.states[value]
            change = tape.op("Add", tape.op("Mul", momentum, BETA), gradient, out=momentum + OUT)
        if self.rule.optimizer == "adam":
            change = self._adam(value, gradient)
        tape.op("Sub", value, tape.op("Mul", change, LEARNING_RATE), out=value + OUT)

    def _adam(self, value: str, gradient: str) -> str:
        tape, (first, second) = self.tape, self.states[value]
        of_first, of_second = self._bias_corrections()
        rest = tape.op("Mul", gradient, tape.op("Sub", tape.number(1.0), BETA))
        mean = tape.op("Add", tape.op("Mul", first, BETA), rest, out=first + OUT)
        squares = tape.op("Mul", tape.op("Mul", gradient, gradient), tape.number(1 - ADAM_BETA2))
        square = tape.op("Add", tape.op("Mul", second, tape.number(ADAM_BETA2)), squares, out=second + OUT)
        scale = tape.op("Add", tape.op("Sqrt", tape.op("Div", square, of_second)), tape.number(ADAM_EPS))
        return str(tape.op("Div", tape.op("Div", mean, of_first), scale))

    def _bias_corrections(self) -> tuple[str, str]:
        """Return 1 − β₁ᵗ and 1 − β₂ᵗ, written once: in float64, or the difference from 1 would have three digits left."""
        if self._corrections is None:
            tape, kinds = self.tape, onnx.TensorProto
            steps = tape.op("Cast", tape.op("Add", STEP_COUNT, tape.number(1.0), out=STEP_COUNT + OUT), to=kinds.DOUBLE)
            bases = tape.op("Cast", BETA, to=kinds.DOUBLE), tape.constant(np.array(ADAM_BETA2))
            one = tape.constant(np.array(1.0))
            first, second = (tape.op("Cast", tape.op("Sub", one, tape.op("Pow", b, steps)), to=kinds.FLOAT) for b in bases)
            self._corrections = first, second
        return self._corrections

    def finish(self) -> None:
        """Write the count of Adam's steps, even if no parameter has a gradient."""
        if self.rule.optimizer == "adam":
            self._bias_corrections()
