"""An ONNX graph as a torch module: to trace with fake tensors, train by autograd and profile like any network.

Every operator is a rule of :data:`RULES`, written with ordinary torch functions, and every node a layer. Shapes that a graph computes
for itself (Shape, Gather, Concat, …) are NumPy arrays, so that they stay known numbers when the tensors are fake.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import onnx.inliner
import torch
import torch.nn.functional as F
from google.protobuf.message import DecodeError
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

from edgefl.errors import InputError, nearest
from edgefl.onnxio.export import dims_of

Array = np.ndarray[Any, Any]
Value = Tensor | Array | None
Signature = dict[str, tuple[tuple[int | str, ...], torch.dtype]]

OLDEST_OPSET = 13
"""Before it Softmax, Squeeze and the reductions had other meanings."""
MAX_ELEMENTS = 2**31 - 1

DTYPES: dict[int, torch.dtype] = {
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.DOUBLE: torch.float64,
    onnx.TensorProto.FLOAT16: torch.float16,
    onnx.TensorProto.BFLOAT16: torch.bfloat16,
    onnx.TensorProto.INT8: torch.int8,
    onnx.TensorProto.INT16: torch.int16,
    onnx.TensorProto.INT32: torch.int32,
    onnx.TensorProto.INT64: torch.int64,
    onnx.TensorProto.UINT8: torch.uint8,
    onnx.TensorProto.BOOL: torch.bool,
}


class Node(nn.Module):
    """One operator as a layer: called with the inputs that it does not store, it returns a tensor, or a tuple of its outputs.

    Attributes:
        label: the node's name and operator, for messages.
        attributes: those of ONNX, by name.
        known: inputs that are the same for every call, by position; NumPy arrays.
        stored: inputs that are parameters or buffers of this module, by position; their names.
        given: positions of the inputs that a call brings.
    """

    def __init__(self, proto: onnx.NodeProto, label: str, opset: int) -> None:
        super().__init__()
        self.label, self.op, self.opset = label, proto.op_type, opset
        self.outputs = len(proto.output)
        self.wanted = tuple(bool(name) for name in proto.output)
        self.slots = len(proto.input)
        self.given = tuple(slot for slot, name in enumerate(proto.input) if name)
        self.attributes = {a.name: _plain_text(onnx.helper.get_attribute_value(a)) for a in proto.attribute}
        self.known: dict[int, Array] = {}
        self.stored: dict[int, str] = {}
        self._proto = proto.SerializeToString(deterministic=True)

    def extra_repr(self) -> str:
        """Show the operator and its attributes."""
        return ", ".join([self.op, *(f"{name}={value}" for name, value in self.attributes.items())])

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node, or ``default``."""
        return self.attributes.get(name, default)

    def refuse(self, what: str) -> NoReturn:
        """Raise an :class:`InputError` that names this node."""
        raise InputError(f"{self.label}: {what}")

    def only_first_output(self) -> None:
        """Refuse a node whose second output is used."""
        if any(self.wanted[1:]):
            self.refuse("only its first output has a rule")

    def keep(self, slot: int, value: Tensor | Array) -> None:
        """Store an input: a tensor as parameter or buffer, an array as a known value and, where a tensor is needed, a buffer."""
        self.given = tuple(other for other in self.given if other != slot)
        if isinstance(value, np.ndarray):
            self.known[slot] = value
            if slot in KNOWN.get(self.op, ()):
                return
        name = self._name_of(slot)
        self.stored[slot] = name
        if isinstance(value, nn.Parameter):
            self.register_parameter(name, value)
        elif isinstance(value, Tensor):
            self.register_buffer(name, value)
        else:
            self.register_buffer(name, tensor_of(value), persistent=False)

    def _name_of(self, slot: int) -> str:
        formal = onnx.defs.get_schema(self.op, self.opset).inputs
        return formal[slot].name if slot < len(formal) - 1 or len(formal) == self.slots else f"{formal[-1].name}_{slot}"

    def forward(self, *values: Value) -> Any:
        """Apply the operator's rule; known values give known values, without torch."""
        slots: list[Value] = [None] * self.slots
        for slot, value in (*zip(self.given, values, strict=True), *self.known.items()):
            slots[slot] = value
        if self.stored.keys() <= self.known.keys() and not any(isinstance(value, Tensor) for value in slots):
            return _one_or_all(evaluate(self._proto, self.opset, slots))
        if self.op in FOLDED:
            self.refuse("its inputs depend on data; only known ones have a rule")
        return RULES[self.op](self, *(self._argument(slot, value, values) for slot, value in enumerate(slots)))

    def _argument(self, slot: int, value: Value, values: Sequence[Value]) -> Value:
        if slot in KNOWN.get(self.op, ()):
            if isinstance(value, Tensor):
                self.refuse(f"input {slot} ({self._name_of(slot)}) depends on data; a shape or setting must be known")
            return value
        if slot in self.stored:
            stored: Tensor = getattr(self, self.stored[slot])
            return stored
        if isinstance(value, np.ndarray):
            tensors = (*(v for v in values if isinstance(v, Tensor)), *self.parameters(), *self.buffers())
            return tensor_of(value, tensors[0].device)
        return value


