"""The length of the hypotenuse, without overflow of the squares."""

from edgefl.onnxgrad.composites.formula import Formula
from edgefl.onnxgrad.composites.table import writes
from edgefl.onnxgrad.gradients.op import Op
from edgefl.onnxgrad.gradients.tape import Tape


@writes("Hypot")
def hypot(tape: Tape, op: Op) -> None:
    """√(a² + b²)."""
    a, b = (Formula.of(tape, name) for name in op.inputs)
    (a * a + b * b).sqrt().result(op.outputs[0])
