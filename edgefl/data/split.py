"""Samples and their labels, as training or held-out part of a data set, and draws that preserve the shares of labels or owners."""

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


def apportion(sizes: np.ndarray, count: int) -> np.ndarray:
    """Return ``count`` split in proportion to ``sizes``, int64. Rests go to the largest remainders, of equal ones to the first.

    >>> apportion(np.array([50, 30, 20]), 7).tolist()
    [4, 2, 1]
    """
    exact = sizes * count / sizes.sum()
    take = np.floor(exact).astype(np.int64)
    for position in np.argsort(take - exact, kind="stable")[: count - take.sum()]:
        take[position] += 1
    return take


def stratified(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return ``count`` different sample numbers, ascending, with the label shares of ``labels`` (n,)."""
    values, sizes = np.unique(labels, return_counts=True)
    return drawn(labels, dict(zip(values.tolist(), apportion(sizes, count).tolist(), strict=True)), rng)


def drawn(labels: np.ndarray, wanted: dict[int, int], rng: np.random.Generator) -> np.ndarray:
    """Return different sample numbers, ascending: ``wanted[label]`` of each label, or all of its samples if there are fewer."""
    chosen = [rng.permutation(np.flatnonzero(labels == label))[:count] for label, count in wanted.items()]
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)


def part_of_each(groups: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Return sample numbers, ascending: a ``share`` of each group of ``groups`` (n,), at least one sample and never the last one."""
    values, sizes = np.unique(groups, return_counts=True)
    counts = np.clip(np.rint(share * sizes).astype(np.int64), 1, sizes - 1)
    return drawn(groups, dict(zip(values.tolist(), counts.tolist(), strict=True)), rng)
