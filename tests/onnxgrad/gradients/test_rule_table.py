"""The table of gradient rules: all of it is tested, and what it does not hold is refused by name."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import test_convolution_gradients
import test_elementwise_gradients
import test_fourier_gradients
import test_indexing_gradients
import test_map_gradients
import test_matrix_gradients
import test_normalization_gradients
import test_pooling_gradients
import test_product_gradients
import test_sampling_gradients
import test_shape_gradients
import test_special_gradients
from onnx.parser import parse_model

from edgefl.errors import InputError
from edgefl.onnxgrad.autodiff import append_gradients, tape_of
from edgefl.onnxgrad.gradients import PREPARED, RULES

FILES = (
    test_convolution_gradients,
    test_elementwise_gradients,
    test_fourier_gradients,
    test_indexing_gradients,
    test_map_gradients,
    test_matrix_gradients,
    test_normalization_gradients,
    test_pooling_gradients,
    test_product_gradients,
    test_sampling_gradients,
    test_shape_gradients,
    test_special_gradients,
)
CASES = [case for file in FILES for case in file.CASES]
RECURRENT = {"LSTM", "GRU", "RNN", "Scan"}
"""Tested by test_recurrent_gradients.py."""
ELSEWHERE = {"STFT"}
"""Tested by test_form_gradients.py."""
OWN = {"BinaryCrossEntropy", "ExactSigmoid", "FirstMax", "FirstMin", "HardTanh"}
"""Operators of edgefl's own domain, tested by test_borders.py."""


def test_every_operator_of_the_table_is_tested() -> None:
    assert {case.kind for case in CASES} | RECURRENT | OWN | ELSEWHERE == set(RULES) | set(PREPARED)


def test_cases_differ() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) > len(names) - 12  # some differ in what their inputs hold


def test_an_operator_without_a_rule_is_named() -> None:
    text = '<ir_version: 9, opset_import: ["": 20]> g (float[3] x) => (float y)'
    model = parse_model(text + "{ z = Hardmax (x)  y = ReduceSum <keepdims = 0> (z) }")
    model.graph.node[0].name = "odd"
    tape = tape_of(model)
    with pytest.raises(
        InputError,
        match=r"'odd' \(Hardmax\): no gradient rule for Hardmax.*edgefl/onnxgrad/gradients, which has Abs, Acos,.*Where",
    ):
        append_gradients(tape, "y", ["x"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("float[2,3] x, int64[2,2] i) => (float y) { z = Gather <axis = 1> (x, i)  y = ReduceSum <keepdims = 0> (z) }", "axis 1 has"),
        ("float[3,3] x) => (float y) { z = Einsum <equation = \"ii->i\"> (x)  y = ReduceSum <keepdims = 0> (z) }", "diagonal"),
        ("float[n,3,h,5] x) => (float y) { z = GlobalAveragePool (x)  y = ReduceSum <keepdims = 0> (z) }", "depends on the batch"),
    ],
)  # fmt: skip
def test_a_form_without_a_rule_is_named(text: str, message: str) -> None:
    model = parse_model('<ir_version: 9, opset_import: ["": 20]> g (' + text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 1, 0, 1]), "p"))
    with pytest.raises(InputError, match=message):
        append_gradients(tape_of(model), "y", ["x"])
