"""One synchronous round: ask, send, train, close, aggregate."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgefl.client.job import Job
from edgefl.engine import Engine, in_order
from edgefl.fleet.conditions import WAIT_STEP_S
from edgefl.methods.base import Method
from edgefl.records import ClientRecord, Expected, Outcome, RoundRecord, Submodel, Update
from edgefl.server.client_store import ClientStore
from edgefl.server.control_variates import Control
from edgefl.server.exchange import Outbox, Rules
from edgefl.server.forecast import Asked, Forecast, failed_after
from edgefl.server.state import FleetMemory, Standing
from edgefl.timing.spans import span


@dataclass(frozen=True)
class Round:
    """The clients of one round: what is expected of each, in the order of their numbers, and when the round closes at the latest."""

    number: int
    start_s: float
    expected: tuple[Expected, ...]
    deadline_s: float | None

    @property
    def arrivals(self) -> list[Expected]:
        """The clients that answer in time, in the order in which their answers arrive."""
        limit_s = float("inf") if self.deadline_s is None else self.deadline_s
        return sorted(
            (e for e in self.expected if e.status == "expected" and e.total_s <= limit_s), key=lambda e: (e.total_s, e.client)
        )

    def closed(self, done: Sequence[ClientRecord], wanted: int) -> tuple[tuple[ClientRecord, ...], float]:
        """Return how every session ended, and how long the round lasted, after the server heard of those ``done``.

        The round closes with the answer that makes ``wanted``; if there are fewer it lasts until all sessions have ended, or to its
        deadline; where nobody was sent anything, the server looks again after a while. Whoever would have answered later is late: it
        works to its end, in vain.
        """
        ended = {record.client: record for record in done}
        final = tuple(ended.get(e.client) or ClientRecord(e) for e in self.expected)
        if final and all(record.expected.timing is None for record in final):
            return final, WAIT_STEP_S
        answered = [record.expected.total_s for record in done if record.status == "trained"]
        if len(answered) >= wanted:
            return final, max(answered, default=0.0)
        longest_s = max((record.expected.total_s for record in final), default=0.0)
        return final, longest_s if self.deadline_s is None else min(longest_s, self.deadline_s)


def ask(forecast: Forecast, standing: Standing, wanted: int, number: int) -> Round:
    """Return the clients of round ``number``: drawn from those eligible, when enough of them are, with what is expected of each."""
    population, clock_s = forecast.plan.population.clients, standing.clock_s
    while True:
        busy = fleet_at(forecast, standing.fleet, clock_s).busy
        clients, start_s = forecast.conditions.select(forecast.seed, population, wanted, number, clock_s, busy)
        expected = forecast.expected(Asked(clients, number, start_s), fleet_at(forecast, standing.fleet, start_s).drained_j)
        if not expected or not all(map(tired, expected)) or clock_s > standing.clock_s:
            break
        clock_s = forecast.conditions.night_s(start_s)  # nothing changes before batteries are charged
    return Round(number, start_s, tuple(expected), forecast.plan.deadline_s)


def fleet_at(forecast: Forecast, fleet: FleetMemory, clock_s: float) -> FleetMemory:
    """Return what the fleet remembers at a later time."""
    return fleet.at(clock_s, forecast.conditions.day(clock_s))


def tired(expected: Expected) -> bool:
    """Whether a client was refused for what its battery has left today."""
    return any(short.budget == "battery_j" for short in expected.refusal)


def play_round(
    method: Method,
    standing: Standing,
    forecast: Forecast,
    rules: Rules,
    wanted: int,
    engine: Engine | None,
    store: ClientStore,
    number: int,
) -> tuple[Standing, RoundRecord]:
    """Play round ``number`` (from 1) and return what the server has after it and the record, whose accuracy is still empty.

    Clients train in the order in which they answer, ``wanted`` of them; one that is lost in training makes room for the next. A round
    in which nobody could train, or all diverged, leaves the state as it was. Without an ``engine`` nobody trains: everything else is
    simulated.
    """
    started = time.perf_counter()
    state = standing.state
    with span("select", round=number):
        round_ = ask(forecast, standing, wanted, number)
    done: list[ClientRecord] = []
    after, memory = state, standing.memory
    observed: Mapping[str, Any] = {}
    if engine is None:
        done = list(map(rehearsed, round_.arrivals[:wanted]))
    else:
        control = Control(rules.objective, standing.memory, forecast.plan.population.clients)
        outbox = Outbox(method, state, rules, control, number)
        sent: list[Submodel] = []
        arriving = _updates(round_, wanted, outbox, forecast, engine, store, done, sent)
        after, memory = outbox.aggregated(arriving, memory)
        with span("observe"):
            observed = method.observe(state, sent)
    clients, round_s = round_.closed(done, wanted)
    clock_s = round_.start_s + round_s
    record = RoundRecord(
        round=number,
        clients=clients,
        round_s=round_s,
        clock_s=clock_s,
        accuracy={},
        host_s=time.perf_counter() - started,
        observed=observed,
        waited_s=round_.start_s - standing.clock_s,
        deadline_s=round_.deadline_s,
    )
    sessions = (record.expected for record in clients)
    fleet = fleet_at(forecast, standing.fleet, round_.start_s).after(sessions, clock_s, forecast.conditions.battery)
    return Standing(after, memory, clock_s, fleet), record


def _updates(
    round_: Round,
    wanted: int,
    outbox: Outbox,
    forecast: Forecast,
    engine: Engine,
    store: ClientStore,
    done: list[ClientRecord],
    sent: list[Submodel],
) -> Iterator[Update]:
    """Yield the first ``wanted`` updates in the order of their arrival; ``done`` and ``sent`` take what became of the clients."""
    queue = deque(round_.arrivals)
    missing = wanted
    while missing and queue:
        now = [queue.popleft() for _ in range(min(missing, len(queue)))]
        asked: dict[int, tuple[Expected, Submodel]] = {}

        def jobs(now: Sequence[Expected] = now, asked: dict[int, tuple[Expected, Submodel]] = asked) -> Iterator[Job]:
            for expected in now:
                assert expected.tier is not None  # only clients that were given one arrive
                submodel, payload = outbox.send(expected.client, expected.tier)
                asked[expected.client] = replace(expected, download_bytes=len(payload)), submodel
                sent.append(replace(submodel, tensors={}))
                yield outbox.job(expected, payload, kept_by(expected.client, store))

        for outcome in awaited(in_order(engine, jobs())):
            expected, submodel = asked.pop(outcome.client)
            done.append(ended(expected, outcome, forecast, round_.number))
            if outcome.status == "trained":
                missing -= 1
                yield outbox.receive(outcome, expected.samples, submodel, store)


def awaited(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Yield ``outcomes`` as they come, and record how long each was waited for: without workers, clients train meanwhile."""
    coming = iter(outcomes)
    while True:
        with span("wait"):
            outcome = next(coming, None)
        if outcome is None:
            return
        yield outcome


def kept_by(client: int, store: ClientStore) -> bytes | None:
    """Return what ``client`` kept last, or None before its first round."""
    with span("keep"):
        return store.get(client)


def rehearsed(expected: Expected) -> ClientRecord:
    """Return the record of a client that would have trained, in a run without an engine."""
    return ClientRecord(expected, Outcome(expected.client, "trained"))


def ended(expected: Expected, outcome: Outcome, forecast: Forecast, turn: int) -> ClientRecord:
    """Return the record of a client whose job ended; the session of a failed job is cut where the job failed."""
    bare = replace(outcome, payload=b"", kept=b"")
    if outcome.status == "trained":
        return ClientRecord(replace(expected, upload_bytes=len(outcome.payload)), bare)
    steps = forecast.plan.training.steps(expected.samples)
    # The first step is the largest, so it is the one that exceeds the memory. A process may die at any moment: all of its work is lost.
    # NaN is detected after the last step, and nothing is sent.
    survived = 1 if outcome.status == "out_of_memory" else steps
    return ClientRecord(failed_after(forecast.cell_of(expected.client, turn), expected, survived, steps), bare)
