"""One synchronous round: select, assign, send, train, aggregate."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from edgefl.engine import Engine
from edgefl.fleet.budget import shortfalls
from edgefl.local.client import Job
from edgefl.methods.base import GlobalState, Method
from edgefl.records import Outcome, RoundRecord, Submodel, Tier, Update
from edgefl.rng import generator
from edgefl.server.plan import Plan
from edgefl.wire import decode, encode


@dataclass(frozen=True)
class Schedule:
    """Who takes part: a run's seed, clients per round, how tiers are assigned, and the codec of what comes back."""

    seed: int
    per_round: int
    tier_assignment: str
    codec: str = "fp32"


@dataclass
class Outbox:
    """What is sent in one round. A tier's payload is made once where it is the same for every client of the tier."""

    method: Method
    state: GlobalState
    schedule: Schedule
    round: int
    _made: dict[Tier, tuple[Submodel, bytes]] = field(default_factory=dict)

    def send(self, client: int, tier: Tier) -> tuple[Submodel, bytes]:
        """Return the sub-model for ``client`` and its payload."""
        if self.method.per_client:
            rng = generator(self.schedule.seed, self.round, client, "submodel")
            submodel = self.method.submodel(self.state, tier, rng)
            return submodel, encode(submodel.tensors)
        if tier not in self._made:
            rng = generator(self.schedule.seed, self.round, "submodel")
            submodel = self.method.submodel(self.state, tier, rng)
            self._made[tier] = submodel, encode(submodel.tensors)
        return self._made[tier]


def play_round(
    method: Method,
    state: GlobalState,
    plan: Plan,
    schedule: Schedule,
    shard_sizes: Sequence[int],
    engine: Engine,
    round_: int,
    clock_s: float,
) -> tuple[GlobalState, RoundRecord]:
    """Play round ``round_`` (from 1) and return the next state and the record, whose accuracy is still empty.

    A round in which nobody could train, or all diverged, leaves the state as it was.
    """
    started = time.perf_counter()
    outbox = Outbox(method, state, schedule, round_)
    planned = [_plan_client(plan, schedule, int(c), shard_sizes[int(c)], round_) for c in _select(plan, schedule, round_)]
    sent: dict[int, Submodel] = {}
    outcomes = {outcome.client: outcome for outcome in planned}

    def jobs() -> Iterator[Job]:
        for outcome in planned:
            if outcome.tier is not None and outcome.status == "trained":
                sent[outcome.client], payload = outbox.send(outcome.client, outcome.tier)
                yield Job(round_, outcome.tier, payload, replace(outcome, download_bytes=len(payload)))

    def updates() -> Iterator[Update]:
        for outcome in engine.map(jobs()):
            outcomes[outcome.client] = replace(outcome, payload=b"")
            submodel = sent.pop(outcome.client)
            if outcome.status == "trained":
                shapes = {name: tuple(t.shape) for name, t in submodel.tensors.items()}
                tensors = decode(outcome.payload, shapes, f"client {outcome.client}", schedule.codec)
                yield Update(outcome.client, submodel.tier, tensors, submodel.places, outcome.samples)

    arriving = updates()
    first = next(arriving, None)
    if first is not None:
        state = method.aggregate(state, chain([first], arriving))
    round_s = max((o.timing.total_s for o in outcomes.values() if o.timing), default=0.0)
    record = RoundRecord(
        round=round_,
        outcomes=tuple(outcomes.values()),
        round_s=round_s,
        clock_s=clock_s + round_s,
        accuracy={},
        host_s=time.perf_counter() - started,
    )
    return state, record


def _select(plan: Plan, schedule: Schedule, round_: int) -> np.ndarray:
    rng = generator(schedule.seed, round_, "select")
    return np.sort(rng.choice(plan.population.clients, schedule.per_round, replace=False))


def _plan_client(plan: Plan, schedule: Schedule, client: int, samples: int, round_: int) -> Outcome:
    """Return the outcome to expect: a refusal with its reasons, or a part in training with its simulated cost."""
    class_plan = plan.classes[plan.population.class_of(client)]
    device = class_plan.device
    fits = [c.fits for c in plan.classes]
    tier = plan.population.assign(schedule.tier_assignment, fits, client, round_)
    if tier is None:
        return Outcome(client, device.name, "refused", samples=samples, refusal=class_plan.refusals)
    cost, timing = plan.costs[tier], plan.timing(device, tier, samples)
    if short := shortfalls(cost, timing, class_plan.budget, device.name, tier):
        return Outcome(client, device.name, "refused", tier, samples, refusal=short)
    return Outcome(client, device.name, "trained", tier, samples, timing=timing, macs=plan.macs(tier, samples))
