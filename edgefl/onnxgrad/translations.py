"""Operators of torch that torch's exporter cannot translate, as composites; entered into its table."""

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from onnxscript.onnx_opset import opset20
from torch.onnx._internal.exporter import _core

from edgefl.onnxgrad.decompositions.matrices import CHOLESKY, CHOLESKY_SOLVE, DET, EIGH, LU, PINV, QR, SVD, TRIANGULAR
from edgefl.onnxgrad.gradients.op import DOMAIN

aten, prims = torch.ops.aten, torch.ops.prims
Translation = Callable[..., Any]
"""Appends a node of the graph under construction; has the names of the operator's arguments."""


def _composite(kind: str, inputs: list[Any], count: int = 1, **attributes: int) -> Any:
    """Append a composite, and return its output, or several."""
    own = ir.convenience.convert_attributes(attributes)
    node = ir.Node(DOMAIN, kind, inputs, own, num_outputs=count, version=1)
    _core.current_tracer.nodes.append(node)  # type: ignore[union-attr]  # set while a graph is translated
    return node.outputs[0] if count == 1 else node.outputs


def _of_one(kind: str, **attributes: int) -> Translation:
    """Return the translation to a composite of one input."""

    def translated(self: Any) -> Any:
        return _composite(kind, [self], **attributes)

    return translated


def _polygamma(n: int, self: Any) -> Any:
    return _composite("Polygamma", [self], order=n)


def _hypot(self: Any, other: Any) -> Any:
    return _composite("Hypot", [self, other])


def _triangular_solve(a: Any, b: Any, upper: bool, unit: bool) -> Any:
    return _composite("TriangularSolve", [a, b], upper=int(upper), unit=int(unit))


def _cholesky_solve(b: Any, low: Any) -> Any:
    return _composite("CholeskySolve", [b, low])


def _pseudo_inverse(a: Any, least: Any, share: Any, symmetric: bool) -> Any:
    return _composite("PInv", [a, least, share], symmetric=int(symmetric))


def _of_matrix(kind: str, count: int = 1) -> Translation:
    def translated(a: Any) -> Any:
        return _composite(kind, [a], count)

    return translated


def _determinant(a: Any) -> Any:
    return opset20.Det(a)


TRANSLATIONS: dict[Any, Translation] = {
    aten.lgamma.default: _of_one("Lgamma"),
    aten.digamma.default: _of_one("Polygamma", order=0),
    aten.polygamma.default: _polygamma,
    aten.erfinv.default: _of_one("Erfinv"),
    aten.special_ndtri.default: _of_one("Ndtri"),
    aten.special_log_ndtr.default: _of_one("LogNdtr"),
    aten.special_erfcx.default: _of_one("Erfcx"),
    aten.i0.default: _of_one("BesselI", order=0, scaled=0),
    aten.special_i0e.default: _of_one("BesselI", order=0, scaled=1),
    aten.special_i1.default: _of_one("BesselI", order=1, scaled=0),
    aten.special_i1e.default: _of_one("BesselI", order=1, scaled=1),
    aten.hypot.default: _hypot,
    CHOLESKY: _of_matrix("Cholesky"),
    CHOLESKY_SOLVE: _cholesky_solve,
    TRIANGULAR: _triangular_solve,
    LU: _of_matrix("LU", 3),
    DET: _determinant,
    QR: _of_matrix("QR", 2),
    EIGH: _of_matrix("Eigh", 2),
    SVD: _of_matrix("SVD", 3),
    PINV: _pseudo_inverse,
}
"""Operator of torch → its translation."""
