"""Gradients of matrix products and reductions. In docstrings, G or g is the gradient of the output."""

import math
import string
from collections.abc import Sequence

from edgefl.onnxgrad.gradients.op import Gradient, Op, register_rule
from edgefl.onnxgrad.gradients.tape import Tape


@register_rule("MatMul")
def matmul(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For Y = A·B: G·Bᵀ and Aᵀ·G, summed over broadcast axes."""
    a, b = op.inputs
    ranks = len(tape.shape(a)), len(tape.shape(b))
    if ranks[1] == 1:
        return _of_vector(tape, a, b, gradient)
    if ranks[0] == 1:
        return _of_vector(tape, b, a, gradient, first=True)[::-1]
    if ranks == (2, 2):
        return [
            tape.op("Gemm", gradient, b, transB=1) if tape.needs(a) else None,
            tape.op("Gemm", a, gradient, transA=1) if tape.needs(b) else None,
        ]
    if ranks[1] == 2:
        return _of_rows(tape, a, b, gradient)
    (out,) = op.outputs
    return [
        _summed(tape, tape.op("MatMul", gradient, tape.swapped(b, ranks[1])), a, out) if tape.needs(a) else None,
        _summed(tape, tape.op("MatMul", tape.swapped(a, ranks[0]), gradient), b, out) if tape.needs(b) else None,
    ]


def _of_vector(tape: Tape, stack: str, vector: str, gradient: str, first: bool = False) -> list[Gradient]:
    """A stack of matrices times v, or v times it: each entry of G times v, and the sum of all rows, each times its entry of G."""
    of_stack = of_vector = None
    if tape.needs(stack):
        wide = tape.op("Unsqueeze", gradient, tape.integers(-2 if first else -1))
        of_stack = tape.op("Mul", wide, tape.op("Unsqueeze", vector, tape.integers(1)) if first else vector)
    if tape.needs(vector):
        rows = tape.swapped(stack, len(tape.shape(stack))) if first else stack
        of_vector = tape.op("MatMul", tape.reshape(gradient, (None,)), tape.reshape(rows, (None, *tape.shape(vector))))
    return [of_stack, of_vector]


def _of_rows(tape: Tape, a: str, b: str, gradient: str) -> list[Gradient]:
    """A stack of matrices times one matrix: its gradient is one large product over all rows, not a sum of small ones."""
    shape = tape.shape(b)
    inputs, outputs = shape
    by_rows = [tape.reshape(name, (None, size)) for name, size in ((a, inputs), (gradient, outputs))] if tape.needs(b) else []
    return [
        tape.op("MatMul", gradient, tape.swapped(b, 2)) if tape.needs(a) else None,
        tape.op("Gemm", *by_rows, transA=1) if by_rows else None,
    ]


def _summed(tape: Tape, value: str, operand: str, result: str) -> str:
    """Sum ``value`` over the leading axes along which ``operand`` was broadcast; the last two axes are the matrix."""
    return tape.sum_of_copies(value, operand, tape.shape(operand)[:-2], tape.shape(result)[:-2])


@register_rule("Gemm")
def gemm(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For Y = α·A′·B′ + β·C, with A′ and B′ transposed or not: α·G·B′ᵀ, α·A′ᵀ·G (transposed back) and β·G."""
    a, b, c = op.inputs[0], op.inputs[1], op.input(2)
    alpha, beta = op.get("alpha", 1.0), op.get("beta", 1.0)
    flip_a, flip_b = op.get("transA", 0), op.get("transB", 0)
    scale = None if alpha == 1.0 else alpha
    of_a = of_b = of_c = None
    if tape.needs(a):
        pair, flips = ((b, gradient), (flip_b, 1)) if flip_a else ((gradient, b), (0, 1 - flip_b))
        of_a = tape.op("Gemm", *pair, transA=flips[0] or None, transB=flips[1], alpha=scale)
    if tape.needs(b):
        pair, flips = ((gradient, a), (1, flip_a)) if flip_b else ((a, gradient), (1 - flip_a, 0))
        of_b = tape.op("Gemm", *pair, transA=flips[0], transB=flips[1] or None, alpha=scale)
    if c is not None and tape.needs(c):
        of_c = tape.unbroadcast(gradient, c, op.outputs[0])
        of_c = of_c if beta == 1.0 else tape.op("Mul", of_c, tape.number(beta))
    return [of_a, of_b, of_c][: len(op.inputs)]


@register_rule("Einsum")
def einsum(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The gradient of an operand is an Einsum of the gradient and the other operands, with the operand's letters as the result."""
    left, result = explicit(op.get("equation"), [len(tape.shape(name)) for name in op.inputs]).split("->")
    terms = left.split(",")
    sizes = {
        (letter, size)
        for name, term in zip(op.inputs, terms, strict=True)
        for letter, size in zip(term, tape.shape(name), strict=True)
    }
    if len(sizes) > len({letter for letter, _ in sizes}):
        op.refuse(f"equation {op.get('equation')!r} broadcasts an axis of size 1; it has no rule")
    found: list[Gradient] = []
    for slot, (name, term) in enumerate(zip(op.inputs, terms, strict=True)):
        if not tape.needs(name):
            found.append(None)
            continue
        others = [(n, t) for i, (n, t) in enumerate(zip(op.inputs, terms, strict=True)) if i != slot]
        present = set(result).union(*(t for _, t in others))
        if len(set(term)) < len(term):
            op.refuse(f"equation {op.get('equation')!r} takes a diagonal; it has no rule")
        here = "".join(letter for letter in term if letter in present)
        joined = ",".join([result, *(t for _, t in others)])
        value = tape.op("Einsum", gradient, *(n for n, _ in others), equation=f"{joined}->{here}")
        if here != term:  # letters that occur in this operand only were summed: g is the same along them
            missing = [i for i, letter in enumerate(term) if letter not in present]
            value = tape.expanded(tape.op("Unsqueeze", value, tape.integers(*missing)), name)
        found.append(value)
    return found


def explicit(equation: str, ranks: Sequence[int]) -> str:
    """Return an Einsum's equation with a result, and with letters in place of '...'.

    >>> explicit("...i, ij", [3, 2])
    'ABi,ij->ABj'
    """
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    spare = [letter for letter in string.ascii_uppercase if letter not in equation]
    hidden = [rank - len(term.replace("...", "")) if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)]
    broadcast = spare[: max(hidden)]
    if not arrow:
        letters = left.replace(",", "").replace("...", "")
        result = "..." * ("..." in left) + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    filled = [
        term.replace("...", "".join(broadcast[len(broadcast) - count :])) for term, count in zip(terms, hidden, strict=True)
    ]
    return f"{','.join(filled)}->{result.replace('...', ''.join(broadcast))}"


def axes_of(tape: Tape, op: Op) -> list[int]:
    """Return the axes that a reduction reduces, none negative; a scalar has none, even if one is named."""
    rank = len(tape.shape(op.inputs[0]))
    if not rank:
        return []
    axes = op.get("axes") if op.input(1) is None else tape.known(op.input(1))
    if axes is None and op.input(1) is not None:
        op.refuse("its axes must be known")
    if axes is None or len(axes) == 0:
        return [] if op.get("noop_with_empty_axes", 0) else list(range(rank))
    return [int(axis) % rank for axis in axes]


def widened(tape: Tape, op: Op, value: str, axes: list[int]) -> str:
    """Return ``value``, which has the shape of the reduction's output, with size 1 along the reduced axes."""
    if op.get("keepdims", 1) or not axes:
        return value
    return tape.op("Unsqueeze", value, tape.integers(*axes))


@register_rule("ReduceMean")
def reduce_mean(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return g/n for each of the n entries of a mean."""
    axes, shape = axes_of(tape, op), tape.shape(op.inputs[0])
    wide = widened(tape, op, gradient, axes)
    share = tape.op("Mul", wide, share_of(tape, op.inputs[0], op.outputs[0], [shape[axis] for axis in axes]))
    return [tape.expanded(share, op.inputs[0]), None]


def share_of(tape: Tape, whole: str, part: str, sizes: Sequence[int | None]) -> str:
    """Return 1/n for n entries of ``whole`` per entry of ``part``; n is the product of ``sizes``, computed in the graph if one is free."""
    if None not in sizes:
        return tape.number(1 / math.prod(size or 1 for size in sizes))
    count = tape.op("Div", tape.op("Size", whole), tape.op("Size", part))
    return tape.op("Reciprocal", tape.op("Cast", count, to=tape.element_type))


@register_rule("ReduceSum")
def reduce_sum(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return g for each entry."""
    return [tape.expanded(widened(tape, op, gradient, axes_of(tape, op)), op.inputs[0])]


@register_rule("ReduceSumSquare", "ReduceL1")
def reduce_power(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return 2·g·x, or g with the sign of x."""
    (x, *_), of_l1 = op.inputs, op.kind == "ReduceL1"
    slope = tape.op("Sign", x) if of_l1 else tape.op("Mul", x, tape.number(2.0))
    return [tape.op("Mul", slope, widened(tape, op, gradient, axes_of(tape, op)))]


@register_rule("ReduceL2")
def reduce_l2(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """For y = ‖x‖: g·x/y, and 0 where y = 0, as in torch."""
    axes = axes_of(tape, op)
    norm = widened(tape, op, op.outputs[0], axes)
    share = tape.op("Div", widened(tape, op, gradient, axes), norm)
    safe = tape.op("Where", tape.op("Equal", norm, tape.number(0.0)), tape.number(0.0), share)
    return [tape.op("Mul", op.inputs[0], safe), None]


@register_rule("ReduceLogSumExp")
def reduce_log_sum_exp(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return g·softmax(x)."""
    axes = axes_of(tape, op)
    shares = tape.op("Exp", tape.op("Sub", op.inputs[0], widened(tape, op, op.outputs[0], axes)))
    return [tape.op("Mul", shares, widened(tape, op, gradient, axes)), None]


@register_rule("ReduceMax", "ReduceMin")
def reduce_extreme(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The gradient g goes to the entries that equal the extreme, in equal parts, as in torch's amax."""
    axes = axes_of(tape, op)
    hits = tape.op("Equal", op.inputs[0], widened(tape, op, op.outputs[0], axes))
    ones = tape.op("Where", hits, tape.number(1.0), tape.number(0.0))
    share = tape.op("Div", widened(tape, op, gradient, axes), tape.op("ReduceSum", ones, tape.integers(*axes), keepdims=1))
    return [tape.op("Where", hits, share, tape.number(0.0)), None]
