"""How samples are distributed: every sample goes to one client, or each client draws its own. Every client has a sample."""

import heapq
import math
from dataclasses import dataclass

import numpy as np

from edgefl.data.flwr_partition import PREFIX, Flwr, parse_flwr, split_by_flwr
from edgefl.errors import ConfigError, DataError, nearest
from edgefl.registry import datasets

_FORMS = (
    "iid, dirichlet:A (A > 0), classes:K (K a whole number of at least 1), natural, "
    "index:S or index:S:A (S a whole number of at least 1, A > 0), flwr:NAME(…)"
)
_KINDS = ("iid", "dirichlet", "classes", "natural", "index", "flwr")


@dataclass(frozen=True)
class Iid:
    """Samples are shuffled and cut into parts whose sizes differ by at most one."""


@dataclass(frozen=True)
class Dirichlet:
    """The samples of each label are split in proportions from Dir(alpha) (Hsu et al. 2019). An empty client gets one of the largest's."""

    alpha: float


@dataclass(frozen=True)
class Classes:
    """Every client has ``per_client`` labels, and the samples of a label are split evenly among its clients."""

    per_client: int


@dataclass(frozen=True)
class Natural:
    """Clients get whole owners, such as speaking roles. The largest remaining one goes to the client with fewest samples."""


@dataclass(frozen=True)
class Index:
    """Every client draws ``samples`` different samples with its own generator; with ``alpha``, labels in proportions from Dir(alpha)."""

    samples: int
    alpha: float | None = None

    def __str__(self) -> str:
        """Return the form that :func:`parse` reads."""
        return f"index:{self.samples}" if self.alpha is None else f"index:{self.samples}:{self.alpha:g}"


Deal = Iid | Dirichlet | Classes | Natural | Flwr
"""Partitions in which a sample goes to one client."""

Partition = Deal | Index


def parse(spec: str) -> Partition:
    """Return the partition ``iid``, ``dirichlet:0.5``, ``classes:3``, ``natural``, ``index:60:0.5`` or ``flwr:NAME(…)``; else ConfigError.

    >>> parse("dirichlet:0.5"), parse("index:60:0.5")
    (Dirichlet(alpha=0.5), Index(samples=60, alpha=0.5))
    """
    if spec.startswith(PREFIX):
        return parse_flwr(spec)
    kind, _, value = spec.partition(":")
    if kind == "iid" and not value:
        return Iid()
    if spec == "natural":
        return Natural()
    try:
        if kind == "dirichlet" and _positive(alpha := float(value)):
            return Dirichlet(alpha)
        if kind == "classes" and (per_client := int(value)) >= 1:
            return Classes(per_client)
        count, skewed, skew = value.partition(":")
        if kind == "index" and (samples := int(count)) >= 1 and (not skewed or _positive(float(skew))):
            return Index(samples, float(skew) if skewed else None)
    except ValueError:
        pass
    hint = nearest(kind, _KINDS) if kind not in _KINDS else ""
    raise ConfigError(f"partition: got {spec!r}, expected {_FORMS};{hint}".removesuffix(";"))


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def split(
    labels: np.ndarray, clients: int, partition: Deal, rng: np.random.Generator, owners: np.ndarray | None = None
) -> list[np.ndarray]:
    """Return each client's sample numbers, int64, ascending, of ``labels`` and ``owners`` (``natural``), (n,) int64, or raise DataError."""
    if not 1 <= clients <= len(labels):
        remedy = f"; --partition index:{min(60, len(labels))} gives any number of clients samples from all of them"
        few = remedy if clients > 0 else ""
        raise DataError(f"{clients} clients cannot share {len(labels)} samples: each needs at least one{few}")
    if isinstance(partition, Iid):
        parts = [np.sort(p) for p in np.array_split(rng.permutation(len(labels)), clients)]
    elif isinstance(partition, Dirichlet):
        parts = _fill_empty(_dirichlet(labels, clients, partition.alpha, rng))
    elif isinstance(partition, Natural):
        parts = _naturally(owners, clients, rng)
    elif isinstance(partition, Flwr):
        parts = split_by_flwr(labels, clients, partition, rng, owners)
    else:
        parts = _by_classes(labels, clients, partition.per_client, rng)
    return [part.astype(np.int64) for part in parts]


