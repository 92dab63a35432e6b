"""The training samples and the held-out samples of every client of a run."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from edgefl.data import scenario
from edgefl.data.holdings import Dealt, Drawn
from edgefl.data.partition import Index, Natural, parse
from edgefl.data.scenario import apportion, drawn
from edgefl.data.sources import Dataset, Split
from edgefl.errors import ConfigError, DataError
from edgefl.rng import generator

TEST_SAMPLES = 200


class Shards:
    """The clients' parts of a data set: sample numbers at most; samples are copied on request.

    With domains, the clients are first divided into blocks whose sizes differ by at most one, and the ``partition`` (:func:`parse`)
    applies within each. ``permute_labels``: every client has its own order of the labels of its domain; ``data_share`` in (0, 1]: the
    share of its training samples that a client keeps. ConfigError or DataError if a value is wrong, or the data cannot be shared this way.

    >>> from edgefl.data.digits import digits
    >>> shards = Shards(digits(), clients=10, partition="iid", seed=0, data_share=0.2)
    >>> len(shards), shards.size(0), len(shards.train(0)), len(shards.test(0))
    (10, 29, 29, 200)
    >>> len(Shards(digits(), clients=1_000_000, partition="index:60:0.5", seed=0).train(999_999))
    60
    """

    def __init__(
        self, data: Dataset, clients: int, partition: str, seed: int, permute_labels: bool = False, data_share: float = 1.0
    ) -> None:
        scenario.check_share(data_share)
        if clients < 1:
            raise ConfigError(f"clients: got {clients}, expected at least 1")
        rule = parse(partition)
        if clients < len(data.domain_names):
            names = f"{len(data.domain_names)} domains ({', '.join(data.domain_names)})"
            raise DataError(f"{clients} clients for {names}: each domain needs at least one")
        self.data, self.seed, self.permutes, self._clients = data, seed, permute_labels, clients
        self._natural = isinstance(rule, Natural)
        kind: Any = Drawn if isinstance(rule, Index) else Dealt
        self._holdings: Dealt | Drawn = kind(data, clients, rule, seed, data_share)

    def __len__(self) -> int:
        """Return how many clients there are."""
        return self._clients

    def own(self, client: int) -> np.ndarray:
        """Return the numbers of the training samples of ``client``, int64, ascending."""
        return self._holdings.own(self._checked(client))

    def size(self, client: int) -> int:
        """Return how many training samples ``client`` has."""
        return self._holdings.size(self._checked(client))

    @functools.cached_property
    def _sizes(self) -> list[int]:
        """Sizes of all clients, or of the first one where they are all the same."""
        return [self._holdings.size(client) for client in range(1 if isinstance(self._holdings, Drawn) else self._clients)]

    @property
    def largest(self) -> int:
        """The largest number of training samples of a client."""
        return max(self._sizes)

    @property
    def mean(self) -> int:
        """Training samples of a client on average, rounded, at least 1."""
        return max(1, round(sum(self._sizes) / len(self._sizes)))

    def train(self, client: int) -> Split:
        """Return a copy of the training samples of ``client``, with its own labels."""
        own = self.own(client)
        return Split(self.data.train.x[own], self._labelled(client, self.data.train.y[own]))

    def test(self, client: int, limit: int = TEST_SAMPLES) -> Split:
        """Return a copy of at most ``limit`` held-out samples of ``client``, with its own labels and without duplicates.

        Under the natural partition they come from the held-out samples of its owners. Otherwise they come from its domain, with labels in
        the proportions of its training samples, or with any labels if none of its own has held-out samples.
        """
        if limit < 1:
            raise ConfigError(f"held-out samples of a client: got a limit of {limit}, expected at least 1")
        own = self.own(client)
        rng = generator(self.seed, client, "local test")
        pool = self._held_out(client, own)
        labels = self.data.test.y[pool]
        chosen = np.zeros(0, np.int64)
        if not self._natural:
            values, sizes = np.unique(self.data.train.y[own], return_counts=True)
            wanted = dict(zip(values.tolist(), apportion(sizes, limit).tolist(), strict=True))
            chosen = drawn(labels, wanted, rng)
        if not len(chosen):
            chosen = np.sort(rng.permutation(len(pool))[:limit])
        return Split(self.data.test.x[pool[chosen]], self._labelled(client, labels[chosen]))

    def domain(self, client: int) -> int:
        """Return the number of the domain of ``client``; 0 with a single domain."""
        return self._holdings.domain(self._checked(client))

    def permutation(self, client: int) -> np.ndarray:
        """Return the name that ``client`` has for each label, int64 (classes,): its own order if labels are permuted."""
        if not self.permutes:
            return np.arange(self.data.classes)
        return scenario.permutation(self.seed, client, self.data.classes, self._domain_labels[self.domain(client)])

    def present(self, client: int) -> np.ndarray:
        """Return the labels among the training samples of ``client``, with its own labels, ascending."""
        return np.unique(self._labelled(client, self.data.train.y[self.own(client)]))

    def _checked(self, client: int) -> int:
        if not 0 <= client < self._clients:
            raise IndexError(f"client {client}: there are clients 0 to {self._clients - 1}")
        return client

    def _labelled(self, client: int, labels: np.ndarray) -> np.ndarray:
        if not self.permutes:
            return labels
        return scenario.permuted(labels, self.permutation(client), self.data.classes, client)

    def _held_out(self, client: int, own: np.ndarray) -> np.ndarray:
        """Return the numbers of the held-out samples that those of ``client``, who owns ``own``, are drawn from."""
        data = self.data
        if self._natural and data.train_owner is not None and data.test_owner is not None:
            return np.flatnonzero(np.isin(data.test_owner, np.unique(data.train_owner[own])))
        if data.test_domain is not None:
            return np.flatnonzero(data.test_domain == self.domain(client))
        return np.arange(len(data.test))

    @functools.cached_property
    def _domain_labels(self) -> list[np.ndarray]:
        data = self.data
        if data.train_domain is None or data.test_domain is None:
            return [np.arange(data.classes)]
        return [
            np.union1d(data.train.y[data.train_domain == domain], data.test.y[data.test_domain == domain])
            for domain in range(len(data.domain_names))
        ]
