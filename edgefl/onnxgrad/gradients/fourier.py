"""The gradient of a discrete Fourier transform along an axis. The last axis of its values holds real and imaginary parts."""

import numpy as np

from edgefl.onnxgrad.gradients.op import Gradient, Op, register_rule
from edgefl.onnxgrad.gradients.tape import Tape


@register_rule("DFT")
def fourier(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The transposed map has the conjugate factors: g is transformed in the other direction, without that direction's 1 / length."""
    x, inverse, one_sided = op.inputs[0], bool(op.get("inverse", 0)), bool(op.get("onesided", 0))
    rank = len(tape.shape(x))
    axis = _integer(tape, op, 2, -2) % rank
    (size,) = tape.fixed(op, x, [axis])
    length = _integer(tape, op, 1, 2 * (size - 1) if inverse and one_sided else size)
    half = length // 2 + 1
    if one_sided and not inverse:
        gradient = _resized(tape, gradient, axis, half, length)
    to_half = one_sided and inverse
    found = tape.op("DFT", gradient, None, tape.constant(np.array(axis)), inverse=int(not inverse), onesided=int(to_half))
    factors = np.array(1 / length if inverse else length, tape.real)
    if to_half:
        # Each value of a half stands for its mirror image too, but for the first one and, of an even length, the last one.
        twice = np.where(np.arange(half) * 2 % length == 0, 1, 2).astype(tape.real)
        factors = (factors * twice).reshape(half, *[1] * (rank - axis - 1))
    found = tape.op("Mul", found, tape.constant(factors))
    if tape.shape(x)[-1] == 1:
        found = tape.op("Slice", found, tape.integers(0), tape.integers(1), tape.integers(rank - 1))
    return [_resized(tape, found, axis, half if to_half else length, size), *[None] * (len(op.inputs) - 1)]


def _integer(tape: Tape, op: Op, slot: int, default: int) -> int:
    """Return the constant at input ``slot``, or ``default`` if it is left out."""
    name = op.input(slot)
    if name is None:
        return default
    if (known := tape.known(name)) is None:
        op.refuse(f"{name!r} must be a constant")
    return int(known.item())


def _resized(tape: Tape, value: str, axis: int, size: int, to: int) -> str:
    """Return ``value`` of ``size`` entries along ``axis`` with the first ``to`` of them, or with zeros behind them."""
    if to > size:
        return str(tape.op("Pad", value, tape.integers(0, to - size), None, tape.integers(axis)))
    return str(tape.op("Slice", value, tape.integers(0), tape.integers(to), tape.integers(axis))) if to < size else value
