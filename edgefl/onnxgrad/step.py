"""The training step as one graph: forward, loss, backward and the optimizer's update, in standard operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnx.shape_inference

from edgefl.errors import EdgeflError
from edgefl.onnxgrad.autodiff import as_model, differentiate, reads, tape_of
from edgefl.onnxgrad.export import OPSET
from edgefl.onnxgrad.gradients import Tape
from edgefl.onnxgrad.loss import OUT, LossGraph

ADAM_BETA2, ADAM_EPS = 0.999, 1e-8
_STATE = {"sgd": "p", "momentum": "pm", "adam": "pmv"}


@dataclass(frozen=True)
class StepRule:
    """The optimizer: its name, the coefficient of weight decay, and the trained tensors (by their names in the network) that it acts on."""

    optimizer: Literal["momentum", "sgd", "adam"]
    weight_decay: float
    decayed: Collection[str]


def training_graphs(graph: LossGraph, rule: StepRule) -> tuple[bytes, ...]:
    """Return one training graph for each loss of ``graph``, all with the same tensors as inputs and outputs.

    Inputs: ``x`` and ``y``; ``present`` where the loss reads it; ``p.``, ``m.``, ``v.``, ``t``, ``s.`` and ``f.`` tensors; scalars ``lr``
    and, but for "sgd", ``beta``. Outputs: ``loss`` and, for every tensor that a step changes, its name with ``.out``.

    With "momentum" m ← β·m + g and p ← p − lr·m, g being the gradient and the decay; with "adam" as Kingma and Ba 2015, Algorithm 1,
    β₂ = 0.999, ε = 1e-8. A tensor that the loss does not depend on comes out as it went in.

    Raises:
        InputError: an operator without a gradient rule; names operator and node.
    """
    return tuple(_step(graph, loss, rule) for loss in graph.losses)


def part_graphs(graph: LossGraph, rule: StepRule) -> tuple[tuple[bytes, ...], bytes]:
    """Return a step in parts, for batches that do not fit at once: graphs that add up gradients, and the one that steps with their sum.

    The first, one for each loss, have besides a step's tensors ``g.`` ones, which they change, and a scalar ``share``, of the samples of
    the batch that the part has: g ← g + share · gradient. The last changes ``p.``, ``m.``, ``v.`` and ``t``, given ``g.``.

    Raises:
        InputError: as :func:`training_graphs`.
    """
    passes = tuple(_pass(graph, loss) for loss in graph.losses)
    trained = _trained(graph)
    tape = Tape(graph.part([]))
    update = _Update(tape, rule, graph)
    for role in trained:
        update.step(role, "g" + role[1:])
    update.finish()
    sums = [_value("g" + role[1:], tape.shape(role)) for role in trained]
    return passes, _checked(tape, sums, update.changed(trained), [], "update")


def _step(graph: LossGraph, loss: str, rule: StepRule) -> bytes:
    trained, tape, part = _trained(graph), *_tape(graph, loss)
    update = _Update(tape, rule, graph)
    found = differentiate(tape, loss, trained, update.step)
    for role in trained:
        if role not in found:
            update.keep(role)
    update.finish()
    return _checked(tape, part.graph.input, [*update.changed(trained), *_measured(graph)], ["loss"], "train")


def _pass(graph: LossGraph, loss: str) -> bytes:
    trained, tape, part = _trained(graph), *_tape(graph, loss)
    found = differentiate(tape, loss, trained, _adder(tape))
    for role in trained:
        if role not in found:
            tape.op("Identity", "g" + role[1:], out="g" + role[1:] + OUT)
    sums = ["g" + role[1:] for role in trained]
    return _checked(tape, part.graph.input, [*sums, *_measured(graph)], ["loss"], "pass")


def _adder(tape: Tape) -> Callable[[str, str], None]:
    def add(role: str, gradient: str) -> None:
        own = "g" + role[1:]
        tape.op("Add", own, tape.op("Mul", gradient, "share"), out=own + OUT)

    return add


def _trained(graph: LossGraph) -> list[str]:
    return [role for role in graph.roles.values() if role.startswith("p.")]


def _measured(graph: LossGraph) -> list[str]:
    return [role for role in graph.roles.values() if role.startswith("s.")]


def _tape(graph: LossGraph, loss: str) -> tuple[Tape, onnx.ModelProto]:
    part = graph.part([loss, *(role + OUT for role in _measured(graph))])
    tape = tape_of(part)
    tape.learn_shapes(graph.part([]))  # of tensors that this loss does not read, too
    if loss != "loss":
        tape.op("Identity", loss, out="loss")
    return tape, part


def _checked(
    tape: Tape, inputs: Iterable[onnx.ValueInfoProto], changed: Sequence[str], results: Sequence[str], name: str
) -> bytes:
    """Return the model with what it reads as inputs, its tensors that change declared on both sides."""
    read = {name for node in tape.nodes for name in reads(node)}
    held = [_value(name, tape.shapes.get(_like(name), ())) for name in changed]
    scalars = [_value(name, ()) for name in ("lr", "beta", "share") if name in read]
    others = [value for value in inputs if value.name in read and value.name not in changed]
    outputs = [_value(name, ()) for name in results] + [_value(value.name + OUT, _sizes(value)) for value in held]
    model = as_model(tape, [*others, *held, *scalars], outputs, name, OPSET)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise EdgeflError(f"the training graph is not valid: {error}") from error
    return model.SerializeToString(deterministic=True)


def _like(name: str) -> str:
    """Return the trained tensor whose shape a gradient's or a state's tensor has."""
    return "p" + name[1:] if name[:2] in ("m.", "v.", "g.") else name


def _value(name: str, shape: Sequence[int | None]) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


def _sizes(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


class _Update:
    """Writes a tensor's update as soon as its gradient is there, so that the gradient need not be held any longer."""

    def __init__(self, tape: Tape, rule: StepRule, graph: LossGraph) -> None:
        self.tape, self.rule = tape, rule
        self.decayed = {role for name, role in graph.roles.items() if name in rule.decayed} if rule.weight_decay else set()
        self._corrections: tuple[str, str] | None = None

    def changed(self, trained: Iterable[str]) -> list[str]:
        """Return the names of all tensors that a step changes."""
        return [name for role in trained for name in self._of(role)] + ["t"] * (self.rule.optimizer == "adam")

    def _of(self, role: str) -> list[str]:
        return [kind + role[1:] for kind in _STATE[self.rule.optimizer]]

    def keep(self, role: str) -> None:
        """Hand a tensor through, with its state."""
        for name in self._of(role):
            self.tape.op("Identity", name, out=name + OUT)

    def step(self, role: str, gradient: str) -> None:
        """Write the update of one tensor."""
        tape = self.tape
        if role in self.decayed:
            gradient = tape.op("Add", gradient, tape.op("Mul", role, tape.number(self.rule.weight_decay)))
        change = gradient
        if self.rule.optimizer == "momentum":
            momentum = "m" + role[1:]
            change = tape.op("Add", tape.op("Mul", momentum, "beta"), gradient, out=momentum + OUT)
        if self.rule.optimizer == "adam":
            change = self._adam(role, gradient)
        tape.op("Sub", role, tape.op("Mul", change, "lr"), out=role + OUT)

    def _adam(self, role: str, gradient: str) -> str:
        tape, (_, first, second) = self.tape, self._of(role)
        of_first, of_second = self._bias_corrections()
        rest = tape.op("Mul", gradient, tape.op("Sub", tape.number(1.0), "beta"))
        mean = tape.op("Add", tape.op("Mul", first, "beta"), rest, out=first + OUT)
        squares = tape.op("Mul", tape.op("Mul", gradient, gradient), tape.number(1 - ADAM_BETA2))
        square = tape.op("Add", tape.op("Mul", second, tape.number(ADAM_BETA2)), squares, out=second + OUT)
        scale = tape.op("Add", tape.op("Sqrt", tape.op("Div", square, of_second)), tape.number(ADAM_EPS))
        return str(tape.op("Div", tape.op("Div", mean, of_first), scale))

    def _bias_corrections(self) -> tuple[str, str]:
        """Return 1 − β₁ᵗ and 1 − β₂ᵗ, written once: in float64, or the difference from 1 would have three digits left."""
        if self._corrections is None:
            tape, kinds = self.tape, onnx.TensorProto
            steps = tape.op("Cast", tape.op("Add", "t", tape.number(1.0), out="t" + OUT), to=kinds.DOUBLE)
            bases = tape.op("Cast", "beta", to=kinds.DOUBLE), tape.constant(np.array(ADAM_BETA2))
            one = tape.constant(np.array(1.0))
            first, second = (tape.op("Cast", tape.op("Sub", one, tape.op("Pow", b, steps)), to=kinds.FLOAT) for b in bases)
            self._corrections = first, second
        return self._corrections

    def finish(self) -> None:
        """Write what is left: Adam counts its steps, whatever they moved."""
        if self.rule.optimizer == "adam":
            self._bias_corrections()
