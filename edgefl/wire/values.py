"""Which values of an update count. Larger ones are refused, because what a method multiplies them with would leave the range of float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from edgefl.errors import WireError

if TYPE_CHECKING:  # update files are read without torch
    from torch import Tensor

LARGEST = 1e15
"""Largest magnitude of a value in an update. The product of two such factors, of any rank, is finite in float32."""


def check_values(tensors: Mapping[str, Tensor], who: str) -> None:
    """Raise :class:`WireError` if a tensor that ``who`` sent has a value that does not count."""
    for name, tensor in tensors.items():
        if (odd := too_large(tensor.numpy())) is not None:
            raise WireError(f"{who}: {name}: {holds(odd)}")


def holds(odd: float) -> str:
    """Return the message about a value that does not count.

    >>> holds(3e38)
    'holds 3e+38, expected finite values from -1e+15 to 1e+15'
    """
    return f"holds {odd:g}, expected finite values from {-LARGEST:g} to {LARGEST:g}"


def too_large(values: np.ndarray) -> float | None:
    """Return a value that is NaN, infinite or beyond ±:data:`LARGEST`; None if all values count.

    >>> too_large(np.array([1.0, -1e15])), too_large(np.array([1.0, 3e38])), too_large(np.zeros(0))
    (None, 3e+38, None)
    """
    if not values.size or bool(-LARGEST <= values.min() <= values.max() <= LARGEST):  # False for NaN
        return None
    return float(values[~(np.abs(values) <= LARGEST)].flat[0])
