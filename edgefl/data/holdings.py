"""The training samples of each client: dealt to all clients at once and stored, or drawn for one client on request."""

import functools

import numpy as np

from edgefl.data import scenario
from edgefl.data.partition import Deal, Index, proportions, split
from edgefl.data.sources import Dataset
from edgefl.errors import DataError
from edgefl.rng import generator, shuffled

_PARTS = 10**6


class Dealt:
    """Every sample belongs to one client of its domain. The sample numbers of all clients are stored."""

    def __init__(self, data: Dataset, clients: int, rule: Deal, seed: int, data_share: float) -> None:
        self._domains = np.zeros(clients, np.int64)
        whole = enumerate(self._split(data, clients, rule, seed))
        groups = data.groups
        self._own = [_kept(groups, own, client, seed, data_share) for client, own in whole]

    def own(self, client: int) -> np.ndarray:
        """Return the client's sample numbers, int64, ascending."""
        return self._own[client]

    def domain(self, client: int) -> int:
        """Return the number of the client's domain."""
        return int(self._domains[client])

    def size(self, client: int) -> int:
        """Return how many samples the client has."""
        return len(self._own[client])

    def _split(self, data: Dataset, clients: int, rule: Deal, seed: int) -> list[np.ndarray]:
        if data.train_domain is None:
            return split(data.groups, clients, rule, generator(seed, "partition"), data.train_owner)
        parts: list[np.ndarray] = [np.zeros(0, np.int64)] * clients
        blocks = np.array_split(generator(seed, "domains").permutation(clients), len(data.domain_names))
        for domain, block in enumerate(blocks):
            samples = np.flatnonzero(data.train_domain == domain)
            owners = None if data.train_owner is None else data.train_owner[samples]
            try:
                own = split(data.groups[samples], len(block), rule, generator(seed, domain, "partition"), owners)
            except DataError as error:
                raise DataError(f"domain {data.domain_names[domain]}: {error}") from None
            for client, part in zip(np.sort(block), own, strict=True):
                parts[client] = samples[part]
            self._domains[block] = domain
        return parts


class Drawn:
    """Every client draws from its domain. ``_order`` has the samples by domain and label; a label's end at ``_ends[domain, label]``."""

    def __init__(self, data: Dataset, clients: int, rule: Index, seed: int, data_share: float) -> None:
        self._labels, self._clients, self._rule, self._seed, self._share = data.groups, clients, rule, seed, data_share
        self._domains = max(1, len(data.domain_names))
        classes = max(1, data.classes)
        group = data.groups if data.train_domain is None else data.train_domain * classes + data.groups
        self._order = np.argsort(group, kind="stable").astype(np.int32)
        sizes = np.bincount(group, minlength=self._domains * classes)
        self._ends = np.cumsum(sizes).reshape(self._domains, classes)
        self._sizes = sizes.reshape(self._domains, classes)
        for domain, have in enumerate(self._sizes.sum(axis=1).tolist()):
            if have < rule.samples:
                where = f"domain {data.domain_names[domain]}: " if data.domain_names else ""
                need = f"{rule.samples} different samples for each client"
                raise DataError(f"{where}{rule}: {need}, but there are only {have} training samples: take at most {have}")

    def own(self, client: int) -> np.ndarray:
        """Return the client's sample numbers, int64, ascending."""
        rng, domain = generator(self._seed, client, "index"), self.domain(client)
        sizes, ends = self._sizes[domain], self._ends[domain]
        if self._rule.alpha is None:
            pools = [(int(ends[0] - sizes[0]), int(ends[-1]), self._rule.samples)]
        else:
            counts = labels_drawn(sizes, self._rule.samples, self._rule.alpha, rng)
            pools = [(int(ends[k] - sizes[k]), int(ends[k]), int(counts[k])) for k in np.flatnonzero(counts)]
        places = [begin + rng.choice(end - begin, count, replace=False, shuffle=False) for begin, end, count in pools]
        own = np.sort(self._order[np.concatenate(places)]).astype(np.int64)
        return _kept(self._labels, own, client, self._seed, self._share)

    def domain(self, client: int) -> int:
        """Return the number of the client's domain: a keyed shuffle of the clients is cut into blocks of sizes that differ by 1 at most."""
        if self._domains == 1:
            return 0
        place = int(shuffled(self._seed, self._clients, np.array([client]), "domains")[0])
        return place * self._domains // self._clients

    def size(self, client: int) -> int:
        """Return the number of the client's samples, the same for all clients."""
        return self._size

    @functools.cached_property
    def _size(self) -> int:
        return len(self.own(0))


def _kept(labels: np.ndarray, own: np.ndarray, client: int, seed: int, data_share: float) -> np.ndarray:
    if data_share == 1:
        return own
    return own[scenario.share(labels[own], data_share, generator(seed, client, "share"))]


def labels_drawn(sizes: np.ndarray, count: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Return a client's number of samples of each label, int64 (labels,), ``count`` in all and at most ``sizes`` (labels,) of each.

    Labels are drawn in proportions from Dir(alpha). Draws beyond a label's size are repeated from the other labels.

    >>> labels_drawn(np.array([5, 0, 5]), 10, 0.1, np.random.default_rng(0)).tolist()
    [5, 0, 5]
    """
    # In whole millionths, so that the last bit of a library's gamma draw cannot change a label.
    weights = np.zeros(len(sizes), np.int64)
    weights[sizes > 0] = np.rint(proportions(int(np.count_nonzero(sizes)), alpha, rng) * _PARTS).astype(np.int64)
    counts = np.zeros(len(sizes), np.int64)
    while missing := count - int(counts.sum()):
        open_ = np.where(counts < sizes, weights, 0)
        ends = np.cumsum(open_ if open_.any() else sizes - counts)
        drawn = np.searchsorted(ends, rng.integers(ends[-1], size=missing), side="right")
        counts = np.minimum(counts + np.bincount(drawn, minlength=len(sizes)), sizes)
    return counts
