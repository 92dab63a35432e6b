"""Which operators a bundle's graphs need, in the form that onnxruntime's reduced build reads (``--include_ops_by_config``)."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx
import onnxruntime as ort

from edgefl.util.scratch import scratch_folder

OPERATORS = "required_operators.config"
_ONNX = "ai.onnx"


def operator_file(contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return :data:`OPERATORS` with a line ``domain;opset;operators`` for each domain and opset of the graphs in ``contents``.

    ``contents`` maps paths in the bundle to files. onnxruntime replaces some operators when it loads a graph. Its replacements up to the
    level "extended" are included; those of the highest level depend on the processor.
    """
    operators: dict[tuple[str, int], set[str]] = defaultdict(set)
    with scratch_folder() as folder:
        for path, content in contents.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        for path in contents:
            if path.endswith(".onnx"):
                for domain, opset, operator in (*_operators(folder / path), *_operators(_optimized(folder / path))):
                    operators[domain, opset].add(operator)
    lines = [f"{domain};{opset};{','.join(sorted(names))}\n" for (domain, opset), names in sorted(operators.items())]
    return {OPERATORS: "".join(lines).encode()}


def _optimized(path: Path) -> Path:
    options, out = ort.SessionOptions(), path.with_name("optimized")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath, options.log_severity_level = str(out), 4
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return out


def _operators(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yield domain, opset and name of every operator of a graph and of the graphs inside it."""
    model = onnx.load(path, load_external_data=False)
    opsets = {opset.domain or _ONNX: opset.version for opset in model.opset_import}
    for node in _nodes(model.graph):
        domain = node.domain or _ONNX
        yield domain, opsets[domain], node.op_type


def _nodes(graph: onnx.GraphProto) -> Iterable[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)
