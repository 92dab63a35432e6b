"""Gradients of arithmetic and activations, entry by entry, with broadcasting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gradient_case import Array, Case, check, draw, positive

TWO = {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div}
ONE: dict[str, Any] = {
    "Neg": torch.neg, "Abs": torch.abs, "Exp": torch.exp, "Sin": torch.sin, "Cos": torch.cos, "Identity": torch.clone,
    "Tanh": torch.tanh, "Sigmoid": torch.sigmoid, "Relu": torch.relu, "Softplus": F.softplus,
    "Tan": torch.tan, "Sinh": torch.sinh, "Cosh": torch.cosh, "Asinh": torch.asinh,
}  # fmt: skip
ROUGH: dict[str, Any] = {"Erf": torch.erf, "Gelu": F.gelu, "HardSwish": F.hardswish}  # single precision in onnx's evaluator
BELOW_ONE = {"Asin": torch.asin, "Acos": torch.acos, "Atanh": torch.atanh}
FROM_POSITIVE = {"Sqrt": torch.sqrt, "Log": torch.log, "Reciprocal": torch.reciprocal}


def two(kind: str, a: Array, b: Array, batch: tuple[str, ...] = ("x",)) -> Case:
    return Case(kind, {"x": a, "b": b}, TWO[kind], batch=batch)


def power(exponent: float) -> Case:
    return Case("Pow", {"x": positive(3, 4), "n": np.array(exponent)}, torch.pow, constants=("n",))


def clip(low: float | None, high: float | None) -> Case:
    bounds = {n: None if v is None else np.array(v) for n, v in (("low", low), ("high", high))}
    given = [v for v in (low, high) if v is not None]
    x = np.concatenate([draw(3, 4), [[v, v, v, v] for v in given]])  # on a bound the slope is 1, as torch's
    names = [n for n in ("low", "high") if bounds[n] is not None]
    return Case("Clip", {"x": x, **bounds}, lambda x, *_: x.clamp(low, high), constants=tuple(names), exact=False)


def extreme(kind: str, *values: Array, batch: tuple[str, ...] = ("x0",)) -> Case:
    def forward(*tensors: torch.Tensor) -> torch.Tensor:
        own = torch.maximum if kind == "Max" else torch.minimum
        return tensors[0] if len(tensors) == 1 else own(forward(*tensors[:-1]), tensors[-1])

    return Case(kind, {f"x{i}": v for i, v in enumerate(values)}, forward, batch=batch)


def dropout(**attributes: Any) -> Case:
    return Case("Dropout", {"x": draw(3, 4), "ratio": np.array(0.5)}, lambda x, _: x, attributes, constants=("ratio",))


POWERS = np.array([0.0, 1.0, 2.0, 3.0])
ZEROS = np.array([[0.0, 0.0, 0.0, 0.0], [-1.5, 0.5, -2.0, 0.0], [1.0, -1.0, 2.0, 3.0]])


def remainder(fmod: int, own: Any) -> Case:
    return Case("Mod", {"x": 3 * draw(3, 4), "b": positive(4) * [1, -1, 1, -1]}, own, {"fmod": fmod}, exact=False)


KEEP = np.array([[True, False, True, True], [False, True, False, True]])

CASES = [
    Case("Pow", {"x": ZEROS, "n": POWERS}, torch.pow, constants=("n",)),
    Case("Pow", {"x": ZEROS, "n": np.array(0.0)}, torch.pow, constants=("n",), exact=False),
    remainder(1, torch.fmod),
    *(two(kind, draw(3, 4), positive(3, 4), ("x", "b")) for kind in TWO),
    *(two(kind, draw(3, 2, 4), positive(2, 1)) for kind in TWO),
    *(two(kind, draw(3, 1, 4), positive(1, 2, 1)) for kind in TWO),
    *(two(kind, draw(4), positive(2, 3, 4), ()) for kind in TWO),
    two("Mul", draw(3, 4), positive()),
    *(Case(kind, {"x": draw(3, 4)}, own) for kind, own in ONE.items()),
    *(Case(kind, {"x": draw(3, 4)}, own, exact=False, tolerance=1e-6) for kind, own in ROUGH.items()),
    *(Case(kind, {"x": positive(3, 4)}, own) for kind, own in FROM_POSITIVE.items()),
    *(Case(kind, {"x": np.tanh(draw(3, 4))}, own) for kind, own in BELOW_ONE.items()),
    Case("Pow", {"x": positive(3, 4), "n": draw(4)}, torch.pow),
    Case("Pow", {"x": positive(1, 4), "n": draw(3, 4)}, torch.pow, batch=("n",)),
    Case("Pow", {"x": np.array(1.5), "n": draw(3, 4)}, torch.pow, batch=("n",)),
    Case("Pow", {"x": np.array([[0.0, 2.0, 0.5]] * 2), "n": np.array([2.0, 3.0, 1.5])}, torch.pow, exact=False),
    Case("Sum", {"x": draw(3, 4), "b": draw(4), "c": draw(1, 4)}, lambda *t: t[0] + t[1] + t[2]),
    Case("Cast", {"x": draw(3, 4)}, torch.clone, {"to": 1}, reference=False),
    power(2.0),
    power(1.0),
    power(-1.5),
    clip(-0.5, 0.7),
    clip(None, 0.3),
    clip(-0.2, None),
    Case("Where", {"c": KEEP, "x": draw(2, 4), "b": draw(4)}, lambda a, b: torch.where(torch.tensor(KEEP), a, b), batch=()),
    extreme("Max", draw(3, 4), draw(3, 4, seed=1), batch=("x0", "x1")),
    extreme("Min", draw(3, 4), draw(4), draw(1, 1)),
    Case("LeakyRelu", {"x": draw(3, 4)}, lambda x: F.leaky_relu(x, 0.25), {"alpha": 0.25}),
    Case("LeakyRelu", {"x": draw(3, 4)}, lambda x: F.leaky_relu(x, float(np.float32(0.01)))),
    Case("Elu", {"x": draw(3, 4)}, lambda x: F.elu(x, 0.75), {"alpha": 0.75}),
    Case("HardSigmoid", {"x": 3 * draw(3, 4)}, lambda x: (0.25 * x + 0.5).clamp(0, 1), {"alpha": 0.25, "beta": 0.5}),
    Case(
        "Gelu", {"x": draw(3, 4)}, lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}, exact=False, tolerance=1e-6
    ),
    Case("Softmax", {"x": draw(3, 4)}, lambda x: x.softmax(-1)),
    Case("Softmax", {"x": draw(3, 4, 2)}, lambda x: x.softmax(1), {"axis": 1}),
    Case("LogSoftmax", {"x": draw(3, 4)}, lambda x: x.log_softmax(-1)),
    Case("LogSoftmax", {"x": draw(3, 4, 2)}, lambda x: x.log_softmax(1), {"axis": 1}),
    dropout(),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_elementwise(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("kind", ["Max", "Min"])
def test_equal_operands_share(kind: str) -> None:
    """Three whole numbers, so that many entries are equal: each gets half, as torch does it."""
    whole = [np.random.default_rng(i).integers(-1, 2, (4, 5)).astype(np.float64) for i in range(2)]
    case = extreme(kind, *whole)
    check(Case(kind, case.inputs, case.torch, batch=("x0", "x1"), exact=False))


def test_nothing_comes_through_relu_at_zero() -> None:
    check(Case("Relu", {"x": np.array([[-1.0, 0.0, 2.0]])}, torch.relu, exact=False))


def test_abs_has_no_slope_at_zero() -> None:
    check(Case("Abs", {"x": np.array([[-1.0, 0.0, 2.0]])}, torch.abs, exact=False))


def test_integers_have_no_gradient() -> None:
    """A cast to whole numbers and back is a step function: the sum's other part has all of the gradient."""
    from onnx.parser import parse_model

    from edgefl.onnxgrad.autodiff import append_gradients, tape_of

    text = '<ir_version: 9, opset_import: ["": 20]> g (float[2] x) => (float y)'
    body = "{ i = Cast <to = 7> (x)  r = Cast <to = 1> (i)  z = Add (x, r)  y = ReduceSumSquare <keepdims = 0> (z) }"
    tape = tape_of(parse_model(text + body))
    before = len(tape.nodes)
    append_gradients(tape, "y", ["x"])
    assert [node.op_type for node in tape.nodes[before:]].count("Add") == 0
