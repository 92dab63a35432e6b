"""Gradients of operators that are linear along an axis, of sorting, and of activations with constants or a slope of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from function_case import Of, check_network
from gradient_case import Case, check, draw, integers
from torch import Tensor, nn

X = draw(3, 4, 5, 7)


def resized(form: dict[str, Any], size: list[int] | None, torch_form: Any, scales: list[float] | None = None) -> Case:
    inputs = {"x": X, "roi": None, "scales": None if scales is None else np.array(scales, np.float32)}
    if size is not None:
        inputs["sizes"] = integers(3, 4, *size)
    inputs = {name: value for name, value in inputs.items() if name != "roi"}
    # The sizes contain the batch, so the batch is fixed; onnx's own evaluator and float32 matrices agree to six digits.
    return Case("Resize", {"x": X, "roi": None, **inputs}, torch_form, form, batch=(), tolerance=1e-6, reference=False)


def folded(size: tuple[int, int], kernel: tuple[int, int], windows: int, **form: Any) -> Case:
    inputs = {"x": draw(3, 2 * kernel[0] * kernel[1], windows), "size": integers(*size), "kernel": integers(*kernel)}
    begins = form.get("pads", [0, 0, 0, 0])[:2]
    options = (form.get("dilations", 1), begins, form.get("strides", 1))
    return Case("Col2Im", inputs, lambda x: F.fold(x, size, kernel, *options), form, reference=False)


HALF, CORNERS = {"coordinate_transformation_mode": "half_pixel"}, {"coordinate_transformation_mode": "align_corners"}
FLOOR = {"coordinate_transformation_mode": "asymmetric", "mode": "nearest", "nearest_mode": "floor"}
CASES = [
    Case("PRelu", {"x": X, "s": draw(4, 1, 1, seed=1)}, lambda x, s: F.prelu(x, s.flatten())),
    Case("PRelu", {"x": X, "s": draw(1, seed=2)}, F.prelu),
    Case("Mish", {"x": X}, F.mish, reference=False),
    Case("Selu", {"x": X}, F.selu, tolerance=1e-7),
    Case("Celu", {"x": X}, F.celu, reference=False),
    Case("Celu", {"x": X}, lambda x: F.celu(x, 0.5), {"alpha": 0.5}, reference=False),
    Case("Atan", {"x": X}, torch.atan),
    resized(FLOOR, [11, 4], lambda x: F.interpolate(x, (11, 4))),
    resized(FLOOR, None, lambda x: F.interpolate(x, scale_factor=(3, 2)), [1, 1, 3, 2]),
    resized({"mode": "linear", **HALF}, [9, 13], lambda x: F.interpolate(x, (9, 13), mode="bilinear")),
    resized({"mode": "linear", **HALF}, [3, 5], lambda x: F.interpolate(x, (3, 5), mode="bilinear")),
    resized({"mode": "linear", **CORNERS}, [9, 3], lambda x: F.interpolate(x, (9, 3), mode="bilinear", align_corners=True)),
    resized({"mode": "cubic", "cubic_coeff_a": -0.75, **HALF}, [9, 13], lambda x: F.interpolate(x, (9, 13), mode="bicubic")),
    Case("DepthToSpace", {"x": draw(3, 12, 3, 5)}, lambda x: F.pixel_shuffle(x, 2), {"blocksize": 2, "mode": "CRD"}),
    Case(
        "DepthToSpace",
        {"x": draw(3, 12, 3, 5)},
        lambda x: x.reshape(-1, 2, 2, 3, 3, 5).permute(0, 3, 4, 1, 5, 2).reshape(-1, 3, 6, 10),
        {"blocksize": 2, "mode": "DCR"},
    ),
    Case(
        "SpaceToDepth",
        {"x": draw(3, 2, 6, 10)},
        lambda x: x.reshape(-1, 2, 3, 2, 5, 2).permute(0, 3, 5, 1, 2, 4).reshape(-1, 8, 3, 5),
        {"blocksize": 2},
    ),
    folded((6, 4), (2, 3), 8, dilations=[2, 1]),
    folded((7, 5), (2, 3), 28, pads=[1, 2, 1, 2], strides=[2, 1]),
    Case("CumSum", {"x": X, "axis": np.array(2)}, lambda x: x.cumsum(2)),
    Case("CumSum", {"x": X, "axis": np.array(-1)}, lambda x: x.flip(3).cumsum(3).flip(3), {"reverse": 1}),
    Case("CumSum", {"x": X, "axis": np.array(1)}, lambda x: x.cumsum(1) - x, {"exclusive": 1}),
    Case("Trilu", {"x": X}, torch.triu),
    Case("Trilu", {"x": X, "k": np.array(-1)}, lambda x: x.tril(-1), {"upper": 0}),
    Case("TopK", {"x": X, "k": integers(3)}, lambda x: x.topk(3), outputs=2),
    Case("TopK", {"x": X, "k": integers(5)}, lambda x: x.sort(2), {"axis": 2, "largest": 0}, outputs=2),
    *(
        Case(
            "Pad",
            {"x": X, "pads": integers(0, 0, 2, 1, 0, 0, 3, 4)},
            lambda x, mode=mode: F.pad(x, (1, 4, 2, 3), mode),
            {"mode": own},
        )
        for mode, own in (("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap"))
    ),
    Case("Gather", {"x": X, "at": np.array([[0, 3, 3], [-1, 1, 0]])}, lambda x: x[:, :, [[0, 3, 3], [-1, 1, 0]]], {"axis": 2}),
    Case("Gather", {"x": X, "at": np.array([4, 0, 4])}, lambda x: x[..., [4, 0, 4]], {"axis": 3}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradients(case: Case) -> None:
    check(case)


class Bag(nn.Module):
    """An embedding bag."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(9, 5, **options)

    def forward(self, x: Tensor) -> Tensor:
        """Return the bags of ids."""
        found: Tensor = self.bag(x)
        return found


