"""Gradients of entries selected or replaced by index, and of functions of torch that become such operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from function_case import Of, check_network
from gradient_case import Array, Case, check, draw
from torch import Tensor, nn

PLACES = np.array([[0, 3, 3], [1, 1, 2]])
WHOLE = np.random.default_rng(1).integers(-1, 2, (2, 3)).astype(np.float64)


def extreme(reduction: str, x: Array, updates: Array, exact: bool = True) -> Case:
    def forward(x: Tensor, updates: Tensor) -> Tensor:
        return x.scatter_reduce(1, torch.from_numpy(PLACES), updates, f"a{reduction}")

    inputs = {"x": x, "i": PLACES, "u": updates}
    # Not by onnx's evaluator, which computes in place, and so changes what the gradient reads.
    options: dict[str, Any] = {"batch": (), "exact": exact, "reference": False}
    return Case("ScatterElements", inputs, forward, {"axis": 1, "reduction": reduction}, **options)


CASES = [
    Case("Gather", {"x": draw(4, 3, 2), "i": np.array([0, -1, 0])}, lambda x: x[[0, -1, 0]]),
    Case("GatherND", {"x": draw(4, 3, 2), "i": np.array([[0], [-1], [0]])}, lambda x: x[[0, -1, 0]]),
    *(extreme(kind, draw(2, 4), draw(2, 3, seed=1)) for kind in ("max", "min")),
    *(extreme(kind, np.zeros((2, 5)), WHOLE, exact=False) for kind in ("max", "min")),  # several are as large
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradients(case: Case) -> None:
    check(case)


TO = torch.tensor([3, 0, 6, 3, 3, 5, 1])


def scattered(reduce: str, include_self: bool) -> Any:
    return lambda x: (2 * x).scatter_reduce(3, TO.expand_as(x), x, reduce, include_self=include_self)


def added_in_place(x: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add_(1, torch.tensor([3, 0, 3, 1]), x)


def assigned(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, [0, 2]] = y[:, [1, 3]] + x[:, :2] ** 2
    return y


FUNCTIONS = {
    "columns": lambda x: x[:, [0, 2, -1, 2]],
    "rows": lambda x: x[:, :, torch.tensor([1, 4])],
    "last": lambda x: x[..., [3, 0]],
    "mask": lambda x: x[:, torch.tensor([True, False, True, True])],
    "both": lambda x: x[:, [0, 1, 1], [2, 3, 3]],
    "apart": lambda x: x[:, [0, 1], :, [2, -3]],
    "grid": lambda x: x[:, :, [[0], [2]], [[1, 3, -1]]],
    "batch": lambda x: x * x[torch.arange(x.shape[0] - 1, -1, -1)],
    "assigned": assigned,
    "computed": lambda x: x.index_select(1, x[0, 0, 0, :3].argsort()),
    "computed-one": lambda x: x[:, x[0, 0, 0, :3].argmax()],
    "gather": lambda x: x.gather(3, x.argsort(3)[..., :4]),
    "take-along": lambda x: torch.take_along_dim(x, x.argmax(2, keepdim=True), 2),
    "take-along-spread": lambda x: torch.take_along_dim(x[:, :1], TO[:4].reshape(1, 4, 1, 1) % 5, 2),
    "index-add": lambda x: torch.zeros_like(x).index_add(2, torch.tensor([0, 2, 2, 4, 1]), x, alpha=-0.5),
    "index-add-last": lambda x: x.index_add(-1, torch.tensor([3, 3]), x[..., :2] ** 2),
    "index-add-in-place": added_in_place,
    "index-copy": lambda x: x.index_copy(1, torch.tensor([3, 1]), x[:, :2] ** 2),
    "scatter-add": lambda x: torch.zeros_like(x).scatter_add(3, TO.expand_as(x), x),
    **{f"scatter-{kind}-{own}": scattered(kind, own) for kind in ("sum", "mean", "amax", "amin") for own in (True, False)},
    "kth": lambda x: x.kthvalue(2, 2).values,
    "kth-kept": lambda x: torch.kthvalue(x, k=3, keepdim=True)[0],
    "median": lambda x: x.median(3).values,
    "median-even": lambda x: torch.median(x, 1, True)[0],
    "top": lambda x: x.topk(2, 1, largest=False).values,
    "diagonal": lambda x: x.diagonal(1, 2, 3),
    "diagonal-below": lambda x: torch.diagonal(x, -2, dim1=3, dim2=1),
    "diagonal-linalg": lambda x: torch.linalg.diagonal(x, offset=-1),
    "linear": lambda x: F.interpolate(x[:, 0], 11, mode="linear"),
    "nearest-exact": lambda x: F.interpolate(x, (9, 4), mode="nearest-exact"),
    "area": lambda x: F.interpolate(x, (3, 2), mode="area"),
    "distances": lambda x: torch.cdist(x[:, 0], x[:, 1]),
    "distances-own": lambda x: torch.cdist(x[:, 0], x[:, 0]),  # 0 on the diagonal, with the gradient 0
    "distances-1": lambda x: torch.cdist(x[:, :2], x[:, 2:], p=1.0),
    "divisor": lambda x: F.avg_pool2d(x, (2, 3), (2, 1), (1, 0), divisor_override=4),
    "divisor-of-square": lambda x: F.avg_pool2d(x, 2, 1, divisor_override=3),
    "fold": lambda x: F.fold(F.unfold(x, (2, 3), (1, 2), (1, 0)), (5, 7), (2, 3), (1, 2), (1, 0)),
    "crop": lambda x: F.pad(x, (-1, 2, 1, -2), value=2.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    check_network(Of(FUNCTIONS[name]), draw(3, 2, 5, 7).astype(np.float32))


class Biased(nn.Module):
    """Attention with a key and a value of its own, which are repeated for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(6, 2, batch_first=True, add_bias_kv=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return attention of the sequence to itself."""
        found: Tensor = self.layer(x, x, x)[0]
        return found


def test_parameters_repeated_for_each_sample() -> None:
    check_network(Biased(), draw(3, 5, 6).astype(np.float32))
