"""Who holds what: the training samples and the held-out samples of every client of a run."""

from __future__ import annotations

import functools

import numpy as np

from edgefl.data import scenario
from edgefl.data.partition import Natural, Partition, parse, split
from edgefl.data.sources import Dataset, Split
from edgefl.data.strata import apportion, drawn
from edgefl.errors import ConfigError, DataError
from edgefl.rng import generator

TEST_SAMPLES = 200


class Shards:
    """The clients' parts of a data set: only sample numbers are held, samples are copied when asked for.

    Without domains the partition rule is applied to all clients at once. With domains the clients are first dealt to them in
    blocks whose sizes differ by at most one, and the rule is applied within each domain.

    Args:
        data: the data set.
        clients: how many.
        partition: ``iid``, ``dirichlet:A``, ``classes:K`` or ``natural``.
        seed: of the run.
        permute_labels: every client has an order of its own for the labels of its domain.
        data_share: the share of its training samples that a client keeps, more than 0 and at most 1.

    Raises:
        ConfigError: the partition or the share is no such thing, or the data have no owners.
        DataError: so many clients cannot share these data this way.

    >>> from edgefl.data.digits import digits
    >>> shards = Shards(digits(), clients=10, partition="iid", seed=0, data_share=0.2)
    >>> shards.sizes[:2], len(shards.train(0)), len(shards.test(0))
    ([29, 29], 29, 200)
    """

    def __init__(
        self,
        data: Dataset,
        clients: int,
        partition: str,
        seed: int,
        permute_labels: bool = False,
        data_share: float = 1.0,
    ) -> None:
        scenario.check_share(data_share)
        if clients < 1:
            raise ConfigError(f"clients: got {clients}, expected at least 1")
        self.data, self.seed, self.permutes = data, seed, permute_labels
        rule = parse(partition)
        self._natural = isinstance(rule, Natural)
        self._domains = np.zeros(clients, np.int64)
        whole = self._split(clients, rule)
        self.indices: tuple[np.ndarray, ...] = tuple(self._kept(client, own, data_share) for client, own in enumerate(whole))

    @property
    def sizes(self) -> list[int]:
        """Training samples of each client."""
        return [len(own) for own in self.indices]

    def size(self, client: int) -> int:
        """Return the training samples of ``client``."""
        return len(self.indices[client])

    @functools.cached_property
    def largest(self) -> int:
        """The most training samples that a client has."""
        return max(self.sizes)

    @functools.cached_property
    def mean(self) -> int:
        """The mean number of training samples of a client, rounded."""
        return max(1, round(sum(self.sizes) / len(self.indices)))

    def train(self, client: int) -> Split:
        """Return a copy of the training samples of ``client``, labelled as it labels them."""
        own = self.indices[client]
        return Split(self.data.train.x[own], self._labelled(client, self.data.train.y[own]))

    def test(self, client: int, limit: int = TEST_SAMPLES) -> Split:
        """Return a copy of at most ``limit`` held-out samples of ``client``, labelled as it labels them; none is there twice.

        Under the natural partition they are drawn from what its owners hold out. Otherwise they come from its domain, its labels in the
        proportions of its training samples; a label of which less is held out gives all it has, and if nothing of any of its labels is
        held out, the draw is over all that its domain holds out.
        """
        if limit < 1:
            raise ConfigError(f"held-out samples of a client: got a limit of {limit}, expected at least 1")
        rng = generator(self.seed, client, "local test")
        pool = self._held_out(client)
        labels = self.data.test.y[pool]
        chosen = np.zeros(0, np.int64)
        if not self._natural:
            values, sizes = np.unique(self.data.train.y[self.indices[client]], return_counts=True)
            wanted = dict(zip(values.tolist(), apportion(sizes, limit).tolist(), strict=True))
            chosen = drawn(labels, wanted, rng)
        if not len(chosen):
            chosen = np.sort(rng.permutation(len(pool))[:limit])
        return Split(self.data.test.x[pool[chosen]], self._labelled(client, labels[chosen]))

    def domain(self, client: int) -> int:
        """Return the number of the domain of ``client``; 0 where there is only one."""
        return int(self._domains[client])

    def permutation(self, client: int) -> np.ndarray:
        """Return what ``client`` calls each label, int64 (classes,): its own order if labels are permuted."""
        if not self.permutes:
            return np.arange(self.data.classes)
        return scenario.permutation(self.seed, client, self.data.classes, self._labels_of(self.domain(client)))

    def present(self, client: int) -> np.ndarray:
        """Return the labels among the training samples of ``client``, as it labels them, ascending."""
        return np.unique(self._labelled(client, self.data.train.y[self.indices[client]]))

    def _split(self, clients: int, rule: Partition) -> list[np.ndarray]:
        data = self.data
        if data.train_domain is None:
            return split(data.train.y, clients, rule, generator(self.seed, "partition"), data.train_owner)
        names = data.domain_names
        if clients < len(names):
            raise DataError(f"{clients} clients for {len(names)} domains ({', '.join(names)}): each domain needs at least one")
        parts: list[np.ndarray] = [np.zeros(0, np.int64)] * clients
        blocks = np.array_split(generator(self.seed, "domains").permutation(clients), len(names))
        for domain, block in enumerate(blocks):
            samples = np.flatnonzero(data.train_domain == domain)
            owners = None if data.train_owner is None else data.train_owner[samples]
            try:
                own = split(data.train.y[samples], len(block), rule, generator(self.seed, domain, "partition"), owners)
            except DataError as error:
                raise DataError(f"domain {names[domain]}: {error}") from None
            for client, part in zip(np.sort(block), own, strict=True):
                parts[client] = samples[part]
            self._domains[block] = domain
        return parts

    def _kept(self, client: int, own: np.ndarray, data_share: float) -> np.ndarray:
        if data_share == 1:
            return own
        return own[scenario.share(self.data.train.y[own], data_share, generator(self.seed, client, "share"))]

    def _labelled(self, client: int, labels: np.ndarray) -> np.ndarray:
        if not self.permutes:
            return labels
        return scenario.permuted(labels, self.permutation(client), self.data.classes, client)

    def _held_out(self, client: int) -> np.ndarray:
        """Return the numbers of the held-out samples that those of ``client`` are drawn from."""
        data = self.data
        if self._natural and data.train_owner is not None and data.test_owner is not None:
            return np.flatnonzero(np.isin(data.test_owner, np.unique(data.train_owner[self.indices[client]])))
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

    def _labels_of(self, domain: int) -> np.ndarray:
        return self._domain_labels[domain]
