"""One synchronous round: select, assign, send, train, aggregate."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
from torch import Tensor

from edgefl.engine import Engine
from edgefl.fleet.budget import shortfalls
from edgefl.local.client import Job, trained_shapes
from edgefl.local.objective import PLAIN, Objective
from edgefl.methods.base import GlobalState, Method
from edgefl.records import Outcome, RoundRecord, Submodel, Tier, Update
from edgefl.rng import generator
from edgefl.server.clients import ClientStore
from edgefl.server.control import Control
from edgefl.server.optimizer import AVERAGE, ServerOptimizer
from edgefl.server.plan import Plan
from edgefl.wire import decode, encode

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Schedule:
    """Who takes part and under which rules: what stays the same over all rounds of a run."""

    seed: int
    per_round: int
    tier_assignment: str
    tier_shares: tuple[float, ...] | None = None
    codec: str = "fp32"
    objective: Objective = PLAIN
    optimizer: ServerOptimizer = AVERAGE


@dataclass(frozen=True)
class Standing:
    """What a server has between two rounds: the method's state, the memory of optimizer and objective, the simulated clock."""

    state: GlobalState
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    clock_s: float = 0.0


@dataclass
class Outbox:
    """What is sent in one round. A tier's payload is made once where it is the same for every client of the tier."""

    method: Method
    state: GlobalState
    schedule: Schedule
    control: Control
    round: int
    parameters: dict[Tier, Shapes] = field(default_factory=dict)
    answers: dict[Tier, Shapes] = field(default_factory=dict)
    _made: dict[Tier, tuple[Submodel, bytes]] = field(default_factory=dict)

    def send(self, client: int, tier: Tier) -> tuple[Submodel, bytes]:
        """Return the sub-model for ``client`` and its payload; what it is to answer is the same for all clients of its tier."""
        if tier not in self.answers:
            self.answers[tier] = self.method.upload_shapes(self.state.architecture, tier)
        if self.schedule.objective.remembers and tier not in self.parameters:
            self.parameters[tier] = trained_shapes(self.method, self.state.architecture, tier)
        if self.method.per_client:
            return self._make(tier, client)
        if tier not in self._made:
            self._made[tier] = self._make(tier)
        return self._made[tier]

    def _make(self, tier: Tier, client: int | None = None) -> tuple[Submodel, bytes]:
        key = (self.round, "submodel") if client is None else (self.round, client, "submodel")
        submodel = self.method.submodel(self.state, tier, generator(self.schedule.seed, *key), client)
        control = self.control.variates(submodel, self.parameters.get(tier, {}))
        return submodel, encode({**submodel.tensors, **control})


def play_round(
    method: Method,
    standing: Standing,
    plan: Plan,
    schedule: Schedule,
    shard_sizes: Sequence[int],
    engine: Engine,
    store: ClientStore,
    round_: int,
) -> tuple[Standing, RoundRecord]:
    """Play round ``round_`` (from 1) and return what the server has after it and the record, whose accuracy is still empty.

    A round in which nobody could train, or all diverged, leaves the state as it was.
    """
    started = time.perf_counter()
    state = standing.state
    control = Control(schedule.objective, standing.memory, len(shard_sizes))
    outbox = Outbox(method, state, schedule, control, round_)
    planned = [_plan_client(plan, schedule, int(c), shard_sizes[int(c)], round_) for c in _select(plan, schedule, round_)]
    sent: dict[int, Submodel] = {}
    received: dict[int, Submodel] = {}
    outcomes = {outcome.client: outcome for outcome in planned}

    def jobs() -> Iterator[Job]:
        for outcome in planned:
            if outcome.tier is not None and outcome.status == "trained":
                submodel, payload = outbox.send(outcome.client, outcome.tier)
                sent[outcome.client] = submodel
                received[outcome.client] = replace(submodel, tensors={})
                planned_now = replace(outcome, download_bytes=len(payload))
                yield Job(round_, method, outcome.tier, payload, planned_now, store.get(outcome.client))

    def updates() -> Iterator[Update]:
        for outcome in engine.map(jobs()):
            outcomes[outcome.client] = replace(outcome, payload=b"", kept=b"")
            submodel = sent.pop(outcome.client)
            if outcome.status != "trained":
                continue
            if outcome.kept:
                store.put(outcome.client, outcome.kept)
            names = outbox.parameters.get(submodel.tier, {})
            extra = schedule.objective.control_shapes(names)
            tensors = decode(
                outcome.payload, {**outbox.answers[submodel.tier], **extra}, f"client {outcome.client}", schedule.codec
            )
            control.add(submodel, names, tensors, state)
            tensors = {name: tensor for name, tensor in tensors.items() if name not in extra}
            yield Update(outcome.client, submodel.tier, tensors, submodel.places, outcome.samples)

    arriving = updates()
    memory = standing.memory
    first = next(arriving, None)
    after = state
    if first is not None:
        after = method.aggregate(state, chain([first], arriving))
        after, kept = control.finish(state, after)
        tensors, slots = schedule.optimizer.step(state.tensors, after.tensors, memory)
        after, memory = after.replace(tensors), {**kept, **slots}
    round_s = max((o.timing.total_s for o in outcomes.values() if o.timing), default=0.0)
    record = RoundRecord(
        round=round_,
        outcomes=tuple(outcomes.values()),
        round_s=round_s,
        clock_s=standing.clock_s + round_s,
        accuracy={},
        host_s=time.perf_counter() - started,
        observed=method.observe(state, list(received.values())),
    )
    return Standing(after, memory, record.clock_s), record


def _select(plan: Plan, schedule: Schedule, round_: int) -> np.ndarray:
    rng = generator(schedule.seed, round_, "select")
    return np.sort(rng.choice(plan.population.clients, schedule.per_round, replace=False))


def _plan_client(plan: Plan, schedule: Schedule, client: int, samples: int, round_: int) -> Outcome:
    """Return the outcome to expect: a refusal with its reasons, or a part in training with its simulated cost."""
    class_plan = plan.classes[plan.population.class_of(client)]
    device = class_plan.device
    tier = plan.tier_of(schedule.tier_assignment, schedule.tier_shares, client, round_)
    if tier is None:
        return Outcome(client, device.name, "refused", samples=samples, refusal=class_plan.refusals)
    cost, timing = plan.costs[tier], plan.timing(device, tier, samples)
    if short := shortfalls(cost, timing, class_plan.budget, device.name, tier):
        return Outcome(client, device.name, "refused", tier, samples, refusal=short)
    return Outcome(client, device.name, "trained", tier, samples, timing=timing, macs=plan.macs(tier, samples))
