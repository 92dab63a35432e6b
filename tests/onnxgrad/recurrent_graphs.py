"""Small graphs of recurrent layers with a loss, their gradients, and how the tests run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info, make_value_info
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import op_scan

from edgefl.onnxgrad.autodiff import append_gradients, as_model, tape_of

STEPS, BATCH, INPUTS, HIDDEN = 4, 3, 2, 3
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
SLOTS = ("X", "W", "R", "B", "", "h0", "c0")
Values = dict[str, np.ndarray[Any, Any]]


class Scan(op_scan.Scan):
    """The reference's, which goes forward only, made to go backwards too."""

    op_domain = ""

    def __init__(self, node: onnx.NodeProto, parameters: Any) -> None:
        plain = onnx.NodeProto()
        plain.CopyFrom(node)
        plain.ClearField("attribute")
        plain.attribute.extend(a for a in node.attribute if not a.name.endswith("directions"))
        directions = {way for a in node.attribute if a.name.endswith("directions") for way in a.ints}
        assert len(directions) < 2, "one direction for all"
        self.turned = directions == {1}
        super().__init__(plain, parameters)  # type: ignore[no-untyped-call]

    def _run(self, *values: Any, **others: Any) -> Any:
        states = len(values) - self.num_scan_inputs  # type: ignore[attr-defined] # set from the node's attributes
        turn = slice(None, None, -1 if self.turned else 1)
        found = super()._run(*values[:states], *(v[turn] for v in values[states:]), **others)  # type: ignore[no-untyped-call]
        return (*found[:states], *(v[turn] for v in found[states:]))


def graph(
    kind: str,
    shapes: Mapping[str, Sequence[Any]],
    outputs: Sequence[str] = ("Y",),
    real: int = TensorProto.DOUBLE,
    **attributes: Any,
) -> onnx.ModelProto:
    """The loss Σ over ``outputs`` of Σ output ∘ k.output, where k's are inputs; inputs that ``shapes`` does not have are left out."""
    names = [slot if slot in shapes else "" for slot in (SLOTS if kind == "LSTM" else SLOTS[:-1])]
    attributes |= {"hidden_size": shapes["R"][2]}
    if "W.1" in shapes:  # two layers, with what torch writes between them
        y, turned, steps, batch, count, size, merged, flat, rest, target, x = (f"between.{i}" for i in range(11))
        nodes = [
            make_node(kind, names, [y], **attributes),
            make_node("Transpose", [y], [turned], perm=[0, 2, 1, 3]),
            *(make_node("Shape", [turned], [o], start=i, end=i + 1) for i, o in enumerate((steps, batch, count, size))),
            make_node("Mul", [count, size], [merged]),
            make_node("Constant", [], [flat], value_ints=[-1]),
            make_node("Reshape", [merged, flat], [rest]),  # its value is not followed by shape inference
            make_node("Concat", [steps, batch, rest], [target], axis=0),
            make_node("Reshape", [turned, target], [x]),
            make_node(kind, [x, "W.1", "R.1", "B.1"], list(outputs), **attributes),
        ]
    else:
        nodes = [make_node(kind, names, list(outputs), **attributes)]
    used = [name for name in outputs if name]
    parts = [f"sum.{name}" for name in used]
    for name in used:
        nodes += [
            make_node("Mul", [name, f"k.{name}"], [f"p.{name}"]),
            make_node("ReduceSum", [f"p.{name}"], [f"sum.{name}"], keepdims=0),
        ]
    nodes.append(make_node("Sum", parts, ["loss"]))
    inputs = [make_tensor_value_info(name, real, shape) for name, shape in shapes.items()]
    body = make_graph(nodes, "g", inputs, [make_tensor_value_info("loss", real, [])])
    return make_model(body, opset_imports=[make_opsetid("", 20)], ir_version=10)


def sizes(
    kind: str, outputs: Sequence[str] = ("Y",), directions: int = 1, initial: bool = False, steps: int = STEPS, layers: int = 1
) -> dict[str, list[Any]]:
    rows, state = GATES[kind] * HIDDEN, [directions, "n", HIDDEN]
    found: dict[str, list[Any]] = {"X": [steps, "n", INPUTS], "W": [directions, rows, INPUTS], "R": [directions, rows, HIDDEN]}
    found["B"] = [directions, 2 * rows]
    if initial:
        found |= {"h0": state} | ({"c0": state} if kind == "LSTM" else {})
    if layers == 2:
        found |= {"W.1": [directions, rows, directions * HIDDEN], "R.1": found["R"], "B.1": found["B"]}
    known = {"Y": [steps, directions, "n", HIDDEN], "Y_h": state, "Y_c": state}
    return found | {f"k.{name}": known[name] for name in outputs if name}


def draw(shapes: Mapping[str, Sequence[Any]], seed: int = 0, batch: int = BATCH) -> Values:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal([batch if d == "n" else d for d in shape]) for name, shape in shapes.items()}


def with_gradients(model: onnx.ModelProto, tensors: Sequence[str]) -> onnx.ModelProto:
    tape = tape_of(model)
    found = append_gradients(tape, "loss", tensors)
    outputs, types = [model.graph.output[0]], {value.name: value.type for value in model.graph.input}
    for name in tensors:
        tape.op("Identity", found[name], out=f"d.{name}")
        outputs.append(make_value_info(f"d.{name}", types[name]))
    result = as_model(tape, model.graph.input, outputs, "gradients")
    onnx.checker.check_model(result, full_check=True)
    return result


def run(model: onnx.ModelProto, values: Values) -> Values:
    names = [o.name for o in model.graph.output]
    return dict(zip(names, ReferenceEvaluator(model, new_ops=[Scan]).run(None, values), strict=True))
