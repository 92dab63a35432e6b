"""Gradient rules: for each ONNX operator, a function that appends the nodes of its gradient, in standard operators again.

:data:`RULES` is the table; there is one file for each family of operators. The package's README explains how to add a rule.
"""

from edgefl.onnxgrad import composites  # noqa: F401  enters its forms into the table
from edgefl.onnxgrad.gradients import (  # noqa: F401  each enters its rules into the table
    convolution,
    cross_entropy,
    elementwise,
    group_normalization,
    indexing,
    linear_algebra,
    linear_maps,
    normalization,
    own,
    pooling,
    products,
    recurrent,
    shape,
    special_functions,
)
from edgefl.onnxgrad.gradients.op import PREPARED, RULES, Op, Rule, prepared, register_rule
from edgefl.onnxgrad.gradients.tape import Tape

__all__ = ["PREPARED", "RULES", "Op", "Rule", "Tape", "prepared", "register_rule"]
