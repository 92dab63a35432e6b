"""Gradients of LSTM, GRU and RNN layers as ONNX graphs, against torch's and against finite differences, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import op_scan
from torch import nn

from edgefl.errors import InputError
from edgefl.onnxio.autodiff import as_model, differentiate, tape_of

STEPS, BATCH, INPUTS, HIDDEN = 4, 3, 2, 3
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# Where torch's blocks of rows stand in ONNX's matrices: i f g o → i o f g, and r z n → z r n.
ORDER = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2], "RNN": [0]}
LAYERS: dict[str, Any] = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
SLOTS = ("X", "W", "R", "B", "", "h0", "c0")
Values = dict[str, np.ndarray[Any, Any]]


class Scan(op_scan.Scan):  # type: ignore[misc]
    """The reference's, which goes forward only, made to go backwards too."""

    op_domain = ""

    def __init__(self, node: onnx.NodeProto, parameters: Any) -> None:
        plain = onnx.NodeProto()
        plain.CopyFrom(node)
        directions = {a.name: list(a.ints) for a in node.attribute if a.name.endswith("directions")}
        kept = [a for a in node.attribute if a.name not in directions]
        plain.ClearField("attribute")
        plain.attribute.extend(kept)
        self.turned = any(sum(directions.values(), []))
        assert not self.turned or all(sum(directions.values(), []))
        super().__init__(plain, parameters)

    def _run(self, *values: Any, **others: Any) -> Any:
        states = len(values) - self.num_scan_inputs
        turn = slice(None, None, -1 if self.turned else 1)
        found = super()._run(*values[:states], *(v[turn] for v in values[states:]), **others)
        return (*found[:states], *(v[turn] for v in found[states:]))


def graph(
    kind: str, shapes: Mapping[str, Sequence[Any]], outputs: Sequence[str] = ("Y",), real: int = TensorProto.DOUBLE, **attributes: Any
) -> onnx.ModelProto:
    """The loss Σ over ``outputs`` of Σ output ∘ k.output, where k's are inputs; inputs that ``shapes`` does not have are left out."""
    names = [slot if slot in shapes else "" for slot in (SLOTS if kind == "LSTM" else SLOTS[:-1])]
    nodes = [make_node(kind, names, list(outputs), hidden_size=shapes["R"][2], **attributes)]
    used = [name for name in outputs if name]
    parts = [f"sum.{name}" for name in used]
    for name in used:
        nodes += [make_node("Mul", [name, f"k.{name}"], [f"p.{name}"]), make_node("ReduceSum", [f"p.{name}"], [f"sum.{name}"], keepdims=0)]
    nodes.append(make_node("Sum", parts, ["loss"]))
    inputs = [make_tensor_value_info(name, real, shape) for name, shape in shapes.items()]
    body = make_graph(nodes, "g", inputs, [make_tensor_value_info("loss", real, [])])
    return make_model(body, opset_imports=[make_opsetid("", 20)], ir_version=10)


def sizes(kind: str, outputs: Sequence[str] = ("Y",), directions: int = 1, initial: bool = False, steps: int = STEPS) -> dict[str, list[Any]]:
    rows, state = GATES[kind] * HIDDEN, [directions, "n", HIDDEN]
    found: dict[str, list[Any]] = {"X": [steps, "n", INPUTS], "W": [directions, rows, INPUTS], "R": [directions, rows, HIDDEN]}
    found["B"] = [directions, 2 * rows]
    if initial:
        found |= {"h0": state} | ({"c0": state} if kind == "LSTM" else {})
    known = {"Y": [steps, directions, "n", HIDDEN], "Y_h": state, "Y_c": state}
    return found | {f"k.{name}": known[name] for name in outputs if name}


def draw(shapes: Mapping[str, Sequence[Any]], seed: int = 0) -> Values:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal([BATCH if d == "n" else d for d in shape]) for name, shape in shapes.items()}


def with_gradients(model: onnx.ModelProto, tensors: Sequence[str]) -> onnx.ModelProto:
    tape = tape_of(model)
    found = differentiate(tape, "loss", tensors)
    kind, shapes = model.graph.output[0].type.tensor_type.elem_type, {v.name: v for v in model.graph.input}
    outputs = [model.graph.output[0]]
    for name in tensors:
        tape.op("Identity", found[name], out=f"d.{name}")
        outputs.append(make_tensor_value_info(f"d.{name}", kind, [d.dim_value or d.dim_param for d in shapes[name].type.tensor_type.shape.dim]))
    result = as_model(tape, model.graph.input, outputs, "gradients")
    onnx.checker.check_model(result, full_check=True)
    return result


