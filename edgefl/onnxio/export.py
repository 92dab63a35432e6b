"""A torch module as an ONNX graph: requires an evaluation-mode network, calls the exporter, ensures what the bundle promises."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

import onnx
import torch
from torch import nn

from edgefl.errors import EdgeflError

OPSET = 23
"""The newest operator set that torch's exporter emits itself (2.11 to 2.13) without conversion; it has GroupNormalization."""


def forward_graph(module: nn.Module, input_shape: tuple[int, ...]) -> bytes:
    """Return the inference graph of ``module``: input ``x`` (batch, …) float32, output ``logits``, a free batch dimension.

    Weights are inside; source locations, and with them paths of this computer, are not.

    Raises:
        EdgeflError: the network holds an operation that cannot be exported; names it.
    """
    if module.training:
        raise EdgeflError("a network is exported in evaluation mode: call eval() first")
    example = torch.zeros(2, *input_shape)
    with _quiet():
        try:
            program = torch.onnx.export(
                module,
                (example,),
                dynamo=True,
                input_names=["x"],
                output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                opset_version=OPSET,
                optimize=True,
                verbose=False,
            )
        except Exception as error:  # the exporter raises many kinds; what they share is a cause that names the operation
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise EdgeflError(f"{type(module).__name__} cannot be exported to ONNX: {reason}") from error
    if program is None:
        raise EdgeflError("torch.onnx.export returned no program; torch 2.8 or newer is needed")
    model = _without_traces(program.model_proto)
    _ensure(model, input_shape)
    return model.SerializeToString(deterministic=True)


def _without_traces(model: onnx.ModelProto) -> onnx.ModelProto:
    graph = model.graph
    for record in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        record.ClearField("doc_string")
        record.ClearField("metadata_props")
    for function in model.functions:
        for record in (function, *function.node, *function.value_info):
            record.ClearField("doc_string")
            record.ClearField("metadata_props")
    model.graph.name = "forward"
    return model


def _ensure(model: onnx.ModelProto, input_shape: tuple[int, ...]) -> None:
    onnx.checker.check_model(model, full_check=True)
    (x,), (logits,) = model.graph.input, model.graph.output
    dimensions = x.type.tensor_type.shape.dim
    fixed = tuple(d.dim_value for d in dimensions[1:])
    if (x.name, logits.name) != ("x", "logits") or not dimensions[0].dim_param or fixed != tuple(input_shape):
        raise EdgeflError(f"the exported graph has input {x.name} of {fixed}, expected x of {input_shape} with a free batch")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter: it prints progress, logs about packages that are not needed and warns about its own calls."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
