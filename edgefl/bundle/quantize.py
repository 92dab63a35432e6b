"""Smaller variants of an inference graph: 8-bit weights, with or without 8-bit activations, or 16-bit floats.

================ =====================================================================================================
``int8-static``  for networks of convolutions and linear layers: weights have a scale for each output channel,
                 activations have fixed ranges, measured on calibration samples. The graph has QuantizeLinear and
                 DequantizeLinear around float operators (QDQ), which onnxruntime fuses to 8-bit kernels. They are as
                 fast as its QLinear operators, and QDQ needs no operator outside ai.onnx.
``int8-dynamic`` for recurrent networks and transformers, whose activations differ too much between samples for fixed
                 ranges: linear layers measure the range of each input at run time. Weights of recurrent layers and
                 embeddings are stored in 8 bits, but used as floats: ai.onnx has no 8-bit recurrent operator.
``fp16``         16-bit floats inside, float32 inputs and outputs. Half the file; processors without 16-bit arithmetic
                 compute in float32.
================ =====================================================================================================

Weights that are multiplied in 8 bits use 7 of them. x86 processors without VNNI add two products in 16 bits, which would overflow: 7 bits
cannot (2·255·64 < 2¹⁵), and all processors compute the same.

Inputs, outputs and operator set do not change. Factors that a graph multiplies at run time are multiplied before quantization, so that
scales are those of the product.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import numpy as np
import onnx
import onnx.numpy_helper

from edgefl.bundle.manifest import Variant
from edgefl.client.criterion import CROSS_ENTROPY, Criterion
from edgefl.client.evaluate import evaluating
from edgefl.errors import ConfigError, EdgeflError, first_line
from edgefl.onnxgrad.contexts import quiet
from edgefl.onnxgrad.graphs import graphs_in, strip
from edgefl.onnxgrad.predict import median_seconds, predict
from edgefl.util.fields import Fields, first, named, rows
from edgefl.util.scratch import scratch_folder
from edgefl.util.units import human_seconds

Kind = Literal["int8-static", "int8-dynamic", "fp16"]
KINDS: tuple[Kind, ...] = ("int8-static", "int8-dynamic", "fp16")
CALIBRATION_SAMPLES = 128
"""How many samples the ranges of activations are measured on."""

_BATCH = 32
_ALIKE = 1.1  # medians of equal graphs differ by less
_QUANTIZED = ["Conv", "Gemm", "MatMul"]
_RECURRENT = ("LSTM", "GRU", "RNN")
_DYNAMIC = (*_RECURRENT, "Softmax", "LayerNormalization")


def int8_kind(graph: bytes) -> Kind:
    """Return which of the two 8-bit variants suits a graph: ``int8-dynamic`` for recurrent networks and transformers."""
    model = onnx.load_model_from_string(graph)
    operators = {node.op_type for part in graphs_in(model.graph) for node in part.node}
    return "int8-static" if operators.isdisjoint(_DYNAMIC) else "int8-dynamic"


def quantized(graph: bytes, kind: Kind, calibration: Fields[np.ndarray] | None = None) -> bytes:
    """Return the variant ``kind`` of an inference graph; the same arguments give the same bytes.

    ``graph`` is a serialized ModelProto with float32 weights. ``int8-static`` needs ``calibration`` samples (n, …) and uses at most
    :data:`CALIBRATION_SAMPLES` of them, evenly spread.

    Raises:
        ConfigError: there is no such variant, or calibration samples are missing, not finite, or of another shape or type.
        EdgeflError: the graph cannot be quantized; the message is that of onnxruntime's tools.
    """
    if kind not in KINDS:
        raise ConfigError(f"variant: got {kind!r}, expected one of {', '.join(KINDS)}")
    model = onnx.load_model_from_string(graph)
    change: Callable[[onnx.ModelProto, SimpleNamespace], onnx.ModelProto] = _half if kind == "fp16" else _dynamic
    if kind == "int8-static":
        change = partial(_static, calibration=_checked(model, calibration))
    with quiet():
        try:
            made = change(_folded(model), _tools())
            made.graph.name = "forward"
            strip(made)
            made = _of_ai_onnx(made, model)
            onnx.checker.check_model(made, full_check=True)
        except Exception as error:  # the tools raise many kinds
            raise EdgeflError(f"the graph has no variant {kind}: {first_line(error)}") from error
    return made.SerializeToString(deterministic=True)


def variant(
    label: str,
    graph: bytes,
    kind: Kind,
    calibration: Fields[np.ndarray] | None,
    x: Fields[np.ndarray],
    y: np.ndarray | None,
    criterion: Criterion = CROSS_ENTROPY,
) -> tuple[Variant, bytes]:
    """Return the record and the graph of a tier's variant (see :func:`quantized`); its accuracy or metric is that on x, y (n, …).

    Without ``y`` it has none.
    """
    made, accuracy = quantized(graph, kind, calibration), None
    if y is not None:
        with evaluating(f"tier {label}, variant {kind}"):
            accuracy = criterion.measured(predict(made, x, batch_size=_BATCH), y)
    return Variant(kind=kind, graph=f"{label}/forward.{kind}.onnx", bytes=len(made), accuracy=accuracy), made


def slower(graph: bytes, made: bytes, x: Fields[np.ndarray]) -> str:
    """Return that the variant ``made`` of ``graph`` is slower on this processor for a sample of ``x``, with both times; "" if it is not."""
    plain_s, variant_s = median_seconds([graph, made], rows(x, slice(1)))
    if variant_s <= _ALIKE * plain_s:
        return ""
    times = f"{human_seconds(variant_s)} for a sample on one thread, float32 takes {human_seconds(plain_s)}"
    return f"slower than float32 on this processor: {times}"


def _checked(model: onnx.ModelProto, calibration: Fields[np.ndarray] | None) -> dict[str, np.ndarray]:
    """Return input → samples on which ranges of activations are measured, evenly spread over ``calibration``."""
    if calibration is None or not len(first(calibration)):
        raise ConfigError(
            "int8-static takes calibration samples to find the ranges of activations, got none; give some, such as 100"
        )
    inputs, chosen = named(calibration, "x"), dict[str, np.ndarray]()
    for entry in model.graph.input:
        value, samples = entry.type.tensor_type, inputs[entry.name] if len(inputs) > 1 else first(calibration)
        shape = tuple(dim.dim_value for dim in value.shape.dim)[1:]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.elem_type)
        if samples.shape[1:] != shape or samples.dtype != dtype:
            form = f"{samples.dtype} {samples.shape[1:]}"
            raise ConfigError(f"int8-static: calibration samples of {form}, expected {dtype} {shape} as the graph's input")
        if not np.isfinite(samples).all():
            raise ConfigError("int8-static: calibration samples hold values that are not finite")
        spread = np.linspace(0, len(samples) - 1, min(len(samples), CALIBRATION_SAMPLES)).round().astype(np.int64)
        chosen[entry.name] = np.ascontiguousarray(samples[spread])
    return chosen


def _tools() -> SimpleNamespace:
    """Return onnxruntime's tools. Importing them adds a folder to ``sys.path``, which is removed again."""
    before = list(sys.path)
    try:
        from onnxruntime import quantization
        from onnxruntime.quantization.onnx_model import ONNXModel
        from onnxruntime.transformers import float16
    finally:
        sys.path[:] = before
    return SimpleNamespace(quantization=quantization, float16=float16, sort=lambda model: ONNXModel(model).topological_sort())


