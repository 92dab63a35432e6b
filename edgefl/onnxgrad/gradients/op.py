"""A node as gradient rules see it, and the table of the rules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import onnx

from edgefl.onnxgrad.errors import InputError
from edgefl.onnxgrad.graphs import attributes_of


@dataclass(frozen=True)
class Op:
    """A node of the forward graph.

    Attributes:
        kind: the operator.
        inputs: names of values; "" for an omitted input. Values that bodies of loops read from outside come last.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]

    @classmethod
    def of(cls, node: onnx.NodeProto) -> Self:
        """Return the record of a node."""
        return cls(node.name, node.op_type, (*node.input, *outer_reads(node)), tuple(node.output), attributes_of(node))

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or ``default`` if the node does not have it."""
        return self.attributes.get(name, default)

    def input(self, slot: int) -> str | None:
        """Return the name of the input at position ``slot``, None if it is omitted."""
        return self.inputs[slot] if slot < len(self.inputs) and self.inputs[slot] else None

    def refuse(self, what: str) -> NoReturn:
        """Raise an :class:`InputError` that names this node."""
        raise InputError(f"node {self.name or self.outputs[0]!r} ({self.kind}): {what}")


def outer_reads(node: onnx.NodeProto) -> list[str]:
    """Return the values of the surrounding graph that the inner graphs of a node read."""
    found: dict[str, None] = {}
    for graph in (attribute.g for attribute in node.attribute if attribute.HasField("g")):
        own = {""} | {value.name for value in (*graph.input, *graph.initializer)}
        for inner in graph.node:
            found |= dict.fromkeys(name for name in (*inner.input, *outer_reads(inner)) if name not in own)
            own.update(inner.output)
    return list(found)


DOMAIN = "edgefl"
"""Domain of the operators that are not standard; no graph contains one when it is done."""
Gradient = str | None
"""Name of the value that is a gradient; None: no gradient."""
Rule = Callable[..., Sequence[Gradient]]
"""(tape, op, gradient of each output) → gradient of each input."""

RULES: dict[str, Rule] = {}
"""Operator → rule; read by :mod:`edgefl.onnxgrad.autodiff`."""
Prepare = Callable[..., None]
PREPARED: dict[str, Prepare] = {}
"""Operator → the function that puts it on the tape in another form; see :func:`prepared`."""
FORMS: dict[str, Prepare] = {}
"""Operator of the domain ``edgefl`` → the function that writes it in standard operators; see :mod:`edgefl.onnxgrad.gradients.own`."""
OF_MATRICES = frozenset({"Cholesky", "CholeskySolve", "Eigh", "LU", "PInv", "QR", "SVD", "TriangularSolve"})
"""Operators of the domain ``edgefl`` whose form depends on the shapes of their inputs."""
CONSTANT = frozenset(
    """
    Shape Size Equal Greater Less GreaterOrEqual LessOrEqual Not And Or Xor ArgMax ArgMin ConstantOfShape OneHot Range Sign Floor Ceil Round
    IsNaN IsInf NonZero EyeLike
    """.split()  # noqa: SIM905 - one word per operator reads better than as many quoted ones
)
"""Operators whose gradient is zero or not defined: their outputs count as constants."""


def register_rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Return a decorator that enters a :data:`Rule` into :data:`RULES` for operators; an existing rule is replaced."""
    return lambda rule: RULES.update(dict.fromkeys(kinds, rule)) or rule


def prepared(*kinds: str) -> Callable[[Prepare], Prepare]:
    """Return a decorator for a function (tape, op) that puts operators on the tape in a form that rules can differentiate.

    It may ask for further outputs of the operator, or append other operators that compute the same.
    """
    return lambda prepare: PREPARED.update(dict.fromkeys(kinds, prepare)) or prepare


def form(*kinds: str) -> Callable[[Prepare], Prepare]:
    """Return a decorator for a function (tape, op) that writes operators of the domain ``edgefl`` in standard ones."""
    return lambda write: FORMS.update(dict.fromkeys(kinds, write)) or write
