"""The clients of a run: their classes of devices, the states of their devices, and their tiers.

What client i is follows from (seed, i) when it is needed, for many clients at once. Only its place among the classes is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from edgefl.fleet.profile import Fleet, State
from edgefl.rng import shuffled, uniforms


@dataclass(frozen=True)
class Population:
    """``clients`` devices in the fleet's mix; ``seed`` decides which client has which device."""

    fleet: Fleet
    clients: int
    seed: int

    def class_counts(self) -> tuple[int, ...]:
        """Return the clients of each class: shares by largest remainder, and at least one each while there are clients enough."""
        shares = [c.share for c in self.fleet.classes]
        exact = [share * self.clients for share in shares]
        counts = [int(x) for x in exact]
        by_remainder = sorted(range(len(shares)), key=lambda i: counts[i] - exact[i])
        for i in by_remainder[: self.clients - sum(counts)]:
            counts[i] += 1
        wanted = [i for i, share in enumerate(shares) if share > 0]
        if self.clients >= len(wanted):
            for i in wanted:
                if counts[i] == 0:
                    counts[counts.index(max(counts))] -= 1
                    counts[i] = 1
        return tuple(counts)

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(self.class_counts())

    def classes(self, clients: np.ndarray) -> np.ndarray:
        """Return the number of each client's class in ``fleet.classes``, int64: over all clients, exactly :meth:`class_counts` of each."""
        clients = np.asarray(clients, np.int64)
        places = _places(self.seed, self.clients)
        if len(new := clients[places[clients] < 0]):
            places[new] = shuffled(self.seed, self.clients, new, "population")
        return np.searchsorted(self._ends, places[clients], side="right")

    def states(self, clients: np.ndarray, states: Sequence[State], round_: int) -> np.ndarray:
        """Return the number of the state in ``states`` that each client's device is in during a round, int64."""
        if len(states) < 2:
            return np.zeros(len(clients), np.int64)
        return _pick(np.array([state.chance for state in states]), uniforms(self.seed, clients, round_, "state"))

    def tiers(self, policy: str, options: np.ndarray, clients: np.ndarray, round_: int) -> np.ndarray:
        """Return which of its options each client is given, int64, −1 where it has none.

        Args:
            policy: ``auto``, the first; ``uniform``, one drawn once; ``dynamic``, drawn each round.
            options: how many each client has, int64, the largest tier first.
            clients: their numbers.
            round_: the round's number.
        """
        if policy == "auto":
            return np.where(options > 0, 0, -1)
        key = ("tier",) if policy == "uniform" else (round_, "tier")
        return np.where(options > 0, np.floor(uniforms(self.seed, clients, *key) * options).astype(np.int64), -1)

    def dealt(self, policy: str, shares: Sequence[float], clients: np.ndarray, round_: int) -> np.ndarray:
        """Return which of ``len(shares)`` tiers each client is dealt, int64, where ``shares`` of the clients are to train each.

        Under ``uniform`` the shares are exact up to rounding, over all clients; under ``dynamic`` they are the chances of each round.
        """
        if policy == "uniform":
            point = (shuffled(self.seed, self.clients, clients, "tier shares") + 0.5) / self.clients
        else:
            point = uniforms(self.seed, clients, round_, "tier")
        return _pick(np.array(shares), point)


@lru_cache(maxsize=4)
def _places(seed: int, clients: int) -> np.ndarray:
    """Return an array for what clients were dealt among all: −1 where nobody has asked yet. The policies of a what-if share it."""
    return np.full(clients, -1, np.int32 if clients < 2**31 else np.int64)


def _pick(shares: np.ndarray, points: np.ndarray) -> np.ndarray:
    ends = np.cumsum(shares)
    return np.minimum(np.searchsorted(ends, points * ends[-1], side="right"), len(shares) - 1)