def run(model: onnx.ModelProto, values: Values) -> Values:
    names = [o.name for o in model.graph.output]
    return dict(zip(names, ReferenceEvaluator(model, new_ops=[Scan]).run(None, values), strict=True))


def of_torch(kind: str, values: Values, outputs: Sequence[str], **options: Any) -> Values:
    """The loss and its gradients by torch's own layer."""
    layer = LAYERS[kind](INPUTS, HIDDEN, dtype=torch.float64, **options)
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
    rows = GATES[kind] * HIDDEN

    def rearranged(value: torch.Tensor) -> torch.Tensor:
        blocks = value.split(HIDDEN)
        return torch.cat([blocks[ORDER[kind].index(i)] for i in range(GATES[kind])])

    given = {}
    for d, end in enumerate(["", "_reverse"][: len(values["W"])]):
        biases = tensors["B"][d].split(rows) if "B" in tensors else [torch.zeros(rows, dtype=torch.float64)] * 2
        of = {"weight_ih": tensors["W"][d], "weight_hh": tensors["R"][d], "bias_ih": biases[0], "bias_hh": biases[1]}
        given |= {f"{name}_l0{end}": rearranged(value) for name, value in of.items()}
    state = [tensors[name] for name in ("h0", "c0") if name in tensors]
    initial = (state[0] if kind != "LSTM" else tuple(state)) if state else None
    y, last = torch.func.functional_call(layer, given, (tensors["X"], initial))
    last_h, last_c = last if kind == "LSTM" else (last, None)
    y = y.unflatten(2, (-1, HIDDEN)).transpose(1, 2)
    found = {"Y": y, "Y_h": last_h, "Y_c": last_c}
    loss = sum((found[name] * tensors[f"k.{name}"]).sum() for name in outputs if name)
    loss.backward()
    return {"loss": loss.detach().numpy()} | {f"d.{n}": t.grad.numpy() for n, t in tensors.items() if t.grad is not None}


def assert_same(found: Values, expected: Values) -> None:
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(
    ("kind", "outputs", "onnx_options", "torch_options"),
    [
        ("LSTM", ("Y",), {}, {}),
        ("LSTM", ("", "Y_h", "Y_c"), {}, {}),
        ("LSTM", ("Y", "Y_h", "Y_c"), {}, {}),
        ("GRU", ("Y", "Y_h"), {"linear_before_reset": 1}, {}),
        ("RNN", ("Y", "Y_h"), {}, {}),
        ("RNN", ("Y",), {"activations": ["Relu"]}, {"nonlinearity": "relu"}),
    ],
)
def test_gradients_are_torchs(
    kind: str, outputs: Sequence[str], onnx_options: dict[str, Any], torch_options: dict[str, Any], directions: int, initial: bool
) -> None:
    shapes = sizes(kind, outputs, directions, initial)
    values = draw(shapes)
    options = dict(onnx_options)
    if "activations" in options:
        options["activations"] = options["activations"] * directions
    both = directions == 2
    model = graph(kind, shapes, outputs, direction="bidirectional" if both else "forward", **options)
    tensors = [name for name in shapes if not name.startswith("k.")]
    assert_same(run(with_gradients(model, tensors), values), of_torch(kind, values, outputs, bidirectional=both, **torch_options))


@pytest.mark.parametrize(("kind", "options"), [("LSTM", {}), ("GRU", {}), ("GRU", {"linear_before_reset": 1}), ("RNN", {})])
def test_gradients_are_central_differences(kind: str, options: dict[str, Any]) -> None:
    """Against the direction of time, without biases, with the reset gate on either side of the product."""
    outputs = ("Y", "Y_h")
    shapes = sizes(kind, outputs, initial=True)
    if kind == "LSTM":
        del shapes["B"]
    model, values = graph(kind, shapes, outputs, direction="reverse", **options), draw(shapes, 1)
    tensors = [name for name in shapes if not name.startswith("k.")]
    found, forward, step = run(with_gradients(model, tensors), values), ReferenceEvaluator(model), 1e-5
    for seed, name in enumerate(tensors):
        along = np.random.default_rng(seed).standard_normal(values[name].shape)
        up, down = (forward.run(None, {**values, name: values[name] + sign * step * along})[0] for sign in (1, -1))
        np.testing.assert_allclose((found[f"d.{name}"] * along).sum(), (up - down) / (2 * step), rtol=1e-7, err_msg=name)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("batch", [1, 5])
