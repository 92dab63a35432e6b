"""Gradients of gradients: rules are written in operators that have rules themselves."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import test_rule_table
import torch
from gradient_case import Array, Case, compare, graph, of_torch, run, weights_of
from onnx import TensorProto
from onnx.helper import make_node, make_tensor_value_info

from edgefl.errors import InputError
from edgefl.onnxgrad.autodiff import append_gradients, as_model, tape_of

# The weights' gradient is a convolution whose channels are the samples; it has no fixed sizes to go on with.
ONCE = {
    **dict.fromkeys(("Conv", "ConvTranspose"), "its rule needs a fixed one"),
    "Det": "the gradient of a determinant has no gradient of its own",
}
SMOOTH = [
    case for case in test_rule_table.CASES if case.reference and case.by and np.abs(case.inputs[case.by[0]]).max(initial=0) > 0
]
CASES = {
    case.kind: case for case in SMOOTH if case.kind not in {"Abs", "ReduceL1"}
}  # whose second derivative torch has no tensor for


def sums(names: list[str], weights: list[str]) -> list[onnx.NodeProto]:
    """Return nodes that compute Σ value ∘ weight over pairs, as ``loss``."""
    nodes, parts = [], []
    for name, weight in zip(names, weights, strict=True):
        nodes += [
            make_node("Mul", [name, weight], [f"q.{name}"]),
            make_node("ReduceSum", [f"q.{name}"], [f"r.{name}"], keepdims=0),
        ]
        parts.append(f"r.{name}")
    return [*nodes, make_node("Sum", parts, ["loss"])]


def directions(case: Case) -> dict[str, Array]:
    return {f"c.{n}": np.random.default_rng(9).standard_normal(case.inputs[n].shape) for n in case.by}


def second_graph(case: Case, results: list[Array]) -> onnx.ModelProto:
    """Return the gradients of Σ direction ∘ gradient of the case's loss."""
    model = graph(case, results, TensorProto.DOUBLE)
    model.graph.node[-1].output[0] = "inner"
    model.graph.node.append(make_node("Gradient", ["inner", *case.by], [f"g.{n}" for n in case.by], domain="edgefl"))
    for name in case.by:
        shape = case.inputs[name].shape
        shape = ["n", *shape[1:]] if name in case.batch else shape
        model.graph.input.append(make_tensor_value_info(f"c.{name}", TensorProto.DOUBLE, shape))
    model.graph.node.extend(sums([f"g.{n}" for n in case.by], [f"c.{n}" for n in case.by]))
    tape = tape_of(model)
    outputs = [make_tensor_value_info(f"d.{n}", TensorProto.DOUBLE, None) for n in case.by]
    found = append_gradients(tape, "loss", case.by)
    for name in case.by:
        kind, inputs = ("Identity", [found[name]]) if name in found else ("Sub", [name, name])
        tape.op(kind, *inputs, out=f"d.{name}")
    return as_model(tape, model.graph.input, outputs, "second")


def second_of_torch(case: Case) -> dict[str, Array]:
    tensors = {n: torch.tensor(v, requires_grad=n in case.by) for n, v in case.values(None).items() if v.dtype == np.float64}
    found = case.torch(*tensors.values())
    results = found if isinstance(found, (tuple, list)) else [found]
    loss = torch.stack([(r * torch.tensor(weights_of(tuple(r.shape)))).sum() for r in results if r.dtype == torch.float64]).sum()
    by = [tensors[n] for n in case.by]
    first = torch.autograd.grad(loss, by, create_graph=True)
    outer = torch.stack([(g * torch.tensor(c)).sum() for g, c in zip(first, directions(case).values(), strict=True)]).sum()
    second = torch.autograd.grad(outer, by, allow_unused=True) if outer.requires_grad else [None] * len(by)
    return {f"d.{n}": np.zeros(t.shape) if g is None else g.numpy() for n, t, g in zip(case.by, by, second, strict=True)}


@pytest.mark.parametrize("kind", sorted(CASES))
def test_second_gradient(kind: str) -> None:
    case = CASES[kind]
    results, _ = of_torch(case, None)
    if kind in ONCE:
        with pytest.raises(InputError, match=ONCE[kind]):
            second_graph(case, results)
        return
    model = second_graph(case, results)
    weights = {f"k{i}": weights_of(r.shape) for i, r in enumerate(results) if r.dtype == np.float64}
    read = {value.name for value in model.graph.input}
    fed = {n: v for n, v in (case.fed(None) | weights | directions(case)).items() if n in read}
    compare(run(model, fed), second_of_torch(case), max(1e-7, 10 * case.tolerance))
