"""Reading maps at positions that depend on data."""

import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Array, Choices, Operator, Rule, numbers

_MODES = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic", "bicubic": "bicubic"}


def _grid_sample(node: Operator, x: Tensor, grid: Tensor) -> Tensor:
    mode = _MODES[node.get("mode", "linear")]
    if x.dim() not in (4, 5) or (mode == "bicubic" and x.dim() == 5):
        node.refuse(f"{x.dim() - 2} spatial axes with mode {mode!r}: torch samples maps of 2 axes, and volumes without cubic")
    return F.grid_sample(x, grid, mode, node.get("padding_mode", "zeros"), bool(node.get("align_corners", 0)))


def _affine_grid(node: Operator, theta: Tensor, size: Array) -> Tensor:
    return F.affine_grid(theta, numbers(size), bool(node.get("align_corners", 0)))


RULES: dict[str, Rule] = {"GridSample": _grid_sample, "AffineGrid": _affine_grid}
ATTRIBUTES = {"GridSample": "align_corners mode padding_mode", "AffineGrid": "align_corners"}
KNOWN = {"AffineGrid": (1,)}
CHOICES: dict[str, Choices] = {"GridSample": {"mode": tuple(_MODES), "padding_mode": ("zeros", "border", "reflection")}}
