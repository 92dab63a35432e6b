"""Checks a graph without running it: allowed operators, tensors of their declared size, and the expected inputs and outputs."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from edgefl.errors import BundleError, first_line
from edgefl.onnxgrad.graphs import LIMIT_BYTES, dims_of, graphs_in

MAX_INNER_BYTES = LIMIT_BYTES
"""A model may have its weights in a second file only if graph and weights together are larger than this."""

OPERATORS = frozenset(
    """
    Abs Acos Acosh Add AffineGrid And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization BitShift BitwiseAnd BitwiseNot
    BitwiseOr BitwiseXor BlackmanWindow Cast CastLike Ceil Celu CenterCropPad Clip Col2Im Compress Concat Constant ConstantOfShape Conv
    ConvInteger ConvTranspose Cos Cosh CumSum DFT DeformConv DepthToSpace DequantizeLinear Det Div DynamicQuantizeLinear Einsum Elu Equal
    Erf Exp Expand EyeLike Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater
    GreaterOrEqual GridSample GroupNormalization HammingWindow HannWindow HardSigmoid HardSwish Hardmax Identity If InstanceNormalization
    IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Loop LpNormalization LpPool MatMul MatMulInteger Max
    MaxPool MaxRoiPool MaxUnpool Mean MeanVarianceNormalization MelWeightMatrix Min Mish Mod Mul Neg NegativeLogLikelihoodLoss
    NonMaxSuppression NonZero Not OneHot Or PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear RNN Range Reciprocal ReduceL1 ReduceL2
    ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize ReverseSequence
    RoiAlign Round STFT Scan ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax SoftmaxCrossEntropyLoss
    Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze Where Xor
    """.split()  # noqa: SIM905 - one word per operator reads better than as many quoted ones
)
"""Operators of ai.onnx 20, also allowed inside Loop, If and Scan: none for randomness, text, sequences, optionals, pictures or files."""

_TYPES: dict[str, int] = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}
_BITS: dict[int, int] = {
    TensorProto.FLOAT: 32, TensorProto.DOUBLE: 64, TensorProto.FLOAT16: 16, TensorProto.BFLOAT16: 16, TensorProto.BOOL: 8,
    TensorProto.INT8: 8, TensorProto.INT16: 16, TensorProto.INT32: 32, TensorProto.INT64: 64,
    TensorProto.UINT8: 8, TensorProto.UINT16: 16, TensorProto.UINT32: 32, TensorProto.UINT64: 64,
}  # fmt: skip


@dataclass(frozen=True)
class End:
    """The expected dtype (``float32``, ``int64`` or ``bool``) and sizes of an input or output; None is the batch size."""

    dtype: str
    dims: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"{self.dtype} ({', '.join('batch' if d is None else str(d) for d in self.dims)})"

    def fits(self, value: onnx.ValueInfoProto) -> bool:
        """Return whether a graph's ``value`` has this type and these sizes."""
        dims = dims_of(value)
        same = len(dims) == len(self.dims) and all(
            isinstance(a, str) if b is None else a == b for a, b in zip(dims, self.dims, strict=True)
        )
        return same and value.type.tensor_type.HasField("shape") and value.type.tensor_type.elem_type == _TYPES[self.dtype]


