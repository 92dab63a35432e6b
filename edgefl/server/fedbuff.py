"""Asynchronous training with a buffer, FedBuff (Nguyen et al., AISTATS 2022): clients come and go, the server steps with every K updates.

A fixed number of clients is at work at any time; whoever ends is replaced at once by another. An update that arrives after the server has
made τ steps since its model was sent counts s(τ) = 1/(1 + τ)^p (its section 5, p = 0.5). What the client changed, Δ = received − sent, is
taken for a change of the present model::

    x ← aggregate of (x + s(τ_i) · Δ_i) over the K updates in the buffer

Differs from the paper: updates weigh as the method weighs them (by samples, for most), the paper's alike; the server's rate is that of the
server optimizer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from edgefl.client.job import Job
from edgefl.engine import Engine, in_order
from edgefl.fleet.conditions import WAIT_STEP_S
from edgefl.methods.base import Method
from edgefl.records import ClientRecord, Expected, RoundRecord, Submodel, Update
from edgefl.server.client_store import ClientStore
from edgefl.server.control_variates import Control
from edgefl.server.exchange import Outbox, Rules
from edgefl.server.forecast import Asked, Forecast
from edgefl.server.rounds import awaited, ended, fleet_at, kept_by, rehearsed, tired
from edgefl.server.state import FleetMemory, Flight, Standing
from edgefl.timing.spans import span
from edgefl.wire.payload import decode

_SENT = "sent"
_IN_VAIN = 10


@dataclass(frozen=True)
class Buffer:
    """How the server steps: with every ``size`` updates, ``at_work`` clients at once, staleness weighed with ``power``."""

    size: int
    at_work: int
    power: float = 0.5

    def weight(self, staleness: int) -> float:
        """Return s(τ).

        >>> Buffer(10, 20).weight(0), Buffer(10, 20).weight(3)
        (1.0, 0.5)
        """
        return round((1 + staleness) ** -self.power, 6)


@dataclass
class Air:
    """The clients at work, and the clock as they end one after the other, between two steps.

    ``over`` takes the sessions that are, ``done`` who answered or was refused, ``tired`` who was for what its battery has left, before
    the night that is ``slept`` through; ``in_vain`` counts the sessions in a row that did not answer.
    """

    forecast: Forecast
    buffer: Buffer
    step: int
    clock_s: float
    fleet: FleetMemory
    over: list[ClientRecord] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    in_vain: int = 0
    tired: set[int] = field(default_factory=set)
    slept: bool = False
    waited_s: float = 0.0

    def arrive(self, most: int) -> list[Flight]:
        """Let sessions end until ``most`` of them answered in time, or nobody is left who could; each client answers once a step at most.

        Where too many in a row end in vain it is given up: what keeps them from answering may never end.
        """
        with span("select", round=self.step + 1):
            return self._arrive(most)

    def _arrive(self, most: int) -> list[Flight]:
        arrived: list[Flight] = []
        while len(arrived) < most and self.in_vain < _IN_VAIN * max(self.buffer.at_work, _IN_VAIN):
            self._fill()
            if not self.fleet.flights:
                break
            first = min(self.fleet.flights, key=lambda flight: (flight.end_s, flight.client))
            flights = tuple(flight for flight in self.fleet.flights if flight is not first)
            self.clock_s = max(self.clock_s, first.end_s)
            self.fleet = replace(fleet_at(self.forecast, self.fleet, self.clock_s), flights=flights)
            if first.expected.status == "expected" and self._in_time(first):
                arrived.append(first)
                self.done.add(first.client)
            else:
                self.end(ClientRecord(first.expected), first)
        return arrived

    def end(self, record: ClientRecord, flight: Flight) -> None:
        """Note how a session ended."""
        self.over.append(replace(record, staleness=self.step - flight.step))
        self.in_vain = 0 if record.status == "trained" else self.in_vain + 1
        self.fleet = self.fleet.after([record.expected], self.clock_s, self.forecast.conditions.battery)

    def _wait(self, until_s: float) -> None:
        """Move the clock on while nobody is at work."""
        self.waited_s += max(0.0, until_s - self.clock_s)
        self.clock_s = max(self.clock_s, until_s)

    def _in_time(self, flight: Flight) -> bool:
        deadline_s = self.forecast.plan.deadline_s
        return deadline_s is None or flight.end_s - flight.start_s <= deadline_s

    def _fill(self) -> None:
        """Ask clients until as many are at work as shall be, but none that has answered or was refused since the last step."""
        population, seed = self.forecast.plan.population.clients, self.forecast.seed
        one = replace(self.forecast.conditions, over_selection=1.0)
        while len(self.fleet.flights) < min(self.buffer.at_work, population):
            taken = {*self.done, *(flight.client for flight in self.fleet.flights)}
            if len(taken) >= population:
                if self.fleet.flights or not self.tired:
                    return
                # Nothing changes before batteries are charged.
                self._wait(one.night_s(self.clock_s))
                self.done, self.tired, self.slept = self.done - self.tired, set(), True
                continue
            working, turn = dict.fromkeys(taken, float("inf")), self.fleet.turns + 1
            if self.fleet.flights:  # who is not eligible now may be when the next session ends
                clients, start_s = one.eligible(seed, population, 1, turn, self.clock_s, working), self.clock_s
            else:
                clients, start_s = one.select(seed, population, 1, turn, self.clock_s, working)
            self._wait(start_s)
            if not len(clients):
                return
            self.fleet = replace(fleet_at(self.forecast, self.fleet, self.clock_s), turns=turn)
            (expected,) = self.forecast.expected(Asked(clients, turn, start_s), self.fleet.drained_j)
            if expected.status == "refused":
                self.done.add(expected.client)
                self.over.append(ClientRecord(expected))
                if tired(expected) and not self.slept:
                    self.tired.add(expected.client)
                continue
            flight = Flight(expected.client, turn, self.step, start_s, expected)
            self.fleet = replace(self.fleet, flights=(*self.fleet.flights, flight))


def play_step(
    method: Method,
    standing: Standing,
    forecast: Forecast,
    rules: Rules,
    buffer: Buffer,
    engine: Engine | None,
    store: ClientStore,
    number: int,
) -> tuple[Standing, RoundRecord]:
    """Play until the buffer is full for the ``number``-th time and step; return what the server has then and the record.

    Sessions that ended since the step before are in the record. Without an ``engine`` nobody trains: everything else is simulated.
    """
    started = time.perf_counter()
    state, after, memory = standing.state, standing.state, standing.memory
    air = Air(forecast, buffer, number - 1, standing.clock_s, standing.fleet)
    observed: Mapping[str, Any] = {}
    if engine is None:
        missing = buffer.size
        while missing and (arrived := air.arrive(missing)):
            missing -= len(arrived)
            for flight in arrived:
                air.end(rehearsed(flight.expected), flight)
    else:
        control = Control(rules.objective, standing.memory, forecast.plan.population.clients)
        outbox = Outbox(method, state, rules, control, number)
        sent: list[Submodel] = []
        arriving = _updates(air, outbox, engine, store, sent)
        after, memory = outbox.aggregated(arriving, memory)
        with span("observe"):
            observed = method.observe(state, sent)
        with span("keep"):
            _keep_sent(air, outbox, store)
    if air.over and not air.fleet.flights and all(record.expected.timing is None for record in air.over):
        air.clock_s += WAIT_STEP_S  # nobody was sent anything: the server looks again after a while
    record = RoundRecord(
        round=number,
        clients=tuple(air.over),
        round_s=air.clock_s - standing.clock_s - air.waited_s,
        waited_s=air.waited_s,
        clock_s=air.clock_s,
        accuracy={},
        host_s=time.perf_counter() - started,
        observed=observed,
        deadline_s=forecast.plan.deadline_s,
    )
    return Standing(after, memory, air.clock_s, air.fleet), record


def _updates(air: Air, outbox: Outbox, engine: Engine, store: ClientStore, sent: list[Submodel]) -> Iterator[Update]:
    """Yield the updates that fill the buffer, in the order of their arrival, each moved to the present model."""
    missing = air.buffer.size
    while missing and (arrived := air.arrive(missing)):
        asked: dict[int, tuple[Flight, Expected]] = {}

        def jobs(arrived: list[Flight] = arrived, asked: dict[int, tuple[Flight, Expected]] = asked) -> Iterator[Job]:
            for flight in arrived:
                kept, payload = kept_by(flight.client, store), payload_of(flight, outbox, air.step)
                asked[flight.client] = flight, replace(flight.expected, download_bytes=len(payload))
                yield outbox.job(flight.expected, payload, kept, flight.step + 1)

        for outcome in awaited(in_order(engine, jobs())):
            flight, expected = asked.pop(outcome.client)
            air.end(ended(expected, outcome, air.forecast, flight.turn), flight)
            if outcome.status != "trained" or expected.tier is None:
                continue
            missing -= 1
            # The same part of the model as it was sent, as it stands now.
            submodel, _ = outbox.send(outcome.client, expected.tier, flight.step + 1)
            sent.append(replace(submodel, tensors={}))
            update = outbox.receive(outcome, expected.samples, submodel, store)
            payload, shapes = payload_of(flight, outbox, air.step), outbox.shapes(expected.tier)
            with span("decode"):
                start = decode(payload, shapes, f"what client {outcome.client} was sent")
            yield replace(
                update, tensors=moved(update.tensors, start, submodel.tensors, air.buffer.weight(air.step - flight.step))
            )


def moved(
    received: Mapping[str, Tensor], sent: Mapping[str, Tensor], now: Mapping[str, Tensor], weight: float
) -> dict[str, Tensor]:
    """Return ``now + weight · (received − sent)``, tensor by tensor: what the client changed, as a change of the present model."""
    return {name: now[name] + weight * (tensor - sent[name]) for name, tensor in received.items()}


def payload_of(flight: Flight, outbox: Outbox, step: int) -> bytes:
    """Return what a client was sent: made now if it was asked since the last step, else what was kept."""
    if flight.step < step:
        return flight.payload
    assert flight.expected.tier is not None  # a refused client is not at work
    return outbox.send(flight.client, flight.expected.tier)[1]


def _keep_sent(air: Air, outbox: Outbox, store: ClientStore) -> None:
    """Give the flights that outlast this step what they were sent, and keep it where a stopped run finds it again."""
    flights = tuple(replace(flight, payload=payload_of(flight, outbox, air.step)) for flight in air.fleet.flights)
    air.fleet = replace(air.fleet, flights=flights)
    names = {blob_of(flight, outbox.method.per_client): flight.payload for flight in flights}
    kept = set(store.blobs())
    store.drop_blobs(names)
    for name, payload in names.items():
        if name not in kept:
            store.keep_blob(name, payload)


def blob_of(flight: Flight, per_client: bool) -> str:
    """Return the name under which what a flight was sent is kept: one for all clients that were sent the same."""
    assert flight.expected.tier is not None
    whose = f"/{flight.client}" if per_client else ""
    return f"{_SENT}/{flight.step}/{flight.expected.tier.label}{whose}"
