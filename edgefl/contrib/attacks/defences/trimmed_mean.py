"""trimmed-mean: the coordinate-wise mean without the largest and the smallest changes."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from edgefl.registry import defence
from edgefl.server.defence import Centre


@defence("trimmed-mean", needs=("received_weights", "shared_coordinates", "uploads", "rounds"))
@dataclass(frozen=True)
class TrimmedMean(Centre):
    """Every coordinate changes by the mean of its holders' changes, without the ⌈βk⌉ largest and ⌈βk⌉ smallest of k.

    The strength is β, the share of hostile clients that it expects among the holders of a coordinate. It assumes that honest clients change
    a coordinate alike. At most ⌊(k − 1)/2⌋ are cut off at each end: three clients give their median, two their mean, and one its own
    change. Samples do not weigh.

    Yin et al. 2018, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates.
    Differs from the paper: βk is rounded up, so that few holders are defended too.

    >>> import torch
    >>> TrimmedMean(0.2).centre(torch.tensor([[1.0], [3.0], [-90.0], [2.0], [80.0]]).double()).tolist()
    [2.0]
    """

    usual_strength: ClassVar[float] = 0.2
    most: ClassVar[float | None] = 0.5

    def centre(self, values: Tensor) -> Tensor:
        count = len(values)
        cut = min(math.ceil(self.strength * count - 1e-9), (count - 1) // 2)
        return values.sort(0).values[cut : count - cut].mean(0)
