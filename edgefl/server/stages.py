"""The stages that stand on the server: what it believes of updates, what they count for, and its step with their aggregate."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median_low
from typing import Literal

from torch import Tensor

from edgefl.client.objective import CONTROL, Objective
from edgefl.client.stage import Stage, StagePlace, Turn
from edgefl.errors import AggregationError
from edgefl.methods.capabilities import label_rows
from edgefl.methods.state import Shape, Tensors
from edgefl.methods.updates import checked
from edgefl.records import Observed, Submodel, Update
from edgefl.server.control_variates import SERVER, Control
from edgefl.server.coordinates import Changes
from edgefl.server.defence import Defence
from edgefl.server.optimizer import ServerOptimizer
from edgefl.server.outliers import cosines

CLAIMS = 3
"""A claimed number of samples counts up to so many times the median of the round."""


@dataclass(frozen=True)
class Remembered(Stage):
    """Clients send control variates, or tell by their update how far they moved; the server corrects its step by the sum."""

    objective: Objective

    place = StagePlace.REMEMBERED

    @property
    def name(self) -> str:
        """The objective, for messages."""
        return f"objective {self.objective.name}"

    def beside(self, trained: Mapping[str, Shape]) -> dict[str, Shape]:
        """Return name → shape of the control variates."""
        return self.objective.control_shapes(trained)

    def sends(self, submodel: Submodel, turn: Turn) -> dict[str, Tensor]:
        """Return the server's control variates of a sub-model."""
        return self._control(turn).variates(submodel, turn.trained(submodel.tier))

    def admit(self, update: Update, turn: Turn) -> Update:
        """Add the client's answer to the sums of the round; return the update without control variates."""
        names = turn.trained(update.tier)
        sent = Submodel(update.tier, update.start, dict, update.places)  # type: ignore[arg-type]
        self._control(turn).add(sent, names, update.tensors, turn.model)
        return replace(update, tensors={name: t for name, t in update.tensors.items() if not name.startswith(CONTROL)})

    def step(self, before: Tensors, after: Tensors, turn: Turn) -> Mapping[str, Tensor]:
        """Return the tensors with the objective's correction; store what the server remembers."""
        aggregated, stored = self._control(turn).finish(turn.model, turn.model.replace(after))
        turn.after.update({name: tensor for name, tensor in stored.items() if name.startswith(SERVER)})
        return aggregated.tensors

    def _control(self, turn: Turn) -> Control:
        control: Control = turn.notes(self, lambda: Control(self.objective, turn.memory, turn.clients))
        return control


@dataclass(frozen=True)
class Compared(Stage):
    """Each update is compared with the others of its tier; what is aggregated stays the same."""

    place = StagePlace.COMPARED

    def admit(self, update: Update, turn: Turn) -> Update:
        """Hold the update until the round is over, as the client sent it."""
        turn.notes(self, list).append(replace(update, sent=update.start))
        return update

    def record(self, turn: Turn) -> Observed:
        """Note the cosine of each change and the median of its tier's, see :mod:`edgefl.server.outliers`."""
        updates: list[Update] = turn.notes(self, list)
        cosine_of = cosines(updates)
        for update in updates:
            turn.note(update, cosine=cosine_of.get(update.client))
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
            returned = "no updates" if isinstance(left, Sequence) and not left else type(left).__name__
            raise AggregationError(f"defence {self.defence.name}: defended returned {returned}, expected a list of updates")
        clients = {update.client for update in left}
        for update in arrived:
            if update.client not in clients:
                turn.note(update, dropped=True)
        yield from (replace(update, sent={}) for update in left)


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
        ordered = sorted(claims)
        return CLAIMS * median_low(ordered) if ordered else None

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
class Optimized(Stage):
    """The model moves towards the aggregate of a round by a server optimizer, which stores its slots.

    Attributes:
        lr_shares: the share of the rate in each round, by its rule; the last one holds for rounds after them. Empty: it is constant.
    """

    optimizer: ServerOptimizer
    lr_shares: tuple[float, ...] = ()

    place = StagePlace.STEPPED

    @property
    def name(self) -> str:
        """The class of the optimizer, for messages."""
        return f"server optimizer {type(self.optimizer).__name__}"

    def step(self, before: Tensors, after: Tensors, turn: Turn) -> Mapping[str, Tensor]:
        """Return the optimizer's step from the tensors ``before`` towards their aggregate."""
        share = self.lr_shares[min(turn.number, len(self.lr_shares)) - 1] if self.lr_shares else 1.0
        tensors, slots = replace(self.optimizer, lr=self.optimizer.lr * share).step(before, after, turn.memory)
        turn.after.update(slots)
        return tensors
