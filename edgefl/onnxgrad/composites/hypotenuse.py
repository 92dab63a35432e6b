"""The length of the hypotenuse, without overflow of the squares."""

from edgefl.onnxgrad.composites.formula import Formula
from edgefl.onnxgrad.gradients.op import Op, form
from edgefl.onnxgrad.gradients.tape import Tape


@form("Hypot")
def hypot(tape: Tape, op: Op) -> None:
    """√(a² + b²)."""
    a, b = (Formula.of(tape, name) for name in op.inputs)
    (a * a + b * b).sqrt().result(op.outputs[0])
