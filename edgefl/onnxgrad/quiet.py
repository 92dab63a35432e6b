"""What exporters and quantizers leave behind: prints, warnings, and notes in the graph."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

import onnx

from edgefl.onnxgrad.graphs import graphs_in


def strip(model: onnx.ModelProto) -> None:
    """Clear the exporter's stack traces, in place. onnx-ir's own pass leaves those of values and weights."""
    records = [model]
    for graph in graphs_in(model.graph):
        records += [graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer]
    for record in records:
        record.ClearField("doc_string")
        record.ClearField("metadata_props")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's many prints, logs and warnings."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
