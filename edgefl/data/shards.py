"""The training samples and the held-out samples of every client of a run."""

import functools
import math
from typing import Any

import numpy as np

from edgefl.data import scenario
from edgefl.data.holdings import Dealt, Drawn
from edgefl.data.partition import Classes, Dirichlet, Index, Natural, parse
from edgefl.data.sources import Dataset
from edgefl.data.split import Split, apportion, drawn
from edgefl.errors import ConfigError, DataError
from edgefl.rng import generator

EVALUATED_CLIENTS = 100
"""If a run has more clients, this many are drawn at random and evaluated."""
TEST_SAMPLES, FEWEST_TEST_SAMPLES = 200, 50
"""How many held-out samples of its own a client has at most, and how many at least are worth a figure for each client."""


def held_out_of_each(clients: int, eval_samples: int | None) -> int:
    """Return how many held-out samples of its own a client has at most: all that are evaluated have ``eval_samples`` together, if given.

    >>> held_out_of_each(20, None), held_out_of_each(20, 500), held_out_of_each(4, 500), held_out_of_each(1000, 6000)
    (200, 50, 125, 60)
    """
    if not eval_samples:
        return TEST_SAMPLES
    return min(max(math.ceil(eval_samples / min(clients, EVALUATED_CLIENTS)), FEWEST_TEST_SAMPLES), TEST_SAMPLES)


class Shards:
    """The clients' parts of a data set. Only sample numbers are stored; samples are copied on request.

    With several domains, clients are first divided into blocks whose sizes differ by at most one, and the partition applies in each block.

    Args:
        data: the data set that is divided.
        clients: how many clients there are.
        partition: how samples are divided, see :func:`edgefl.data.partition.parse`.
        seed: seed of the division.
        permute_labels: whether every client has its own order of the labels of its domain.
        data_share: the share of its training samples, in (0, 1], that a client uses.
        test_samples: how many held-out samples of its own a client has at most.

    Raises:
        ConfigError: a value is wrong.
        DataError: the data cannot be divided in this way.

    >>> from edgefl.data.digits import digits
    >>> shards = Shards(digits(), clients=10, partition="iid", seed=0, data_share=0.2)
    >>> len(shards), shards.size(0), len(shards.train(0)), len(shards.test(0))
    (10, 29, 29, 200)
    >>> len(Shards(digits(), clients=1_000_000, partition="index:60:0.5", seed=0).train(999_999))
    60
    """

    def __init__(
        self,
        data: Dataset,
        clients: int,
        partition: str,
        seed: int,
        permute_labels: bool = False,
        data_share: float = 1.0,
        test_samples: int = TEST_SAMPLES,
    ) -> None:
        if not 0 < data_share <= 1:
            raise ConfigError(f"data_share: got {data_share:g}, expected more than 0 and at most 1 (1 keeps every sample)")
        if clients < 1:
            raise ConfigError(f"clients: got {clients}, expected at least 1")
        rule = parse(partition)
        if not data.classes and (permute_labels or isinstance(rule, (Dirichlet, Classes)) or getattr(rule, "alpha", None)):
            what = "permute_labels" if permute_labels else f"partition: {partition}"
            raise ConfigError(f"{what} needs labels, and {data.name} has float32 targets; give partition iid, natural or index:S")
        if clients < len(data.domain_names):
            names = f"{len(data.domain_names)} domains ({', '.join(data.domain_names)})"
            raise DataError(f"{clients} clients for {names}: each domain needs at least one")
        self.data, self.seed, self.permutes, self._clients = data, seed, permute_labels, clients
        self._test_samples = test_samples
        self._natural = isinstance(rule, Natural)
        kind: Any = Drawn if isinstance(rule, Index) else Dealt
        self._holdings: Dealt | Drawn = kind(data, clients, rule, seed, data_share)

    def __len__(self) -> int:
        """Return the number of clients."""
        return self._clients

    def own(self, client: int) -> np.ndarray:
        """Return the numbers of the training samples of ``client``, int64, ascending."""
        return self._holdings.own(self._checked(client))

    def size(self, client: int) -> int:
        """Return the number of training samples of ``client``."""
        return self._holdings.size(self._checked(client))

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The numbers of training samples of all clients, or of the first one if all are equal."""
        return [self._holdings.size(client) for client in range(1 if isinstance(self._holdings, Drawn) else self._clients)]

    @property
    def largest(self) -> int:
        """The number of training samples of the client with most."""
        return max(self.sizes)

    @property
    def mean(self) -> int:
        """The mean number of training samples of a client, rounded, at least 1."""
        return max(1, round(sum(self.sizes) / len(self.sizes)))

    def train(self, client: int) -> Split:
        """Return a copy of the training samples of ``client``, with its own labels."""
        own = self.data.train.taken(self.own(client))
        return Split(own.x, self._labelled(client, own.y))

    def test(self, client: int, limit: int | None = None) -> Split:
        """Return a copy of at most ``limit`` different held-out samples of ``client``, with its own labels; None: the run's limit.

        Under the natural partition they are held-out samples of its owners. Otherwise they are from its domain, with the label shares of
        its training samples, or with any labels if none of its labels has held-out samples. ConfigError for a limit below 1.
        """
        own = self.data.test.taken(self.test_numbers(client, limit))
        return Split(own.x, self._labelled(client, own.y))

    def test_numbers(self, client: int, limit: int | None = None) -> np.ndarray:
        """Return the numbers of the samples of :meth:`test` among the held-out ones, int64."""
        limit = self._test_samples if limit is None else limit
        if limit < 1:
            raise ConfigError(f"held-out samples of a client: got a limit of {limit}, expected at least 1")
        own = self.own(client)
        rng = generator(self.seed, client, "local test")
        pool = self._held_out(client, own)
        chosen = np.zeros(0, np.int64)
        if not self._natural and self.data.classes:
            values, sizes = np.unique(self.data.train.y[own], return_counts=True)
            wanted = dict(zip(values.tolist(), apportion(sizes, limit).tolist(), strict=True))
            chosen = drawn(self.data.test.y[pool], wanted, rng)
        if not len(chosen):
            chosen = np.sort(rng.permutation(len(pool))[:limit])
        return pool[chosen]

    def domain(self, client: int) -> int:
        """Return the number of the domain of ``client``; 0 with a single domain."""
        return self._holdings.domain(self._checked(client))

    def permutation(self, client: int) -> np.ndarray:
        """Return the label that ``client`` uses for each label, (classes,) int64: the same one unless labels are permuted."""
        if not self.permutes:
            return np.arange(self.data.classes)
        return scenario.permutation(self.seed, client, self.data.classes, self._domain_labels[self.domain(client)])

    def present(self, client: int) -> np.ndarray:
        """Return the labels of the training samples of ``client``, permuted if labels are, ascending."""
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
        """Return the numbers of the held-out samples from which those of ``client``, with the training samples ``own``, are drawn."""
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