def attention(x: Tensor, *mask: Tensor, **options: Any) -> Tensor:
    """Attention of a single head."""
    return F.scaled_dot_product_attention(x, 2 * x, x, *(part.to(x.dtype) for part in mask), **options)


def assigned(x: Tensor) -> Tensor:
    """Some entries replaced."""
    y = x.clone()
    y[:, 0] = 2.0
    y[:, 1, :2] = x[:, 0, 1:3] ** 2
    return y


FUNCTIONS = {
    "cumprod": lambda x: x.cumprod(3),
    "cumprod-zero": lambda x: (x * (x > 0)).cumprod(2),
    "prod": lambda x: x.prod(3),
    "prod-zero": lambda x: (x * (x > 0)).prod(2, keepdim=True),
    "attention": lambda x: attention(x.flatten(1, 2)),
    "attention-causal": lambda x: attention(x.flatten(1, 2), is_causal=True),
    "attention-mask": lambda x: attention(x.flatten(1, 2), torch.ones(1, 20, 20).tril()),
    "assigned": assigned,
    "scattered": lambda x: torch.zeros_like(x).scatter(3, torch.tensor([3, 0, 6, 1, 2, 5, 4]).expand_as(x), x),
    "unfold": lambda x: F.unfold(x, (2, 3), dilation=(1, 2), padding=(1, 0), stride=(2, 1)),
    "tensor-unfold": lambda x: x.unfold(3, 3, 2),
    "adaptive-mean": lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    "adaptive-mean-larger": lambda x: F.adaptive_avg_pool2d(x, (None, 9)),
    "adaptive-mean-1d": lambda x: F.adaptive_avg_pool1d(x.flatten(1, 2), 4),
    "adaptive-max": lambda x: F.adaptive_max_pool2d(x, (2, 3)),
    "reflection": lambda x: F.pad(x, (2, 1, 1, 3), "reflect"),
}


@pytest.mark.parametrize(
    "network",
    [
        *(pytest.param(Of(function), id=name) for name, function in FUNCTIONS.items()),
        *(
            pytest.param(Bag(mode=mode, padding_idx=pad), id=f"bag-{mode}-{pad}")
            for mode in ("sum", "mean", "max")
            for pad in (None, 2)
        ),
    ],
)
def test_functions_without_an_operator(network: nn.Module) -> None:
    bag = isinstance(network, Bag)
    check_network(network, np.random.default_rng(0).integers(9, size=(3, 7)) if bag else draw(3, 2, 5, 7).astype(np.float32))
