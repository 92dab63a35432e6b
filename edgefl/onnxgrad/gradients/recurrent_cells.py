"""One step of each kind of recurrent layer, forward and backward: the bodies of the loops of :mod:`edgefl.onnxgrad.gradients.recurrent`.

H is the hidden size, N the batch. Gates lie side by side along the last axis, in ONNX's order; ``gates`` already contains the products of
the inputs with W, and biases. A prime marks a value after the step.

A step stores the values that the backward step reads. Products with a state before the step are computed from the state after it, for
instance f·c = c′ − i·g, so that states are not stored twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgefl.onnxgrad.gradients.tape import Tape

Names = Sequence[str]
Step = Callable[[Tape, Names, str, Names], tuple[Names, Names]]
"""(tape, states before, gates, weights) → (states after, values stored in addition to h′)."""
Back = Callable[[Tape, Names, Names, Names], tuple[Names, Names]]
"""(tape, gradients of the states after, stored values, weights) → (gradients of the states before, gradients of the gates)."""
Weights = Callable[[Tape, Names, Names, str], Names]
"""(tape, gradients of the gates (steps·N, …), stored values (steps, N, …), h before (steps·N, H)) → gradients of the weights."""


@dataclass(frozen=True)
class Cell:
    """A kind of recurrent layer.

    Attributes:
        states: how many states there are: h, and c of an LSTM.
        stored: widths of the values that a step stores, in units of H; h′ is the first.
        back: the backward step; the first of its gradients of the gates is that of ``gates``.
        returned: widths of the gradients of the gates that ``back`` returns, in units of H.
        weights: computes the gradients of the weights from all steps.
    """

    states: int
    stored: tuple[int, ...]
    step: Step
    back: Back
    returned: tuple[int, ...]
    weights: Weights


def _product(tape: Tape, gradient: str, rows: str) -> str:
    return tape.op("Gemm", gradient, rows, transA=1)


def _one_matrix(tape: Tape, gates: Names, stored: Names, before: str) -> Names:
    return [_product(tape, gates[-1], before)]


def _matrix_and_bias(tape: Tape, gates: Names, stored: Names, before: str) -> Names:
    return [_product(tape, gates[-1], before), tape.op("ReduceSum", gates[-1], tape.integers(0), keepdims=0)]


def _left(tape: Tape, value: str, taken: str) -> str:
    """Return value · (1 − taken): with taken = σ(x), or tanh² x, this is a step through the activation's slope."""
    return tape.op("Sub", value, tape.op("Mul", value, taken))


# LSTM: gates i, o, f, g; c′ = f·c + i·g, h′ = o·tanh c′.


def _lstm_step(tape: Tape, states: Names, gates: str, weights: Names) -> tuple[Names, Names]:
    (h, c), (r,) = states, weights
    sums = tape.op("Gemm", h, r, gates, transB=1)
    size = tape.shape(r)[1] or 0
    first, last = tape.op("Split", sums, tape.integers(3 * size, size), axis=1, count=2)
    iof, g = tape.op("Sigmoid", first), tape.op("Tanh", last)
    i, o, f = tape.op("Split", iof, axis=1, num_outputs=3, count=3)
    c = tape.op("Add", tape.op("Mul", i, g), tape.op("Mul", f, c))
    return (tape.op("Mul", o, tape.op("Tanh", c)), c), (iof, g, c)


def _lstm_back(tape: Tape, gradients: Names, stored: Names, weights: Names) -> tuple[Names, Names]:
    (dh, dc), (_, iof, g, c), (r,) = gradients, stored, weights
    i, o, f = tape.op("Split", iof, axis=1, num_outputs=3, count=3)
    bent = tape.op("Tanh", c)
    through = tape.op("Mul", dh, o)
    of_o = tape.op("Mul", through, bent)
    dc = tape.op("Add", dc, tape.op("Sub", through, tape.op("Mul", of_o, bent)))
    new = tape.op("Mul", i, g)
    of_i = tape.op("Mul", dc, new)
    of_f = tape.op("Mul", dc, tape.op("Sub", c, new))
    of_g = tape.op("Sub", tape.op("Mul", dc, i), tape.op("Mul", of_i, g))
    of_iof = _left(tape, tape.op("Concat", of_i, of_o, of_f, axis=1), iof)
    of_gates = tape.op("Concat", of_iof, of_g, axis=1)
    return (tape.op("MatMul", of_gates, r), tape.op("Mul", dc, f)), (of_gates,)


# GRU: gates z, r, n; h′ = (1 − z)·n + z·h. Two forms: n = tanh(x + r·q) with q = R h + b, and n = tanh(x + R q) with q = r·h.


def _gru_step(tape: Tape, states: Names, gates: str, weights: Names) -> tuple[Names, Names]:
    (h,), size = states, tape.shape(weights[0])[1] or 0
    sizes = tape.integers(2 * size, size)
    first, last = tape.op("Split", gates, sizes, axis=1, count=2)
    of_h, q = tape.op("Split", tape.op("Gemm", h, *weights, transB=1), sizes, axis=1, count=2)
    zr = tape.op("Sigmoid", tape.op("Add", first, of_h))
    z, r = tape.op("Split", zr, axis=1, num_outputs=2, count=2)
    n = tape.op("Tanh", tape.op("Add", last, tape.op("Mul", r, q)))
    return (_blend(tape, z, n, h),), (zr, n, q)


