"""A torch module as an ONNX graph: requires an evaluation-mode network, calls the exporter, ensures what the bundle promises."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import re
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import onnx
import onnx.shape_inference
import torch
from torch import Tensor, nn

from edgefl.errors import EdgeflError
from edgefl.onnxgrad.batch import fixed_reshapes
from edgefl.onnxgrad.decomposing import sparing
from edgefl.onnxgrad.graphs import dims_of, graphs_in

OPSET = 20
"""The newest operator set in which onnxruntime has a kernel of its own for everything that the reference networks export to.

From 21 on GroupNormalization stays one operator, which onnxruntime expands into some 30: 10 % slower, and twice the memory.
"""

ELEMENT_TYPES = {"float32": onnx.TensorProto.FLOAT, "int64": onnx.TensorProto.INT64}
"""What inputs may be, and what a graph calls it."""

_TARGET = re.compile(r"target=torch\.ops\.([\w.]+)")


def forward_graph(module: nn.Module, input_shape: tuple[int, ...], input_dtype: str = "float32") -> bytes:
    """Return the inference graph of ``module``: input ``x`` (batch, …), output ``logits`` (batch, classes) float32, a free batch.

    ``x`` is of ``input_dtype``: float32, or int64 where the network takes token ids.

    Weights are inside; source locations, and with them paths of this computer, are not. The same module gives the same bytes.

    Raises:
        EdgeflError: the network is in training mode, holds an operation that cannot be exported (named), or has another output.

    Example:
        >>> graph = forward_graph(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval(), (1, 2, 2))
        >>> [node.op_type for node in onnx.load_model_from_string(graph).graph.node]
        ['Reshape', 'Gemm']
    """
    name = type(module).__name__
    if training := [type(part).__name__ for part in module.modules() if part.training]:
        raise EdgeflError(f"{name}: {training[0]} is in training mode; a network is exported for evaluation: call eval() first")
    model = _exported(module, input_shape, input_dtype)
    strip(model, "forward")
    model = fixed_reshapes(model)
    try:
        check_ends(model, input_shape, input_dtype)
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, EdgeflError) as error:
        raise EdgeflError(f"{name} does not export to a graph that a bundle can hold: {error}") from error
    return model.SerializeToString(deterministic=True)


def _exported(module: nn.Module, input_shape: tuple[int, ...], input_dtype: str) -> onnx.ModelProto:
    with exporting():
        try:
            program = torch.onnx.export(
                module,
                (torch.zeros(2, *input_shape, dtype=getattr(torch, input_dtype)),),
                dynamo=True,
                input_names=["x"],
                output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                opset_version=OPSET,
                optimize=True,
                verbose=False,
            )
        except Exception as error:  # the exporter raises many kinds, each with its own chain of causes
            raise EdgeflError(f"{type(module).__name__} cannot be exported to ONNX: {reason_of(error)}") from error
    if program is None:
        raise EdgeflError("torch.onnx.export returned no program; torch 2.8 or newer is needed")
    return program.model_proto


def reason_of(error: BaseException) -> str:
    """Name the operation that has no ONNX form, or else repeat what the exporter says first."""
    cause = error.__cause__ or error
    if target := _TARGET.search(str(cause)):
        return f"{target[1]} has no ONNX form"
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]


def strip(model: onnx.ModelProto, name: str) -> None:
    """Name the graph, and clear what the exporter notes beside it: stack traces, with file names of this computer."""
    model.graph.name = name
    records = [model]
    for graph in graphs_in(model.graph):
        records += [graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer]
    for record in records:
        record.ClearField("doc_string")
        record.ClearField("metadata_props")


def check_ends(model: onnx.ModelProto, input_shape: tuple[int, ...], input_dtype: str) -> None:
    """Raise :class:`EdgeflError` unless a graph has the input ``x`` and the output ``logits`` of a tier, and ai.onnx operators."""
    if model.functions or any(opset.domain for opset in model.opset_import):
        raise EdgeflError("it uses operators outside ai.onnx")
    found = [(v.name, v.type.tensor_type.elem_type, dims_of(v)) for v in (*model.graph.input, *model.graph.output)]
    wanted = ("x", ELEMENT_TYPES[input_dtype], ("batch", *input_shape))
    if len(found) != 2 or found[0] != wanted or found[1][:2] != ("logits", onnx.TensorProto.FLOAT):
        types = "both float32" if input_dtype == "float32" else f"{input_dtype} and float32"
        raise EdgeflError(f"it has {', '.join(f'{n} {d}' for n, _, d in found)}, expected x {wanted[2]} and logits, {types}")
    dims = found[1][2]
    if len(dims) != 2 or dims[0] != "batch" or not isinstance(dims[1], int):
        raise EdgeflError(f"its output is {dims}, expected (batch, classes)")


@contextlib.contextmanager
def exporting() -> Iterator[None]:
    """Call torch's exporter in here: in silence, and without work that it would do anew or in vain.

    Its table of operators, half a second's work, is made once in a process; shapes of an LSTM are said, not found by running its steps
    one by one; graphs are traced again only where that is needed to decompose them. All are private parts of torch: where they look
    otherwise, the exporter does as it does, and takes longer.
    """
    with quiet(), contextlib.ExitStack() as patches:
        for module, name, function in (_tables(), _recurrent_shapes(), _decomposition()):
            if module is not None:
                patches.enter_context(mock.patch.object(module, name, function))
        yield


@functools.cache
def _tables() -> tuple[Any, str, Any]:
    """Return the class that makes the exporter's tables (None: there is none), the name of its maker, and one that remembers."""
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry
    except ImportError:
        return None, "", None
    name = "from_torchlib"
    return (
        (ONNXRegistry, name, staticmethod(functools.cache(make)))
        if (make := getattr(ONNXRegistry, name, None))
        else (None, "", None)
    )


@functools.cache
def _recurrent_shapes() -> tuple[Any, str, Any]:
    """Return the module that works out an LSTM layer's outputs (None: there is none), its function's name, and one that gives shapes."""
    from torch._decomp import decompositions

    def shapes(inp: Tensor, hidden: Any, params: Any, has_biases: bool, reverse: bool = False) -> tuple[Tensor, tuple[Any, ...]]:
        return inp.new_empty((*inp.shape[:2], hidden[0].shape[-1])), tuple(hidden)

    name = "one_layer_lstm"
    return (decompositions, name, shapes) if hasattr(decompositions, name) else (None, "", None)


@functools.cache
def _decomposition() -> tuple[Any, str, Any]:
    """Return the module that decomposes graphs (None: there is none), its function's name, and one that does only where it must."""
    try:
        from torch.onnx._internal.exporter import _fx_passes as passes
    except ImportError:
        return None, "", None
    name = "decompose_with_registry"
    return (passes, name, sparing(decompose)) if (decompose := getattr(passes, name, None)) else (None, "", None)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence what prints, logs and warns, as the exporter does about its progress, its graphs and its own calls."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
