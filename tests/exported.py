"""The inference graph of a network as one file."""

from torch import nn

from edgefl.bundle.forms import GRAPH, form_files


def forward_graph(module: nn.Module, input_shape: tuple[int, ...], input_dtype: str = "float32", *, fold: bool = True) -> bytes:
    """Return the graph as a serialized ModelProto; without ``fold``, factors are not multiplied."""
    (graph,) = form_files(module, input_shape, input_dtype, path=GRAPH, fold=fold).values()
    return graph
