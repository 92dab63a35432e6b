"""Gradients of LSTM, GRU and RNN layers, as loops (Scan) over the steps: the size of a graph does not grow with the sequence.

A layer becomes one product of all inputs with W, and a loop over the steps, which also returns the values that the gradient reads. The
rule of this loop is a loop backwards, and one product over all steps for the gradient of R. The steps are in
:mod:`edgefl.onnxgrad.gradients.recurrent_cells`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx
import onnx.helper

from edgefl.onnxgrad.gradients.op import Gradient, Op, prepared, register_rule
from edgefl.onnxgrad.gradients.recurrent_cells import CELLS, Names
from edgefl.onnxgrad.gradients.tape import Tape, put

Widths = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Widths of the states, of the rows read in each step, and of the rows written. Within a step each value is (batch, width)."""


def loop(tape: Tape, name: str, states: Sequence[str], gates: str, weights: Sequence[str], backwards: bool) -> tuple[str, ...]:
    """Append the loop of one direction of a layer: the cell ``name`` of :data:`CELLS` over ``gates`` (steps, batch, gates·hidden).

    Return the last states (batch, hidden), the outputs h of all steps (steps, batch, hidden), and the values that the cell stores.
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
    """The gradient of a loop that :func:`loop` wrote. Other loops have no rule, so there are no second derivatives."""
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
    """Append the backward loop of ``op``; return the gradients of the first states, and those of the gates of all steps."""
    name = op.get("body").name
    cell, size = CELLS[name], tape.fixed(op, op.inputs[0], [1])[0]
    last, (of_h, *others), stored = gradients[: cell.states], gradients[cell.states :], op.outputs[cell.states :]
    if any(others):
        op.refuse("what its steps store for the gradient has no gradient itself")
    zeros = None if all(last) else tape.zeros_like(op.inputs[0])

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
    """Return h before each step: the first state, then all outputs except the last."""
    first = tape.op("Unsqueeze", first, tape.integers(0))
    cut = (0, -1) if forwards else (1, 2**31 - 1)
    rest = tape.op("Slice", outputs, *(tape.integers(end) for end in cut), tape.integers(0))
    return tape.op("Concat", *((first, rest) if forwards else (rest, first)), axis=0)


def _scan(
    tape: Tape, name: str, inputs: tuple[Names, Names], step: Callable[..., Names], widths: Widths, backwards: bool
) -> tuple[str, ...]:
    """Append a Scan over ``inputs`` (states, rows), and return its outputs; ``step`` appends the body, with new states and rows."""
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
    """Yield ``names``, with a copy for each repetition: the outputs of a graph must differ."""
    seen: set[str] = set()
    for name in names:
        yield tape.op("Identity", name) if name in seen else name
        seen.add(name)


_ACTIVATIONS = {"LSTM": (["sigmoid", "tanh", "tanh"],), "GRU": (["sigmoid", "tanh"],), "RNN": (["tanh"], ["relu"])}
_STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}


@prepared("LSTM", "GRU", "RNN")
def recurrent(tape: Tape, op: Op) -> None:
    """Write a layer as one loop for each direction."""
    name, (x, w, r), (steps, batch, _) = _cell_of(op), op.inputs[:3], tape.shape(op.inputs[0])
    if steps is None:
        op.refuse("its number of steps must be fixed")
    (_, _, inputs), (count, width, size) = tape.fixed(op, w), tape.fixed(op, r)
    tape.shapes[x] = (steps, batch, inputs)  # W has the input size, which shape inference loses between two layers of torch
    rows = put(tape, (batch and batch * steps, inputs), "Reshape", x, tape.integers(-1, inputs))
    initial = [op.input(5 + slot) for slot in range(_STATES[op.kind])]
    zeros = None
    if not all(initial):
        sizes = tape.op("Concat", tape.op("Shape", x, start=1, end=2), tape.integers(size), axis=0)
        zeros = put(tape, (batch, size), "ConstantOfShape", sizes, value=tape.filling(0.0))
    apart = (_directions(tape, value, count) for value in (w, r, op.input(3), *initial))
    found = []
    for number, (own_w, own_r, bias, *states) in enumerate(zip(*apart, strict=True)):
        flat, weights = _read_by_steps(tape, name, rows, str(own_w), str(own_r), bias)
        gates = put(tape, (steps, batch, width), "Reshape", flat, tape.integers(steps, -1, width))
        backwards = number == 1 or op.get("direction", "forward") == "reverse"
        found.append(loop(tape, name, [str(state or zeros) for state in states], gates, weights, backwards))
    _write_outputs(tape, op, found)


def _cell_of(op: Op) -> str:
    """Return the name of the layer's cell in :data:`CELLS`; refuse attributes without a rule."""
    names = [name.lower() for name in op.get("activations", ())] or _ACTIVATIONS[op.kind][0]
    length = len(_ACTIVATIONS[op.kind][0])
    directions = [names[i : i + length] for i in range(0, len(names), length)]
    if directions[0] not in _ACTIVATIONS[op.kind] or any(other != directions[0] for other in directions):
        expected = " or ".join(", ".join(names) for names in _ACTIVATIONS[op.kind])
        op.refuse(f"activations {', '.join(names)} have no rule, expected {expected} in every direction")
    for name in ("clip", "input_forget", "layout"):
        if op.get(name):
            op.refuse(f"{name} = {op.get(name):g} has no rule, expected none")
    if op.input(4) is not None:
        op.refuse("sequence_lens has no rule: all sequences must be as long as the input")
    if op.kind == "LSTM" and op.input(7) is not None:
        op.refuse("peepholes (P) have no rule")
    if op.kind == "GRU":
        return "edgefl.gru" if op.get("linear_before_reset", 0) else "edgefl.gru.early"
    return "edgefl.lstm" if op.kind == "LSTM" else f"edgefl.rnn.{directions[0][0]}"


