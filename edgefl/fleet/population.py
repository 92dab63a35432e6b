"""Who a client is: its class of devices, and the tier that it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edgefl.fleet.profile import DeviceProfile, Fleet
from edgefl.records import Tier
from edgefl.rng import generator


@dataclass(frozen=True)
class Population:
    """``clients`` devices mixed as the fleet says; ``seed`` decides who is which."""

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
    def _classes(self) -> np.ndarray:
        ordered = np.repeat(np.arange(len(self.fleet.classes)), self.class_counts())
        return generator(self.seed, "population").permutation(ordered)

    def class_of(self, client: int) -> int:
        """Return the number of the client's class in ``fleet.classes``."""
        return int(self._classes[client])

    def device(self, client: int) -> DeviceProfile:
        """Return the client's device."""
        return self.fleet.classes[self.class_of(client)].device

    def assign(self, policy: str, fits: Sequence[Sequence[Tier]], client: int, round_: int) -> Tier | None:
        """Return the tier of ``client`` in a round, None where none fits its class.

        Args:
            policy: ``auto``, the largest that fits; ``uniform``, one drawn once from those that fit; ``dynamic``, drawn each round.
            fits: per class, the tiers that fit it, largest first.
            client: its number.
            round_: the round's number.
        """
        options = fits[self.class_of(client)]
        if not options:
            return None
        if policy == "auto":
            return options[0]
        key = (client, "tier") if policy == "uniform" else (round_, client, "tier")
        return options[int(generator(self.seed, *key).integers(len(options)))]

    def assign_by_shares(
        self, policy: str, fits: Sequence[Sequence[Tier]], client: int, round_: int, shares: Mapping[Tier, float]
    ) -> Tier | None:
        """Return the tier of ``client`` where ``shares`` of the clients are to train each tier.

        Under ``uniform`` the shares are exact up to rounding: a seeded deal of the clients; under ``dynamic`` they are the chances of a
        draw each round. A client whose class the dealt tier does not fit takes the next smaller one that does, else the smallest larger.
        """
        options = fits[self.class_of(client)]
        if not options:
            return None
        position = (self._deal[client] + 0.5) / self.clients if policy == "uniform" else None
        point = float(generator(self.seed, round_, client, "tier").random()) if position is None else position
        ends = np.cumsum(list(shares.values()))
        dealt = list(shares)[min(int(np.searchsorted(ends, point * ends[-1], side="right")), len(shares) - 1)]
        smaller = [tier for tier in options if tier <= dealt]
        return smaller[0] if smaller else options[-1]

    @cached_property
    def _deal(self) -> np.ndarray:
        return generator(self.seed, "tier shares").permutation(self.clients)
