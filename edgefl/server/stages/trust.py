"""What the server believes of updates: how many samples they count for, and how much they may differ from each other."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Literal

from edgefl.client.stage import Stage, Turn
from edgefl.errors import AggregationError
from edgefl.records import Update
from edgefl.server.coordinates import Changes
from edgefl.server.defence import Defence
from edgefl.server.outliers import cosines

CLAIMS = 3
"""A claimed number of samples counts up to so many times the median of the round."""


@dataclass(frozen=True)
class Capped(Stage):
    """An update counts for at most so many samples.

    Attributes:
        most: the cap; "auto": :data:`CLAIMS` times the median of the claims, and no cap on counts that the server knows.
    """

    most: int | Literal["auto"] = "auto"

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


@dataclass(frozen=True)
class Compared(Stage):
    """Each update is compared with the others of its tier; what is aggregated stays the same."""

    def admit(self, update: Update, turn: Turn) -> Update:
        """Hold the update until the round is over, as the client sent it."""
        turn.notes(self, list).append(replace(update, sent=update.start))
        return update

    def record(self, turn: Turn) -> Mapping[str, object]:
        """Note the cosine of each change and the median of its tier's, see :mod:`edgefl.server.outliers`."""
        held: list[Update] = turn.notes(self, list)
        found = cosines(held)
        for update in held:
            turn.note(update, cosine=found.get(update.client))
        return {}


@dataclass(frozen=True)
class Defended(Stage):
    """A robust aggregation as a step before the method's own."""

    defence: Defence

    def together(self, updates: Iterator[Update], turn: Turn) -> Iterator[Update]:
        """Yield the updates that the defence leaves, once all of them have arrived; AggregationError if it returns something else."""
        method, state = turn.method, turn.model
        arrived = sorted(method.checked(state, updates), key=lambda update: update.client)
        changes = tuple(replace(update, sent=update.start) for update in arrived)
        left: object = self.defence.defended(Changes(changes, state.tensors, method.label_rows(state.architecture)))
        if not isinstance(left, Sequence) or not left or not all(isinstance(update, Update) for update in left):
            got = "no updates" if isinstance(left, Sequence) and not left else type(left).__name__
            raise AggregationError(f"defence {self.defence.name}: defended returned {got}, expected a list of updates")
        clients = {update.client for update in left}
        for update in arrived:
            if update.client not in clients:
                turn.note(update, dropped=True)
        yield from (replace(update, sent={}) for update in left)
