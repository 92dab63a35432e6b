"""Gradients of LSTM, GRU and RNN layers as ONNX graphs, against torch's and against finite differences, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto
from onnx.helper import make_node, make_tensor_value_info
from onnx.reference import ReferenceEvaluator
from recurrent_graphs import GATES, HIDDEN, INPUTS, Values, draw, graph, run, sizes, with_gradients
from torch import nn

from edgefl.errors import InputError
from edgefl.onnxgrad.autodiff import append_gradients, tape_of
from edgefl.onnxgrad.stateless import called

# Where torch's blocks of rows stand in ONNX's matrices: i f g o → i o f g, and r z n → z r n.
ORDER = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2], "RNN": [0]}
LAYERS: dict[str, Any] = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}


def of_torch(kind: str, values: Values, outputs: Sequence[str], **options: Any) -> Values:
    """The loss and its gradients by torch's own layer."""
    network = LAYERS[kind](INPUTS, HIDDEN, dtype=torch.float64, **options)
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
    rows = GATES[kind] * HIDDEN

    def rearranged(value: torch.Tensor) -> torch.Tensor:
        blocks = value.split(HIDDEN)
        return torch.cat([blocks[ORDER[kind].index(i)] for i in range(GATES[kind])])

    given = {}
    for layer, direction in itertools.product(range(network.num_layers), range(1 + network.bidirectional)):
        w, r, b = (tensors[name if layer == 0 else f"{name}.{layer}"][direction] for name in "WRB")
        end = f"_l{layer}" + "_reverse" * direction
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        given |= {name + end: rearranged(value) for name, value in zip(names, (w, r, *b.split(rows)), strict=True)}
    state = [tensors[name] for name in ("h0", "c0") if name in tensors]
    initial = (state[0] if kind != "LSTM" else tuple(state)) if state else None
    y, last = called(network, given, (tensors["X"], initial))
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
    options = {key: value * directions if key == "activations" else value for key, value in onnx_options.items()}
    model = graph(kind, shapes, outputs, direction="bidirectional" if directions == 2 else "forward", **options)
    values, tensors = draw(shapes), [name for name in shapes if not name.startswith("k.")]
    expected = of_torch(kind, values, outputs, bidirectional=directions == 2, **torch_options)
    assert_same(run(with_gradients(model, tensors), values), expected)


@pytest.mark.parametrize("directions", [1, 2])
def test_gradients_of_two_layers_are_torchs(directions: int) -> None:
    shapes = sizes("LSTM", directions=directions, layers=2)
    model = graph("LSTM", shapes, direction="bidirectional" if directions == 2 else "forward")
    values, tensors = draw(shapes, 2), [name for name in shapes if not name.startswith("k.")]
    expected = of_torch("LSTM", values, ("Y",), num_layers=2, bidirectional=directions == 2)
    assert_same(run(with_gradients(model, tensors), values), expected)


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
    model = with_gradients(
        graph(kind, shapes, real=TensorProto.FLOAT, direction="bidirectional", **options), ["X", "W", "R", "B"]
    )
    values = draw(shapes, batch=batch)
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
        (
            "LSTM",
            {"activations": ["Sigmoid", "Relu", "Tanh"]},
            "activations sigmoid, relu, tanh have no rule, expected sigmoid, tanh, tanh",
        ),
        ("RNN", {"activations": ["Elu"]}, "activations elu have no rule, expected tanh or relu in every direction"),
        ("GRU", {"clip": 3.0}, "clip = 3 has no rule, expected none"),
        ("LSTM", {"input_forget": 1}, "input_forget = 1 has no rule"),
        ("LSTM", {"layout": 1}, "layout = 1 has no rule"),
    ],
)
def test_what_has_no_rule_is_refused_by_name(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"node 'Y' \\({kind}\\): {message}"):
        tape_of(graph(kind, sizes(kind), **options))


@pytest.mark.parametrize(
    ("slot", "size", "message"), [("lengths", ["n"], "sequence_lens has no rule"), ("P", [1, 9], "peepholes \\(P\\)")]
)
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
        append_gradients(tape, "steepness", ["R"])