def _dirichlet(labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        index = rng.permutation(np.flatnonzero(labels == label))
        shares = proportions(clients, alpha, rng)
        ends = np.rint(np.cumsum(shares) * len(index)).astype(np.int64)
        ends[-1] = len(index)
        owner[index] = np.searchsorted(ends, np.arange(len(index)), side="right")
    return _by_owner(owner, clients)


def proportions(parts: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Return a draw from the symmetric Dirichlet distribution, (parts,) float64 with sum 1, for every finite ``alpha`` > 0.

    >>> proportions(4, 1e308, np.random.default_rng(0)).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    shares = rng.dirichlet(np.full(parts, alpha))
    if np.isfinite(shares).all() and shares.sum() > 0:
        return shares
    # Gamma draws overflow for huge alpha and underflow for tiny alpha. The limits are equal shares, and one share of 1.
    if alpha > 1:
        return np.full(parts, 1 / parts)
    shares = np.zeros(parts)
    shares[rng.integers(parts)] = 1.0
    return shares


def _fill_empty(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Return ``parts``, where every client without samples got one from the client with most at that moment (the first of several)."""
    fullest = [(-len(part), client) for client, part in enumerate(parts)]
    heapq.heapify(fullest)
    for client in [client for client, part in enumerate(parts) if not len(part)]:
        size, largest = fullest[0]
        parts[client], parts[largest] = parts[largest][-1:], parts[largest][:-1]
        heapq.heapreplace(fullest, (size + 1, largest))
    return parts


def _by_classes(labels: np.ndarray, clients: int, per_client: int, rng: np.random.Generator) -> list[np.ndarray]:
    values, sizes = np.unique(labels, return_counts=True)
    if per_client > len(values):
        raise DataError(f"classes:{per_client}: the data have only {len(values)} classes")
    if clients * per_client < len(values):
        places = f"{clients} clients × {per_client} classes"
        raise DataError(f"classes:{per_client}: {places} leave some of the {len(values)} classes without a client")
    holders = _holders(len(values), clients, per_client, rng)
    owner = np.empty(len(labels), np.int64)
    for value, size, who in zip(values, sizes, holders, strict=True):
        if size < len(who):
            raise DataError(f"classes:{per_client}: label {value} has {size} samples for {len(who)} clients that hold it")
        for client, index in zip(who, np.array_split(rng.permutation(np.flatnonzero(labels == value)), len(who)), strict=True):
            owner[index] = client
    return _by_owner(owner, clients)


def _holders(classes: int, clients: int, per_client: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the clients of each class, ascending. The numbers of clients of two classes differ by at most one."""
    order, members = rng.permutation(classes), rng.permutation(clients)
    # A repeated deck of classes, dealt in order: a client's cards are different classes, as it gets at most one deck.
    deck = order[np.arange(clients * per_client) % classes]
    player = np.repeat(members, per_client)
    return [np.sort(player[deck == value]) for value in range(classes)]


def _naturally(owners: np.ndarray | None, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    if owners is None:
        having = [name for name in datasets.names() if datasets.facts(name).get("owners")]
        raise ConfigError(
            f"partition: natural needs samples with owners: give --owner for your own data; {', '.join(having)} have owners"
        )
    _, number, sizes = np.unique(owners, return_inverse=True, return_counts=True)
    if clients > len(sizes):
        raise DataError(f"natural: {clients} clients, but the samples have only {len(sizes)} owners: take at most {len(sizes)}")
    # Owners of one size are in random order, and so are the clients: a client's number says nothing about its size.
    order = rng.permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    smallest = [(0, place, int(client)) for place, client in enumerate(rng.permutation(clients))]
    holder = np.empty(len(sizes), np.int64)
    for one in order:
        samples, place, client = smallest[0]
        holder[one] = client
        heapq.heapreplace(smallest, (samples + int(sizes[one]), place, client))
    return _by_owner(holder[number], clients)


def _by_owner(owner: np.ndarray, clients: int) -> list[np.ndarray]:
    """Return the sample numbers of each client, ascending, from each sample's client ``owner`` (n,)."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1])