class Graph(nn.Module):
    """The nodes of an ONNX graph in order; called with its inputs in order, it returns its output, or a tuple of them.

    A value is let go after its last use, as autograd allows. Any layer can be replaced by one with the same inputs and outputs.
    """

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        super().__init__()
        self.input_names, self.output_names = tuple(inputs), tuple(outputs)
        self.constants: dict[str, Array] = {}
        self.wiring: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self.last_use: dict[str, tuple[str, ...]] = {}

    def add(self, name: str, node: Node, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        """Append a node that reads and writes these values."""
        while hasattr(self, name):
            name += "_"
        self.add_module(name, node)
        self.wiring[name] = (inputs, outputs)

    def plan(self) -> None:
        """Find where each value is read last."""
        readers = {value: name for name, (inputs, outputs) in self.wiring.items() for value in (*outputs, *inputs)}
        for value in self.output_names:
            readers.pop(value, None)
        for name in self.wiring:
            self.last_use[name] = tuple(value for value, reader in readers.items() if reader == name)

    def forward(self, *tensors: Tensor) -> Any:
        """Run the graph.

        Raises:
            InputError: another number of inputs, or a node whose shapes or settings have no rule; names the node.
        """
        if len(tensors) != len(self.input_names):
            raise InputError(f"got {len(tensors)} inputs, expected {len(self.input_names)}: {', '.join(self.input_names)}")
        values: dict[str, Any] = {**self.constants, **dict(zip(self.input_names, tensors, strict=True))}
        device = tensors[0].device if tensors else None
        del tensors
        for name, (inputs, outputs) in self.wiring.items():
            result = self.get_submodule(name)(*(values[value] for value in inputs))
            values.update(zip(outputs, result if isinstance(result, tuple) else (result,), strict=False))
            del result
            for value in self.last_use[name]:
                values.pop(value, None)
        results = tuple(values[name] for name in self.output_names)
        return _one_or_all([tensor_of(r, device) if isinstance(r, np.ndarray) else r for r in results])


def load_onnx(path: Path) -> onnx.ModelProto:
    """Return the model of a file, checked; functions of its own are expanded.

    Raises:
        InputError: no such file, damaged, an operator set or operator without rules, or no usable shape; names the file and the fault.
    """
    try:
        model = onnx.load(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (DecodeError, OSError, ValueError, onnx.checker.ValidationError) as error:
        raise InputError(f"{path}: not a valid ONNX model ({_first_line(error)})") from None
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    try:
        _require_rules(model)
        onnx.checker.check_model(model, full_check=True)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        raise InputError(f"{path}: not a valid ONNX model ({_first_line(error)})") from None
    return model


def module_of(model: onnx.ModelProto) -> tuple[nn.Module, Signature]:
    """Return the module of a model, in evaluation mode, and its inputs: name → dimensions (a name where free) and dtype.

    Initializers of float type are parameters of the nodes that read them, so ``named_modules`` gives layers; an initializer that many
    nodes read is one parameter, unless its values are all the same. Constants are: numbers without an axis, integers, values that are
    not finite, outputs of Constant, and what is only read as a shape or setting. Statistics of BatchNormalization are buffers; in
    training mode it uses those of the batch and updates them, and Dropout drops.

    Raises:
        InputError: an operator set, operator or input without a rule; names the node.

    Example:
        >>> node = onnx.helper.make_node("Relu", ["x"], ["y"])
        >>> ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 2]) for name in "xy"]
        >>> graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:])
        >>> module, inputs = module_of(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)]))
        >>> inputs, module(torch.tensor([[-1.0, 2.0]])).tolist()
        ({'x': (('n', 2), torch.float32)}, [[0.0, 2.0]])
    """
    opset = _require_rules(model)
    graph = model.graph
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    inputs = _inputs_of(graph)
    module = Graph(list(inputs), [value.name for value in graph.output])
    settings = _only_settings(graph)
    module.constants = {name: array for name, array in arrays.items() if name in settings or not _is_weight(array)}
    weights = {name: array for name, array in arrays.items() if name not in module.constants}
    tensors: dict[tuple[str, bool, int], Tensor] = {}
    for index, proto in enumerate(graph.node):
        if all(name in module.constants or not name for name in proto.input):
            given = [module.constants.get(name) for name in proto.input]
            folded = evaluate(proto.SerializeToString(deterministic=True), opset, given)
            module.constants.update(zip(proto.output, folded, strict=False))
            continue
        node = Node(proto, _label(proto, index), opset)
        for slot, name in enumerate(proto.input):
            measured = name in arrays and slot in STATISTICS.get(proto.op_type, ())
            if measured or name in weights:
                # An exporter stores equal tensors once: ones and zeros of two layers are the same tensor by chance, not a shared weight.
                key = (name, measured, index if np.ptp(arrays[name].astype(np.float32)) == 0 else -1)
                if key not in tensors:
                    tensors[key] = tensor_of(arrays[name]) if measured else nn.Parameter(tensor_of(arrays[name]))
                node.keep(slot, tensors[key])
            elif name in module.constants:
                node.keep(slot, module.constants[name])
        module.add(_module_name(proto, index), node, tuple(proto.input[slot] for slot in node.given), tuple(proto.output))
    module.constants = {name: a for name, a in {**arrays, **module.constants}.items() if name in module.output_names}
    module.plan()
    return module.eval(), inputs


def tensor_of(array: Array, device: torch.device | None = None) -> Tensor:
    """Return a tensor with a copy of ``array``; a fake one under fake tensors."""
    if array.dtype.name == "bfloat16":
        return torch.tensor(array.astype(np.float32), device=device).bfloat16()
    return torch.tensor(array, device=device)


def evaluate(node: bytes, opset: int, inputs: Sequence[Value]) -> list[Array]:
    """Compute a node on known values with ONNX's own reference, which no tensor mode sees.

    Raises:
        InputError: the values do not suit the operator; names it.
    """
    evaluator = _evaluator(node, opset)
    named = {name: value for name, value in zip(_input_names(node), inputs, strict=True) if name}
    try:
        return [np.asarray(value) for value in evaluator.run(None, named)]
    except Exception as error:  # the reference raises whatever NumPy does
        proto = onnx.NodeProto.FromString(node)
        raise InputError(f"{_label(proto, None)}: cannot be computed from its constants ({_first_line(error)})") from error


@functools.lru_cache(maxsize=4096)
def _evaluator(node: bytes, opset: int) -> ReferenceEvaluator:
    return ReferenceEvaluator(onnx.NodeProto.FromString(node), opsets={"": opset})


@functools.lru_cache(maxsize=4096)
def _input_names(node: bytes) -> tuple[str, ...]:
    return tuple(onnx.NodeProto.FromString(node).input)


def _require_rules(model: onnx.ModelProto) -> int:
    """Check that every operator and input can be used, and return the version of the operator set."""
    versions = {opset.domain or "ai.onnx": opset.version for opset in model.opset_import}
    newest = onnx.defs.onnx_opset_version()
    opset = versions.get("ai.onnx", 0)
    if not opset:
        raise InputError("names no operator set of ai.onnx: not an ONNX model, or one without standard operators")
    if not OLDEST_OPSET <= opset <= newest:
        raise InputError(f"operator set {opset}, expected {OLDEST_OPSET} to {newest}; convert it, or export it again")
    for index, node in enumerate(model.graph.node):
        if node.domain not in ("", "ai.onnx"):
            raise InputError(f"{_label(node, index)}: operator set {node.domain!r}, expected only ai.onnx")
        if node.op_type not in RULES and node.op_type not in FOLDED:
            known = sorted({*RULES, *FOLDED})
            guess = nearest(node.op_type, known)
            raise InputError(f"{_label(node, index)}: no rule for operator {node.op_type!r};{guess} Known: {', '.join(known)}")
    _inputs_of(model.graph)
    return opset


def _inputs_of(graph: onnx.GraphProto) -> Signature:
    stored = {tensor.name for tensor in graph.initializer}
    inputs: Signature = {}
    for value in graph.input:
        kind = value.type.tensor_type
        if value.name in stored:
            continue
        if not value.type.HasField("tensor_type") or not kind.HasField("shape") or kind.elem_type not in DTYPES:
            raise InputError(f"input {value.name!r}: expected a tensor of numbers with a shape")
        dims = tuple(dim or f"{value.name}_{axis}" if isinstance(dim, str) else dim for axis, dim in enumerate(dims_of(value)))
        fixed = [dim for dim in dims if isinstance(dim, int)]
        if min(fixed, default=1) < 1 or math.prod(fixed) > MAX_ELEMENTS:
            raise InputError(
                f"input {value.name!r}: shape {dims}, expected sizes of at least 1 and at most {MAX_ELEMENTS} values"
            )
        inputs[value.name] = (dims, DTYPES[kind.elem_type])
    for tensor in graph.initializer:
        if math.prod(tensor.dims) > MAX_ELEMENTS or min(tensor.dims, default=0) < 0:
            raise InputError(f"initializer {tensor.name!r}: shape {tuple(tensor.dims)}, expected at most {MAX_ELEMENTS} values")
    return inputs


def _is_weight(array: Array) -> bool:
    return array.ndim > 0 and (array.dtype.kind == "f" or array.dtype.name == "bfloat16") and bool(np.isfinite(array).all())


def _only_settings(graph: onnx.GraphProto) -> set[str]:
    """Return the values that are read as shapes and settings only, if through other nodes."""
    data, read = {value.name for value in graph.output}, set()
    for node in reversed(graph.node):
        reaches_data = any(name in data for name in node.output)
        for slot, name in enumerate(node.input):
            read.add(name)
            if reaches_data and slot not in KNOWN.get(node.op_type, ()):
                data.add(name)
    return read - data


def _label(node: onnx.NodeProto, index: int | None) -> str:
    name = node.name or (f"number {index}" if index is not None else f"of {', '.join(node.output)}")
    return f"node {name} ({node.op_type})"


def _module_name(node: onnx.NodeProto, index: int) -> str:
    return re.sub(r"\W", "_", node.name).strip("_") or f"{node.op_type}_{index}"


def _plain_text(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain_text(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["damaged"])[0]


def _one_or_all(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


# --- rules: (node, inputs in order, None for an absent one) -> a tensor, an array for a known value, or a tuple of outputs


def _simple(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make a rule of a function that needs no attribute."""
    return lambda node, *inputs: function(*inputs)


def _chain(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Make a rule that combines any number of inputs from left to right."""
    return lambda node, *inputs: functools.reduce(function, inputs)


def _numbers(array: Array) -> list[int]:
    return [int(value) for value in array.reshape(-1)]


def _axes(node: Node, given: Array | None) -> list[int] | None:
    """Return axes from an input, where newer operator sets have them, or from the attribute."""
    axes = node.get("axes") if given is None else _numbers(given)
    return None if axes is None else list(axes)


def _sides(pads: Iterable[int]) -> list[int]:
    """Return ONNX's [begin…, end…] in the order of ``F.pad``: last axis first, begin and end together."""
    pads = list(pads)
    half = len(pads) // 2
    return [pads[axis + side] for axis in reversed(range(half)) for side in (0, half)]


def _window(node: Node, x: Tensor, kernel: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Return strides, dilations and pads [begin…, end…] of a sliding window of size ``kernel``."""
    n = len(kernel)
    strides, dilations = list(node.get("strides", [1] * n)), list(node.get("dilations", [1] * n))
    automatic = node.get("auto_pad", "NOTSET")
    if automatic == "NOTSET":
        return strides, dilations, list(node.get("pads", [0] * 2 * n))
    if automatic == "VALID":
        return strides, dilations, [0] * 2 * n
    sizes = zip(x.shape[2:], kernel, strides, dilations, strict=True)
    totals = [max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0) for size, k, s, d in sizes]
    return strides, dilations, _halves(totals, automatic == "SAME_UPPER")


def _halves(totals: Sequence[int], more_at_the_end: bool) -> list[int]:
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return small + large if more_at_the_end else large + small


def _symmetric(pads: Sequence[int]) -> bool:
    half = len(pads) // 2
    return list(pads[:half]) == list(pads[half:]) and min(pads, default=0) >= 0


def _by_rank(node: Node, functions: dict[int, Callable[..., Tensor]], rank: int) -> Callable[..., Tensor]:
    if rank not in functions:
        node.refuse(f"{rank} spatial axes, expected {', '.join(map(str, functions))}")
    return functions[rank]


def _conv(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    n = weight.dim() - 2
    strides, dilations, pads = _window(node, x, weight.shape[2:])
    if not _symmetric(pads):
        x, pads = F.pad(x, _sides(pads)), [0] * n
    return _by_rank(node, CONV, n)(x, weight, bias, strides, pads[:n], dilations, node.get("group", 1))


def _conv_transpose(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    n = weight.dim() - 2
    strides, dilations = node.get("strides", [1] * n), node.get("dilations", [1] * n)
    extra, group = node.get("output_padding", [0] * n), node.get("group", 1)
    automatic, sizes = node.get("auto_pad", "NOTSET"), node.get("output_shape")
    pads = [0] * 2 * n if automatic == "VALID" else list(node.get("pads", [0] * 2 * n))
    if sizes is None and automatic.startswith("SAME"):
        sizes = [size * s for size, s in zip(x.shape[2:], strides, strict=True)]
    if sizes is not None:
        full = [(x.shape[2 + i] - 1) * strides[i] + (weight.shape[2 + i] - 1) * dilations[i] + 1 + extra[i] for i in range(n)]
        pads = _halves([f - size for f, size in zip(full, sizes[-n:], strict=True)], automatic == "SAME_UPPER")
    convolve = _by_rank(node, CONV_TRANSPOSE, n)
    if _symmetric(pads):
        return convolve(x, weight, bias, strides, pads[:n], extra, group, dilations)
    y = F.pad(convolve(x, weight, None, strides, 0, extra, group, dilations), _sides([-p for p in pads]))
    return y if bias is None else y + bias.reshape(-1, *[1] * n)


def _max_pool(node: Node, x: Tensor) -> Tensor:
    node.only_first_output()
    kernel = node.get("kernel_shape")
    strides, dilations, pads = _window(node, x, kernel)
    n = len(kernel)
    if not _symmetric(pads) or any(2 * p > k for p, k in zip(pads[:n], kernel, strict=True)):
        x, pads = F.pad(x, _sides(pads), value=-math.inf), [0] * n
    return _by_rank(node, MAX_POOL, n)(x, kernel, strides, pads[:n], dilations, bool(node.get("ceil_mode", 0)))


def _average_pool(node: Node, x: Tensor) -> Tensor:
    kernel = node.get("kernel_shape")
    strides, dilations, pads = _window(node, x, kernel)
    n, ceil, whole = len(kernel), bool(node.get("ceil_mode", 0)), bool(node.get("count_include_pad", 0))
    pool = _by_rank(node, AVERAGE_POOL, n)
    if any(d != 1 for d in dilations):
        node.refuse(f"dilations {dilations}, expected ones")
    if _symmetric(pads) and all(2 * p <= k for p, k in zip(pads[:n], kernel, strict=True)):
        return pool(x, kernel, strides, pads[:n], ceil, whole)
    average = pool(F.pad(x, _sides(pads)), kernel, strides, 0, ceil)
    if whole:
        return average
    # The share of real values in a window turns the average over all of it into one over them.
    return average / pool(F.pad(torch.ones_like(x[:1, :1]), _sides(pads)), kernel, strides, 0, ceil)


def _gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a, b = (m.t() if node.get(key, 0) else m for m, key in ((a, "transA"), (b, "transB")))
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if c is not None:
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)
    return a @ b if alpha == 1 else alpha * (a @ b)


def _einsum(node: Node, *operands: Tensor) -> Tensor:
    return torch.einsum(node.get("equation"), *operands)


def _gelu(node: Node, x: Tensor) -> Tensor:
    return F.gelu(x, approximate=node.get("approximate", "none"))


def _hard_sigmoid(node: Node, x: Tensor) -> Tensor:
    return (node.get("alpha", 0.2) * x + node.get("beta", 0.5)).clamp(0, 1)


def _selu(node: Node, x: Tensor) -> Tensor:
    alpha, gamma = node.get("alpha", 1.6732632423543772), node.get("gamma", 1.0507009873554805)
    return gamma * F.elu(x, alpha)


def _swish(node: Node, x: Tensor) -> Tensor:
    alpha = node.get("alpha", 1.0)
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x)


def _prelu(node: Node, x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x >= 0, x, slope * x)


def _clip(node: Node, x: Tensor, low: Array | None = None, high: Array | None = None) -> Tensor:
    if low is None and high is None:
        return x
    return torch.clamp(x, *(None if bound is None else bound.item() for bound in (low, high)))


def _div(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _mod(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.fmod(a, b) if node.get("fmod", 0) else torch.remainder(a, b)


def _batch_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    node.only_first_output()
    epsilon, momentum = node.get("epsilon", 1e-5), 1 - node.get("momentum", 0.9)
    training = node.training or bool(node.get("training_mode", 0))
    return F.batch_norm(x, mean, var, scale, bias, training, momentum, epsilon)


def _group_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups = node.get("num_groups")
    if node.opset < 21:  # one scale a group; since then one a channel
        scale, bias = (v.repeat_interleave(x.shape[1] // groups) for v in (scale, bias))
    return F.group_norm(x, groups, scale, bias, node.get("epsilon", 1e-5))


def _instance_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.instance_norm(x, weight=scale, bias=bias, eps=node.get("epsilon", 1e-5))


def _layer_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    node.only_first_output()
    shape, epsilon = list(x.shape[node.get("axis", -1) :]), node.get("epsilon", 1e-5)
    if list(scale.shape) == shape and (bias is None or list(bias.shape) == shape):
        return F.layer_norm(x, shape, scale, bias, epsilon)
    y = F.layer_norm(x, shape, None, None, epsilon) * scale
    return y if bias is None else y + bias


def _rms_norm(node: Node, x: Tensor, scale: Tensor) -> Tensor:
    shape, epsilon = list(x.shape[node.get("axis", -1) :]), node.get("epsilon", 1e-5)
    return F.rms_norm(x, shape, None, epsilon) * scale


def _softmax(function: Callable[[Tensor, int], Tensor]) -> Callable[..., Tensor]:
    return lambda node, x: function(x, node.get("axis", -1))


def _gather(node: Node, x: Tensor, index: Tensor) -> Tensor:
    axis = node.get("axis", 0) % x.dim()
    index = _from_start(index, x.shape[axis])
    if axis == 0 and x.dim() == 2 and x.is_floating_point():
        return F.embedding(index, x)
    return x.index_select(axis, index.reshape(-1)).reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _from_start(index: Tensor, size: int) -> Tensor:
    return torch.where(index < 0, index + size, index).long()


def _gather_elements(node: Node, x: Tensor, index: Tensor) -> Tensor:
    axis = node.get("axis", 0)
    return torch.gather(x, axis, _from_start(index, x.shape[axis]))


def _scatter_elements(node: Node, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    axis = node.get("axis", 0)
    if node.get("reduction", "none") != "none":
        node.refuse(f"reduction {node.get('reduction')!r}, expected 'none'")
    return torch.scatter(x, axis, _from_start(index, x.shape[axis]), updates)


def _scatter_nd(node: Node, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    reduction = node.get("reduction", "none")
    if reduction not in ("none", "add"):
        node.refuse(f"reduction {reduction!r}, expected 'none' or 'add'")
    return torch.index_put(x, index.unbind(-1), updates, accumulate=reduction == "add")


def _reshape(node: Node, x: Tensor, shape: Array) -> Tensor:
    sizes = _numbers(shape)
    if not node.get("allowzero", 0):
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return x.reshape(sizes)


def _flatten(node: Node, x: Tensor) -> Tensor:
    axis = node.get("axis", 1)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _transpose(node: Node, x: Tensor) -> Tensor:
    return x.permute(node.get("perm", list(reversed(range(x.dim())))))


def _slice(node: Node, x: Tensor, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Tensor:
    begin, end = _numbers(starts), _numbers(ends)
    where = range(len(begin)) if axes is None else _numbers(axes)
    for axis, start, stop, step in zip(where, begin, end, [1] * len(begin) if steps is None else _numbers(steps), strict=True):
        chosen = range(x.shape[axis])[start:stop:step]
        if step > 0:
            x = x[(*[slice(None)] * (axis % x.dim()), slice(chosen.start, max(chosen.stop, chosen.start), step))]
        else:
            x = x.index_select(axis, torch.tensor(list(chosen), dtype=torch.int64, device=x.device))
    return x


def _concat(node: Node, *parts: Tensor) -> Tensor:
    return torch.cat(parts, node.get("axis"))


def _split(node: Node, x: Tensor, sizes: Array | None = None) -> tuple[Tensor, ...]:
    axis = node.get("axis", 0)
    return torch.split(x, -(-x.shape[axis] // node.outputs) if sizes is None else _numbers(sizes), axis)


def _pad(node: Node, x: Tensor, pads: Array, value: Array | None = None, axes: Array | None = None) -> Tensor:
    given, mode = _numbers(pads), node.get("mode", "constant")
    where = list(range(x.dim())) if axes is None else [axis % x.dim() for axis in _numbers(axes)]
    sides = {axis: (given[i], given[i + len(where)]) for i, axis in enumerate(where)}
    if mode == "constant":
        low, high = zip(*(sides.get(axis, (0, 0)) for axis in range(x.dim())), strict=True)
        return F.pad(x, _sides([*low, *high]), value=0.0 if value is None else value.item())
    for axis, amounts in sides.items():
        positions = np.pad(np.arange(x.shape[axis]), amounts, mode=mode)
        x = x.index_select(axis, torch.tensor(positions, device=x.device))
    return x


def _expand(node: Node, x: Tensor, shape: Array) -> Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, tuple(_numbers(shape))))


def _tile(node: Node, x: Tensor, repeats: Array) -> Tensor:
    return x.repeat(_numbers(repeats))


def _squeeze(node: Node, x: Tensor, axes: Array | None = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(_numbers(axes)))


def _unsqueeze(node: Node, x: Tensor, axes: Array) -> Tensor:
    rank = x.dim() + axes.size
    for axis in sorted(axis % rank for axis in _numbers(axes)):
        x = x.unsqueeze(axis)
    return x


def _cast(node: Node, x: Tensor) -> Tensor:
    if node.get("to") not in DTYPES:
        node.refuse(f"type {onnx.TensorProto.DataType.Name(node.get('to'))} has no rule")
    return x.to(DTYPES[node.get("to")])


def _shape(node: Node, x: Tensor) -> Array:
    return np.array(x.shape[node.get("start", 0) : node.get("end")], dtype=np.int64)


def _size(node: Node, x: Tensor) -> Array:
    return np.array(x.numel(), dtype=np.int64)


def _trilu(node: Node, x: Tensor, diagonal: Array | None = None) -> Tensor:
    k = 0 if diagonal is None else int(diagonal.item())
    return torch.triu(x, k) if node.get("upper", 1) else torch.tril(x, k)


def _reduce(function: Callable[[Tensor, list[int], bool], Tensor]) -> Callable[..., Tensor]:
    """Make a rule that reduces over axes: all of them when none are named, unless the node says otherwise."""

    def rule(node: Node, x: Tensor, given: Array | None = None) -> Tensor:
        axes = _axes(node, given)
        if not axes and node.get("noop_with_empty_axes", 0):
            return x
        return function(x, axes or list(range(x.dim())), bool(node.get("keepdims", 1)))

    return rule


def _arg(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def rule(node: Node, x: Tensor) -> Tensor:
        axis, keep = node.get("axis", 0), bool(node.get("keepdims", 1))
        if node.get("select_last_index", 0):
            return x.shape[axis] - 1 - function(x.flip(axis), dim=axis, keepdim=keep)
        return function(x, dim=axis, keepdim=keep)

    return rule


def _global_pool(function: Callable[[Tensor, list[int], bool], Tensor]) -> Callable[..., Tensor]:
    return lambda node, x: function(x, list(range(2, x.dim())), True)


def _dropout(node: Node, x: Tensor, ratio: Array | None = None, training: Array | None = None) -> Tensor:
    node.only_first_output()
    return F.dropout(x, 0.5 if ratio is None else float(ratio.item()), node.training)


def _depth_to_space(node: Node, x: Tensor) -> Tensor:
    size = node.get("blocksize")
    if node.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, size)
    batch, channels, height, width = x.shape
    blocks = x.reshape(batch, size, size, channels // size**2, height, width).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(batch, channels // size**2, height * size, width * size)


def _space_to_depth(node: Node, x: Tensor) -> Tensor:
    size = node.get("blocksize")
    batch, channels, height, width = x.shape
    blocks = x.reshape(batch, channels, height // size, size, width // size, size).permute(0, 3, 5, 1, 2, 4)
    return blocks.reshape(batch, channels * size**2, height // size, width // size)


def _resize(node: Node, x: Tensor, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None) -> Tensor:
    mode, axes = node.get("mode", "nearest"), node.get("axes", list(range(x.dim())))
    if mode not in ("nearest", "linear") or node.get("antialias", 0):
        node.refuse(f"mode {mode!r}{' with antialias' * node.get('antialias', 0)}, expected 'nearest' or 'linear'")
    if node.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        node.refuse("keep_aspect_ratio_policy, expected 'stretch'")
    by_scale = scales is not None and scales.size > 0
    for i, axis in enumerate(axes):
        before = x.shape[axis]
        after = math.floor(before * scales[i]) if by_scale else int(sizes[i])  # type: ignore[index]
        if after != before or (by_scale and scales[i] != 1):  # type: ignore[index]
            scale = np.float32(scales[i] if by_scale else after / before)  # type: ignore[index]
            x = _resize_axis(node, x, axis, _coordinates(node, before, after, scale), mode)
    return x


def _coordinates(node: Node, before: int, after: int, scale: np.float32) -> Array:
    """Return where each of ``after`` new positions lies among the ``before`` old ones."""
    new, half = np.arange(after, dtype=np.float32), np.float32(0.5)
    kind = node.get("coordinate_transformation_mode", "half_pixel")
    if kind == "align_corners":
        return new * np.float32(before - 1) / np.float32(max(after - 1, 1))
    if kind == "asymmetric" or (kind == "pytorch_half_pixel" and after == 1):
        return new / scale
    if kind not in ("half_pixel", "pytorch_half_pixel"):
        node.refuse(f"coordinate_transformation_mode {kind!r} has no rule")
    return (new + half) / scale - half


def _resize_axis(node: Node, x: Tensor, axis: int, positions: Array, mode: str) -> Tensor:
    last = x.shape[axis] - 1

    def at(index: Array) -> Tensor:
        return x.index_select(axis, torch.tensor(index.clip(0, last).astype(np.int64), device=x.device))

    if mode == "nearest":
        return at(ROUNDING[node.get("nearest_mode", "round_prefer_floor")](positions))
    positions = positions.clip(0, last)
    low = np.floor(positions)
    share = torch.tensor(positions - low, dtype=x.dtype, device=x.device).reshape(-1, *[1] * (x.dim() - 1 - axis % x.dim()))
    return torch.lerp(at(low), at(low + 1), share)


Cell = Callable[[Tensor, tuple[Tensor, ...], Tensor, Tensor | None], tuple[Tensor, ...]]


def _recurrent(
    node: Node, cell: Cell, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, initial: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """Run ``cell`` over x (steps, batch, inputs) in each direction; return Y (steps, directions, batch, hidden) and last states.

    ``cell`` takes a step's inputs after W (batch, gates·hidden), the states (batch, hidden), R and R's bias, and returns new states.
    """
    if node.get("clip") is not None or node.get("input_forget", 0):
        node.refuse("clip and input_forget have no rule")
    by_batch = node.get("layout", 0)
    if by_batch:
        x, initial = x.transpose(0, 1), [None if h is None else h.transpose(0, 1) for h in initial]
    outputs, lasts = [], []
    for d in range(w.shape[0]):
        backwards = d == 1 or node.get("direction", "forward") == "reverse"
        bias_w, bias_r = (None, None) if b is None else b[d].chunk(2)
        gates = F.linear(x.flip(0) if backwards else x, w[d], bias_w)
        states = tuple(x.new_zeros(x.shape[1], r.shape[-1]) if h is None else h[d] for h in initial)
        steps = []
        for gate in gates.unbind(0):
            states = cell(gate, states, r[d], bias_r)
            steps.append(states[0])
        hidden = torch.stack(steps)
        outputs.append(hidden.flip(0) if backwards else hidden)
        lasts.append(states)
    y, final = torch.stack(outputs, 1), [torch.stack(states) for states in zip(*lasts, strict=True)]
    if by_batch:
        y, final = y.permute(2, 0, 1, 3), [h.transpose(0, 1) for h in final]
    return (y, *final)


def _check_steps(node: Node, x: Tensor, lengths: Array | None) -> None:
    steps = x.shape[node.get("layout", 0)]
    if lengths is not None and (lengths != steps).any():
        node.refuse(f"sequence_lens {lengths.tolist()}, expected all {steps}: shorter sequences have no rule")


def _activations(node: Node, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the activations of one direction, lower case."""
    names = tuple(name.lower() for name in node.get("activations", [])) or default
    if names[: len(default)] * (len(names) // len(default)) != names:
        node.refuse(f"activations {', '.join(names)}: directions that differ have no rule")
    return names[: len(default)]


def _lstm(
    node: Node, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Array | None = None,
    h: Tensor | None = None, c: Tensor | None = None, peepholes: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    _check_steps(node, x, lengths)
    if peepholes is not None or _activations(node, ("sigmoid", "tanh", "tanh")) != ("sigmoid", "tanh", "tanh"):
        node.refuse("peepholes and activations other than sigmoid, tanh, tanh have no rule")
    return _recurrent(node, _lstm_cell, x, w, r, b, (h, c))


def _lstm_cell(gate: Tensor, states: tuple[Tensor, ...], r: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    i, o, f, new = (gate + F.linear(states[0], r, bias)).chunk(4, -1)
    c = torch.sigmoid(f) * states[1] + torch.sigmoid(i) * torch.tanh(new)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(
    node: Node, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Array | None = None, h: Tensor | None = None
) -> tuple[Tensor, ...]:
    _check_steps(node, x, lengths)
    if _activations(node, ("sigmoid", "tanh")) != ("sigmoid", "tanh"):
        node.refuse("activations other than sigmoid, tanh have no rule")
    return _recurrent(node, functools.partial(_gru_cell, bool(node.get("linear_before_reset", 0))), x, w, r, b, (h,))


def _gru_cell(late_reset: bool, gate: Tensor, states: tuple[Tensor, ...], r: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    (h,), size = states, r.shape[-1]
    first, last = (slice(0, 2 * size), slice(2 * size, None))
    bias_first, bias_last = (None, None) if bias is None else (bias[first], bias[last])
    z, reset = torch.sigmoid(gate[:, first] + F.linear(h, r[first], bias_first)).chunk(2, -1)
    memory = reset * F.linear(h, r[last], bias_last) if late_reset else F.linear(reset * h, r[last], bias_last)
    return ((1 - z) * torch.tanh(gate[:, last] + memory) + z * h,)


def _rnn(
    node: Node, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Array | None = None, h: Tensor | None = None
) -> tuple[Tensor, ...]:
    _check_steps(node, x, lengths)
    activation = {"tanh": torch.tanh, "relu": torch.relu}.get(_activations(node, ("tanh",))[0])
    if activation is None:
        node.refuse("activations other than tanh and relu have no rule")
    return _recurrent(node, lambda gate, s, rd, bias: (activation(gate + F.linear(s[0], rd, bias)),), x, w, r, b, (h,))


def _attention(node: Node, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *cache: Tensor | None) -> Tensor:
    """Scaled dot-product attention: (batch, heads, steps, size), or (batch, steps, heads·size)."""
    node.only_first_output()
    if any(value is not None for value in cache) or node.get("softcap", 0.0):
        node.refuse("a cache of keys and softcap have no rule")
    if max(node.get("left_window_size", -1), node.get("right_window_size", -1)) >= 0:
        node.refuse("a window of positions has no rule")
    flat = q.dim() == 3
    if flat:
        heads = node.get("q_num_heads"), node.get("kv_num_heads"), node.get("kv_num_heads")
        q, k, v = (t.unflatten(-1, (n, -1)).transpose(1, 2) for t, n in zip((q, k, v), heads, strict=True))
    if q.shape[1] != k.shape[1]:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * node.get("scale", q.shape[-1] ** -0.5)
    if node.get("is_causal", 0):
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    y = scores.softmax(-1) @ v
    return y.transpose(1, 2).flatten(2) if flat else y


CONV: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CONV_TRANSPOSE: dict[int, Callable[..., Tensor]] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAX_POOL: dict[int, Callable[..., Tensor]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGE_POOL: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
ROUNDING: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda positions: np.ceil(positions - np.float32(0.5)),
    "round_prefer_ceil": lambda positions: np.floor(positions + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}

RULES: dict[str, Callable[..., Any]] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "Gemm": _gemm, "MatMul": _simple(torch.matmul), "Einsum": _einsum,
    "Attention": _attention, "LSTM": _lstm, "GRU": _gru, "RNN": _rnn,
    "Relu": _simple(torch.relu), "Tanh": _simple(torch.tanh), "Sigmoid": _simple(torch.sigmoid), "Erf": _simple(torch.erf),
    "Softplus": _simple(F.softplus), "Mish": _simple(F.mish), "HardSwish": _simple(F.hardswish), "Softsign": _simple(F.softsign),
    "Gelu": _gelu, "HardSigmoid": _hard_sigmoid, "Selu": _selu, "Swish": _swish, "PRelu": _prelu, "Clip": _clip,
    "LeakyRelu": lambda node, x: F.leaky_relu(x, node.get("alpha", 0.01)),
    "Elu": lambda node, x: F.elu(x, node.get("alpha", 1.0)),
    "MaxPool": _max_pool, "AveragePool": _average_pool, "GlobalAveragePool": _global_pool(torch.mean),
    "GlobalMaxPool": _global_pool(torch.amax),
    "BatchNormalization": _batch_norm, "GroupNormalization": _group_norm, "LayerNormalization": _layer_norm,
    "InstanceNormalization": _instance_norm, "RMSNormalization": _rms_norm,
    "Softmax": _softmax(torch.softmax), "LogSoftmax": _softmax(torch.log_softmax),
    "Gather": _gather, "GatherElements": _gather_elements, "ScatterND": _scatter_nd, "ScatterElements": _scatter_elements,
    "Add": _simple(torch.add), "Sub": _simple(torch.sub), "Mul": _simple(torch.mul), "Div": _div, "Mod": _mod,
    "Pow": lambda node, x, power: torch.pow(x, power).to(x.dtype),
    "Sqrt": _simple(torch.sqrt), "Exp": _simple(torch.exp), "Log": _simple(torch.log), "Neg": _simple(torch.neg),
    "Abs": _simple(torch.abs), "Reciprocal": _simple(torch.reciprocal), "Sign": _simple(torch.sign), "Sin": _simple(torch.sin),
    "Cos": _simple(torch.cos), "Floor": _simple(torch.floor), "Ceil": _simple(torch.ceil), "Round": _simple(torch.round),
    "Max": _chain(torch.maximum), "Min": _chain(torch.minimum), "Sum": _chain(torch.add),
    "Equal": _simple(torch.eq), "Less": _simple(torch.lt), "LessOrEqual": _simple(torch.le), "Greater": _simple(torch.gt),
    "GreaterOrEqual": _simple(torch.ge), "Not": _simple(torch.logical_not), "And": _simple(torch.logical_and),
    "Or": _simple(torch.logical_or), "Xor": _simple(torch.logical_xor), "Where": _simple(torch.where),
    "Reshape": _reshape, "Flatten": _flatten, "Transpose": _transpose, "Slice": _slice, "Concat": _concat, "Split": _split,
    "Pad": _pad, "Expand": _expand, "Tile": _tile, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze,
    "Identity": lambda node, x: x, "Cast": _cast, "CastLike": lambda node, x, like: x.to(like.dtype),
    "Shape": _shape, "Size": _size, "Trilu": _trilu, "DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth,
    "Resize": _resize, "Dropout": _dropout,
    "ReduceSum": _reduce(torch.sum), "ReduceMean": _reduce(torch.mean), "ReduceMax": _reduce(torch.amax),
    "ReduceMin": _reduce(torch.amin), "ReduceLogSumExp": _reduce(torch.logsumexp),
    "ReduceL1": _reduce(lambda x, axes, keep: x.abs().sum(axes, keep)),
    "ReduceL2": _reduce(lambda x, axes, keep: x.square().sum(axes, keep).sqrt()),
    "ReduceSumSquare": _reduce(lambda x, axes, keep: x.square().sum(axes, keep)),
    "ArgMax": _arg(torch.argmax), "ArgMin": _arg(torch.argmin),
}  # fmt: skip

FOLDED = frozenset({"Constant", "ConstantOfShape", "Range"})
"""Operators that only ever make known values: shapes and numbers that follow from them."""

KNOWN: dict[str, tuple[int, ...]] = {
    "Reshape": (1,), "Slice": (1, 2, 3, 4), "Split": (1,), "Pad": (1, 2, 3), "Expand": (1,), "Tile": (1,), "Squeeze": (1,),
    "Unsqueeze": (1,), "Resize": (1, 2, 3), "Clip": (1, 2), "Trilu": (1,), "Dropout": (1, 2), "LSTM": (4,), "GRU": (4,), "RNN": (4,),
    "ConstantOfShape": (0,), "Range": (0, 1, 2),
    **dict.fromkeys([name for name in RULES if name.startswith("Reduce")], (1,)),
}  # fmt: skip
"""Positions of inputs that are shapes and settings: a rule takes them as NumPy arrays."""

STATISTICS: dict[str, tuple[int, ...]] = {"BatchNormalization": (3, 4)}
"""Positions of inputs that a layer measures rather than trains."""
