"""One rule per ONNX operator, written with ordinary torch functions: a file per family, whose tables are joined here."""

from __future__ import annotations

from typing import Any

from edgefl.onnxgrad.rules import elementwise, layers, shape, spatial
from edgefl.onnxgrad.rules.common import KNOWN_ALWAYS, Check, Rule

_FAMILIES: tuple[Any, ...] = (layers, spatial, elementwise, shape)


def _joined(table: str) -> dict[str, Any]:
    return {kind: entry for family in _FAMILIES for kind, entry in getattr(family, table, {}).items()}


RULES: dict[str, Rule] = _joined("RULES")
CHECKS: dict[str, Check] = _joined("CHECKS")
"""Of operators whose rule does not know every attribute, input or output."""

FOLDED = frozenset(KNOWN_ALWAYS)
"""Operators that only ever make known values: shapes and numbers that follow from them."""

SHAPES = frozenset({"Shape", "Size"})
"""Operators whose rule makes a known value of a tensor."""

KNOWN: dict[str, tuple[int, ...]] = {**KNOWN_ALWAYS, **_joined("KNOWN")}
"""Positions of inputs that are shapes and settings: a rule takes them as NumPy arrays."""

STATISTICS = layers.STATISTICS
"""Positions of inputs that a layer measures rather than trains."""
