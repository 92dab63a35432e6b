"""The three forms of a tier's inference graph: with its factors, with their products, or the cheaper form for each layer.

============ =========================================================================================================
``factored`` the network as it was trained: the file holds factors. Where the network multiplies its factors itself, a
             runtime that folds constants (onnxruntime does) multiplies them once while it loads: the file is small, the
             memory is not.
``composed`` every factorized layer as the plain layer that computes the same: the dense network's own graph.
``auto``     for each layer the form that :func:`edgefl.bundle.form_choice.choose` finds cheaper within the device's budgets.
============ =========================================================================================================
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import onnx
import torch
from torch import nn

from edgefl.errors import ConfigError, EdgeflError
from edgefl.factor.compose import composed_network, factorized_layers
from edgefl.models.base import named_tensors
from edgefl.models.input_spec import InputSpec
from edgefl.onnxgrad.graphs import BATCH, LIMIT_BYTES, check, dims_of, split, with_flat_output
from edgefl.onnxgrad.weightless import filled, weightless
from edgefl.util.fields import Fields, each, named
from edgefl.util.shelf import Facts, Shelf

Form = Literal["factored", "composed", "auto"]
GRAPH = "forward.onnx"
FORMS: tuple[Form, ...] = ("factored", "composed", "auto")
_GRAPHS = Shelf[bytes]("forms", bytes, bytes)
_ELEMENT_TYPES = {"float32": onnx.TensorProto.FLOAT, "int64": onnx.TensorProto.INT64}


@dataclass(frozen=True)
class Formed:
    """A network in one of the forms; ``composed_layers`` names the layers whose factors are multiplied in it."""

    module: nn.Module
    composed_layers: tuple[str, ...]


def formed(network: nn.Module, form: Form, chosen: Collection[str] = ()) -> Formed:
    """Return a trained ``network`` in a form of :data:`FORMS`; ``auto`` composes ``chosen`` layers; ConfigError if a name is unknown."""
    layers = factorized_layers(network)
    if form not in FORMS:
        raise ConfigError(f"form: got {form!r}, expected one of {', '.join(FORMS)}")
    if form == "auto" and (unknown := sorted(set(chosen) - set(layers))):
        raise ConfigError(f"{unknown[0]!r} is no factorized layer of this network; it has {', '.join(layers) or 'none'}")
    names = {"factored": (), "composed": tuple(layers), "auto": tuple(name for name in layers if name in chosen)}[form]
    return Formed(composed_network(network, lambda name, layer: name in names) if names else network, names)


def form_files(
    module: nn.Module,
    inputs: Fields[InputSpec],
    path: str = GRAPH,
    limit_bytes: int = LIMIT_BYTES,
    *,
    fold: bool = False,
    facts: Facts | None = None,
) -> dict[str, bytes]:
    """Return the inference graph of ``module`` as files: path → content.

    Its input is ``x`` (batch, …), or ``x.NAME`` for each of several; its output is ``logits`` (batch, outputs) float32.

    Args:
        module: a network in evaluation mode.
        inputs: what a sample consists of, float32 or int64 each.
        path: path of the graph in the bundle.
        limit_bytes: size limit of the graph's file. A larger graph has its weights in a second file, ``path`` with ``.data``.
        fold: whether products of factors are computed now, so that the file holds dense weights.
        facts: all that decides the graph, weights apart: it is stored for the next bundle; None: they cannot be told.

    Raises:
        EdgeflError: the network is in training mode, an operation cannot be exported (named), or the output has another shape.
    """
    model = _exported(module, inputs, fold) if facts is None else _recalled(module, inputs, facts)
    beside = split(model, path, limit_bytes)
    try:
        _check_ends(model, inputs)
        check(model)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, EdgeflError) as error:
        raise EdgeflError(f"{type(module).__name__} does not export to a graph that a bundle can hold: {error}") from error
    return {path: model.SerializeToString(deterministic=True), **beside}


def _exported(module: nn.Module, inputs: Fields[InputSpec], fold: bool) -> onnx.ModelProto:
    layers = {} if fold else factorized_layers(module)
    return _flat(module, inputs, {f"{name}.{key}" for name, layer in layers.items() for key, _ in layer.named_parameters()})


def _recalled(module: nn.Module, inputs: Fields[InputSpec], facts: Facts) -> onnx.ModelProto:
    """Return the graph of a network whose weights are not folded, so that others take their places."""
    tensors = {name: tensor.detach().numpy() for name, tensor in named_tensors(module).items()}
    empty = _GRAPHS.recalled(facts, lambda: weightless(_flat(module, inputs, tensors), tensors))
    return filled(empty, tensors)


def _flat(module: nn.Module, inputs: Fields[InputSpec], unfolded: Collection[str]) -> onnx.ModelProto:
    from edgefl.onnxgrad.exporter import export  # torch's exporter takes a second to load, and a stored graph needs none

    x = each(lambda spec: torch.zeros(2, *spec.shape, dtype=spec.dtype), inputs)
    return with_flat_output(export(module, {"x": x}, ["logits"], unfolded=unfolded))


def _check_ends(model: onnx.ModelProto, inputs: Fields[InputSpec]) -> None:
    """Raise :class:`EdgeflError` unless a graph has the inputs and the output ``logits`` of a tier, and ai.onnx operators."""
    if model.functions or any(opset.domain for opset in model.opset_import):
        raise EdgeflError("it uses operators outside ai.onnx")
    *entries, output = [(v.name, v.type.tensor_type.elem_type, dims_of(v)) for v in (*model.graph.input, *model.graph.output)]
    wanted = [(name, _ELEMENT_TYPES[spec.kind], (BATCH, *spec.shape)) for name, spec in named(inputs, "x").items()]
    if entries != wanted or output[:2] != ("logits", onnx.TensorProto.FLOAT):
        types = ", ".join(dict.fromkeys([*(spec.kind for spec in named(inputs, "x").values()), "float32"]))
        has, expected = (", ".join(f"{n} {d}" for n, _, d in ends) for ends in ((*entries, output), wanted))
        raise EdgeflError(f"it has {has}, expected {expected} and logits, of {types}")
    dims = output[2]
    if len(dims) != 2 or dims[0] != BATCH or not isinstance(dims[1], int):
        raise EdgeflError(f"its output is {dims}, expected (batch, classes)")
