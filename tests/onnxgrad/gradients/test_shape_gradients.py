"""Gradients of what moves values, picks or sums them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gradient_case import Array, Case, check, draw, integers
from torch import Tensor


def cut(x: Array, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Case:
    names = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    where = [slice(None)] * x.ndim
    for i, axis in enumerate(axes or range(len(starts))):
        where[axis] = slice(starts[i], ends[i], steps[i] if steps else 1)
    places = [torch.tensor(np.arange(x.shape[axis])[part].copy()) for axis, part in enumerate(where)]

    def forward(x: Tensor) -> Tensor:
        for axis, index in enumerate(places):
            if where[axis] != slice(None):
                x = x.index_select(axis, index)
        return x

    inputs = {"x": x} | {n: None if v is None else integers(*v) for n, v in names.items()}
    while list(inputs.values())[-1] is None:
        inputs.popitem()
    return Case("Slice", inputs, forward, batch=() if where[0] != slice(None) else ("x",))


def reduced(kind: str, x: Array, forward: Any, axes: Any = None, batch: Any = ("x",), **attributes: Any) -> Case:
    """``forward``: of the map, the axes, and whether they are kept."""
    inputs = {"x": x} | ({} if axes is None else {"axes": integers(*axes)})
    kept = bool(attributes.get("keepdims", 1))
    where = list(range(x.ndim)) if axes is None else list(axes)
    return Case(kind, inputs, lambda x: forward(x, where, kept), attributes, batch=batch)


def spread(x: Tensor, *shape: int) -> Tensor:
    return x.expand(*shape)


def norm(p: float) -> Any:
    return lambda x, axes, kept: torch.linalg.vector_norm(x, p, axes, kept)


REDUCED: dict[str, Any] = {
    "ReduceSum": torch.sum,
    "ReduceMean": torch.mean,
    "ReduceMax": torch.amax,
    "ReduceMin": torch.amin,
    "ReduceL1": norm(1),
    "ReduceL2": norm(2),
    "ReduceLogSumExp": torch.logsumexp,
    "ReduceSumSquare": lambda x, axes, kept: (x * x).sum(axes, kept),
}
WHOLE = np.random.default_rng(1).integers(0, 2, (3, 4, 3)).astype(np.float64)

CASES = [
    Case("Reshape", {"x": draw(3, 2, 4), "to": integers(-1, 8)}, lambda x: x.flatten(1)),
    Case("Reshape", {"x": draw(3, 8), "to": integers(0, 2, -1)}, lambda x: x.unflatten(1, (2, 4))),
    Case("Flatten", {"x": draw(3, 2, 4)}, lambda x: x.flatten(1)),
    Case("Squeeze", {"x": draw(3, 1, 4, 1), "axes": integers(1, -1)}, lambda x: x.squeeze((1, 3))),
    Case("Unsqueeze", {"x": draw(3, 4), "axes": integers(1, -1)}, lambda x: x[:, None, :, None]),
    Case("Transpose", {"x": draw(3, 2, 4)}, lambda x: x.permute(0, 2, 1), {"perm": [0, 2, 1]}),
    Case("Transpose", {"x": draw(2, 3, 4)}, lambda x: x.permute(2, 0, 1), {"perm": [2, 0, 1]}, batch=()),
    Case("Transpose", {"x": draw(3, 4)}, lambda x: x.T, batch=()),
    Case("Expand", {"x": draw(3, 1, 4), "to": integers(1, 2, 4)}, lambda x: spread(x, x.shape[0], 2, 4)),
    Case("Expand", {"x": draw(2, 1), "to": integers(3, 1, 4)}, lambda x: spread(x, 3, 2, 4), batch=()),
    Case("Concat", {"x": draw(3, 2), "b": draw(3, 4)}, lambda *t: torch.cat(t, 1), {"axis": 1}, batch=("x", "b")),
    Case("Concat", {"x": draw(3, 2)}, lambda x: x, {"axis": -1}),
    Case("Split", {"x": draw(3, 5), "sizes": integers(2, 3)}, lambda x: x.split([2, 3], 1), {"axis": 1}, outputs=2),
    Case("Split", {"x": draw(3, 6)}, lambda x: x.chunk(3, 1), {"axis": -1, "num_outputs": 3}, outputs=3),
    Case("Pad", {"x": draw(3, 2, 4), "pads": integers(0, 1, 2, 0, 0, 3)}, lambda x: F.pad(x, (2, 3, 1, 0))),
    Case(
        "Pad",
        {"x": draw(3, 4), "pads": integers(1, 0), "v": np.array(2.0), "axes": integers(1)},
        lambda x, v: F.pad(x, (1, 0), value=2.0),
        constants=("v",),
    ),
    Case(
        "Pad",
        {"x": draw(3, 5, 4), "pads": integers(0, -1, 2, 0, 1, -3), "v": np.array(2.0)},
        lambda x, v: F.pad(x, (2, -3, -1, 1), value=2.0),
        constants=("v",),
        reference=False,  # onnx's evaluator has no negative pads
    ),
    Case("Tile", {"x": draw(3, 2), "times": integers(1, 3)}, lambda x: x.repeat(1, 3)),
    Case("Tile", {"x": draw(2, 3), "times": integers(2, 2)}, lambda x: x.repeat(2, 2), batch=()),
    cut(draw(3, 6), [1], [4], [1]),
    cut(draw(3, 6), [0], [6], [1], [2]),
    cut(draw(3, 7, 4), [1, 0], [6, 3], [1, 2], [3, 1]),
    cut(draw(3, 6), [-1], [-100], [1], [-1]),
    cut(draw(3, 6), [4], [0], [1], [-2]),
    cut(draw(5, 4), [1, 0], [-1, 2]),
    Case("Gather", {"x": draw(3, 4, 2), "i": np.array(2)}, lambda x: x[:, 2], {"axis": 1}),
    Case("Gather", {"x": draw(3, 4, 2), "i": np.array([-1])}, lambda x: x[:, -1:], {"axis": 1}),
    Case(
        "Gather",
        {"x": draw(5, 2), "i": np.array([[0, 3], [3, 1], [3, 3]])},
        lambda x: x[torch.tensor([[0, 3], [3, 1], [3, 3]])],
        batch=(),
    ),
    Case("Gather", {"x": draw(5, 2), "i": np.array([[0, 3], [3, 1]])}, lambda x: x[torch.tensor([[0, 3], [3, 1]])], batch=()),
    Case("GatherND", {"x": draw(5, 3), "i": np.array([[0], [3], [3], [-1]])}, lambda x: x[torch.tensor([0, 3, 3, -1])], batch=()),
    Case(
        "GatherND",
        {"x": draw(3, 4, 2), "i": np.array([[[2, 1], [-1, -3]], [[0, 3], [0, 0]]])},
        lambda x: x[torch.tensor([[2, -1], [0, 0]]), torch.tensor([[1, -3], [3, 0]])],
        batch=(),
    ),
    Case("GatherND", {"x": draw(3, 2), "i": np.array([[1, 1], [-2, 1], [0, 0]])}, lambda x: x[[1, -2, 0], [1, 1, 0]], batch=()),
    Case(
        "GatherElements",
        {"x": draw(2, 4), "i": np.array([[0, 3, 3], [1, 1, 2]])},
        lambda x: x.gather(1, torch.tensor([[0, 3, 3], [1, 1, 2]])),
        {"axis": 1},
        batch=(),
    ),
    Case(
        "ScatterElements",
        {"x": draw(2, 4), "i": np.array([[0, 3, 3], [1, 1, 2]]), "u": draw(2, 3)},
        lambda x, u: x.scatter_add(1, torch.tensor([[0, 3, 3], [1, 1, 2]]), u),
        {"axis": 1, "reduction": "add"},
        batch=(),
    ),
    Case(
        "ScatterElements",
        {"x": draw(2, 4), "i": np.array([[0, 3], [1, 2]]), "u": draw(2, 2)},
        lambda x, u: x.scatter(1, torch.tensor([[0, 3], [1, 2]]), u),
        {"axis": 1},
        batch=(),
    ),
    Case(
        "ScatterND",
        {"x": draw(4, 3), "i": np.array([[1], [3]]), "u": draw(2, 3)},
        lambda x, u: x.index_copy(0, torch.tensor([1, 3]), u),
        batch=(),
    ),
    *(reduced(kind, draw(3, 4, 2), own, (1,), keepdims=0) for kind, own in REDUCED.items()),
    *(reduced(kind, draw(3, 4, 2), own, (-1, 1)) for kind, own in REDUCED.items()),
    *(reduced(kind, draw(3, 4), own, keepdims=0) for kind, own in REDUCED.items()),
    *(reduced(kind, draw(3, 4), own, (0,), keepdims=0) for kind, own in REDUCED.items()),
    reduced("ReduceSum", draw(3, 4), lambda x, *_: x, (), noop_with_empty_axes=1),
    Case("ReduceMax", {"x": WHOLE, "axes": integers(1)}, lambda x: x.amax(1, True), exact=False),  # several are as large
    Case("ReduceMin", {"x": WHOLE, "axes": integers(1)}, lambda x: x.amin(1, True), exact=False),
    Case(
        "ReduceL2", {"x": np.zeros((2, 3)), "axes": integers(1)}, lambda x: torch.linalg.vector_norm(x, 2, 1, True), exact=False
    ),
    Case(
        "ReduceL1", {"x": np.zeros((2, 3)), "axes": integers(1)}, lambda x: torch.linalg.vector_norm(x, 1, 1, True), exact=False
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_shape(case: Case) -> None:
    check(case)