def _cut(tape: Tape, value: str, sizes: Sequence[int], axis: int) -> list[str]:
    """Split a value of the forward graph into parts of these ``sizes`` along ``axis``."""
    if len(sizes) == 1:
        return [value]
    names = [str(name) for name in tape.op("Split", value, tape.integers(*sizes), axis=axis, count=len(sizes))]
    shape = tape.shape(value)
    tape.shapes |= {name: (*shape[:axis], size, *shape[axis + 1 :]) for name, size in zip(names, sizes, strict=True)}
    return names


def _directions(tape: Tape, value: str | None, count: int) -> list[str | None]:
    """Return the part of each direction of an input. Its first axis is the direction."""
    if value is None:
        return [None] * count
    parts = _cut(tape, value, [1] * count, 0)
    return [put(tape, tape.shape(value)[1:], "Squeeze", part, tape.integers(0)) for part in parts]


def _read_by_steps(tape: Tape, name: str, rows: str, w: str, r: str, bias: str | None) -> tuple[str, list[str]]:
    """Return the products of all steps' inputs, ``rows``, with W, plus biases; and the weights that every step reads."""
    width, size = tape.shape(r)
    biases = [] if bias is None else _cut(tape, bias, [width or 0] * 2, 0)
    weights = [r]
    if name == "edgefl.gru":
        weights += biases[1:]  # it is added inside the product with the reset gate
    elif biases:
        biases = [put(tape, (width,), "Add", *biases)]
    if name == "edgefl.gru.early":
        weights = _cut(tape, r, [2 * (size or 0), size or 0], 0)
    return put(tape, (tape.shape(rows)[0], width), "Gemm", rows, w, *biases[:1], transB=1), weights


def _write_outputs(tape: Tape, op: Op, found: Sequence[Sequence[str]]) -> None:
    """Join the directions to the outputs of the layer: Y (steps, directions, batch, hidden), last states (directions, batch, hidden)."""
    order, axes = [_STATES[op.kind], *range(_STATES[op.kind])], (1, 0, 0)
    for output, slot, axis in zip(op.outputs, order, axes, strict=False):
        if not output:
            continue
        parts, shape = [direction[slot] for direction in found], list(tape.shape(found[0][slot]))
        shape.insert(axis, 1)
        if len(parts) == 1:
            tape.op("Unsqueeze", parts[0], tape.integers(axis), out=output)
        else:
            wide = [put(tape, tuple(shape), "Unsqueeze", part, tape.integers(axis)) for part in parts]
            tape.op("Concat", *wide, axis=axis, out=output)
        shape[axis] = len(parts)
        tape.shapes[output] = tuple(shape)
