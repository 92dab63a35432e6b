"""The gradient of the short-time Fourier transform."""

import numpy as np

from edgefl.onnxgrad.gradients.op import Gradient, Op, register_rule
from edgefl.onnxgrad.gradients.tape import Tape


@register_rule("STFT")
def short_time_transform(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Every frame is a linear map of its samples: its transpose maps g back, and the parts of overlapping frames add up."""
    signal, window = op.inputs[0], op.input(2)
    step, length, weights = tape.known(op.input(1)), tape.known(op.input(3)), tape.known(window)
    if step is None or (window is not None and weights is None) or (length is None and weights is None):
        op.refuse("its step, window and length must be known")
    count = int(length) if length is not None else len(weights)  # type: ignore[arg-type]  # one of both is known
    frames, bins = tape.fixed(op, op.outputs[0], [1, 2])
    (size, *_) = tape.fixed(op, signal, [1])
    if tape.fixed(op, op.outputs[0], [3]) != (2,) or tape.shape(signal)[2:] not in ((), (1,)):
        op.refuse("its rule needs a real signal")
    angles = 2 * np.pi * np.outer(np.arange(bins), np.arange(count)) / count
    waves = np.stack([np.cos(angles), -np.sin(angles)], 1) * (1.0 if weights is None else weights)
    kernels = tape.constant(waves.reshape(2 * bins, 1, count).astype(tape.real))
    rows = tape.op("Transpose", tape.op("Reshape", gradient, tape.integers(0, frames, 2 * bins)), perm=[0, 2, 1])
    parts = tape.op("ConvTranspose", rows, kernels, strides=[int(step)])
    rest = size - (frames - 1) * int(step) - count
    padded = tape.op("Pad", parts, tape.integers(0, 0, 0, 0, 0, rest)) if rest else parts
    return [tape.like(padded, signal), None, None, None][: len(op.inputs)]
