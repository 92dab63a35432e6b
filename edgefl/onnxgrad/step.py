"""Builds the graph of a training step: forward pass, loss, backward pass and the optimizer's update, in standard operators."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnx.shape_inference
from torch import Tensor, nn

from edgefl.onnxgrad.arguments import check_arguments
from edgefl.onnxgrad.autodiff import append_gradients, as_model, reads, tape_of
from edgefl.onnxgrad.errors import EdgeflError, InputError
from edgefl.onnxgrad.fields import Fields
from edgefl.onnxgrad.gradients import Tape
from edgefl.onnxgrad.graphs import OPSET
from edgefl.onnxgrad.loss import Loss, LossGraph, loss_graph, measured
from edgefl.onnxgrad.roles import BETA, LEARNING_RATE, LOSS, OUT, SEED, SHARE, STEP_COUNT, StepRule, state_inputs, sum_input
from edgefl.onnxgrad.step_check import check_step
from edgefl.onnxgrad.stepper import StepGraphs

__all__ = ["StepRule", "part_graphs", "training_graphs", "training_step"]

ADAM_BETA2, ADAM_EPS = 0.999, 1e-8


def training_step(
    network: nn.Module,
    loss: Loss | Sequence[Loss],
    batch: Mapping[str, Fields[Tensor]],
    rule: StepRule | None = None,
    *,
    shared: Mapping[str, Tensor] | None = None,
    parts: bool = False,
) -> StepGraphs:
    """Return the graphs of a network's training step.

    Args:
        network: parameters with ``requires_grad`` are trained, running statistics are updated, other tensors are read. Values do not
            matter: all tensors are inputs of the graphs.
        loss: (network, *batch, *shared) → scalar. Several losses make one graph each: kinds of step, drawn with equal chances.
        batch: name of an input → example (samples, …), with at least two samples. The number of samples is free in the graphs. An entry
            may be several examples, key → (samples, …), which the loss gets as such; their inputs are called ``name.key``.
        rule: the optimizer; None: plain gradient descent.
        shared: name → example of an input that is the same for all samples, such as a mask of labels.
        parts: add the graphs for batches that do not fit into memory at once; see :func:`part_graphs`.

    Raises:
        EdgeflError: an operation has no ONNX operator (named), a loss computes with the number of samples, or a graph differs from torch
            (first tensor, layer and values named). Each graph is compared with torch before it is returned.
        InputError: an operator has no gradient rule (operator and node named), or an argument is of another kind than expected.

    Example:
        >>> import torch
        >>> step = training_step(nn.Linear(2, 1), lambda net, x: net(x).square().mean(), {"x": torch.zeros(4, 2)})
        >>> graph = onnx.load_model_from_string(step.steps[0]).graph
        >>> [value.name for value in graph.input], [value.name for value in graph.output]
        (['x', 'p.weight', 'p.bias', 'lr'], ['loss', 'p.weight.out', 'p.bias.out'])
    """
    losses, rule = [loss] if callable(loss) else loss, StepRule() if rule is None else rule
    check_arguments(network, losses, batch, shared or {}, rule)
    graph = loss_graph(network, losses, batch, shared)
    found = StepGraphs(training_graphs(graph, rule), graph.roles, *(part_graphs(graph, rule) if parts else ()))
    check_step(found, network, losses, batch, shared or {}, rule, graph)
    return found


def training_graphs(graph: LossGraph, rule: StepRule) -> tuple[bytes, ...]:
    """Return one training graph, a serialized ModelProto, for each loss of ``graph``.

    Inputs: the inputs of ``graph`` that the loss reads, the optimizer's state, the scalar ``lr`` and, except for "sgd", the scalar
    ``beta``. Outputs: ``loss`` and, for every tensor that a step changes, its name with ``.out``.

    g is the gradient, clipped to ``rule.clip_norm``, with decay. "sgd": p ← p − lr·g. "momentum": m ← β·m + g, p ← p − lr·m. "adam":
    Algorithm 1 of Kingma and Ba (2015) with β₁ = ``beta``, β₂ = 0.999, ε = 1e-8. Parameters that the loss does not depend on do not
    change. InputError as :func:`training_step`.
    """
    return tuple(_step(graph, loss, rule) for loss in graph.losses)


def part_graphs(graph: LossGraph, rule: StepRule) -> tuple[tuple[bytes, ...], bytes]:
    """Return the graphs (passes, update) of a step that takes its batch in parts.

    A pass, one for each loss, adds the gradient of a part: g ← g + ``share`` · gradient, where ``share`` is the part's share of the samples
    of the batch. ``update`` takes the optimizer's step with the sums g; parameters that no loss depends on do not change.
    """
    passes, reached = zip(*(_pass(graph, loss) for loss in graph.losses), strict=True)
    trained = set().union(*reached)
    tape = Tape(onnx.ModelProto())
    tape.shapes |= _shapes(graph)
    update = _Update(tape, rule, graph)
    found = {value: sum_input(name) for name, value in graph.roles.trained.items() if value in trained}
    update.finish(found, found)
    sums = [_value(sum_input(name), tape.shape(value)) for name, value in graph.roles.trained.items()]
    return passes, _checked(graph, tape, sums, update.changed(), [], "update")


def _step(graph: LossGraph, loss: str, rule: StepRule) -> bytes:
    tape, part = _tape(graph, loss)
    update = _Update(tape, rule, graph)
    at_once = rule.clip_norm is None  # an update that follows its gradient frees it early, but the norm needs all of them
    found = append_gradients(tape, loss, list(graph.roles.trained.values()), update.step if at_once else None)
    update.finish({} if at_once else found, found)
    return _checked(graph, tape, part.graph.input, [*update.changed(), *graph.roles.statistics.values()], [LOSS], "train")


def _pass(graph: LossGraph, loss: str) -> tuple[bytes, set[str]]:
    """Return the pass for a loss, and the parameters that the loss depends on."""
    tape, part = _tape(graph, loss)
    sums = {value: sum_input(name) for name, value in graph.roles.trained.items()}

    def add(value: str, gradient: str) -> None:
        tape.op("Add", sums[value], tape.op("Mul", gradient, SHARE), out=sums[value] + OUT)

    found = append_gradients(tape, loss, list(sums), add)
    for value, total in sums.items():
        if value not in found:
            tape.op("Identity", total, out=total + OUT)
    changed = [*sums.values(), *graph.roles.statistics.values()]
    return _checked(graph, tape, part.graph.input, changed, [LOSS], "pass"), set(found)


def _shapes(graph: LossGraph) -> dict[str, tuple[int, ...]]:
    """Return input → sizes, of the tensors of the network, the sums of gradients and the optimizer's state."""
    shapes = {value: graph.shape(value) for value in graph.roles.tensors.values()}
    beside = {name: (sum_input(name), *state_inputs(name, "adam")) for name in graph.roles.trained}
    return shapes | {other: shapes[graph.roles.trained[name]] for name, others in beside.items() for other in others}


