"""Tensors among the arguments and results of operations."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Yield the tensors among ``values``: the arguments or the result of an operation, however nested.

    >>> import torch
    >>> [tuple(tensor.shape) for tensor in tensors_in([torch.zeros(2), 3, {"x": torch.zeros(4, 5)}])]
    [(2,), (4, 5)]
    """
    for value in (values,) if isinstance(values, Tensor) else tree_leaves(values):
        if isinstance(value, Tensor):
            yield value
