"""Exports a torch module as a plain ONNX graph; no other file calls torch's exporter."""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

from edgefl.onnxgrad.adjustments import adjust_exporter
from edgefl.onnxgrad.contexts import quiet, uncollected
from edgefl.onnxgrad.errors import EdgeflError, InputError, first_line, place_of
from edgefl.onnxgrad.fields import Fields, each, named
from edgefl.onnxgrad.gradients.own import standard
from edgefl.onnxgrad.graphs import BATCH, OPSET, strip
from edgefl.onnxgrad.lowering import HasForm, traced
from edgefl.onnxgrad.repairs import fixed_reshapes, make_distinct, register_constants
from edgefl.onnxgrad.stand_ins import STANDS_FOR, TRANSLATIONS
from edgefl.onnxgrad.stateless import restored, set_late_buffers

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
    return torch.onnx.export(program, dynamo=True, **options) if inner is None else inner(program, registry=table, **options)


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


def _reason_of(error: BaseException) -> str:
    """Return the operation that has no ONNX operator, or else the first line of the exporter's message, and the line of the network."""
    if type(error).__name__ == "GuardOnDataDependentSymNode":  # importing it takes half a second
        return f"its graph depends on the values of its input; compute with torch.where{place_of(error)}"
    cause = error.__cause__ or error
    if target := _TARGET.search(str(cause)):
        return f"{target[1]} has no ONNX form"
    return first_line(cause)