def test_onnxruntime_runs_it_on_batches_of_any_size(kind: str, batch: int) -> None:
    shapes = sizes(kind, ("Y",), 2, steps=7)
    options = {"linear_before_reset": 1} if kind == "GRU" else {}
    model = with_gradients(graph(kind, shapes, real=TensorProto.FLOAT, direction="bidirectional", **options), ["X", "W", "R", "B"])
    values = {name: v[:, :, :batch] if name == "k.Y" else v for name, v in draw({n: [batch if d == "n" else d for d in s] for n, s in shapes.items()}).items()}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {name: value.astype(np.float32) for name, value in values.items()})
    expected = of_torch(kind, values, ("Y",), bidirectional=True)
    for output, value in zip(model.graph.output, found, strict=True):
        np.testing.assert_allclose(value, expected[output.name], rtol=1e-4, atol=1e-5, err_msg=output.name)


def test_the_graph_of_a_long_sequence_is_as_small_as_that_of_a_short_one() -> None:
    short, long = (with_gradients(graph("LSTM", sizes("LSTM", steps=steps)), ["X", "W", "R", "B"]) for steps in (2, 300))
    assert [node.op_type for node in short.graph.node] == [node.op_type for node in long.graph.node]
    assert long.ByteSize() < short.ByteSize() + 50


def test_what_is_not_wanted_is_not_computed() -> None:
    model = graph("LSTM", sizes("LSTM"))
    of_all, of_input = (with_gradients(model, tensors).graph.node for tensors in (["X", "W", "R", "B"], ["X"]))
    assert sum(n.op_type == "Gemm" for n in of_all) == sum(n.op_type == "Gemm" for n in of_input) + 2


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("LSTM", {"activations": ["Sigmoid", "Relu", "Tanh"]}, "activations sigmoid, relu, tanh have no rule, expected sigmoid, tanh, tanh"),
        ("RNN", {"activations": ["Elu"]}, "activations elu have no rule, expected tanh or relu in every direction"),
        ("GRU", {"clip": 3.0}, "clip = 3 has no rule, expected none"),
        ("LSTM", {"input_forget": 1}, "input_forget = 1 has no rule"),
        ("LSTM", {"layout": 1}, "layout = 1 has no rule"),
    ],
)
def test_what_has_no_rule_is_refused_by_name(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"node 'Y' \\({kind}\\): {message}"):
        tape_of(graph(kind, sizes(kind), **options))


@pytest.mark.parametrize(("slot", "size", "message"), [("lengths", ["n"], "sequence_lens has no rule"), ("P", [1, 9], "peepholes \\(P\\)")])
def test_inputs_without_a_rule_are_refused(slot: str, size: list[Any], message: str) -> None:
    model = graph("LSTM", sizes("LSTM"))
    model.graph.input.append(make_tensor_value_info(slot, TensorProto.INT32 if slot == "lengths" else TensorProto.DOUBLE, size))
    model.graph.node[0].input[4:] = ["lengths"] if slot == "lengths" else ["", "", "", "P"]
    with pytest.raises(InputError, match=message):
        tape_of(model)


def test_a_free_number_of_steps_is_refused() -> None:
    with pytest.raises(InputError, match="its number of steps must be fixed"):
        tape_of(graph("LSTM", sizes("LSTM") | {"X": ["t", 3, INPUTS]}))


def test_second_derivatives_are_refused() -> None:
    model = graph("LSTM", sizes("LSTM"))
    first = make_node("Gradient", ["loss", "X"], ["slope"], domain="edgefl")
    model.graph.node.extend([first, make_node("ReduceSumSquare", ["slope"], ["steepness"], keepdims=0)])
    tape = tape_of(model)
    with pytest.raises(InputError, match="no second derivatives"):
        differentiate(tape, "steepness", ["R"])
