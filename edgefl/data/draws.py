"""Draws of samples that preserve the shares of labels or owners."""

import numpy as np


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
