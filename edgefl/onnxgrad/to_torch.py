"""An ONNX graph as a torch module: to trace with fake tensors, train by autograd and profile like any network.

Every node is a layer that applies its operator's rule of :mod:`edgefl.onnxgrad.rules`. Shapes that a graph computes for itself (Shape,
Gather, Concat, …) are NumPy arrays, so that they stay known numbers when the tensors are fake.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from google.protobuf.message import DecodeError
from torch import Tensor, nn

from edgefl.errors import InputError, first_line
from edgefl.onnxgrad.rules import CHECKS, FOLDED, KNOWN, RULES, SHAPES, STATISTICS, Signature, inputs_of, require_rules
from edgefl.onnxgrad.rules.common import Array, Operator, Value, evaluate, label_of, tensor_of


class Node(Operator):
    """One operator as a layer: called with the inputs that it does not store, it returns a tensor, or a tuple of its outputs.

    Attributes:
        given: positions of the inputs that a call brings.
        known: inputs that are the same for every call, by position; NumPy arrays.
        stored: inputs that are parameters or buffers of this module, by position; their names.
    """

    def __init__(self, proto: onnx.NodeProto, label: str, opset: int) -> None:
        super().__init__(proto, label, opset)
        self.slots, self.given = len(proto.input), self.present
        self.known: dict[int, Array] = {}
        self.stored: dict[int, str] = {}
        self._proto = proto.SerializeToString(deterministic=True)

    @property
    def trains_or_measures(self) -> bool:
        """Whether an input is a tensor of this module, and not just a constant."""
        return not self.stored.keys() <= self.known.keys()

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
        if not self.trains_or_measures and not any(isinstance(value, Tensor) for value in slots):
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
        self.last_use = dict.fromkeys(self.wiring, ())
        for value, reader in readers.items():
            if value not in self.output_names:
                self.last_use[reader] += (value,)

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
        raise InputError(f"{path}: not a valid ONNX model ({first_line(error)})") from None
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    try:
        require_rules(model)
        onnx.checker.check_model(model, full_check=True)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        raise InputError(f"{path}: not a valid ONNX model ({first_line(error)})") from None
    return model


def module_of(model: onnx.ModelProto) -> tuple[nn.Module, Signature]:
    """Return the module of a model, in evaluation mode, and its inputs: name → dimensions (a name where free) and dtype.

    Initializers of float type are parameters of the nodes that read them, so ``named_modules`` gives layers; an initializer that many
    nodes read is one parameter, unless its values are all the same. Constants are: numbers without an axis, integers, values that are
    not finite, outputs of Constant, and values that are only read as a shape or setting. Statistics of BatchNormalization are buffers; in
    training mode it uses those of the batch and updates them, and Dropout drops.

    Raises:
        InputError: an operator set, operator, attribute or input without a rule; names the node.

    Example:
        >>> import torch
        >>> node = onnx.helper.make_node("Relu", ["x"], ["y"])
        >>> ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 2]) for name in "xy"]
        >>> graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:])
        >>> module, inputs = module_of(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)]))
        >>> inputs, module(torch.tensor([[-1.0, 2.0]])).tolist()
        ({'x': (('n', 2), torch.float32)}, [[0.0, 2.0]])
    """
    opset = require_rules(model)
    graph = model.graph
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    inputs = inputs_of(graph)
    module = Graph(list(inputs), [value.name for value in graph.output])
    settings = _only_settings(graph)
    module.constants = {name: array for name, array in arrays.items() if name in settings or not _is_weight(array)}
    weights = {name: array for name, array in arrays.items() if name not in module.constants}
    tensors: dict[tuple[str, bool, int], Tensor] = {}
    computed = set(inputs)  # values that will be tensors, not arrays
    for index, proto in enumerate(graph.node):
        if all(name in module.constants or not name for name in proto.input):
            given = [module.constants.get(name) for name in proto.input]
            folded = evaluate(proto.SerializeToString(deterministic=True), opset, given)
            module.constants.update(zip(proto.output, folded, strict=False))
            continue
        node = Node(proto, label_of(proto, index), opset)
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
        wires = tuple(proto.input[slot] for slot in node.given)
        if node.trains_or_measures or not computed.isdisjoint(wires):  # its rule will be applied
            if proto.op_type in CHECKS:
                CHECKS[proto.op_type](node)
            computed.update(proto.output if proto.op_type not in SHAPES else ())
        module.add(_module_name(proto, index), node, wires, tuple(proto.output))
    module.constants = {name: a for name, a in {**arrays, **module.constants}.items() if name in module.output_names}
    module.plan()
    return module.eval(), inputs


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


def _module_name(node: onnx.NodeProto, index: int) -> str:
    return re.sub(r"\W", "_", node.name).strip("_") or f"{node.op_type}_{index}"


def _one_or_all(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def with_torch_layers(graph: nn.Module) -> nn.Module:
    """Replace, in place, every node that is exactly an ``nn.Conv2d`` or an ``nn.Linear``; others, and shared weights, stay."""
    readers = Counter(parameter for node in graph.children() for parameter in node.parameters())
    for name, node in list(graph.named_children()):
        alone = all(readers[parameter] == 1 for parameter in node.parameters())
        if isinstance(node, Node) and alone and (layer := _layer(node)) is not None:
            setattr(graph, name, layer)
    return graph


def _layer(node: Node) -> nn.Module | None:
    stored = {slot: node.get_parameter(name) for slot, name in node.stored.items() if name in dict(node.named_parameters())}
    if node.given != (0,) or 1 not in stored or len(stored) != len(node.stored):
        return None
    weight, bias = stored[1], stored.get(2)
    if node.op == "Conv" and weight.dim() == 4:
        return _convolution(node, weight, bias)
    if node.op == "Gemm" and weight.dim() == 2:
        plain = node.get("alpha", 1.0) == node.get("beta", 1.0) == 1.0 and not node.get("transA", 0)
        if plain and (bias is None or bias.dim() == 1):
            return _linear(weight if node.get("transB", 0) else weight.T, bias)
    if node.op == "MatMul" and weight.dim() == 2:
        return _linear(weight.T, None)
    return None


def _convolution(node: Node, weight: Tensor, bias: Tensor | None) -> nn.Module | None:
    pads = list(node.get("pads", [0, 0, 0, 0]))
    if node.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or pads[:2] != pads[2:] or min(pads) < 0:
        return None
    groups = node.get("group", 1)
    layer = nn.Conv2d(
        weight.shape[1] * groups,
        weight.shape[0],
        tuple(weight.shape[2:]),  # type: ignore[arg-type]  # two sizes: the weight has four dimensions
        tuple(node.get("strides", [1, 1])),
        tuple(pads[:2]),
        tuple(node.get("dilations", [1, 1])),
        groups,
        bias is not None,
        device="meta",
    )
    return _filled(layer, weight, bias)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    return _filled(nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta"), weight, bias)


def _filled(layer: nn.Conv2d | nn.Linear, weight: Tensor, bias: Tensor | None) -> nn.Module:
    layer.weight = nn.Parameter(weight.detach().contiguous())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach())
    return layer
