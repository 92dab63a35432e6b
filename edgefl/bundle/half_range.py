"""Whether all values of a 16-bit graph are within the range of 16-bit floats, also where this processor computes them in 32 bits."""

import numpy as np
import onnx

from edgefl.onnxgrad.predict import feed_of
from edgefl.onnxgrad.session import computed, opened, options_for
from edgefl.util.fields import Fields, rows

_SAMPLES = 32


def beyond_half(graph: bytes, half: bytes, x: Fields[np.ndarray]) -> str:
    """Return the first value that is finite in a 32-bit graph and not in its 16-bit form; "" if there is none.

    onnxruntime keeps values of 16-bit graphs in 32 bits where a processor has no 16-bit arithmetic, so that outputs on this computer do
    not show it. Each value is therefore computed as an output, for at most 32 of the samples ``x`` (n, …). Infinities of a mask are none,
    nor are they where rounding moved a value over the mask's border: an operator is judged if what it was given was finite too.
    """
    some = rows(x, slice(_SAMPLES))
    exact, rounded = _values(graph, some), _values(half, some)
    lost = {name for name, value in rounded.items() if _lost(exact.get(name), value)}
    for node in onnx.load_model_from_string(half).graph.node:
        if node.op_type == "Where" or lost.intersection(node.input):
            continue
        for name in node.output:
            if name in lost and name in exact:
                return name
    return ""


def _lost(exact: np.ndarray | None, rounded: np.ndarray) -> bool:
    """Return whether a value has entries that are finite in 32 bits only; a conversion's own values, which have no other form, if any."""
    if not np.issubdtype(rounded.dtype, np.floating):
        return False
    finite = np.isfinite(exact) if exact is not None and exact.shape == rounded.shape else np.True_
    return bool((finite & ~np.isfinite(rounded)).any())


def _values(graph: bytes, x: Fields[np.ndarray]) -> dict[str, np.ndarray]:
    """Return all values that a graph computes, by name."""
    model = onnx.load_model_from_string(graph)
    outputs = {value.name for value in model.graph.output}
    inner = [name for node in model.graph.node for name in node.output if name and name not in outputs]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
    session = opened(model.SerializeToString(), options_for(1))
    return {name: value for name, value in computed(session, feed_of(session, x)).items() if isinstance(value, np.ndarray)}
