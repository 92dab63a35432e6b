"""Makes a torch module of an ONNX graph, to trace with fake tensors, train by autograd and profile like any network.

Every node is a layer that computes its operator by a rule of :mod:`edgefl.onnxgrad.rules`. Shapes that a graph computes (Shape, Gather,
Concat, …) are NumPy arrays, so that they are known numbers even if the tensors are fake.
"""

import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from google.protobuf.message import DecodeError, Message
from onnx.external_data_helper import ExternalDataInfo, uses_external_data
from torch import Tensor, nn

from edgefl.onnxgrad import rules
from edgefl.onnxgrad.errors import EdgeflError, InputError, first_line
from edgefl.onnxgrad.graphs import label_of
from edgefl.onnxgrad.rules import Signature, converted, inputs_of, require_rules
from edgefl.onnxgrad.rules.common import Array, Operator, Value, evaluate, tensor_of


class Node(Operator):
    """A node as a layer: called with the inputs that it does not store, it returns its output, or a tuple of several.

    Attributes:
        slots: number of inputs.
        given: positions of the inputs that are arguments of a call.
        known: position → array, of inputs that are the same in every call.
        stored: position → name, of inputs that are parameters or buffers of this module.
    """

    def __init__(self, proto: onnx.NodeProto, label: str, opset: int, read: Container[str]) -> None:
        super().__init__(proto, label, opset, read)
        self.slots, self.given = len(proto.input), self.present
        self.known: dict[int, Array] = {}
        self.stored: dict[int, str] = {}
        self._proto = proto.SerializeToString(deterministic=True)

    @property
    def trains_or_measures(self) -> bool:
        """Whether an input is a tensor of this module, and not just a constant."""
        return not self.stored.keys() <= self.known.keys()

    def keep(self, slot: int, value: Tensor | Array) -> None:
        """Store an input: a tensor as parameter or buffer; an array as known value and, unless its rule reads arrays, as a buffer too."""
        self.given = tuple(other for other in self.given if other != slot)
        if isinstance(value, np.ndarray):
            self.known[slot] = value
            if slot in rules.KNOWN.get(self.op, ()):
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
        """Apply the operator's rule. If all inputs are known arrays, the outputs are arrays, computed without torch."""
        slots: list[Value] = [None] * self.slots
        for slot, value in (*zip(self.given, values, strict=True), *self.known.items()):
            slots[slot] = value
        if not self.trains_or_measures and not any(isinstance(value, Tensor) for value in slots):
            return _one_or_all(evaluate(self._proto, self.opset, slots))
        if self.op in rules.FOLDED:
            self.refuse("its inputs depend on data; only known ones have a rule")
        arguments = [self._argument(slot, value, values) for slot, value in enumerate(slots)]
        try:
            return rules.RULES[self.op](self, *arguments)
        except EdgeflError:
            raise
        except Exception as error:  # torch raises anything for shapes, types and settings that do not fit
            raise InputError(f"{self.label}: {_written(arguments)}: {first_line(error)}") from error

    def check(self) -> None:
        """Refuse a node with inputs, outputs or attributes that its rule does not support."""
        if self.op in rules.RULES:
            self.check_attributes(rules.ATTRIBUTES.get(self.op, frozenset()))
            self.check_choices(rules.CHOICES.get(self.op, {}))
        if self.op in rules.CHECKS:
            rules.CHECKS[self.op](self)

    def _argument(self, slot: int, value: Value, values: Sequence[Value]) -> Value:
        if slot in rules.KNOWN.get(self.op, ()):
            if isinstance(value, Tensor):
                self.refuse(f"input {slot} ({self._name_of(slot)}) depends on data; a shape or setting must be known")
            return value
        if slot in self.stored:
            return getattr(self, self.stored[slot])
        if isinstance(value, np.ndarray):
            tensors = (*(v for v in values if isinstance(v, Tensor)), *self.parameters(), *self.buffers())
            return tensor_of(value, tensors[0].device)
        return value