def _tape(graph: LossGraph, loss: str) -> tuple[Tape, onnx.ModelProto]:
    statistics = measured(loss, graph.roles)
    part = graph.part([loss, *statistics.values()])
    tape = tape_of(part)
    tape.shapes |= _shapes(graph)
    if loss != LOSS:
        for output, name in ((loss, LOSS), *((output, value + OUT) for value, output in statistics.items())):
            tape.op("Identity", output, out=name)
    return tape, part


def _checked(
    graph: LossGraph, tape: Tape, inputs: Iterable[onnx.ValueInfoProto], changed: Sequence[str], results: Sequence[str], name: str
) -> bytes:
    """Return the checked, serialized model of a tape. Its inputs are the values that nodes read; ``changed`` tensors are outputs too."""
    read = {name for node in tape.nodes for name in reads(node)}
    if SEED in read:
        tape.op("Add", SEED, tape.number(1.0), out=SEED + OUT)
        changed = [*changed, SEED]
    stored = [_value(name, tape.shapes.get(name, ())) for name in changed]
    scalars = [_value(name, ()) for name in (LEARNING_RATE, BETA, SHARE) if name in read]
    others = [value for value in inputs if value.name in read and value.name not in changed]
    outputs = [_value(name, ()) for name in results] + [_value(name + OUT, tape.shapes.get(name, ())) for name in changed]
    model = as_model(tape, [*others, *stored, *scalars], outputs, name, OPSET)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        if graph.other_numbers:
            raise InputError(
                f"training graphs compute in float32, but the loss computes {graph.other_numbers}; use .float()"
            ) from error
        raise EdgeflError(f"the training graph is not valid: {error}") from error
    return model.SerializeToString(deterministic=True)


