"""How many samples an update counts for."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Literal

from edgefl.client.stage import Stage, StagePlace, Turn
from edgefl.records import Update

CLAIMS = 3
"""A claimed number of samples counts up to so many times the median of the round."""


@dataclass(frozen=True)
class Capped(Stage):
    """An update counts for at most so many samples.

    Attributes:
        most: the cap; "auto": :data:`CLAIMS` times the median of the claims, and no cap on counts that the server knows.
    """

    most: int | Literal["auto"] = "auto"

    place = StagePlace.CAPPED

    def cap(self, claims: Iterable[int] = ()) -> int | None:
        """Return the cap in a round in which clients make these ``claims``; none: the server knows the counts. None: no cap.

        The lower median is taken: with two claims, the smaller one decides.

        >>> Capped().cap([100, 120, 10**9]), Capped().cap([100, 10**9]), Capped().cap(), Capped(50).cap([100])
        (360, 300, None, 50)
        """
        if self.most != "auto":
            return self.most
        known = sorted(claims)
        return CLAIMS * median_low(known) if known else None

    def counts(self, client: int, samples: int, turn: Turn) -> int:
        """Return the samples that an update counts for."""
        if not turn.claims and self.most == "auto":
            return samples
        caps: dict[int, int | None] = turn.notes(self, dict)  # claims only grow within a round
        if len(turn.claims) not in caps:
            caps[len(turn.claims)] = self.cap(turn.claims)
        cap = caps[len(turn.claims)]
        return samples if cap is None else min(samples, cap)

    @property
    def folds(self) -> bool:
        """True: the weight of an update in a sum is capped already."""
        return True

    def admit(self, update: Update, turn: Turn) -> Update:
        """Cap the samples of the update, and note it."""
        counted = self.counts(update.client, update.samples, turn)
        if counted == update.samples:
            return update
        turn.note(update, counted_samples=counted)
        return replace(update, samples=counted)
