"""ONNX's node tests: edgefl's reader computes each in torch, and the stored results tell whether it is right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

from judges.reading import as_network, read
from judges.verdict import Case, Judge, Verdict, skipping

FLOATS = ("float16", "bfloat16", "float32", "float64")
WHOLE = ("int64", "int32", "uint8", "int8", "bool")


@cache
def _cases() -> dict[str, list[Any]]:
    """Return operator → its test cases. A case that spells an operator out in others belongs to that operator."""
    with np.errstate(all="ignore"):  # of the database, which casts values that are too large
        given: list[Any] = [case for case in collect_testcases() if case.model is not None and case.data_sets]
    operators = {case.name: case.model.graph.node[0].op_type for case in given if len(case.model.graph.node) == 1}
    found = defaultdict[str, list[Any]](list)
    for case in given:
        nodes = [node.op_type for node in case.model.graph.node if node.op_type != "Constant"]
        whole = case.name.partition("_expanded")[0]
        found[operators.get(case.name) or operators.get(whole) or (nodes or ["Constant"])[0]].append(case)
    return dict(sorted(found.items()))


def cases(subject: str) -> Iterator[Case]:
    """Return the cases of an operator."""
    for case in _cases()[subject]:
        yield Case(case.name.removeprefix("test_"), skipping(why) if (why := _unfit(case)) else partial(_judged, case))


def _unfit(case: Any) -> str:
    """Return why a case is none for a library of float32 networks; "" if it is one."""
    for values in ((*inputs, *outputs) for inputs, outputs in case.data_sets):
        if not all(isinstance(value, (np.ndarray, np.generic, onnx.TensorProto)) for value in values):
            return "its values are no tensors: sequences or optional values"
        if other := sorted({str(_array(value).dtype) for value in values} - {*FLOATS, *WHOLE}):
            return f"its values are {other[0]}"
    return ""


def _array(value: Any) -> np.ndarray:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _judged(case: Any) -> Verdict:
    for inputs, outputs in case.data_sets:
        model, given = as_network(case.model, [_array(value) for value in inputs])
        found = read(model, given, [_array(value) for value in outputs], max(case.rtol, 1e-4))
        if found.kind != "equal":
            return found
    return found


JUDGE = Judge(
    "ONNX's node tests",
    "The test cases of the package `onnx`, by operators: edgefl reads the graph, and computes it in torch. Its results "
    "are compared with the stored ones, and the MACs of the two counters with each other. Cases with types other than floats of 16 to "
    "64 bits and torch's whole numbers are skipped.",
    ("onnx", "torch"),
    lambda: list(_cases()),
    cases,
    every=8,
)