def _gru_back(tape: Tape, gradients: Names, stored: Names, weights: Names) -> tuple[Names, Names]:
    dh, z, r, of_z, of_n = _gru_common(tape, gradients, stored)
    q = stored[3]
    of_q = tape.op("Mul", of_n, r)
    of_r = _left(tape, tape.op("Mul", of_q, q), r)
    of_products = tape.op("Concat", of_z, of_r, of_q, axis=1)
    of_h = tape.op("Gemm", of_products, weights[0], tape.op("Mul", dh, z))
    return (of_h,), (tape.op("Concat", of_z, of_r, of_n, axis=1), of_products)


def _gru_early_step(tape: Tape, states: Names, gates: str, weights: Names) -> tuple[Names, Names]:
    (h,), (r_zr, r_n) = states, weights
    size = tape.shape(r_n)[1] or 0
    first, last = tape.op("Split", gates, tape.integers(2 * size, size), axis=1, count=2)
    zr = tape.op("Sigmoid", tape.op("Gemm", h, r_zr, first, transB=1))
    z, r = tape.op("Split", zr, axis=1, num_outputs=2, count=2)
    q = tape.op("Mul", r, h)
    n = tape.op("Tanh", tape.op("Gemm", q, r_n, last, transB=1))
    return (_blend(tape, z, n, h),), (zr, n, q)


def _gru_early_back(tape: Tape, gradients: Names, stored: Names, weights: Names) -> tuple[Names, Names]:
    dh, z, r, of_z, of_n = _gru_common(tape, gradients, stored)
    q, (r_zr, r_n) = stored[3], weights
    of_q = tape.op("MatMul", of_n, r_n)
    of_r = _left(tape, tape.op("Mul", of_q, q), r)
    of_zr = tape.op("Concat", of_z, of_r, axis=1)
    direct = tape.op("Add", tape.op("Mul", dh, z), tape.op("Mul", of_q, r))
    return (tape.op("Gemm", of_zr, r_zr, direct),), (tape.op("Concat", of_zr, of_n, axis=1),)


def _gru_early_weights(tape: Tape, gates: Names, stored: Names, before: str) -> Names:
    size = tape.shape(stored[0])[-1] or 0
    of_zr, of_n = tape.op("Split", gates[0], tape.integers(2 * size, size), axis=1, count=2)
    return [_product(tape, of_zr, before), _product(tape, of_n, tape.reshape(stored[3], (None, size)))]


def _gru_common(tape: Tape, gradients: Names, stored: Names) -> tuple[str, str, str, str, str]:
    """Return the gradient of h′, then z and r, then the gradients of the sums inside z and n. It uses z·(h − n) = h′ − n."""
    (dh,), (y, zr, n, _) = gradients, stored
    z, r = tape.op("Split", zr, axis=1, num_outputs=2, count=2)
    of_z = _left(tape, tape.op("Mul", dh, tape.op("Sub", y, n)), z)
    of_tanh = _left(tape, dh, z)
    return dh, z, r, of_z, _left(tape, of_tanh, tape.op("Mul", n, n))


def _blend(tape: Tape, z: str, n: str, h: str) -> str:
    return tape.op("Add", n, tape.op("Mul", z, tape.op("Sub", h, n)))


# RNN: one gate; h′ = tanh or relu of it.


def _rnn_step(activation: str) -> Step:
    return lambda tape, states, gates, weights: (
        (tape.op(activation, tape.op("Gemm", states[0], weights[0], gates, transB=1)),),
        (),
    )


def _rnn_back(tape: Tape, gradients: Names, stored: Names, weights: Names) -> tuple[Names, Names]:
    of_gate = _left(tape, gradients[0], tape.op("Mul", stored[0], stored[0]))
    return (tape.op("MatMul", of_gate, weights[0]),), (of_gate,)


def _relu_back(tape: Tape, gradients: Names, stored: Names, weights: Names) -> tuple[Names, Names]:
    zero = tape.number(0.0)
    of_gate = tape.op("Where", tape.op("Greater", stored[0], zero), gradients[0], zero)
    return (tape.op("MatMul", of_gate, weights[0]),), (of_gate,)


CELLS: dict[str, Cell] = {
    "edgefl.lstm": Cell(2, (1, 3, 1, 1), _lstm_step, _lstm_back, (4,), _one_matrix),
    "edgefl.gru": Cell(1, (1, 2, 1, 1), _gru_step, _gru_back, (3, 3), _matrix_and_bias),
    "edgefl.gru.early": Cell(1, (1, 2, 1, 1), _gru_early_step, _gru_early_back, (3,), _gru_early_weights),
    "edgefl.rnn.tanh": Cell(1, (1,), _rnn_step("Tanh"), _rnn_back, (1,), _one_matrix),
    "edgefl.rnn.relu": Cell(1, (1,), _rnn_step("Relu"), _relu_back, (1,), _one_matrix),
}
"""Name of the loop's body → cell; the rule of the loop finds the cell by this name."""
