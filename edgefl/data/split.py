"""Samples and their labels, as training or held-out part of a data set."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.data.scaled import Scaled
from edgefl.util.fields import each


@dataclass(frozen=True)
class Split:
    """Samples ``x`` (n, …), float32 such as images (n, channels, height, width) or int64 token ids, and labels ``y`` (n,) int64.

    Samples of several inputs are name → such an array. Instead of labels, ``y`` may be the targets of a regression, (n, …) float32.
    """

    x: Any
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)

    def at(self, chosen: np.ndarray) -> "Split":
        """Return a copy of the samples with the numbers ``chosen`` (k,) int64; of a mapped file, only their places."""
        return Split(each(lambda x: x.at(chosen) if isinstance(x, Scaled) else x[chosen], self.x), self.y[chosen])

    def taken(self, index: Any = slice(None)) -> "Split":
        """Return the samples at ``index`` (a slice or int64 numbers) as plain arrays, prepared for a network."""
        return Split(each(lambda x: x[index], self.x), self.y[index])
