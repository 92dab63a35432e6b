"""Counts the multiply-accumulates (MACs) of an ONNX graph from its shapes, without running it.

A MAC is one multiplication and addition of a convolution or matrix product; the addition of a bias is none. Outputs at padded borders
count in full, and so do steps of a recurrent layer after the end of a sequence. Pooling and windows count none, also where edgefl exports
them as a product or convolution with constants. An operator is either in :data:`COUNTED`, in
:data:`IGNORED` with a reason, or reported as uncounted.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx
import onnx.inliner

from edgefl.onnxgrad.errors import InputError, first_line
from edgefl.onnxgrad.graphs import attributes_of, inferred_shapes

MEANS, WINDOWS = "means_of_windows", "entries_of_windows"
"""What names of nodes or values begin with if the exporter pools by a product, or moves by a convolution. These count no MACs."""
Shape = tuple[int, ...]
Shapes = Mapping[str, tuple[int | None, ...]]


@dataclass(frozen=True)
class OnnxMacs:
    """The MACs of a graph: (name, operator, MACs) of every counted node, their sum, and the operators that are in no table."""

    per_node: tuple[tuple[str, str, int], ...]
    total: int
    uncounted_ops: tuple[str, ...]


def count_macs(model: onnx.ModelProto, batch_size: int) -> OnnxMacs:
    """Return the MACs of ``model`` at a ``batch_size``, which replaces the first dimension of its inputs if that is free.

    Raises:
        InputError: shapes contradict each other, or the shape of a counted node is not known; names the node.

    Example:
        >>> ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in (("x", ["n", 3]), ("y", ["n", 5]))]
        >>> weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, (3, 5), [0.0] * 15)
        >>> node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="head")
        >>> count_macs(onnx.helper.make_model(onnx.helper.make_graph([node], "g", ends[:1], ends[1:], [weight])), 2)
        OnnxMacs(per_node=(('head', 'MatMul', 30),), total=30, uncounted_ops=())
    """
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    shapes = _shapes(model, batch_size)
    counted, uncounted = [], set()
    for index, node in enumerate(model.graph.node):
        standard = node.domain in ("", "ai.onnx")
        if _pools(node):
            continue
        if standard and node.op_type in COUNTED:
            counted.append(
                (node.name or f"{node.op_type}_{index}", node.op_type, COUNTED[node.op_type](_Reader(node, index, shapes)))
            )
        elif not standard or node.op_type not in IGNORED:
            uncounted.add(node.op_type if standard else f"{node.domain}.{node.op_type}")
    return OnnxMacs(tuple(counted), sum(macs for _, _, macs in counted), tuple(sorted(uncounted)))


def _pools(node: onnx.NodeProto) -> bool:
    """Return whether the exporter made a node for pooling or windows; the output has another name if it is one of the graph."""
    return any(name.removeprefix("node_").startswith((MEANS, WINDOWS)) for name in (node.name, node.output[0]))


def macs_per_sample(model: onnx.ModelProto) -> int | None:
    """Return the MACs of one more sample, without products of weights only; None if an operator is in no table.

    Of a graph for a fixed number of samples, return its MACs by sample.
    """
    one, two = (count_macs(model, batch_size) for batch_size in (1, 2))
    if one.uncounted_ops:
        return None
    samples = _fixed_samples(model)
    return one.total // samples if samples else two.total - one.total


def _fixed_samples(model: onnx.ModelProto) -> int:
    """Return the number of samples that a graph's inputs are fixed to; 0 if it is free."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    shapes = [value.type.tensor_type.shape.dim for value in model.graph.input if value.name not in initializers]
    sizes = {dims[0].dim_value for dims in shapes if dims}
    return sizes.pop() if len(sizes) == 1 else 0


