"""Differences between clients besides their samples: their own label orders, and little data; draws that keep every label's share."""

from __future__ import annotations

import numpy as np

from edgefl.errors import ConfigError, DataError
from edgefl.rng import generator


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


def permutation(seed: int, client: int, classes: int, labels: np.ndarray | None = None) -> np.ndarray:
    """Return the labels that ``client`` uses instead of 0 … classes − 1, int64 (classes,): the label-permuted scenario of Factorized-FL.

    ``labels``, those of the client's domain, are permuted among themselves; None: all.

    >>> permutation(0, 1, 6, labels=np.array([3, 4, 5])).tolist()[:3]
    [0, 1, 2]
    """
    own = np.arange(classes) if labels is None else np.unique(labels)
    result = np.arange(classes, dtype=np.int64)
    result[own] = generator(seed, client, "labels").permutation(own)
    return result


def permuted(labels: np.ndarray, order: np.ndarray, classes: int, client: int) -> np.ndarray:
    """Return ``order[labels]``, int64 (n,); DataError if ``order``, the client's own, is no permutation of 0 … classes − 1.

    >>> permuted(np.array([0, 2]), np.array([0, 1, 1]), 3, client=5)
    Traceback (most recent call last):
        ...
    edgefl.errors.DataError: client 5: [0, 1, 1] is no permutation of the 3 labels: 2 is missing and 1 is there 2 times
    """
    if order.shape != (classes,):
        raise DataError(f"client {client}: a permutation of {order.size} labels, but the data have {classes}")
    missing = np.setdiff1d(np.arange(classes), order)
    if len(missing):
        values, counts = np.unique(order, return_counts=True)
        odd = values[(counts > 1) | (values < 0) | (values >= classes)][0]
        found = f"{missing[0]} is missing and {odd} is there {counts[values == odd][0]} times"
        raise DataError(f"client {client}: {order.tolist()} is no permutation of the {classes} labels: {found}")
    return order[labels].astype(np.int64)


def share(labels: np.ndarray, kept: float, rng: np.random.Generator) -> np.ndarray:
    """Return the sample numbers, ascending, of the share ``kept`` in (0, 1] of a client's samples, by label; at least one."""
    check_share(kept)
    if kept == 1:
        return np.arange(len(labels))
    return stratified(labels, max(1, int(kept * len(labels) + 0.5)), rng)


def check_share(kept: float) -> None:
    """Raise :class:`ConfigError` unless ``kept`` is more than 0 and at most 1."""
    if not 0 < kept <= 1:
        raise ConfigError(f"data_share: got {kept}, expected more than 0 and at most 1 (1 keeps every sample)")
