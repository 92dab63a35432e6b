"""The inference graph of a network as one file."""

import torch
from torch import nn

from edgefl.bundle.forms import GRAPH, form_files
from edgefl.models.input_spec import InputSpec


def forward_graph(module: nn.Module, input_shape: tuple[int, ...], input_dtype: str = "float32", *, fold: bool = True) -> bytes:
    """Return the graph as a serialized ModelProto; without ``fold``, factors are not multiplied."""
    (graph,) = form_files(module, InputSpec(input_shape, getattr(torch, input_dtype)), GRAPH, fold=fold).values()
    return graph
