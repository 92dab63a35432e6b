"""Values of a graph as operands of Python's arithmetic: a slope or a composite is written as its formula."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np
import onnx

from edgefl.onnxgrad.gradients.op import Gradient, Op, register_rule
from edgefl.onnxgrad.gradients.tape import Tape

F = TypeVar("F", bound="Formula")


def _of(kind: str) -> Callable[[F], F]:
    return lambda self: self.op(kind)


def _of_both(kind: str, swapped: bool = False) -> Callable[[F, Any], F]:
    return lambda self, other: self.made(kind, other, self) if swapped else self.made(kind, self, other)


class Formula:
    """A value of a graph. Arithmetic, comparisons and functions append nodes to the tape, and return a new value.

    Attributes:
        name: the value's name in the graph.
    """

    def __init__(self, tape: Tape, name: str) -> None:
        self.tape, self.name = tape, name

    @property
    def real(self) -> Any:
        """The type of the numbers that are operands."""
        return self.tape.real

    def op(self, kind: str, *others: Any, **attributes: Any) -> Self:
        """Append a node that reads this value first; other inputs are values, numbers, or names of values that are no real numbers."""
        return self.made(kind, self, *others, **attributes)

    def made(self, kind: str, *operands: Any, **attributes: Any) -> Self:
        """Append a node, and return its output."""
        return type(self)(self.tape, self.tape.op(kind, *map(self._name_of, operands), **attributes))

    def _name_of(self, operand: Any) -> str:
        if isinstance(operand, str):
            return operand
        return operand.name if isinstance(operand, Formula) else self.tape.constant(np.array(float(operand), self.real))

    __add__, __radd__ = _of_both("Add"), _of_both("Add", swapped=True)
    __sub__, __rsub__ = _of_both("Sub"), _of_both("Sub", swapped=True)
    __mul__, __rmul__ = _of_both("Mul"), _of_both("Mul", swapped=True)
    __truediv__, __rtruediv__ = _of_both("Div"), _of_both("Div", swapped=True)
    __matmul__, __lt__, __gt__ = _of_both("MatMul"), _of_both("Less"), _of_both("Greater")
    __neg__, abs, exp, log, sqrt = map(_of, ("Neg", "Abs", "Exp", "Log", "Sqrt"))

    def where(self, chosen: Any, other: Any) -> Self:
        """Return ``chosen`` where this condition holds, elsewhere ``other``."""
        return self.made("Where", self, chosen, other)

    def polynomial(self, coefficients: Sequence[float]) -> Self:
        """Return the polynomial of the value, with coefficients from the lowest power to the highest, by Horner's rule."""
        found: Any = coefficients[-1]
        for coefficient in reversed(coefficients[:-1]):
            found = self * found + coefficient
        return found

    def turned(self, rank: int) -> Self:
        """Return the matrices with their last two axes swapped."""
        return type(self)(self.tape, self.tape.swapped(self.name, rank))

    def part(self, axis: int, first: int, last: int, step: int | None = None) -> Self:
        """Return the entries along an axis from a first to before a last one."""
        return self.op("Slice", *(self.tape.integers(end) for end in (first, last, axis, step) if end is not None))

    def reduced(self, kind: str, axis: int, keepdims: int = 1) -> Self:
        """Return the sum, or another reduction, along an axis."""
        return self.op(f"Reduce{kind}", self.tape.integers(axis), keepdims=keepdims)


class Double(Formula):
    """A value in float64, in which composites compute."""

    real = np.dtype(np.float64)

    @classmethod
    def of(cls, tape: Tape, name: str) -> Self:
        """Return an input of a composite."""
        return cls(tape, tape.op("Cast", name, to=onnx.TensorProto.DOUBLE))

    def result(self, out: str) -> None:
        """Write the value, in the type of the graph's real numbers, to the output ``out``."""
        self.tape.op("Cast", self.name, to=self.tape.element_type, out=out)


Slope = Callable[[Op, Formula, Formula, Formula], Formula]
"""The rule of an operator of one input and one output: (op, input x, output y, gradient of y) → gradient of x."""


def register_slopes(slopes: Mapping[str, Slope]) -> None:
    """Enter operators into the table of rules: operator → :data:`Slope`."""
    for kind, slope in slopes.items():
        register_rule(kind)(partial(_by_slope, slope))


def _by_slope(slope: Slope, tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    return [slope(op, *(Formula(tape, name) for name in (op.inputs[0], op.outputs[0], gradient))).name]
