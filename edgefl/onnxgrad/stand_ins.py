"""Operators that stand for others while a module is traced: they have shapes, and are never computed. The exporter translates them.

Some stand for operators of torch that would be traced step by step, some for composites, which torch's exporter does not know.
"""

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from edgefl.onnxgrad.gradients.op import DOMAIN
from edgefl.onnxgrad.macs import MEANS, WINDOWS

aten = torch.ops.aten
Translation = Callable[..., Any]
"""Appends a node of the graph under construction; takes the arguments of the operator, by position."""


def _stand_in(name: str, schema: str, shapes: Callable[..., Any]) -> Any:
    """Return a new operator of the domain ``edgefl``; ``shapes`` makes empty results."""
    torch.library.define(f"edgefl::{name}", schema)
    torch.library.register_fake(f"edgefl::{name}", shapes)
    return getattr(torch.ops.edgefl, name).default


def _lstm_shapes(x: Tensor, states: list[Tensor], *options: Any) -> tuple[Tensor, Tensor, Tensor]:
    (hidden, cell), both = states, options[-2]
    return x.new_empty(*x.shape[:2], hidden.shape[-1] * (1 + both)), torch.empty_like(hidden), torch.empty_like(cell)


def _same_shape(x: Tensor, *options: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _of_lu(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, (rows, columns) = a.shape[:-2], a.shape[-2:]
    places = a.new_empty((*batch, min(rows, columns)), dtype=torch.int64)
    return torch.empty_like(a), places, a.new_empty((*batch, rows), dtype=torch.int64)


def _of_svd(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, (rows, columns) = a.shape[:-2], a.shape[-2:]
    least = min(rows, columns)
    return a.new_empty(*batch, rows, least), a.new_empty(*batch, least), a.new_empty(*batch, least, columns)


LSTM = _stand_in(
    "lstm",
    "(Tensor x, Tensor[] states, Tensor[] weights, bool biased, int layers, float dropout, bool train, bool both, bool first)"
    " -> (Tensor, Tensor, Tensor)",
    _lstm_shapes,
)
GROUP_NORM = _stand_in("group_norm", "(Tensor x, SymInt groups, Tensor? weight, Tensor? bias, float eps) -> Tensor", _same_shape)
BATCH_NORM = _stand_in(
    "batch_norm",
    "(Tensor x, Tensor? weight, Tensor? bias, Tensor? mean, Tensor? variance, bool train, float momentum, float eps) -> Tensor",
    _same_shape,
)
# Pooling and windows, written as products: nodes that the exporter makes of them have their names, and are no MACs.
MEANS_OF_WINDOWS = _stand_in(MEANS, "(Tensor x, Tensor shares) -> Tensor", torch.matmul)
ENTRIES_OF_WINDOWS = _stand_in(
    WINDOWS,
    "(Tensor x, Tensor kernels, Tensor? bias, SymInt[2] stride, SymInt[2] padding, SymInt[2] dilation, SymInt groups) -> Tensor",
    torch.conv2d,
)
STANDS_FOR = {
    LSTM: aten.lstm.input,
    GROUP_NORM: aten.group_norm.default,
    MEANS_OF_WINDOWS: aten.matmul.default,
    ENTRIES_OF_WINDOWS: aten.conv2d.default,
}
"""Operator here → operator of torch. The exporter translates both in the same way."""

CHOLESKY = _stand_in("cholesky", "(Tensor a) -> Tensor", torch.empty_like)
CHOLESKY_SOLVE = _stand_in("cholesky_solve", "(Tensor b, Tensor low) -> Tensor", lambda b, low: torch.empty_like(b))
TRIANGULAR = _stand_in(
    "triangular_solve", "(Tensor a, Tensor b, bool upper, bool unit) -> Tensor", lambda a, b, upper, unit: torch.empty_like(b)
)
LU = _stand_in("lu", "(Tensor a) -> (Tensor, Tensor, Tensor)", _of_lu)
DET = _stand_in("det", "(Tensor a) -> Tensor", lambda a: a.new_empty(a.shape[:-2]))
QR = _stand_in(
    "qr", "(Tensor a) -> (Tensor, Tensor)", lambda a: (torch.empty_like(a), a.new_empty(*a.shape[:-2], a.shape[-1], a.shape[-1]))
)
EIGH = _stand_in("eigh", "(Tensor a) -> (Tensor, Tensor)", lambda a: (a.new_empty(a.shape[:-1]), torch.empty_like(a)))
SVD = _stand_in("svd", "(Tensor a) -> (Tensor, Tensor, Tensor)", _of_svd)
PINV = _stand_in(
    "pinv",
    "(Tensor a, Tensor least, Tensor share, bool symmetric) -> Tensor",
    lambda a, least, share, symmetric: torch.empty_like(a.mT),
)


def _composite(kind: str, inputs: list[Any], count: int = 1, **attributes: int) -> Any:
    """Append a composite, and return its output, or several."""
    from torch.onnx._internal.exporter import _core

    own = ir.convenience.convert_attributes(attributes)
    node = ir.Node(DOMAIN, kind, inputs, own, num_outputs=count, version=1)
    _core.current_tracer.nodes.append(node)  # type: ignore[union-attr]  # set while a graph is translated
    return node.outputs[0] if count == 1 else node.outputs


def _of_one(kind: str, count: int = 1, **attributes: int) -> Translation:
    return lambda a: _composite(kind, [a], count, **attributes)


def _of_two(kind: str) -> Translation:
    return lambda a, b: _composite(kind, [a, b])


def _determinant(a: Any) -> Any:
    from onnxscript.onnx_opset import opset20  # as torch's exporter: only where a network is exported

    return opset20.Det(a)


# torch's exporter reads annotations: what is a number or bool is an attribute.
def _polygamma(n: int, self: Any) -> Any:
    return _composite("Polygamma", [self], order=n)


def _triangular_solve(a: Any, b: Any, upper: bool, unit: bool) -> Any:
    return _composite("TriangularSolve", [a, b], upper=int(upper), unit=int(unit))


def _pseudo_inverse(a: Any, least: Any, share: Any, symmetric: bool) -> Any:
    return _composite("PInv", [a, least, share], symmetric=int(symmetric))


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
    aten.hypot.default: _of_two("Hypot"),
    CHOLESKY: _of_one("Cholesky"),
    CHOLESKY_SOLVE: _of_two("CholeskySolve"),
    TRIANGULAR: _triangular_solve,
    LU: _of_one("LU", 3),
    DET: _determinant,
    QR: _of_one("QR", 2),
    EIGH: _of_one("Eigh", 2),
    SVD: _of_one("SVD", 3),
    PINV: _pseudo_inverse,
}
"""Operator of torch, or one here → its translation to a composite or an operator of ONNX."""
