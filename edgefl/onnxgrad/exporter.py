"""Exports a torch module as a plain ONNX graph; no other file calls torch's exporter."""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass, RemoveUnusedOpsetsPass, ShapeInferencePass
from torch import Tensor, nn

from edgefl.onnxgrad.adjustments import adjust_exporter
from edgefl.onnxgrad.errors import EdgeflError, InputError, first_line
from edgefl.onnxgrad.fields import Fields, each, named
from edgefl.onnxgrad.garbage import uncollected
from edgefl.onnxgrad.gradients.own import standard
from edgefl.onnxgrad.graphs import BATCH, OPSET
from edgefl.onnxgrad.late_buffers import set_late_buffers
from edgefl.onnxgrad.lowering import HasForm, traced
from edgefl.onnxgrad.names import make_distinct, register_constants
from edgefl.onnxgrad.places import place_of
from edgefl.onnxgrad.quiet import quiet, strip
from edgefl.onnxgrad.stand_ins import STANDS_FOR, TRANSLATIONS
from edgefl.onnxgrad.stateless import restored
from edgefl.onnxgrad.vectors import as_matrices

_TARGET = re.compile(r"target=torch\.ops\.([\w.]+)")


def export(
    module: nn.Module, inputs: Mapping[str, Fields[Tensor]], outputs: Sequence[str] = ("y",), *, unfolded: Collection[str] = ()
) -> onnx.ModelProto:
    """Return the inference graph of ``module``, with its weights inside and a free batch size.

    The same module gives the same bytes. The graph contains no source locations, and so no paths of this computer.

    Args:
        module: a network in evaluation mode.
        inputs: name → an example (samples, …) with at least two samples, in the order of the module's arguments. An argument may be a
            dictionary of examples, key → (samples, …), whose inputs are called ``name.key``.
        outputs: names of the outputs.
        unfolded: names of parameters that stay in the graph unchanged. Nodes that depend on other parameters only are computed now.

    Raises:
        EdgeflError: a part of the network is in training mode.
        InputError: an operation has no ONNX operator (named), or the network depends on the values of its input.

    Example:
        >>> graph = export(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval(), {"x": torch.zeros(2, 1, 2, 2)}).graph
        >>> [node.op_type for node in graph.node], [value.name for value in (*graph.input, *graph.output)]
        (['Reshape', 'Gemm'], ['x', 'y'])
    """
    name = type(module).__name__
    if training := [type(part).__name__ for part in module.modules() if part.training]:
        raise EdgeflError(f"{name}: {training[0]} is in training mode; a network is exported for evaluation: call eval() first")
    names = [flat for key, value in inputs.items() for flat in named(value, key)]
    if names != list(inputs):
        module, unfolded = _Called(module).eval(), {f"module.{parameter}" for parameter in unfolded}
    parameters = inspect.signature(module.forward).parameters.values()
    free: tuple[Any, ...] = tuple(each(lambda _: {0: torch.export.Dim(BATCH)}, value) for value in inputs.values())
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        free = (*free[: len(parameters) - 1], free[len(parameters) - 1 :])  # torch.export nests the entries of *arguments
    failure = f"{name} cannot be exported to ONNX"
    with restored(module):
        set_late_buffers(module, lambda given: module(*given.values()), inputs, failure)
        model = converted(module, tuple(inputs.values()), free, names, outputs, failure, unfolded)
    model.graph.name = "forward"
    proto = standard(ir.to_proto(fixed_reshapes(model)))
    strip(proto)
    return proto


class _Called(nn.Module):
    """Calls a module whose hooks spread a dictionary over the arguments of its ``forward``; torch.export reads the signature of that."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Mapping[str, Tensor]) -> Any:
        return self.module(x)


def converted(
    module: nn.Module,
    arguments: tuple[Any, ...],
    free: tuple[Any, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    failure: str,
    unfolded: Collection[str] = (),
) -> Any:
    """Return the simplified :class:`onnx_ir.Model` of a module.

    ``inputs`` and ``outputs`` are names for the graph. ``free`` are the free dimensions of the ``arguments``, in the form of torch.export's
    ``dynamic_shapes``. ``unfolded`` are the initializers that constant folding leaves alone. InputError, which begins with ``failure``, if
    an operation has no ONNX operator (named) or torch cannot trace the module.
    """
    adjust_exporter()
    with quiet(), uncollected():
        try:
            program = _to_onnx(traced(module, arguments, free, _has_form()), input_names=list(inputs), output_names=list(outputs))
            make_distinct(program.model)
            graph = program.model.graph
            kept = [value for name, value in graph.initializers.items() if name in unfolded]
            graph.inputs.extend(kept)  # constant folding does not touch inputs
            program.optimize()
            for value in kept:
                graph.inputs.remove(value)
            register_constants(program.model)
        except Exception as error:  # the exporter raises many kinds, each with its own chain of causes
            raise InputError(f"{failure}: {_reason_of(error)}") from error
    _name_batch(program.model)
    return program.model


def _name_batch(model: ir.Model) -> None:
    """Rename the free size from torch's symbol to :data:`BATCH`, also inside expressions such as ``2*s0``."""
    free = {
        dim.value for value in model.graph.inputs for dim in value.shape or () if isinstance(dim, ir.SymbolicDim) and dim.value
    }
    symbol = re.compile(rf"\b({'|'.join(map(re.escape, free))})\b")
    for value in ir.convenience.create_value_mapping(model.graph).values() if free else ():
        # In place of the old shape, which may be frozen.
        value.shape = value.shape and ir.Shape(
            symbol.sub(BATCH, dim.value) if isinstance(dim, ir.SymbolicDim) and dim.value else dim for dim in value.shape
        )


