"""Draws that keep the share of every label."""

from __future__ import annotations

import numpy as np


def apportion(sizes: np.ndarray, count: int) -> np.ndarray:
    """Return how many of ``count`` fall to each of ``sizes``, in proportion; the rest goes to the largest remainders, the first of several.

    >>> apportion(np.array([50, 30, 20]), 7).tolist()
    [4, 2, 1]
    """
    exact = sizes * count / sizes.sum()
    take = np.floor(exact).astype(np.int64)
    for position in np.argsort(take - exact, kind="stable")[: count - take.sum()]:
        take[position] += 1
    return take


def stratified(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return ``count`` different sample numbers, ascending, each of ``labels`` (n,) having its share among them."""
    values, sizes = np.unique(labels, return_counts=True)
    return drawn(labels, dict(zip(values.tolist(), apportion(sizes, count).tolist(), strict=True)), rng)


def drawn(labels: np.ndarray, wanted: dict[int, int], rng: np.random.Generator) -> np.ndarray:
    """Return sample numbers, ascending: ``wanted[label]`` different ones of each label, or all of them if there are fewer."""
    chosen = [rng.permutation(np.flatnonzero(labels == label))[:count] for label, count in wanted.items()]
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)
