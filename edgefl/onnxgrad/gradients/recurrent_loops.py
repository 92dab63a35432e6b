"""Loops (Scan) over the steps of a recurrent layer, and the rule of their gradients, loops in the other direction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx
import onnx.helper

from edgefl.onnxgrad.gradients.recurrent_cells import CELLS, Names
from edgefl.onnxgrad.gradients.tape import Gradient, Op, Tape, register_rule

Widths = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Widths of the states, of the values read in each step, and of the values written; each is (batch, width) within a step."""


def loop(tape: Tape, name: str, states: Sequence[str], gates: str, weights: Sequence[str], backwards: bool) -> tuple[str, ...]:
    """Append the loop of one direction of a layer.

    Args:
        tape: where to.
        name: the cell's, in :data:`CELLS`.
        states: the first ones, (batch, hidden) each.
        gates: what the steps' inputs give, (steps, batch, gates·hidden).
        weights: what every step reads from outside.
        backwards: from the last step to the first.

    Returns:
        The last states; all h (steps, batch, hidden); and what the cell stores of each step.
    """
    cell, (batch, size) = CELLS[name], tape.shape(states[0])
    steps, _, width = tape.shape(gates)

    def step(*inputs: str) -> Names:
        after, stored = cell.step(tape, inputs[:-1], inputs[-1], weights)
        return (*after, after[0], *stored)

    stored = [part * (size or 0) for part in cell.stored]
    widths = [size or 0] * cell.states, [width or 0], stored
    outputs = _scan(tape, name, (states, [gates]), step, widths, backwards)
    tape.shapes |= dict.fromkeys(outputs[: cell.states], (batch, size))
    tape.shapes |= {output: (steps, batch, part) for output, part in zip(outputs[cell.states :], stored, strict=True)}
    return outputs


@register_rule("Scan")
def loop_back(tape: Tape, op: Op, *gradients: Gradient) -> list[Gradient]:
    """Back through a loop that :func:`loop` wrote; others have no rule, and neither has the loop back itself."""
    name = op.get("body").name
    if name not in CELLS:
        op.refuse("only loops of LSTM, GRU and RNN layers have a rule; their gradients have none: no second derivatives of them")
    cell, size = CELLS[name], tape.fixed(op, op.inputs[0], [1])[0]
    states, reads = op.inputs[: cell.states], op.inputs[cell.states + 1 :]
    weights = [read for read in reads if read not in tape.constants]
    forwards = not op.get("scan_input_directions", [0])[0]
    found = _gradient_loop(tape, op, gradients, weights, forwards)
    of_states, of_gates = found[: cell.states], found[cell.states :]
    stored = op.outputs[cell.states :]
    before = tape.reshape(_before(tape, stored[0], states[0], forwards), (None, size))
    flat = [tape.reshape(value, (None, size * part)) for value, part in zip(of_gates, cell.returned, strict=True)]
    of_weights = dict(zip(weights, cell.weights(tape, flat, stored, before), strict=False))  # a bias may not be there
    return [*of_states, of_gates[0], *map(of_weights.get, reads)]


def _gradient_loop(tape: Tape, op: Op, gradients: Sequence[Gradient], weights: Names, forwards: bool) -> tuple[str, ...]:
    """Append the loop back of ``op``; return the gradients of the first states, and those of the gates of all steps."""
    name = op.get("body").name
    cell, size = CELLS[name], tape.fixed(op, op.inputs[0], [1])[0]
    last, (of_h, *others), stored = gradients[: cell.states], gradients[cell.states :], op.outputs[cell.states :]
    if any(others):
        op.refuse("what its steps store for the gradient has no gradient itself")
    zeros = None if all(last) else tape.op("ConstantOfShape", tape.op("Shape", op.inputs[0]), value=tape.filling(0.0))

    def step(*inputs: str) -> Names:
        after, rows = list(inputs[: cell.states]), list(inputs[cell.states :])
        if of_h:
            after[0] = tape.op("Add", after[0], rows.pop(0))
        before, of_gates = cell.back(tape, after, rows, weights)
        return (*before, *of_gates)

    rows = [of_h, *stored] if of_h else list(stored)
    parts = [1] * cell.states, [1, *cell.stored] if of_h else cell.stored, cell.returned
    first, read, written = ([size * part for part in widths] for widths in parts)
    return _scan(tape, f"{name}.gradient", ([g or str(zeros) for g in last], rows), step, (first, read, written), forwards)


def _before(tape: Tape, outputs: str, first: str, forwards: bool) -> str:
    """Return h before each step: its outputs, moved on by one, behind the first state."""
    first = tape.op("Unsqueeze", first, tape.integers(0))
    cut = (0, -1) if forwards else (1, 2**31 - 1)
    rest = tape.op("Slice", outputs, *(tape.integers(end) for end in cut), tape.integers(0))
    return str(tape.op("Concat", *((first, rest) if forwards else (rest, first)), axis=0))


def _scan(
    tape: Tape, name: str, inputs: tuple[Names, Names], step: Callable[..., Names], widths: Widths, backwards: bool
) -> tuple[str, ...]:
    """Append a loop; ``step`` writes its body: from states and rows, ``inputs``, to new states and rows."""
    outer, tape.nodes = tape.nodes, []
    try:
        given = [tape.fresh(hint) for hint, names in zip(("state", "row"), inputs, strict=True) for _ in names]
        written = list(_distinct(tape, step(*given)))
        nodes = tape.nodes
    finally:
        tape.nodes = outer
    states, rows = inputs
    read = _declared(tape, given, [*widths[0], *widths[1]])
    body = onnx.helper.make_graph(nodes, name, read, _declared(tape, written, [*widths[0], *widths[2]]))
    turned: dict[str, Any] = (
        {"scan_input_directions": [1] * len(rows), "scan_output_directions": [1] * len(widths[2])} if backwards else {}
    )
    return tuple(tape.op("Scan", *states, *rows, count=len(written), body=body, num_scan_inputs=len(rows), **turned))


def _declared(tape: Tape, names: Names, widths: Sequence[int]) -> list[onnx.ValueInfoProto]:
    kind = tape.element_type
    return [onnx.helper.make_tensor_value_info(name, kind, [None, width]) for name, width in zip(names, widths, strict=True)]


def _distinct(tape: Tape, names: Names) -> Iterator[str]:
    """Copy a value that is written twice: outputs of a graph must differ."""
    seen: set[str] = set()
    for name in names:
        yield str(tape.op("Identity", name)) if name in seen else name
        seen.add(name)
