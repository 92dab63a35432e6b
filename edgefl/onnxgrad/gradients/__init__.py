"""Reverse-mode differentiation of ONNX graphs: a rule per operator, in standard operators again.

:data:`~edgefl.onnxgrad.gradients.tape.RULES` is the table. A rule is a small function in the file of its family,

    @register_rule("Tanh")
    def tanh(tape, op, gradient):
        return [tape.op("Mul", gradient, ...)]

which appends nodes to the tape and returns the gradient of each input. To teach edgefl another operator, add a function there.
"""

from edgefl.onnxgrad.gradients import convolution, elementwise, normalization, pooling, products, recurrent, shape  # noqa: F401  each enters its rules into the table
from edgefl.onnxgrad.gradients.tape import PREPARED, RULES, Op, Rule, Tape, prepared, register_rule

__all__ = ["PREPARED", "RULES", "Op", "Rule", "Tape", "prepared", "register_rule"]