def _shapes(model: onnx.ModelProto, batch_size: int) -> Shapes:
    """Return every value's shape, None where a dimension is not known."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    graph = fixed.graph
    initializers = {tensor.name for tensor in graph.initializer}
    symbols = set()
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in initializers and dims and not dims[0].HasField("dim_value"):
            symbols.add(dims[0].dim_param)
            dims[0].dim_value = batch_size
    recorded = [value for value in graph.value_info if _fixed(value, symbols - {""}, batch_size)]
    # Other recorded shapes may contain a batch size that is not this one.
    graph.ClearField("value_info")
    graph.value_info.extend(recorded)
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        found = inferred_shapes(fixed, strict=True)
    except onnx.shape_inference.InferenceError as error:
        raise InputError(f"shapes do not fit together: {first_line(error)}") from None
    return {name: tuple(dim if isinstance(dim, int) else None for dim in shape) for name, shape in found.items()}


def _fixed(value: onnx.ValueInfoProto, symbols: set[str], batch_size: int) -> bool:
    """Write ``batch_size`` into the recorded dimensions named by ``symbols``, and return whether there are any.

    Inference does not know how long a Range over the samples is, unless its recorded shape says so.
    """
    named = [dim for dim in value.type.tensor_type.shape.dim if dim.dim_param in symbols]
    for dim in named:
        dim.dim_value = batch_size
    return bool(named)


@dataclass(frozen=True)
class _Reader:
    """One node and the shapes around it."""

    node: onnx.NodeProto
    index: int
    shapes: Shapes

    def input(self, slot: int) -> Shape:
        """Return the shape of an input."""
        return self._shape(self.node.input[slot])

    def output(self) -> Shape:
        """Return the shape of the first output."""
        return self._shape(self.node.output[0])

    def fail(self, what: str) -> InputError:
        """Return an error that names the node."""
        return InputError(f"node {self.node.name or f'number {self.index}'} ({self.node.op_type}): {what}")

    def _shape(self, name: str) -> Shape:
        shape = self.shapes.get(name)
        if shape is None or None in shape:
            shown = "unknown" if shape is None else "x".join("?" if dim is None else str(dim) for dim in shape)
            raise self.fail(f"the shape of {name!r} is {shown}; its MACs need fixed dimensions")
        return tuple(dim for dim in shape if dim is not None)


def _recurrent(gates: int) -> Callable[[_Reader], int]:
    """Count a recurrent layer: in each direction and step, every gate multiplies the input and the state."""

    def count(node: _Reader) -> int:
        x, w, hidden = node.input(0), node.input(1), node.input(2)[-1]
        return x[0] * x[1] * w[0] * gates * hidden * (x[2] + hidden)

    return count


def _attention(node: _Reader) -> int:
    # Each query is multiplied by each key for the scores, and by each value for the sum, masked or not.
    queries, keys = node.input(0), node.input(1)
    cached = node.input(4)[2] if any(node.node.input[4:5]) else 0
    return (math.prod(queries) + math.prod(node.output())) * (keys[-2] + cached)


def _linear_attention(node: _Reader) -> int:
    # In each step every head of queries reads its state (key size, value size), and a correction reads each state once more.
    heads = attributes_of(node.node)
    size = node.input(2)[-1] // heads["kv_num_heads"]
    corrected = any(node.node.input[5:6])
    return (math.prod(node.input(0)) + corrected * math.prod(node.input(1))) * size


def _einsum(node: _Reader) -> int:
    """Count an equation from left to right, two operands at a time.

    An index of one operand only is summed before the product. Two operands without a common summed index are multiplied element by
    element, which counts no MACs.
    """
    equation = attributes_of(node.node)["equation"].replace(" ", "")
    left, arrow, right = equation.partition("->")
    operands = [_sizes(node, term, node.input(slot)) for slot, term in enumerate(left.split(","))]
    names = [name for operand in operands for name in operand]
    ellipsis = {name for name in names if len(name) > 1}
    result = ({*right.replace("...", "")} | ellipsis) if arrow else {n for n in names if names.count(n) == 1} | ellipsis
    macs, current = 0, operands[0]
    for position, other in enumerate(operands[1:], start=1):
        later = result.union(*operands[position + 1 :])
        both = {name: max(current.get(name, 1), other.get(name, 1)) for name in {**current, **other}}
        shared = current.keys() & other.keys()
        kept = {name: size for name, size in both.items() if name in later or name in shared}
        if any(name not in later for name in shared):
            macs += math.prod(kept.values())
        current = {name: size for name, size in kept.items() if name in later}
    return macs


def _sizes(node: _Reader, term: str, shape: Shape) -> dict[str, int]:
    """Return the size of every index of a term; an ellipsis gives indices of its own, numbered from the right."""
    before, dots, after = term.partition("...")
    free = len(shape) - len(before) - len(after)
    if free < 0 or (free and not dots):
        raise node.fail(f"term {term!r} of its equation does not fit a shape of {shape}")
    return dict(zip([*before, *(f"...{free - i}" for i in range(free)), *after], shape, strict=True))


def _convolution(weight: int) -> Callable[[_Reader], int]:
    """Count a convolution whose kernels are input ``weight``: an output value sums over kernel and input channels of its group."""
    return lambda node: math.prod(node.output()) * math.prod(node.input(weight)[1:])


COUNTED: dict[str, Callable[[_Reader], int]] = {
    **dict.fromkeys(("CausalConvWithState", "Conv", "ConvInteger", "DeformConv"), _convolution(1)),
    "QLinearConv": _convolution(3),
    # Each input value is spread over kernel and output channels of its group.
    "ConvTranspose": lambda node: math.prod(node.input(0)) * math.prod(node.input(1)[1:]),
    # The number of values of A, transposed or not, times the columns of the result.
    "Gemm": lambda node: math.prod(node.input(0)) * node.output()[1],
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), lambda node: math.prod(node.output()) * node.input(0)[-1]),
    "Einsum": _einsum,
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
    "Attention": _attention,
    "LinearAttention": _linear_attention,
}

IGNORED: dict[str, str] = {
    name: reason
    for reason, names in {
        "one value at a time, no sum of products": """
            Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil Celu Clip Cos Cosh
            DequantizeLinear Div Dropout DynamicQuantizeLinear Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish
            IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow QuantizeLinear Reciprocal Relu
            RotaryEmbedding Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum SwiGLU Swish Tan Tanh ThresholdedRelu
            Where Xor
        """,
        "sums or compares values, no product of two tensors": """
            ArgMax ArgMin AveragePool CumProd CumSum GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool ReduceL1 ReduceL2
            ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare TopK
        """,
        "element-wise and reductions: a few operations a value, counted apart from MACs": """
            BatchNormalization GroupNormalization Hardmax InstanceNormalization LRN LayerNormalization LogSoftmax LpNormalization
            MeanVarianceNormalization NegativeLogLikelihoodLoss RMSNormalization Softmax SoftmaxCrossEntropyLoss
        """,
        "moves, creates or reinterprets values": """
            AffineGrid Bernoulli BitCast BlackmanWindow Cast CastLike CenterCropPad Col2Im Concat Constant ConstantOfShape DepthToSpace
            Expand EyeLike Flatten HammingWindow HannWindow Identity Multinomial Pad RandomNormal RandomNormalLike RandomUniform
            RandomUniformLike Range Reshape Shape Size Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze
        """,
        "reads or writes rows or positions": """
            Compress Gather GatherElements GatherND MaxUnpool NonZero OneHot ReverseSequence Scatter ScatterElements ScatterND
            TensorScatter Unique
        """,
        "a fast transform goes through its values a few times, and multiplies no matrices": "DFT STFT",
        "a few neighbours for each value, with weights that depend on positions only": "GridSample MaxRoiPool Resize RoiAlign Upsample",
    }.items()
    for name in names.split()
}
"""Operator that has no MACs → why."""