def load_graph(folder: Path, name: str, opset: int, files: Mapping[str, int]) -> onnx.ModelProto:
    """Return the checked model in the file ``name`` of the bundle in ``folder``. Weights in a second file are not loaded.

    ``opset`` and ``files`` (path in the bundle → length in bytes) are those of the manifest.

    Raises:
        BundleError: the file is not a valid ONNX model, has another operator set, or contains an operator, function or tensor that is not
            allowed in a bundle.
    """
    path = folder / name
    if path.stat().st_size > LIMIT_BYTES:
        raise BundleError(f"{name}: more than {LIMIT_BYTES:,} bytes, which no ONNX file can have")
    try:
        model = onnx.load_model_from_string(path.read_bytes())
    except (DecodeError, ValueError) as error:
        raise BundleError(f"{name}: not a valid ONNX model ({first_line(error)})") from None
    graphs = list(graphs_in(model.graph))
    _check_text(name, model, graphs)
    _check_operators(name, model, graphs)
    _check_tensors(name, graphs)
    external = _check_external(name, path.stat().st_size, graphs, files)
    try:
        onnx.checker.check_model(path if external else model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        raise BundleError(f"{name}: not a valid ONNX model ({first_line(error)})") from None
    if (version := model.opset_import[0].version) != opset:
        raise BundleError(f"{name}: opset {version}, the manifest says {opset}")
    return model


def check_ends(
    name: str,
    graph: onnx.GraphProto,
    inputs: Mapping[str, End],
    outputs: Mapping[str, End],
    may_lack: frozenset[str],
) -> None:
    """Raise a BundleError unless a graph has exactly these inputs and outputs, without values; those in ``may_lack`` are optional."""
    if inner := sorted({v.name for v in graph.input} & {tensor.name for tensor in graph.initializer}):
        raise BundleError(f"{name}: input {inner[0]} has a value inside the file")
    for kind, values, wanted in (("input", graph.input, inputs), ("output", graph.output, outputs)):
        names = {value.name for value in values}
        if absent := sorted(wanted.keys() - names - may_lack):
            raise BundleError(f"{name}: has no {kind} {absent[0]}, expected {wanted[absent[0]]}")
        for value in values:
            if value.name not in wanted:
                raise BundleError(f"{name}: {kind} {value.name!r}, expected only {_listed(wanted)}")
            if not wanted[value.name].fits(value):
                raise BundleError(f"{name}: {kind} {value.name} is {_described(value)}, expected {wanted[value.name]}")


def _check_text(name: str, model: onnx.ModelProto, graphs: list[onnx.GraphProto]) -> None:
    """Refuse names that are not UTF-8, which protobuf returns as bytes."""
    texts: list[object] = [opset.domain for opset in model.opset_import] + [function.domain for function in model.functions]
    for graph in graphs:
        texts += [text for node in graph.node for text in (node.op_type, node.domain)]
        texts += [value.name for value in (*graph.input, *graph.output)]
    for tensor in _tensors(graphs):
        texts += [tensor.name, *(text for entry in tensor.external_data for text in (entry.key, entry.value))]
    if any(isinstance(text, bytes) for text in texts):
        raise BundleError(f"{name}: not a valid ONNX model (a name that is not UTF-8)")


def _check_operators(name: str, model: onnx.ModelProto, graphs: list[onnx.GraphProto]) -> None:
    nodes = [node for graph in graphs for node in graph.node]
    domains = {opset.domain for opset in model.opset_import} | {node.domain for node in nodes}
    domains |= {function.domain or "a function of its own" for function in model.functions}
    if foreign := domains - {"", "ai.onnx"}:
        raise BundleError(f"{name}: operators outside ai.onnx: {', '.join(sorted(foreign))}")
    if model.functions or model.training_info:
        raise BundleError(f"{name}: holds functions or training information, expected a graph alone")
    if refused := sorted({node.op_type for node in nodes} - OPERATORS):
        raise BundleError(f"{name}: operators that a bundle may not hold: {', '.join(refused)[:300]}")
    if len(model.opset_import) != 1:
        raise BundleError(f"{name}: {len(model.opset_import)} operator sets, expected one")


def _check_tensors(name: str, graphs: list[onnx.GraphProto]) -> None:
    """Refuse tensors that do not hold as many values as their dimensions declare, types other than numbers, and sparse tensors."""
    for tensor in _tensors(graphs):
        if tensor.data_type not in _BITS:
            raise BundleError(f"{name}: tensor {tensor.name!r} of type {_kind(tensor.data_type)}, expected numbers")
        if _is_external(tensor):
            continue
        elements = math.prod(tensor.dims)
        fields = (tensor.float_data, tensor.double_data, tensor.int32_data, tensor.int64_data, tensor.uint64_data)
        stored = len(tensor.raw_data) * 8 // _BITS[tensor.data_type] if tensor.HasField("raw_data") else sum(map(len, fields))
        if min(tensor.dims, default=0) < 0 or elements != stored:
            raise BundleError(f"{name}: not a valid ONNX model (tensor {tensor.name!r} holds {stored} of {elements} values)")
    if any(graph.sparse_initializer for graph in graphs) or any(
        a.HasField("sparse_tensor") or a.sparse_tensors for graph in graphs for node in graph.node for a in node.attribute
    ):
        raise BundleError(f"{name}: holds a sparse tensor, which has no fixed size")


def _tensors(graphs: list[onnx.GraphProto]) -> Iterator[TensorProto]:
    for graph in graphs:
        yield from graph.initializer
        yield from _constants(graph)


def _constants(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _check_external(name: str, file_bytes: int, graphs: list[onnx.GraphProto], files: Mapping[str, int]) -> bool:
    """Return whether weights are in a second file, which must be one of the bundle; refuse that if the graph's file could hold them."""
    if any(_is_external(tensor) for graph in graphs for tensor in _constants(graph)):
        raise BundleError(f"{name}: keeps constants outside the file")
    external = [tensor for graph in graphs for tensor in graph.initializer if _is_external(tensor)]
    if outside := [tensor.name for tensor in external if not _beside(name, tensor, files)]:
        raise BundleError(f"{name}: keeps weights outside the file, and not in one of the bundle that holds them: {outside[0]!r}")
    total_bytes = file_bytes + sum(_declared_bytes(tensor) for tensor in external)
    if external and total_bytes <= MAX_INNER_BYTES:
        raise BundleError(
            f"{name}: keeps weights outside the file: {total_bytes:,} bytes with it, expected more than {MAX_INNER_BYTES:,}"
        )
    return bool(external)


def _is_external(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL or bool(tensor.external_data)


def _declared_bytes(tensor: TensorProto) -> int:
    return math.prod(tensor.dims) * _BITS[tensor.data_type] // 8


def _beside(name: str, tensor: TensorProto, files: Mapping[str, int]) -> bool:
    """Return whether the file that an external tensor names is in the bundle, and long enough for the tensor's declared size."""
    about = {entry.key: entry.value for entry in tensor.external_data}
    place = PurePosixPath(name).parent / about.get("location", "")
    offset, length = (int(v) if (v := about.get(key, "0")).isdecimal() and len(v) < 19 else -1 for key in ("offset", "length"))
    wanted = _declared_bytes(tensor)
    sized = min(tensor.dims, default=0) >= 0 and offset >= 0 and length == wanted
    return sized and ".." not in place.parts and files.get(str(place), -1) >= offset + wanted


def _listed(wanted: Mapping[str, End]) -> str:
    names = [f"{name} {end}" for name, end in list(wanted.items())[:4]]
    return ", ".join(names) + (f" and {len(wanted) - 4} more" if len(wanted) > 4 else "")


def _described(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type.elem_type
    dims = ", ".join(str(dim or "?") for dim in dims_of(value))
    return f"{next((name for name, number in _TYPES.items() if number == kind), _kind(kind))} ({dims})"


def _kind(kind: int) -> str:
    return TensorProto.DataType.Name(kind) if kind in TensorProto.DataType.values() else "unknown"