def _to_onnx(program: torch.export.ExportedProgram, **names: list[str]) -> Any:
    """Call torch.onnx.export for a traced module, with a table of operators that is built once per process.

    The public function builds the table in every call, which takes several times as long as the export of a small network. Its inner
    function accepts the table as an argument.
    """
    options: dict[str, Any] = {**names, "optimize": False, "opset_version": OPSET, "verbose": False}
    inner, table = _inner()
    found = torch.onnx.export(program, dynamo=True, **options) if inner is None else inner(program, registry=table, **options)
    if found is None:
        raise EdgeflError("torch.onnx.export returned no program; torch 2.8 or newer is needed")
    return found


@functools.cache
def _inner() -> tuple[Callable[..., Any] | None, Any]:
    """Return torch's inner exporter and its table of operators; None if this version of torch has no such function."""
    try:
        from torch.onnx._internal.exporter._core import export as inner
        from torch.onnx._internal.exporter._registration import ONNXRegistry
    except ImportError:
        return None, None
    known = {"registry", "input_names", "output_names", "optimize", "opset_version", "verbose"}
    if not known <= inspect.signature(inner).parameters.keys():
        return None, None
    table = ONNXRegistry.from_torchlib(opset_version=OPSET)
    for own, original in STANDS_FOR.items():
        table.register_op(own, table.get_decomps(original)[0].onnx_function)
    for operator, translation in TRANSLATIONS.items():
        table.register_op(operator, translation)
    return inner, table


def _has_form() -> HasForm | None:
    """Return the function that tells whether the exporter can translate an operator of torch; None if this version has none."""
    _, table = _inner()
    return getattr(table, "is_registered", None)


def fixed_reshapes(model: ir.Model) -> ir.Model:
    """Give every Reshape a constant target if its free sizes are the batch in the input's own place, which is 0 in the target.

    The exporter computes such targets in the graph, from the Shape of another value, and later shapes are then unknown: MACs cannot be
    counted, and a runtime cannot reuse memory for values of unknown shape, and holds up to a third more. Unused nodes are removed.
    """
    as_matrices(model)
    exported = {value: value.shape for node in model.graph for value in node.outputs}
    _without_scalar_reshapes(model)
    with quiet():
        ShapeInferencePass(data_prop=True)(model)
    for node in list(model.graph):
        if node.op_type != "Reshape" or node.inputs[0] is None:
            continue
        before, after = node.inputs[0].shape, node.outputs[0].shape
        sizes = [size if isinstance(size, int) else _kept(before, axis, size) for axis, size in enumerate(after or ())]
        if before and sizes and 0 in sizes and None not in sizes:
            name = f"{node.outputs[0].name}_shape"
            target = ir.tensor([size for size in sizes if size is not None], ir.DataType.INT64, name=name)
            value = ir.Value(name=name, shape=ir.Shape([len(sizes)]), type=ir.TensorType(ir.DataType.INT64), const_value=target)
            model.graph.register_initializer(value)
            node.replace_input_with(1, value)
            node.attributes.pop("allowzero", None)  # with it, 0 is a size of its own
    for value, shape in exported.items():
        value.shape = _merged(shape, value.shape)
    RemoveUnusedNodesPass()(model)
    RemoveUnusedOpsetsPass()(model)
    return model


def _merged(exported: ir.Shape | None, inferred: ir.Shape | None) -> ir.Shape | None:
    """Return the sizes that torch knows, and where it knows none the numbers that ONNX infers.

    Names that ONNX infers are left out: with them, onnxruntime holds now more, now less memory for one and the same graph.
    """
    if exported is None or inferred is None or len(exported) != len(inferred):
        return exported or inferred
    sizes = zip(exported, inferred, strict=True)
    return ir.Shape(own if isinstance(own, int) and of_torch == ir.SymbolicDim(None) else of_torch for of_torch, own in sizes)


def _kept(before: ir.Shape | None, axis: int, size: ir.SymbolicDim) -> int | None:
    """Return 0, "the size of the input's own dimension", for a batch that stays at its axis; None for any other free size."""
    return 0 if before and axis < len(before) and str(before[axis]) == str(size) == BATCH else None


def _without_scalar_reshapes(model: ir.Model) -> None:
    """Remove Reshapes of one size to one size, through which ONNX's inference does not follow the sizes of layers after a recurrent one."""
    for node in list(model.graph):
        if (
            node.op_type == "Reshape"
            and node.inputs[0] is not None
            and node.inputs[0].shape == node.outputs[0].shape == ir.Shape([1])
        ):
            ir.convenience.replace_all_uses_with(node.outputs[0], node.inputs[0])


def _reason_of(error: BaseException) -> str:
    """Return the operation that has no ONNX operator, or else the first line of the exporter's message, and the line of the network."""
    if type(error).__name__ == "GuardOnDataDependentSymNode":  # importing it takes half a second
        return f"its graph depends on the values of its input; compute with torch.where{place_of(error)}"
    cause = error.__cause__ or error
    if target := _TARGET.search(str(cause)):
        return f"{target[1]} has no ONNX form"
    return first_line(cause)
