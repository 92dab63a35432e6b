"""The three forms of a tier's forward graph: its factors kept, multiplied out, or layer by layer whichever is cheaper.

============ =========================================================================================================
``factored`` the network as it was trained: factors are the weights in the file, and the graph multiplies them where
             the network does. Runtimes that fold constants (onnxruntime does) multiply them out once, while they load:
             the file is small, what is held in memory is not.
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
from edgefl.onnxgrad.batch import fixed_reshapes
from edgefl.onnxgrad.export import OPSET, check_ends, exporting, reason_of, strip
from edgefl.onnxgrad.external import LIMIT_BYTES, check, split

Form = Literal["factored", "composed", "auto"]
GRAPH = "forward.onnx"
FORMS: tuple[Form, ...] = ("factored", "composed", "auto")


@dataclass(frozen=True)
class Formed:
    """A network in one of the forms: what is exported and measured, and the names of the layers multiplied out in it."""

    module: nn.Module
    composed_layers: tuple[str, ...]


def formed(network: nn.Module, form: Form, chosen: Collection[str] = ()) -> Formed:
    """Return ``network`` in a form; it stays as it is itself.

    Args:
        network: as it was trained, factors inside, in evaluation mode with its statistics.
        form: a name in :data:`FORMS`.
        chosen: the layers that ``auto`` multiplies out.

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


def form_graph(module: nn.Module, input_shape: tuple[int, ...], input_dtype: str = "float32") -> bytes:
    """Return the inference graph of ``module`` with the factors of its factorized layers as its weights.

    As :func:`~edgefl.onnxgrad.export.forward_graph`, which multiplies such factors out while it exports; a network without factorized
    layers gets the same graph from both.

    Raises:
        EdgeflError: as :func:`~edgefl.onnxgrad.export.forward_graph`, or the graph is larger than one file can be.
    """
    files = form_files(module, input_shape, input_dtype)
    if len(files) > 1:
        raise EdgeflError(f"{type(module).__name__} is more than {LIMIT_BYTES:,} bytes, which no one file can hold")
    return files[GRAPH]


def form_files(
    module: nn.Module,
    input_shape: tuple[int, ...],
    input_dtype: str = "float32",
    path: str = GRAPH,
    limit_bytes: int = LIMIT_BYTES,
) -> dict[str, bytes]:
    """Return that graph as files of a bundle: at ``path``, with its weights beside it where it would exceed ``limit_bytes``.

    Raises:
        EdgeflError: the network is in training mode, holds an operation that cannot be exported (named), or has another output.
    """
    name = type(module).__name__
    if any(part.training for part in module.modules()):
        raise EdgeflError(f"{name} is in training mode; a network is exported for evaluation: call eval() first")
    factors = {f"{at}.{key}" for at, layer in factorized_layers(module).items() for key, _ in layer.named_parameters()}
    model = _exported(module, input_shape, input_dtype, factors)
    strip(model, "forward")
    # Before what serializes the model, which could not be done with all of its weights.
    beside = split(model, path, limit_bytes)
    model = fixed_reshapes(model)
    try:
        check_ends(model, input_shape, input_dtype)
        check(model)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, EdgeflError) as error:
        raise EdgeflError(f"{name} does not export to a graph that a bundle can hold: {error}") from error
    return {path: model.SerializeToString(deterministic=True), **beside}


def _exported(module: nn.Module, input_shape: tuple[int, ...], input_dtype: str, kept: Collection[str]) -> onnx.ModelProto:
    """Export ``module`` with the parameters ``kept`` as they are: inputs while the graph is simplified, so that nothing folds them."""
    x = torch.zeros(2, *input_shape, dtype=getattr(torch, input_dtype))
    with exporting():
        try:
            program = torch.onnx.export(
                module, (x,), dynamo=True, input_names=["x"], output_names=["logits"], opset_version=OPSET, optimize=False,
                dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False,
            )  # fmt: skip
            if program is None:
                raise EdgeflError("torch.onnx.export returned no program; torch 2.8 or newer is needed")
            graph = program.model.graph
            held = [value for name, value in graph.initializers.items() if name in kept]
            graph.inputs.extend(held)
            program.optimize()
            for value in held:
                graph.inputs.remove(value)
        except EdgeflError:
            raise
        except Exception as error:  # the exporter raises many kinds, each with its own chain of causes
            raise EdgeflError(f"{type(module).__name__} cannot be exported to ONNX: {reason_of(error)}") from error
    return program.model_proto
