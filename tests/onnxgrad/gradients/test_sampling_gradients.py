"""Gradients of sampling a map at computed places."""

from __future__ import annotations

import numpy as np
import pytest
import torch.nn.functional as F
from function_case import Of, check_network
from gradient_case import Case, check, draw
from onnx.parser import parse_model
from torch import Tensor

from edgefl.errors import InputError
from edgefl.onnxgrad.autodiff import append_gradients, tape_of


def sampled(mode: str, padding: str, aligned: bool) -> Case:
    def forward(x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(x, grid, "bilinear" if mode == "linear" else mode, padding, aligned)

    attributes = {"mode": mode, "padding_mode": padding, "align_corners": int(aligned)}
    # Some places are outside of the map.
    inputs = {"x": draw(3, 2, 5, 7), "grid": 0.9 * draw(3, 4, 3, 2, seed=1)}
    return Case("GridSample", inputs, forward, attributes, batch=("x", "grid"), exact=False, reference=False)


CASES = [
    sampled(mode, padding, aligned)
    for mode in ("linear", "nearest")
    for padding in ("zeros", "border")
    for aligned in (False, True)
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradients(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("aligned", [False, True])
def test_a_spatial_transformer(aligned: bool) -> None:
    def transformed(x: Tensor) -> Tensor:
        grid = F.affine_grid(x[:, :2, 0, :3], [x.shape[0], 4, 5, 7], align_corners=aligned)
        return F.grid_sample(x, grid, padding_mode="border", align_corners=aligned)

    check_network(Of(transformed), draw(3, 2, 5, 7).astype(np.float32))


def test_a_form_without_a_rule_is_named() -> None:
    """Exports of torch have another form of it."""
    text = '<ir_version: 9, opset_import: ["": 20]> g (float[3, 2, 5, 7] x, float[3, 4, 3, 2] p) => (float y)'
    body = '{ z = GridSample <padding_mode = "reflection"> (x, p)  y = ReduceSum <keepdims = 0> (z) }'
    with pytest.raises(InputError, match="GridSample.*padding_mode 'reflection'"):
        append_gradients(tape_of(parse_model(text + body)), "y", ["x"])
