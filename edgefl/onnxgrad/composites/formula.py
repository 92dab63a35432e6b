"""Values of a graph in float64, as operands of Python's arithmetic: a composite is written as its formula."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import onnx

from edgefl.onnxgrad.gradients.tape import Tape


class Formula:
    """A value of a graph in float64. Arithmetic and comparisons append nodes to the tape, and return a new value.

    Attributes:
        name: the value's name in the graph.
    """

    def __init__(self, tape: Tape, name: str) -> None:
        self.tape, self.name = tape, name

    @classmethod
    def of(cls, tape: Tape, name: str) -> Self:
        """Return an input of a composite."""
        return cls(tape, tape.op("Cast", name, to=onnx.TensorProto.DOUBLE))

    def result(self, out: str) -> None:
        """Write the value, in the type of the graph's real numbers, to the output ``out``."""
        self.tape.op("Cast", self.name, to=self.tape.element_type, out=out)

    def op(self, kind: str, *others: Any, **attributes: Any) -> "Formula":
        """Append a node that reads this value first."""
        return self._made(kind, self, *others, **attributes)

    def _made(self, kind: str, *operands: Any, **attributes: Any) -> "Formula":
        names = [value.name if isinstance(value, Formula) else self.tape.constant(np.array(float(value))) for value in operands]
        return Formula(self.tape, self.tape.op(kind, *names, **attributes))

    def __add__(self, other: Any) -> "Formula":
        return self._made("Add", self, other)

    def __radd__(self, other: Any) -> "Formula":
        return self._made("Add", other, self)

    def __sub__(self, other: Any) -> "Formula":
        return self._made("Sub", self, other)

    def __rsub__(self, other: Any) -> "Formula":
        return self._made("Sub", other, self)

    def __mul__(self, other: Any) -> "Formula":
        return self._made("Mul", self, other)

    def __rmul__(self, other: Any) -> "Formula":
        return self._made("Mul", other, self)

    def __truediv__(self, other: Any) -> "Formula":
        return self._made("Div", self, other)

    def __rtruediv__(self, other: Any) -> "Formula":
        return self._made("Div", other, self)

    def __neg__(self) -> "Formula":
        return self._made("Neg", self)

    def __lt__(self, other: Any) -> "Formula":
        return self._made("Less", self, other)

    def __gt__(self, other: Any) -> "Formula":
        return self._made("Greater", self, other)

    def where(self, chosen: Any, other: Any) -> "Formula":
        """Return ``chosen`` where this condition holds, elsewhere ``other``."""
        return self._made("Where", self, chosen, other)

    def abs(self) -> "Formula":
        """Return the absolute value."""
        return self.op("Abs")

    def exp(self) -> "Formula":
        """Return the exponential."""
        return self.op("Exp")

    def log(self) -> "Formula":
        """Return the natural logarithm."""
        return self.op("Log")

    def sqrt(self) -> "Formula":
        """Return the square root."""
        return self.op("Sqrt")

    def polynomial(self, coefficients: Sequence[float]) -> "Formula":
        """Return the polynomial of the value, with coefficients from the lowest power to the highest, by Horner's rule."""
        found: Any = coefficients[-1]
        for coefficient in reversed(coefficients[:-1]):
            found = self * found + coefficient
        return found