class Graph(nn.Module):
    """The nodes of an ONNX graph in order. Called with the graph's inputs, it returns the output, or a tuple of several.

    Values are released after their last use. A layer can be replaced by any module with the same inputs and outputs.
    """

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        super().__init__()
        self.input_names, self.output_names = tuple(inputs), tuple(outputs)
        self.constants: dict[str, Array] = {}
        self.wiring: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self.last_use: dict[str, tuple[str, ...]] = {}

    def add(self, name: str, node: Node, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        """Append a node that reads the values ``inputs`` and writes the values ``outputs``."""
        while hasattr(self, name):
            name += "_"
        self.add_module(name, node)
        self.wiring[name] = (inputs, outputs)

    def plan(self) -> None:
        """Find the last reader of each value; call it after the last :meth:`add`."""
        readers = {value: name for name, (inputs, outputs) in self.wiring.items() for value in (*outputs, *inputs)}
        self.last_use = dict.fromkeys(self.wiring, ())
        for value, reader in readers.items():
            if value not in self.output_names:
                self.last_use[reader] += (value,)

    def forward(self, *tensors: Tensor) -> Any:
        """Run the graph.

        Raises:
            InputError: wrong number of inputs, or a rule does not support a node's shapes or attributes; names the node.
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
    """Return the checked model of a file, with its local functions expanded.

    Raises:
        InputError: the file is missing or damaged, or has an operator set, operator or shape that cannot be used; names file and fault.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: cannot be read (not a regular file)")
    try:
        model = onnx.load(path)
        _require_text(model)
        model = converted(_without_functions(model))
        require_rules(model)
        onnx.checker.check_model(model, full_check=True)
        for tensor in model.graph.initializer:  # the checker accepts more values than the shape has
            onnx.numpy_helper.to_array(tensor)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (DecodeError, OSError, ValueError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise InputError(f"{path}: not a valid ONNX model ({first_line(error)})") from None
    return model


def _without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with its local functions expanded; ValueError if a call does not fit its function, or one calls itself."""
    try:
        return onnx.inliner.inline_local_functions(model) if model.functions else model
    except Exception as error:  # noqa: BLE001 - onnx has no error of its own here
        raise ValueError(first_line(error)) from None


def _require_text(message: Message) -> None:
    """Raise a ValueError if a name in a message is not text, which onnx loads as bytes."""
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        if field.type == field.TYPE_MESSAGE:
            for part in values:
                _require_text(part)
        elif field.type == field.TYPE_STRING and not all(isinstance(text, str) for text in values):
            raise ValueError(f"{field.name} is not text: {value!r}")


def files_of(path: Path) -> set[Path]:
    """Return the file of a model that :func:`load_onnx` has read, and the files beside it that have its weights."""
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    beside = {path.parent / ExternalDataInfo(tensor).location for tensor in tensors if uses_external_data(tensor)}
    return {path, *beside}


def module_of(model: onnx.ModelProto) -> tuple[nn.Module, Signature]:
    """Return the module of a model, in evaluation mode, and its inputs: name → (dimensions, dtype), with a name for a free dimension.

    Floating-point initializers become parameters of the layers that read them; one that several nodes read is one shared parameter,
    unless all its values are equal. Scalars, integers and values that are not finite become constants, and so do outputs of Constant
    that no layer reads as its weights, and values that are only read as a shape or setting. Statistics of BatchNormalization become
    buffers. In training mode BatchNormalization uses the statistics of the batch and updates the buffers, and Dropout drops. A graph of
    an older operator set is converted.

    Raises:
        InputError: no rule supports an operator set, operator, attribute or input; names the node.

    Example:
        >>> import torch
        >>> node = onnx.helper.make_node("Relu", ["x"], ["y"])
        >>> ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 2]) for name in "xy"]
        >>> graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:])
        >>> module, inputs = module_of(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)]))
        >>> inputs, module(torch.tensor([[-1.0, 2.0]])).tolist()
        ({'x': (('n', 2), torch.float32)}, [[0.0, 2.0]])
    """
    model = converted(model)
    opset = require_rules(model)
    graph = model.graph
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    inputs = inputs_of(graph)
    module = Graph(list(inputs), [value.name for value in graph.output])
    settings = _only_settings(graph)
    module.constants = {name: array for name, array in arrays.items() if name in settings or not _is_weight(array)}
    weights = {name: array for name, array in arrays.items() if name not in module.constants}
    tensors: dict[tuple[str, bool, int], Tensor] = {}
    read = {name for node in graph.node for name in node.input} | set(module.output_names)
    layered = {name for node in graph.node for slot, name in enumerate(node.input) if slot in rules.WEIGHTS.get(node.op_type, ())}
    computed = set(inputs)  # values that will be tensors, not arrays
    for index, proto in enumerate(graph.node):
        if all(name in module.constants or not name for name in proto.input):
            given = [module.constants.get(name) for name in proto.input]
            folded = dict(zip(proto.output, evaluate(proto.SerializeToString(deterministic=True), opset, given), strict=False))
            if proto.op_type == "DequantizeLinear" or not layered.isdisjoint(folded):  # weights of another form in the file
                weights |= {name: array for name, array in folded.items() if name not in settings and _is_weight(array)}
                arrays |= folded
            module.constants |= {name: array for name, array in folded.items() if name not in weights}
            continue
        node = Node(proto, label_of(proto, index), opset, read)
        for slot, name in enumerate(proto.input):
            measured = name in arrays and slot in rules.STATISTICS.get(proto.op_type, ())
            if measured or name in weights:
                # Exporters store equal tensors once: the ones or zeros of two layers are not a shared weight.
                key = (name, measured, index if np.ptp(arrays[name].astype(np.float32)) == 0 else -1)
                if key not in tensors:
                    tensors[key] = tensor_of(arrays[name]) if measured else nn.Parameter(tensor_of(arrays[name]))
                node.keep(slot, tensors[key])
            elif name in module.constants:
                node.keep(slot, module.constants[name])
        wires = tuple(proto.input[slot] for slot in node.given)
        if node.trains_or_measures or not computed.isdisjoint(wires):  # its rule will be applied
            node.check()
            computed.update(proto.output if proto.op_type not in rules.SHAPES else ())
        called = re.sub(r"\W", "_", proto.name).strip("_") or f"{proto.op_type}_{index}"
        module.add(called, node, wires, tuple(proto.output))
    module.constants = {name: a for name, a in {**arrays, **module.constants}.items() if name in module.output_names}
    module.plan()
    return module.eval(), inputs


def _is_weight(array: Array) -> bool:
    return array.ndim > 0 and (array.dtype.kind == "f" or array.dtype.name == "bfloat16") and bool(np.isfinite(array).all())


def _only_settings(graph: onnx.GraphProto) -> set[str]:
    """Return the values that are read as shapes, settings and constants only, directly or through other nodes."""
    data, read = {value.name for value in graph.output}, set()
    for node in reversed(graph.node):
        reaches_data = any(name in data for name in node.output)
        for slot, name in enumerate(node.input):
            read.add(name)
            if reaches_data and slot not in (*rules.KNOWN.get(node.op_type, ()), *rules.UNTRAINED.get(node.op_type, ())):
                data.add(name)
    return read - data


def _written(arguments: Sequence[Value]) -> str:
    """Return the types and shapes of a node's inputs, for messages."""
    shown = (f"{str(a.dtype).removeprefix('torch.')}{tuple(a.shape)}" for a in arguments if a is not None)
    return f"cannot be computed from {', '.join(shown)}"


def _one_or_all(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)
