"""Names of the values of an exported graph: each names one value, and constants that the optimizer loses are found again."""

import itertools
from collections.abc import Iterator

import onnx_ir as ir


def make_distinct(model: ir.Model) -> None:
    """Rename values that have the name of another value, in place. Inputs and outputs keep theirs, and weights if they can.

    torch's exporter calls a value like its operation, such as ``mean``, also if a weight of the network has that name. The optimizer then
    takes the shape of one for that of the other.
    """
    graph = model.graph
    kept = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
    used = {value.name for value in _values(graph)}
    seen: dict[str | None, ir.Value] = {}
    for value in [*kept, *_values(graph)]:
        if seen.setdefault(value.name, value) is not value:
            value.name = _unused(str(value.name), used)
            seen[value.name] = value


def register_constants(model: ir.Model) -> None:
    """Register constants that nodes read and the graph does not list, in place.

    The optimizer leaves out some that its rules make, such as the target of two joined Reshapes. It names the bounds of a Clip by the value
    that is clipped: of two Clips of one value, it lists the bounds of the last.
    """
    graph = model.graph
    used = {value.name for value in _values(graph)}
    read = [value for node in graph.all_nodes() for value in node.inputs if value is not None and value.const_value is not None]
    for value in read:
        listed = graph.initializers.get(str(value.name))
        if listed is value or value.producer() is not None or value.is_graph_input():
            continue
        if listed is not None:
            value.name = _unused(str(value.name), used)
        graph.register_initializer(value)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield every value of a graph: inputs, weights and results of nodes, also inside the bodies of loops."""
    yield from (*graph.inputs, *graph.initializers.values())
    for node in graph.all_nodes():
        yield from node.outputs


def _unused(name: str, used: set[str | None]) -> str:
    """Return ``name`` with a number that makes it new, and add it to ``used``."""
    new = next(other for i in itertools.count(1) if (other := f"{name}_{i}") not in used)
    used.add(new)
    return new
