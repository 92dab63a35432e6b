"""Special functions, which ONNX has no operators for: values and gradients of torch over their whole domains, at poles and at 0."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from function_case import Of, check_network
from gradient_case import Array, Case, check, draw
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from edgefl.onnxgrad.gradients.own import standard

LINE = np.array([[-7.25, -2.5, -0.75, 0.25], [1.0, 1.4616321, 2.0, 30.0], [0.003, 6.5, -12.125, 3.0]])
UNIT = np.array([[-0.97, -0.86, 0.0], [0.5, 0.84, 0.96]])
BESSEL = np.array([[-60.0, -8.0, -0.5], [0.0, 7.99, 8.01], [1e-3, 3.0, 20.0]])


def special(kind: str, x: Array, function: Any, **attributes: Any) -> Case:
    options: dict[str, Any] = {"exact": False, "tolerance": 1e-6}
    return Case(kind, {"x": x}, function, {"domain": "edgefl", **attributes}, **options)


CASES = [
    Case("Acosh", {"x": np.array([[1.25, 1.5, 40.0]])}, torch.acosh),
    special("Lgamma", LINE, torch.lgamma),
    *(special("Polygamma", LINE, lambda x, n=n: torch.polygamma(n, x), order=n) for n in (0, 1, 2)),
    special("Erfinv", UNIT, torch.erfinv),
    special("Ndtri", np.array([[1e-30, 0.02, 0.5], [0.075, 0.9, 0.98]]), torch.special.ndtri),
    special("Erfcx", np.array([[-4.0, -0.1, 0.0], [0.3, 5.0, 3000.0]]), torch.special.erfcx),
    special("LogNdtr", np.array([[-40.0, -1.0, -0.2], [0.0, 2.0, 5.0]]), torch.special.log_ndtr),
    special("BesselI", BESSEL, torch.i0, order=0, scaled=0),
    special("BesselI", BESSEL, torch.special.i0e, order=0, scaled=1),
    special("BesselI", BESSEL, torch.special.i1, order=1, scaled=0),
    special("BesselI", BESSEL, torch.special.i1e, order=1, scaled=1),
    Case(
        "Hypot",
        {"x": np.array([[3.0, 0.0, -1.0], [1e20, -2.0, 5.0]]), "b": np.array([-4.0, 2.0, 0.0])},
        torch.hypot,
        {"domain": "edgefl"},
        exact=False,
        tolerance=1e-6,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradients(case: Case) -> None:
    check(case)


def computed(kind: str, x: Array, **attributes: Any) -> Array:
    """Return the values of a function, as onnxruntime computes its form in float32."""
    node = make_node(kind, ["x"], ["y"], domain="edgefl", **attributes)
    ends = [make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n"]) for name in "xy"]
    model = make_model(
        make_graph([node], "g", ends[:1], ends[1:]),
        opset_imports=[make_opsetid("", 20), make_opsetid("edgefl", 1)],
        ir_version=10,
    )
    session = onnxruntime.InferenceSession(standard(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x})
    return np.asarray(found)


RANDOM = np.random.default_rng(0)
WIDE = np.concatenate([RANDOM.uniform(-30, 30, 4000), 10 ** RANDOM.uniform(-35, 37, 1000), -(10 ** RANDOM.uniform(-35, 2, 1000))])
WIDE = np.concatenate([WIDE, [0.0, 1.0, 2.0, -1.0, -2.0, math.inf]]).astype(np.float32)
NARROW = np.concatenate([RANDOM.uniform(-1, 1, 2000), 1 - 10 ** RANDOM.uniform(-7, -1, 500), [0, 1, -1, 2]]).astype(np.float32)
FUNCTIONS: list[tuple[str, Any, Array, dict[str, int]]] = [
    ("Lgamma", torch.lgamma, WIDE, {}),
    ("Polygamma", torch.digamma, WIDE, {"order": 0}),
    ("Erfinv", torch.erfinv, NARROW, {}),
    ("Ndtri", torch.special.ndtri, np.abs(NARROW), {}),
    ("Erfcx", torch.special.erfcx, WIDE, {}),
    ("LogNdtr", torch.special.log_ndtr, WIDE, {}),
    ("BesselI", torch.i0, WIDE[:-1], {"order": 0, "scaled": 0}),
    ("BesselI", torch.special.i0e, WIDE[:-1], {"order": 0, "scaled": 1}),
    ("BesselI", torch.special.i1, WIDE[:-1], {"order": 1, "scaled": 0}),
    ("BesselI", torch.special.i1e, WIDE[:-1], {"order": 1, "scaled": 1}),
]


@pytest.mark.parametrize(("kind", "function", "x", "attributes"), FUNCTIONS, ids=lambda value: str(value)[:12])
def test_values_are_the_nearest_of_float32(kind: str, function: Any, x: Array, attributes: dict[str, int]) -> None:
    exact = function(torch.from_numpy(x).double()).numpy()
    with np.errstate(over="ignore"):
        expected = exact.astype(np.float32)
    # 1e-12: log Γ is 0 at 1 and 2
    np.testing.assert_allclose(computed(kind, x, **attributes), expected, rtol=1.5e-7, atol=1e-12)


def every(x: torch.Tensor) -> torch.Tensor:
    y = torch.tanh(x)
    parts = [
        *(torch.lgamma(x), torch.digamma(x + 3), torch.polygamma(1, y + 2), torch.mvlgamma(y + 3, 2), torch.erfinv(0.9 * y)),
        *(torch.i0(x), torch.special.i0e(x), torch.special.i1(x), torch.special.i1e(x), torch.hypot(x, y)),
        *(torch.special.ndtri(y / 2.5 + 0.5), torch.special.log_ndtr(x), torch.special.erfcx(x), torch.acosh(x.abs() + 1.1)),
    ]
    return torch.cat(parts, 1)


def test_functions_of_torch() -> None:
    check_network(Of(every), draw(3, 2, 3, 2).astype(np.float32))
