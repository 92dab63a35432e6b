"""The products of a bilinear layer, and of its gradients: y_k = Σ x_i a_kij z_j, which torch computes as one operation of three factors.

The factors are brought to the same dimensions, of which each has some with size 1. The first two are multiplied and summed over the
dimensions that the third one lacks; the third is multiplied by these sums, which are summed over what remains to be summed.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

_UNROLLED = 1
"""The dimension that torch goes through one by one, so that no more than one of its places is in memory."""


def product_macs(args: Sequence[Any]) -> int:
    """Return the MACs of both products.

    >>> import torch
    >>> x, a, z = torch.zeros(2, 4), torch.zeros(3, 4, 5), torch.zeros(2, 5)
    >>> product_macs((x, a, z, [1, 3], [0], [1, 2], [2, 3])) == 2 * (3 * 4 * 5 + 3 * 5)
    True
    """
    pairs, third = _factors(args)
    return math.prod(pairs) + math.prod(map(max, _summed(pairs, args, args[5]), third))


def buffer_bytes(args: Sequence[Any], out: Tensor) -> int:
    """Return the bytes of the two products of one place of the unrolled dimension; it is summed only when both are there."""
    pairs, third = ([1 if place == _UNROLLED else size for place, size in enumerate(sizes)] for sizes in _factors(args))
    sums = _summed(pairs, args, args[5])
    both = _summed([max(sizes) for sizes in zip(sums, third, strict=True)], args, range(len(sums)))
    return (math.prod(sums) + math.prod(both)) * out.element_size()


def _factors(args: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Return the sizes of the product of the first two factors before it is summed, and those of the third."""
    first, second, third = (_spread(factor.shape, places) for factor, places in zip(args[:3], args[3:6], strict=True))
    return [max(sizes) for sizes in zip(first, second, strict=True)], third


def _spread(shape: Sequence[int], places: Sequence[int]) -> list[int]:
    """Return ``shape`` with a dimension of size 1 at each of ``places``."""
    sizes = list(shape)
    for place in sorted(places):
        sizes.insert(place, 1)
    return sizes


def _summed(sizes: Sequence[int], args: Sequence[Any], places: Sequence[int]) -> list[int]:
    """Return ``sizes`` after the sum over those of ``places`` that the operation sums over."""
    return [1 if place in args[6] and place in places else size for place, size in enumerate(sizes)]
