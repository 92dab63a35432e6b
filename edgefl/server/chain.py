"""The chain of a run: the stages that every update passes, in one order, made once when the run is prepared.

An update leaves its client through the stages in reverse order, so that the first stage of the server opens what the last one of the
client has closed::

    client   leave: outside ─► noise ─► clip ─► codec or masks ─► payload
    worker   decode ─► folded: clip ─► sum of its tier              if every stage allows it
    server   admit: codec or masks ─► objective ─► outliers ─► clip ─► noise ─► outside ─► cap
             together: outside ─► defence
             summed: masks ─► outside ─► central noise
             finish, or Method.aggregate
             step: objective ─► outside ─► server optimizer
             record: all
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from edgefl.client.stage import Stage, TierSums, Turn
from edgefl.client.stages.clip import Clip, Measured
from edgefl.client.stages.coded import PLAIN
from edgefl.methods.base import Method
from edgefl.methods.state import GlobalState, Shape
from edgefl.models.base import Architecture
from edgefl.records import Cost, Expected, Observed, Submodel, Tier, Update
from edgefl.server.meeting import APART, Meeting
from edgefl.server.stages import Compared
from edgefl.server.state import check_aggregated
from edgefl.server.statistics import statistics


@dataclass(frozen=True)
class Chain:
    """The stages of a run.

    Attributes:
        stages: in the order of the server; the first one decodes updates.
    """

    stages: tuple[Stage, ...] = (PLAIN,)

    @classmethod
    def of(cls, stages: Iterable[Stage]) -> Self:
        """Return the chain of ``stages`` in their fixed order: by kind, and those of plug-ins as they are given, for the server."""
        return cls(tuple(sorted(stages, key=lambda stage: stage.place)))

    @property
    def at_clients(self) -> tuple[Stage, ...]:
        """The stages that an update passes on a client, in order."""
        return tuple(at_client for stage in reversed(self.stages) if (at_client := stage.at_client()) is not None)

    @property
    def folds(self) -> bool:
        """Whether updates may be added up where clients train."""
        return all(stage.folds for stage in self.stages)

    @property
    def sums(self) -> bool:
        """Whether a stage needs the sums of tiers."""
        return any(stage.sums for stage in self.stages)

    @property
    def meeting(self) -> Meeting:
        """How the clients of a round wait for one another."""
        return next((stage.meeting for stage in self.stages if stage.meeting is not None), APART)

    def beside(self, trained: Callable[[], Mapping[str, Shape]]) -> dict[str, Shape]:
        """Return name → shape of what travels beside the parameters that ``trained`` returns."""
        return {name: shape for stage in self.stages if stage.writes("beside") for name, shape in stage.beside(trained()).items()}

    def sends(self, submodel: Submodel, turn: Turn) -> dict[str, Tensor]:
        """Return the tensors to send with a sub-model."""
        return {name: tensor for stage in self.stages for name, tensor in stage.sends(submodel, turn).items()}

    def hands(self, session: Expected, weight: int, turn: Turn) -> dict[str, Any]:
        """Return what a client is told for each stage that tells it something."""
        handed = ((stage.name, stage.hands(session, weight, turn)) for stage in self.stages if stage.writes("hands"))
        return {name: value for name, value in handed if value is not None}

    def counts(self, client: int, samples: int, turn: Turn) -> int:
        """Return how many samples an update counts for."""
        for stage in self.stages:
            samples = stage.counts(client, samples, turn)
        return samples

    def admit(self, update: Update, turn: Turn) -> Update:
        """Return one update as the server believes it."""
        for stage in self.stages:
            update = stage.admit(update, turn)
        return update

    def together(self, updates: Iterator[Update], turn: Turn) -> Iterator[Update]:
        """Yield the updates of a round as they are aggregated."""
        for stage in self.stages:
            updates = stage.together(updates, turn)
        return updates

    def summed(self, sums: TierSums, turn: Turn) -> TierSums:
        """Return the sums of a round as they are aggregated."""
        for stage in self.stages:
            sums = stage.summed(sums, turn)
        return sums

    def step(self, after: GlobalState, turn: Turn) -> GlobalState:
        """Return the next model, given the aggregate ``after``. Stages see trained tensors; statistics are those of the aggregate."""
        stages = [stage for stage in self.stages if stage.writes("step")]
        names = statistics(turn.method, turn.model) if stages else frozenset[str]()
        for stage in stages:
            averaged = {name: tensor for name, tensor in after.tensors.items() if name in names}
            trained = {name: tensor for name, tensor in after.tensors.items() if name not in names}
            stepped = after.replace({**averaged, **stage.step(turn.model.tensors, trained, turn)})
            check_aggregated(after, stepped, f"{stage.name}: its step")
            after = stepped
        return after

    def adds(self, cost: Cost, method: Method, architecture: Architecture, tier: Tier, clients: int) -> Cost:
        """Return the cost of a tier with what all stages add to a session."""
        for stage in self.stages:
            cost = stage.adds(cost, method, architecture, tier, clients)
        return cost

    def record(self, turn: Turn) -> Observed:
        """Return the figures of the round, and how many updates were clipped, dropped and capped."""
        figures = {name: figure for stage in self.stages for name, figure in stage.record(turn).items()}
        screened = turn.found.values()
        counts = {
            "clipped": sum(one.clipped for one in screened),
            "dropped": sum(one.dropped for one in screened),
            "capped": sum(one.counted_samples is not None for one in screened),
        }
        bounds = {"clip_norm": figures.pop("clip_norm")} if "clip_norm" in figures else {}
        return {**bounds, **({"screening": counts} if screened else {}), **figures}

    def measuring(self) -> Chain:
        """Return the chain with the norm of every change measured."""
        measured = any(isinstance(stage, Clip | Measured) for stage in self.stages)
        return self if measured else Chain.of((*self.stages, Measured()))

    def comparing(self) -> Chain:
        """Return the chain with every update compared with the others of its tier."""
        compared = any(isinstance(stage, Compared) for stage in self.stages)
        return self if compared else Chain.of((*self.stages, Compared()))
