"""The three forms of a tier's forward graph: its factors kept, multiplied out, or layer by layer whichever is cheaper.

============ =========================================================================================================
``factored`` the network as it was trained: factors are the weights in the file, and the graph multiplies them where
             the network does. Runtimes that fold constants (onnxruntime does) multiply them out once, while they load:
             the file is small, the memory is not.
``composed`` every factorized layer as the plain layer that computes the same: the dense network's own graph.
``auto``     what :func:`edgefl.bundle.form_choice.choose` finds cheaper within the device's budgets, layer by layer.
============ =========================================================================================================
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import onnx
import torch
from torch import nn

from edgefl.errors import ConfigError, EdgeflError
from edgefl.factor.compose import composed_network, factorized_layers
from edgefl.onnxgrad.exporter import export
from edgefl.onnxgrad.graphs import BATCH, LIMIT_BYTES, check, dims_of, split

Form = Literal["factored", "composed", "auto"]
GRAPH = "forward.onnx"
FORMS: tuple[Form, ...] = ("factored", "composed", "auto")
_ELEMENT_TYPES = {"float32": onnx.TensorProto.FLOAT, "int64": onnx.TensorProto.INT64}


@dataclass(frozen=True)
class Formed:
    """A network in one of the forms, with the names of the layers multiplied out in it."""

    module: nn.Module
    composed_layers: tuple[str, ...]


def formed(network: nn.Module, form: Form, chosen: Collection[str] = ()) -> Formed:
    """Return a trained ``network``, in evaluation mode, in a form of :data:`FORMS`; ``auto`` multiplies the ``chosen`` layers out.

    Raises:
        ConfigError: the form has another name, or a chosen layer is not a factorized one.
    """
    layers = factorized_layers(network)
    if form not in FORMS:
        raise ConfigError(f"form: got {form!r}, expected one of {', '.join(FORMS)}")
    if form == "auto" and (unknown := sorted(set(chosen) - set(layers))):
        raise ConfigError(f"{unknown[0]!r} is no factorized layer of this network; it has {', '.join(layers) or 'none'}")
    names = {"factored": (), "composed": tuple(layers), "auto": tuple(name for name in layers if name in chosen)}[form]
    return Formed(composed_network(network, lambda name, layer: name in names) if names else network, names)


def forward_graph(module: nn.Module, input_shape: tuple[int, ...], input_dtype: str = "float32", *, fold: bool = True) -> bytes:
    """Return the inference graph of ``module`` as one file, with its factors multiplied out or, without ``fold``, as its weights.

    Raises:
        EdgeflError: as :func:`form_files`, or the graph is larger than one file can be.

    Example:
        >>> graph = forward_graph(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval(), (1, 2, 2))
        >>> [node.op_type for node in onnx.load_model_from_string(graph).graph.node]
        ['Reshape', 'Gemm']
    """
    files = form_files(module, input_shape, input_dtype, fold=fold)
    if len(files) > 1:
        raise EdgeflError(f"{type(module).__name__} is more than {LIMIT_BYTES:,} bytes, which no one file can hold")
    return files[GRAPH]


def form_files(
    module: nn.Module,
    input_shape: tuple[int, ...],
    input_dtype: str = "float32",
    path: str = GRAPH,
    limit_bytes: int = LIMIT_BYTES,
    *,
    fold: bool = False,
) -> dict[str, bytes]:
    """Return the inference graph of ``module`` as files of a bundle: input ``x`` (batch, …), output ``logits`` (batch, classes) float32.

    Args:
        module: a network in evaluation mode.
        input_shape: of one sample.
        input_dtype: ``float32``, or ``int64`` where the network takes token ids.
        path: of the graph in the bundle.
        limit_bytes: the most that the graph's file may hold. A larger graph has its weights in a file beside it.
        fold: whether factors are multiplied out while the graph is made.

    Raises:
        EdgeflError: the network is in training mode, holds an operation that cannot be exported (named), or has another output.
    """
    layers = {} if fold else factorized_layers(module)
    factors = {f"{at}.{key}" for at, layer in layers.items() for key, _ in layer.named_parameters()}
    x = torch.zeros(2, *input_shape, dtype=getattr(torch, input_dtype))
    model = export(module, {"x": x}, ["logits"], unfolded=factors)
    beside = split(model, path, limit_bytes)
    try:
        _check_ends(model, input_shape, input_dtype)
        check(model)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, EdgeflError) as error:
        raise EdgeflError(f"{type(module).__name__} does not export to a graph that a bundle can hold: {error}") from error
    return {path: model.SerializeToString(deterministic=True), **beside}


def _check_ends(model: onnx.ModelProto, input_shape: tuple[int, ...], input_dtype: str) -> None:
    """Raise :class:`EdgeflError` unless a graph has the input ``x`` and the output ``logits`` of a tier, and ai.onnx operators."""
    if model.functions or any(opset.domain for opset in model.opset_import):
        raise EdgeflError("it uses operators outside ai.onnx")
    found = [(v.name, v.type.tensor_type.elem_type, dims_of(v)) for v in (*model.graph.input, *model.graph.output)]
    wanted = ("x", _ELEMENT_TYPES[input_dtype], (BATCH, *input_shape))
    if len(found) != 2 or found[0] != wanted or found[1][:2] != ("logits", onnx.TensorProto.FLOAT):
        types = "both float32" if input_dtype == "float32" else f"{input_dtype} and float32"
        raise EdgeflError(f"it has {', '.join(f'{n} {d}' for n, _, d in found)}, expected x {wanted[2]} and logits, {types}")
    dims = found[1][2]
    if len(dims) != 2 or dims[0] != BATCH or not isinstance(dims[1], int):
        raise EdgeflError(f"its output is {dims}, expected (batch, classes)")
