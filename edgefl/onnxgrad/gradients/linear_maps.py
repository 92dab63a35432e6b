"""Gradients of operators that are a constant linear map along an axis: resizes, repeating pads, cumulative sums, Fourier transforms."""

from typing import Any

import numpy as np
import onnx
import onnx.helper

from edgefl.onnxgrad.gradients.op import Gradient, Op, prepared, register_rule
from edgefl.onnxgrad.gradients.tape import Tape
from edgefl.onnxgrad.session import computed, opened, options_for

Matrix = np.ndarray[Any, Any]


def mapped(tape: Tape, value: str, rank: int, axis: int, matrix: Matrix) -> str:
    """Return ``value`` with its entries along ``axis`` multiplied with ``matrix`` (size of the axis, new size)."""
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    last = axis == rank - 1
    turned = value if last else tape.op("Transpose", value, perm=perm)
    product = tape.op("MatMul", turned, tape.constant(matrix.astype(tape.real)))
    return product if last else str(tape.op("Transpose", product, perm=perm))


@register_rule("Resize")
def resize(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Every axis is a linear map. onnxruntime computes its matrix here from unit vectors; its transpose maps g back."""
    x, (sizes, places) = op.inputs[0], (tape.shape(op.inputs[0]), tape.shape(op.outputs[0]))
    if op.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        op.refuse("coordinate_transformation_mode tf_crop_and_resize has no rule")
    for axis, (size, place) in enumerate(zip(sizes, places, strict=True)):
        if size is None and place is None:
            continue
        (size,), (place,) = tape.fixed(op, x, [axis]), tape.fixed(op, op.outputs[0], [axis])
        scale = place / size
        given = tape.known(op.input(2))
        if given is not None and given.size:
            axes = op.get("axes", range(len(sizes)))
            scale = float(dict(zip(axes, given, strict=True)).get(axis, 1.0))
        if scale != 1.0 or size != place:
            matrix = _matrix(op, size, scale, place if given is None or not given.size else None)
            gradient = mapped(tape, gradient, len(sizes), axis, matrix.T)
    return [gradient, *[None] * (len(op.inputs) - 1)]


def _matrix(op: Op, size: int, scale: float, place: int | None) -> Matrix:
    """Return the matrix (size, places) of a Resize along one axis, by its ``scale`` or, if ``place`` is given, its new size."""
    attributes = {name: value for name, value in op.attributes.items() if name not in ("axes", "keep_aspect_ratio_policy")}
    target = np.array([1, 1, scale, 1], np.float32) if place is None else np.array([size, 1, place, 1], np.int64)
    names = ["x", "", "target"] if place is None else ["x", "", "", "target"]
    node = onnx.helper.make_node("Resize", names, ["y"], **attributes)
    ends = (("x", [size, 1, size, 1]), ("y", None))
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in ends)
    graph = onnx.helper.make_graph([node], "resize", [x], [y], [onnx.numpy_helper.from_array(target, "target")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    units = np.eye(size, dtype=np.float32).reshape(size, 1, size, 1)
    found = computed(opened(model.SerializeToString(), options_for(1)), {"x": units})["y"]
    return found.reshape(size, -1)


def padded_back(tape: Tape, op: Op, gradient: str, begins: list[int], ends: list[int], axes: list[int]) -> str:
    """Return the gradient of a Pad whose mode repeats entries of the input: reflect, edge or wrap."""
    rank, x = len(tape.shape(op.inputs[0])), op.inputs[0]
    mode = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}[op.get("mode")]
    for axis, begin, end in zip(axes, begins, ends, strict=True):
        if begin or end:
            units = np.eye(tape.fixed(op, x, [axis])[0])
            matrix = np.pad(units, ((0, 0), (begin, end)), mode=mode)  # type: ignore[call-overload]  # one of three literals
            gradient = mapped(tape, gradient, rank, axis, matrix.T)
    return gradient


@register_rule("Col2Im")
def folded(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return the entries of each window of g, by a convolution with kernels of one 1."""
    known = [tape.known(name) for name in op.inputs[1:]]
    if any(value is None for value in known):
        op.refuse("its sizes must be known")
    sizes, kernel = ([int(size) for size in value] for value in known if value is not None)
    entries = int(np.prod(kernel))
    one = tape.constant(np.eye(entries, dtype=tape.real).reshape(entries, 1, *kernel))
    maps = tape.op("Reshape", gradient, tape.integers(-1, 1, *sizes))
    options = {name: op.get(name) for name in ("dilations", "pads", "strides")}
    return [tape.like(tape.op("Conv", maps, one, **options), op.inputs[0]), None, None]


@register_rule("CumSum")
def cumulative_sum(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return the cumulative sum of g in the other direction."""
    reverse = int(not op.get("reverse", 0))
    return [tape.op("CumSum", gradient, op.inputs[1], exclusive=op.get("exclusive"), reverse=reverse), None]


@register_rule("Trilu")
def triangle(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """Return the same triangle of g."""
    return [tape.op("Trilu", gradient, *op.inputs[1:], upper=op.get("upper", 1)), None]


@prepared("TopK")
def with_places(tape: Tape, op: Op) -> None:
    """Name the output with the places of the largest entries, which the gradient reads."""
    names = [output or tape.fresh("topk") for output in op.outputs]
    tape.nodes.append(onnx.helper.make_node("TopK", op.inputs, names, name=op.name, **op.attributes))
    tape.shapes |= {name: tape.shape(next(filter(None, op.outputs))) for name in names}


@register_rule("TopK")
def top(tape: Tape, op: Op, gradient: Gradient, of_places: Gradient = None) -> list[Gradient]:
    """Return g at the places of the largest entries, zeros elsewhere."""
    if gradient is None:
        return [None, None]
    zeros = tape.zeros_like(op.inputs[0])
    rank = len(tape.shape(op.inputs[0]))
    return [tape.op("ScatterElements", zeros, op.outputs[1], gradient, axis=op.get("axis", -1) % rank, reduction="add"), None]


@register_rule("DepthToSpace")
def depth_to_space(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The inverse rearrangement of g: SpaceToDepth, or for mode CRD a transpose."""
    block = op.get("blocksize")
    if op.get("mode", "DCR") == "DCR":
        return [tape.op("SpaceToDepth", gradient, blocksize=block)]
    channels, rows, columns = tape.fixed(op, op.outputs[0], [1, 2, 3])
    apart = tape.op("Reshape", gradient, tape.integers(-1, channels, rows // block, block, columns // block, block))
    return [tape.like(tape.op("Transpose", apart, perm=[0, 1, 3, 5, 2, 4]), op.inputs[0])]


@register_rule("SpaceToDepth")
def space_to_depth(tape: Tape, op: Op, gradient: str) -> list[Gradient]:
    """The inverse rearrangement of g."""
    return [tape.op("DepthToSpace", gradient, blocksize=op.get("blocksize"))]


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
