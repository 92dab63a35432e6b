"""The training step as one graph: forward, loss, backward and the optimizer's update, in standard operators."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import onnx
import onnx.checker
import onnx.helper

from edgefl.errors import EdgeflError
from edgefl.onnxio.autodiff import as_model, differentiate, tape_of
from edgefl.onnxio.export import OPSET
from edgefl.onnxio.gradients import Tape
from edgefl.onnxio.loss import OUT, LossGraph

ADAM_BETA2, ADAM_EPS = 0.999, 1e-8


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
    return tuple(_training_graph(graph, loss, rule) for loss in graph.losses)


def _training_graph(graph: LossGraph, loss: str, rule: StepRule) -> bytes:
    statistics = [role for role in graph.roles.values() if role.startswith("s.")]
    part = graph.part([loss, *(role + OUT for role in statistics)])
    trained = {role: name for name, role in graph.roles.items() if role.startswith("p.")}
    shapes = {value.name: value for value in graph.model.graph.input}
    tape = tape_of(part)
    update = _Update(tape, rule, {role for role, name in trained.items() if name in rule.decayed})
    if loss != "loss":
        tape.op("Identity", loss, out="loss")
    found = differentiate(tape, loss, list(trained), update.step)
    for role in trained.keys() - found.keys():
        update.keep(role)
    update.finish()
    changed = [*(name for role in trained for name in update.state_of(role)), *update.shared, *statistics]
    outputs = [_value("loss", ())] + [_value(name + OUT, tape.shapes.get(_parameter_of(name), ())) for name in changed]
    read = {name for node in tape.nodes for name in node.input}
    inputs = [value for value in part.graph.input if value.name in read and value.name not in changed]
    scalars = [_value(name, ()) for name in ("lr", "beta") if name in read]
    held = [_value(name, tape.shapes.get(_parameter_of(name), ())) for name in changed]
    del shapes
    model = as_model(tape, [*inputs, *held, *scalars], outputs, "train", OPSET)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise EdgeflError(f"the training graph is not valid: {error}") from error
    return model.SerializeToString(deterministic=True)


def _parameter_of(name: str) -> str:
    """Return the trained tensor whose shape a tensor of the optimizer's state has."""
    return "p" + name[1:] if name[:2] in ("m.", "v.") else name


def _value(name: str, shape: tuple[int | None, ...]) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


class _Update:
    """Writes a tensor's update as soon as its gradient is there, so that the gradient need not be held any longer."""

    def __init__(self, tape: Tape, rule: StepRule, decayed: set[str]) -> None:
        self.tape, self.rule, self.decayed = tape, rule, decayed
        self.shared = ("t",) if rule.optimizer == "adam" else ()
        self._corrections: tuple[str, str] | None = None

    def state_of(self, role: str) -> tuple[str, ...]:
        """Return the tensors that a step changes for one trained tensor, itself first."""
        kinds = {"sgd": "p", "momentum": "pm", "adam": "pmv"}[self.rule.optimizer]
        return tuple(kind + role[1:] for kind in kinds)

    def keep(self, role: str) -> None:
        """Hand a tensor through, with its state."""
        for name in self.state_of(role):
            self.tape.op("Identity", name, out=name + OUT)

    def step(self, role: str, gradient: str) -> None:
        """Write the update of one tensor."""
        tape = self.tape
        if self.rule.weight_decay and role in self.decayed:
            gradient = tape.op("Add", gradient, tape.op("Mul", role, tape.number(self.rule.weight_decay)))
        change = gradient
        if self.rule.optimizer == "momentum":
            momentum = "m" + role[1:]
            change = tape.op("Add", tape.op("Mul", momentum, "beta"), gradient, out=momentum + OUT)
        if self.rule.optimizer == "adam":
            change = self._adam(role, gradient)
        tape.op("Sub", role, tape.op("Mul", change, "lr"), out=role + OUT)

    def _adam(self, role: str, gradient: str) -> str:
        tape, (_, first, second) = self.tape, self.state_of(role)
        of_first, of_second = self._bias_corrections()
        rest = tape.op("Mul", gradient, tape.op("Sub", tape.number(1.0), "beta"))
        mean = tape.op("Add", tape.op("Mul", first, "beta"), rest, out=first + OUT)
        squares = tape.op("Mul", tape.op("Mul", gradient, gradient), tape.number(1 - ADAM_BETA2))
        square = tape.op("Add", tape.op("Mul", second, tape.number(ADAM_BETA2)), squares, out=second + OUT)
        scale = tape.op("Add", tape.op("Sqrt", tape.op("Div", square, of_second)), tape.number(ADAM_EPS))
        return str(tape.op("Div", tape.op("Div", mean, of_first), scale))

    def _bias_corrections(self) -> tuple[str, str]:
        """Return 1 − β₁ᵗ and 1 − β₂ᵗ, written once."""
        if self._corrections is None:
            tape = self.tape
            steps = tape.op("Add", "t", tape.number(1.0), out="t" + OUT)
            bases = ("beta", tape.number(ADAM_BETA2))
            first, second = (tape.op("Sub", tape.number(1.0), tape.op("Pow", base, steps)) for base in bases)
            self._corrections = first, second
        return self._corrections

    def finish(self) -> None:
        """Write what is left: Adam counts its steps, whatever they moved."""
        if self.shared:
            self._bias_corrections()
