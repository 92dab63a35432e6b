"""Whether tensors are finite: checked for everything that travels or is summed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def is_finite(tensor: Tensor) -> bool:
    """Return whether all values are finite: if one is not, the sum is not; if the sum overflows, every value is checked.

    >>> import torch
    >>> is_finite(torch.tensor([3e38, 3e38])), is_finite(torch.tensor([1.0, float("nan")]))
    (True, False)
    """
    return math.isfinite(tensor.sum()) or bool(tensor.isfinite().all())
