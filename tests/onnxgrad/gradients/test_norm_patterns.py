"""BatchNorm and GroupNorm as torch exports them, in parts: they are put together again, and their gradients are torch's."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
import torch.nn.functional as F
from gradient_case import Array, Case, check_model, draw
from onnx.parser import parse_model
from torch import Tensor

from edgefl.onnxgrad.autodiff import as_model, tape_of

HEAD = '<ir_version: 9, opset_import: ["": 20]> g (REAL[n,6,4,3] x, REAL[6] w, REAL[6] b, REAL[n,6,4,3] k0) => (REAL loss) '
TAIL = " p = Mul (y, k0)  loss = ReduceSum <keepdims = 0> (p) }"
BATCH = """<int64[3] axes = {0, 2, 3}> {
    mean = ReduceMean <keepdims = 0> (x, axes)  centre = ReduceMean (MEASURED, axes)  apart = Sub (x, centre)
    square = Mul (apart, apart)  variance = ReduceMean <keepdims = 0> (square, axes)
    y = BatchNormalization <epsilon = 0.0009765625> (x, w, b, mean, variance)"""
GROUP = """<int64[3] rows = {0, 2, -1}, REAL[2] one = {1, 1}, REAL[2] zero = {0, 0}, int64[2] axes = {1, 2}> {
    grouped = Reshape (x, rows)  normal = InstanceNormalization <epsilon = 0.0009765625> (grouped, one, zero)
    sizes = Shape (x)  back = Reshape (normal, sizes)  column = Unsqueeze (w, axes)  shift = Unsqueeze (b, axes)
    scaled = Mul (FACTORS)  y = Add (SUMMANDS)"""
EPS = 2.0**-10


def batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, w, b, True, 0.0, EPS)


def group_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(x, 2, w, b, EPS)


def model(text: str, real: str, **names: str) -> onnx.ModelProto:
    for name, value in {**names, "REAL": real}.items():
        text = text.replace(name, value)
    return parse_model(text)


def kinds(graph: onnx.ModelProto) -> list[str]:
    """Return the operators of a graph that are left when it is put on the tape."""
    return [node.op_type for node in as_model(tape_of(graph), graph.graph.input, graph.graph.output, "forward").graph.node]


def check(text: str, forward: Any, **names: str) -> None:
    inputs: dict[str, Array] = {"x": draw(3, 6, 4, 3), "w": draw(6), "b": draw(6, seed=1)}
    graphs = [model(text, real, **names) for real in ("double", "float")]
    check_model(Case("", inputs, forward), *graphs)


def test_batch_statistics() -> None:
    text = HEAD + BATCH + TAIL
    check(text, batch_norm, MEASURED="x")
    assert kinds(model(text, "float", MEASURED="x")) == [
        "Mul",
        "Mul",
        "BatchNormalization",
        "Mul",
        "ReduceSum",
    ]


def test_statistics_of_something_else() -> None:
    """The variance around another map's mean is no variance: what is written is differentiated as it is written."""
    text = HEAD.replace("k0)", "k0, REAL[n,6,4,3] z)") + BATCH + TAIL
    graph = model(text, "float", MEASURED="z")
    assert kinds(graph).count("ReduceMean") == 3
    assert not any(a.name == "training_mode" for node in tape_of(graph).nodes for a in node.attribute)


@pytest.mark.parametrize("factors", ["back, column", "column, back"])
@pytest.mark.parametrize("summands", ["scaled, shift", "shift, scaled"])
def test_groups(factors: str, summands: str) -> None:
    text = HEAD + GROUP + TAIL
    check(text, group_norm, FACTORS=factors, SUMMANDS=summands)
    left = kinds(model(text, "float", FACTORS=factors, SUMMANDS=summands))
    assert left.count("BatchNormalization") == 2
    assert "Unsqueeze" in left
    assert "Add" not in left  # scale and shift come in the pass that normalises


def test_a_scale_for_each_entry_is_no_group_norm() -> None:
    """Scale and shift of a whole row are left to Mul and Add."""
    text = HEAD.replace("REAL[6] w", "REAL[3] w").replace("REAL[6] b", "REAL[3] b") + GROUP + TAIL
    text = text.replace("{1, 2}", "{0, 1}")
    inputs = {"x": draw(3, 6, 4, 3), "w": draw(3), "b": draw(3, seed=1)}

    def forward(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.group_norm(x, 2, None, None, EPS) * w + b

    graphs = [model(text, real, FACTORS="back, column", SUMMANDS="scaled, shift") for real in ("double", "float")]
    check_model(Case("", inputs, forward), *graphs)
    assert kinds(graphs[1]).count("BatchNormalization") == 1


def test_one_value_per_channel() -> None:
    """A batch of one sample of vectors has no variance: the result is the shift, and the input's gradient is 0."""
    text = '<ir_version: 9, opset_import: ["": 20]> g (REAL[n,6] x, REAL[6] w, REAL[6] b, REAL[n,6] k0) => (REAL loss) '
    body = BATCH.replace("int64[3] axes = {0, 2, 3}", "int64[1] axes = {0}").replace("MEASURED", "x")
    inputs = {"x": draw(1, 6), "w": draw(6), "b": draw(6, seed=1)}
    graphs = [model(text + body + TAIL, real) for real in ("double", "float")]
    check_model(Case("", inputs, lambda x, w, b: 0 * x * w + b), *graphs)
