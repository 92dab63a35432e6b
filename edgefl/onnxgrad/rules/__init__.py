"""One rule per ONNX operator, written with ordinary torch functions: a file per family, whose tables are joined here."""

from __future__ import annotations

from edgefl.onnxgrad.rules import (
    activation,
    convolution,
    elementwise,
    indexing,
    known,
    matmul,
    normalization,
    pooling,
    recurrent,
    reduction,
    resize,
    shape,
)
from edgefl.onnxgrad.rules.common import Check, Rule

RULES: dict[str, Rule] = {
    **convolution.RULES,
    **pooling.RULES,
    **matmul.RULES,
    **recurrent.RULES,
    **normalization.RULES,
    **activation.RULES,
    **elementwise.RULES,
    **reduction.RULES,
    **indexing.RULES,
    **shape.RULES,
    **resize.RULES,
}

CHECKS: dict[str, Check] = {
    **pooling.CHECKS,
    **matmul.CHECKS,
    **recurrent.CHECKS,
    **normalization.CHECKS,
    **activation.CHECKS,
    **elementwise.CHECKS,
    **indexing.CHECKS,
    **shape.CHECKS,
    **resize.CHECKS,
}
"""Of operators whose rule does not know every attribute, input or output."""

FOLDED = frozenset(known.KNOWN)
"""Operators that only ever make known values: shapes and numbers that follow from them."""

SHAPES = frozenset({"Shape", "Size"})
"""Operators whose rule makes a known value of a tensor."""

KNOWN: dict[str, tuple[int, ...]] = {
    **known.KNOWN,
    **recurrent.KNOWN,
    **activation.KNOWN,
    **reduction.KNOWN,
    **shape.KNOWN,
    **resize.KNOWN,
}
"""Positions of inputs that are shapes and settings: a rule takes them as NumPy arrays."""

STATISTICS = normalization.STATISTICS
"""Positions of inputs that a layer measures rather than trains."""