def _value(name: str, shape: Sequence[int | None]) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


class _Update:
    """Appends the update of each parameter; called when its gradient is complete, so that the gradient is freed early."""

    def __init__(self, tape: Tape, rule: StepRule, graph: LossGraph) -> None:
        self.tape, self.rule = tape, rule
        trained = graph.roles.trained
        decayed = trained.keys() if rule.decayed is None else rule.decayed
        self.decayed = {trained[name] for name in decayed if name in trained} if rule.weight_decay else set()
        self.states = {value: state_inputs(name, rule.optimizer) for name, value in trained.items()}
        self._corrections: tuple[str, str] | None = None

    def changed(self) -> list[str]:
        """Return the inputs of the parameters and of the optimizer's state."""
        counts = [STEP_COUNT] * (self.rule.optimizer == "adam")
        return [name for value, states in self.states.items() for name in (value, *states)] + counts

    def keep(self, value: str) -> None:
        """Return a parameter and its state unchanged: the loss does not depend on it."""
        for name in (value, *self.states[value]):
            self.tape.op("Identity", name, out=name + OUT)

    def step(self, value: str, gradient: str) -> None:
        """Append the update of one parameter."""
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
        return tape.op("Div", tape.op("Div", mean, of_first), scale)

    def _bias_corrections(self) -> tuple[str, str]:
        """Return 1 − β₁ᵗ and 1 − β₂ᵗ, appended once. Computed in float64: in float32 the differences have three digits."""
        if self._corrections is None:
            tape, kinds = self.tape, onnx.TensorProto
            steps = tape.op("Cast", tape.op("Add", STEP_COUNT, tape.number(1.0), out=STEP_COUNT + OUT), to=kinds.DOUBLE)
            bases = tape.op("Cast", BETA, to=kinds.DOUBLE), tape.constant(np.array(ADAM_BETA2))
            one = tape.constant(np.array(1.0))
            first, second = (tape.op("Cast", tape.op("Sub", one, tape.op("Pow", b, steps)), to=kinds.FLOAT) for b in bases)
            self._corrections = first, second
        return self._corrections

    def finish(self, waiting: Mapping[str, str], reached: Collection[str]) -> None:
        """Append the updates of the parameters ``waiting`` → gradient, keep those not ``reached``, and count Adam's steps."""
        factor = self._factor(waiting.values()) if self.rule.clip_norm is not None and waiting else None
        for value, gradient in waiting.items():
            self.step(value, gradient if factor is None else self.tape.op("Mul", gradient, factor))
        for value in self.states:
            if value not in reached:
                self.keep(value)
        if self.rule.optimizer == "adam":
            self._bias_corrections()

    def _factor(self, gradients: Iterable[str]) -> str:
        """Return min(1, C / (‖g‖ + 1e-6)), appended, with the norm of all ``gradients`` together."""
        tape = self.tape
        squares = [tape.op("ReduceSumSquare", gradient, keepdims=0) for gradient in gradients]
        norm = tape.op("Sqrt", tape.total(squares))
        bound = self.rule.clip_norm or 0.0
        return tape.op("Min", tape.op("Div", tape.number(bound), tape.op("Add", norm, tape.number(1e-6))), tape.number(1.0))
