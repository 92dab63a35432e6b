"""What the server believes of updates: how much they may differ from each other."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from edgefl.client.stage import Stage, StagePlace, Turn
from edgefl.errors import AggregationError
from edgefl.methods.capabilities import label_rows
from edgefl.methods.updates import checked
from edgefl.records import Update
from edgefl.server.coordinates import Changes
from edgefl.server.defence import Defence
from edgefl.server.outliers import cosines


@dataclass(frozen=True)
class Compared(Stage):
    """Each update is compared with the others of its tier; what is aggregated stays the same."""

    place = StagePlace.COMPARED

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

    place = StagePlace.DEFENDED

    def together(self, updates: Iterator[Update], turn: Turn) -> Iterator[Update]:
        """Yield the updates that the defence leaves, once all of them have arrived; AggregationError if it returns something else."""
        method, state = turn.method, turn.model
        if (first := next(updates, None)) is None:
            return  # a round without updates changes nothing
        arrived = sorted(checked(method, state, chain([first], updates)), key=lambda update: update.client)
        changes = tuple(replace(update, sent=update.start) for update in arrived)
        left: object = self.defence.defended(Changes(changes, state.tensors, label_rows(method, state.architecture)))
        if not isinstance(left, Sequence) or not left or not all(isinstance(update, Update) for update in left):
            got = "no updates" if isinstance(left, Sequence) and not left else type(left).__name__
            raise AggregationError(f"defence {self.defence.name}: defended returned {got}, expected a list of updates")
        clients = {update.client for update in left}
        for update in arrived:
            if update.client not in clients:
                turn.note(update, dropped=True)
        yield from (replace(update, sent={}) for update in left)