def _folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with constants folded, and without recorded shapes of inner values, which quantization changes."""
    from onnxscript import optimizer

    folded = optimizer.optimize(model, input_size_limit=1 << 40, output_size_limit=1 << 40)
    folded.graph.ClearField("value_info")
    return folded


def _half(model: onnx.ModelProto, tools: SimpleNamespace) -> onnx.ModelProto:
    made = tools.float16.convert_float_to_float16(model, keep_io_types=True)
    tools.sort(made)  # the casts at the ends come last
    return made


def _static(model: onnx.ModelProto, tools: SimpleNamespace, calibration: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    q = tools.quantization
    batches = [rows(calibration, slice(i, i + _BATCH)) for i in range(0, len(next(iter(calibration.values()))), _BATCH)]
    left = iter(batches)
    samples = SimpleNamespace(get_next=lambda: next(left, None))
    # x86, Arm and WebAssembly all have fast kernels for unsigned activations with signed weights.
    types = {"activation_type": q.QuantType.QUInt8, "weight_type": q.QuantType.QInt8, "reduce_range": True}
    options = {"quant_format": q.QuantFormat.QDQ, "per_channel": True, "op_types_to_quantize": _QUANTIZED, **types}
    # Outputs of products stay float: logits are not rounded, and the next layer rounds its own input.
    options["extra_options"] = {"OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"]}
    return _by_file(lambda out: q.quantize_static(model, out, samples, **options))


def _dynamic(model: onnx.ModelProto, tools: SimpleNamespace) -> onnx.ModelProto:
    q = tools.quantization
    options = {"weight_type": q.QuantType.QInt8, "per_channel": True, "extra_options": {"MatMulConstBOnly": True}}
    for kinds, products in ((["Gather"], False), (["MatMul", "Gemm"], True)):  # embeddings are not multiplied in 8 bits
        model = _by_file(partial(q.quantize_dynamic, model, op_types_to_quantize=kinds, reduce_range=products, **options))
    return _recurrent_weights(model)


def _by_file(write: Callable[[Path], None]) -> onnx.ModelProto:
    """Return the model that ``write`` stores in a file: the tools return nothing."""
    with scratch_folder() as folder:
        write(folder / "made.onnx")
        return onnx.load(folder / "made.onnx")


def _recurrent_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Store the weights of recurrent layers, (directions, gates·H, m), in 8 bits with a scale for every row."""
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    weights = dict.fromkeys(name for node in graph.node if node.op_type in _RECURRENT for name in node.input[1:3])
    added = []
    for name in [name for name in weights if name in stored]:
        values = onnx.numpy_helper.to_array(stored[name])
        largest = np.abs(values).max(axis=(0, 2))
        scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
        rounded = np.clip(np.rint(values / scale[:, None]), -127, 127).astype(np.int8)
        stored[name].CopyFrom(onnx.numpy_helper.from_array(rounded, f"{name}_quantized"))
        graph.initializer.append(onnx.numpy_helper.from_array(scale, f"{name}_scale"))
        added.append(onnx.helper.make_node("DequantizeLinear", [f"{name}_quantized", f"{name}_scale"], [name], axis=1))
    nodes = [*added, *graph.node]
    graph.ClearField("node")
    graph.node.extend(nodes)
    return model


def _of_ai_onnx(model: onnx.ModelProto, original: onnx.ModelProto) -> onnx.ModelProto:
    """Give the model the operator set of the original; EdgeflError if it needs another, or if its inputs or outputs differ."""
    if foreign := sorted({f"{node.domain}.{node.op_type}" for node in model.graph.node if node.domain not in ("", "ai.onnx")}):
        raise EdgeflError(f"it would need operators outside ai.onnx: {', '.join(foreign)}")
    for field in ("opset_import", "metadata_props"):
        model.ClearField(field)
    model.opset_import.extend(original.opset_import)
    model.producer_name, model.producer_version = original.producer_name, original.producer_version
    for ends, before in ((model.graph.input, original.graph.input), (model.graph.output, original.graph.output)):
        if [(v.name, v.type) for v in ends] != [(v.name, v.type) for v in before]:
            raise EdgeflError("its inputs or outputs would change")
    model.graph.ClearField("value_info")
    return model
