"""The rules of operations, which relate the axes of inputs and outputs; an operation without a rule keeps all of them whole."""

from edgefl.models.axis_rules import layers, views  # noqa: F401  each enters its rules into the table
from edgefl.models.axis_rules.table import CONSTANTS, axes_after, fresh

__all__ = ["CONSTANTS", "axes_after", "fresh"]
