"""Differences between clients besides their samples: permuted labels, and a share of the data; samples that are set apart."""

from dataclasses import replace

import numpy as np

from edgefl.data.sources import Dataset
from edgefl.data.split import Split, part_of_each, stratified
from edgefl.errors import ConfigError, DataError
from edgefl.rng import generator


def validating(data: Dataset, share: float) -> Dataset:
    """Return ``data`` with ``share`` in [0, 1) of its training samples as the test samples, the same ones in every run; 0: ``data`` itself.

    Settings are then chosen without a look at the test samples. Every class of a domain, or every owner, gives its share.

    Raises:
        DataError: an owner has a single sample.
    """
    if share == 0:
        return data
    chosen, rest = _divided(data, share, "validation")
    train, train_owner, train_domain = _samples(data, rest)
    test, test_owner, test_domain = _samples(data, chosen)
    return replace(
        data, train=train, train_owner=train_owner, train_domain=train_domain,
        test=test, test_owner=test_owner, test_domain=test_domain,
    )  # fmt: skip


def publishing(data: Dataset, share: float) -> Dataset:
    """Return ``data`` with ``share`` in [0, 1) of its training samples as public ones, the same ones in every run; 0: ``data`` itself.

    Every class of a domain, or every owner, gives its share, but none its last sample. Nobody reads the labels of these samples.

    >>> from edgefl.data.digits import digits
    >>> data = publishing(digits(), 0.1)
    >>> len(digits().train), len(data.train), len(data.public)
    (1437, 1295, 142)
    """
    if share == 0:
        return data
    chosen, rest = _divided(data, share, "public")
    train, owner, domain = _samples(data, rest)
    return replace(data, train=train, train_owner=owner, train_domain=domain, public=data.train.at(chosen))


def _divided(data: Dataset, share: float, purpose: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of a share of the training samples, of every class of a domain or every owner, and those of the others."""
    domains = data.train_domain
    classes = data.groups if domains is None else domains * max(1, data.classes) + data.groups
    groups = classes if data.train_owner is None else data.train_owner
    chosen = part_of_each(groups, share, generator(0, purpose))
    return chosen, np.setdiff1d(np.arange(len(data.train)), chosen)


def _samples(data: Dataset, numbers: np.ndarray) -> tuple[Split, np.ndarray | None, np.ndarray | None]:
    """Return training samples with their owners and domains."""
    owner, domain = (None if of is None else of[numbers] for of in (data.train_owner, data.train_domain))
    return data.train.at(numbers), owner, domain


def permutation(seed: int, client: int, classes: int, labels: np.ndarray | None = None) -> np.ndarray:
    """Return the labels that ``client`` uses instead of 0 … classes − 1, (classes,) int64: Factorized-FL's permuted labels.

    Only ``labels``, those of the client's domain, are permuted; None: all.

    >>> permutation(0, 1, 6, labels=np.array([3, 4, 5])).tolist()[:3]
    [0, 1, 2]
    """
    own = np.arange(classes) if labels is None else np.unique(labels)
    result = np.arange(classes, dtype=np.int64)
    result[own] = generator(seed, client, "labels").permutation(own)
    return result


def permuted(labels: np.ndarray, order: np.ndarray, classes: int, client: int) -> np.ndarray:
    """Return ``order[labels]``, (n,) int64; DataError if ``order``, that of ``client``, is no permutation of 0 … classes − 1.

    >>> permuted(np.array([0, 2]), np.array([0, 1, 1]), 3, client=5)
    Traceback (most recent call last):
        ...
    edgefl.errors.DataError: client 5: [0, 1, 1] is not a permutation of the 3 labels: 2 is missing and 1 is there 2 times
    """
    if order.shape != (classes,):
        raise DataError(f"client {client}: a permutation of {order.size} labels, but the data have {classes}")
    missing = np.setdiff1d(np.arange(classes), order)
    if len(missing):
        values, counts = np.unique(order, return_counts=True)
        odd = values[(counts > 1) | (values < 0) | (values >= classes)][0]
        fault = f"{missing[0]} is missing and {odd} is there {counts[values == odd][0]} times"
        raise DataError(f"client {client}: {order.tolist()} is not a permutation of the {classes} labels: {fault}")
    return order[labels].astype(np.int64)


def share(labels: np.ndarray, part: float, rng: np.random.Generator) -> np.ndarray:
    """Return the numbers, ascending, of a share ``kept`` in (0, 1] of ``labels`` (n,), stratified by label; at least one."""
    if not 0 < part <= 1:
        raise ConfigError(f"data_share: got {part:g}, expected more than 0 and at most 1 (1 keeps every sample)")
    if part == 1:
        return np.arange(len(labels))
    return stratified(labels, max(1, int(part * len(labels) + 0.5)), rng)
