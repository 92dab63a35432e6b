"""One round of training: select, send, train, receive, aggregate. Synchronous rounds and buffered steps differ only in their schedule."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from edgefl.client.job import Job
from edgefl.engine.contract import Engine, in_order
from edgefl.errors import AggregationError
from edgefl.methods.base import Method
from edgefl.methods.capabilities import Figures, rebased
from edgefl.records import ClientRecord, Expected, Observed, Outcome, RoundRecord, Submodel, Update
from edgefl.server.client_store import ClientStore
from edgefl.server.exchange import Exchange, ExchangeRules
from edgefl.server.fedbuff import Buffer, Buffered, blob_of
from edgefl.server.forecast import Forecast
from edgefl.server.sampler import heard
from edgefl.server.schedule import Schedule, Synchronous, next_s
from edgefl.server.sessions import failed_after, idle
from edgefl.server.state import FleetMemory, OpenSession, ServerState
from edgefl.server.statistics import measured, mixed
from edgefl.timing.spans import span
from edgefl.wire.payload import decode

R = TypeVar("R", bound=RoundRecord)


@dataclass(frozen=True)
class Server:
    """A server that runs rounds, without its state.

    Attributes:
        method: the method in its present phase.
        forecast: what the server expects of clients.
        rules: how updates are encoded and aggregated.
        per_round: number of answers that a synchronous round waits for.
        engine: trains clients; None: a dry run, in which no client trains.
        store: what clients store between rounds.
        buffer: when an asynchronous server makes a step; None: rounds are synchronous.
        eval_after_training: whether clients evaluate the networks that they train in this round.
    """

    method: Method
    forecast: Forecast
    rules: ExchangeRules
    per_round: int
    engine: Engine | None
    store: ClientStore
    buffer: Buffer | None = None
    eval_after_training: bool = False

    def schedule(self, state: ServerState) -> Schedule:
        """Return the schedule of the round after ``state``."""
        if self.buffer is not None:
            return Buffered(self.forecast, state, self.buffer)
        with span("select", round=state.round + 1):
            return Synchronous(self.forecast, state, self.per_round)


class _Sent(NamedTuple):
    """A session whose job was made; the sub-model is None if it was sent in an earlier round."""

    session: OpenSession
    submodel: Submodel | None
    payload: bytes


def run_round(server: Server, state: ServerState) -> tuple[ServerState, RoundRecord]:
    """Run the round after ``state``; return the next state, and the round's record without accuracies.

    Clients train in the order in which they answer. If a job fails, the next client replaces it. If no update arrives, the model does
    not change.
    """
    started = time.perf_counter()
    schedule = server.schedule(state)
    after: ServerState = state
    observed: Observed = {}
    if server.engine is None:
        _simulate(schedule)
    else:
        clients = server.forecast.plan.population.clients
        exchange = Exchange(server.method, state, server.rules, clients, server.buffer is None, schedule.asked)
        after = exchange.aggregated(_updates(server, server.engine, schedule, exchange))
        with span("observe"):
            observed = {**observed_by(server.method, state, exchange.sent), **exchange.observed}
    end = schedule.close()
    if server.engine is not None and server.buffer is not None:
        with span("keep"):
            _store_payloads(server, exchange, end.fleet.sessions)
    host_s, deadline_s = time.perf_counter() - started, server.forecast.plan.deadline_s
    screened = exchange.turn.found if server.engine is not None else {}
    records = tuple(replace(client, screened=screened.get(client.client)) for client in end.clients) if screened else end.clients
    observed = {**observed, **end.observed}
    record = RoundRecord(state.round + 1, records, end.round_s, end.clock_s, {}, host_s, observed, end.waited_s, deadline_s)
    record = dated(record, server.forecast, end.fleet)
    population = server.forecast.plan.population.clients
    memory = {**after.memory, **heard(server.forecast.sampler, state.memory, records, record.round, population)}
    return replace(after, round=record.round, clock_s=end.clock_s, fleet=end.fleet, memory=memory), record


def dated(record: R, forecast: Forecast, fleet: FleetMemory) -> R:
    """Return the record of a round with its moments in the calendar, given what the server remembers after it."""
    calendar, began_s = forecast.conditions.calendar, fleet.today.began_s
    if calendar is None or began_s is None:
        return record
    return replace(record, began=calendar.told(began_s), next_s=next_s(forecast, fleet, record.clock_s))


def observed_by(method: Method, state: ServerState, sent: Sequence[Submodel]) -> Observed:
    """Return the figures that ``method`` reports of a round, see :meth:`Figures.observe`; AggregationError if they have no JSON form."""
    figures: Any = method.observe(state.model, sent) if isinstance(method, Figures) else {}
    title = f"method {type(method).title}: observe returned"
    if not isinstance(figures, Mapping):
        raise AggregationError(f"{title} {type(figures).__name__}, expected a dictionary of JSON values")
    for name, value in figures.items():
        try:
            json.dumps({name: value}, allow_nan=False)
        except (TypeError, ValueError):
            raise AggregationError(f"{title} {name} = {value!r:.100}, expected a JSON value, such as a finite float") from None
    return figures


def _simulate(schedule: Schedule) -> None:
    """End the sessions that the round waits for, without training."""
    missing = schedule.wanted
    while missing and (arrived := schedule.arrive(missing)):
        missing -= len(arrived)
        for session in arrived:
            schedule.end(session, ClientRecord(session.expected, Outcome(session.client, "trained")))


def _updates(server: Server, engine: Engine, schedule: Schedule, exchange: Exchange) -> Iterator[Update]:
    """Yield the updates of the round in order of arrival, except those that become part of a sum of ``exchange``.

    In mode async, the change of each is applied to the present model.
    """
    missing, state = schedule.wanted, exchange.state.model
    while missing and (arrived := schedule.arrive(missing)):
        sent: dict[int, _Sent] = {}
        exchange.hear(arrived)
        outcomes = in_order(engine, _jobs(server, exchange, arrived, sent), exchange.sums)
        while (outcome := _awaited(outcomes)) is not None:
            session, submodel, payload = sent.pop(outcome.client)
            schedule.end(session, ended(session, outcome, server.forecast))
            if outcome.status != "trained":
                continue
            missing -= 1
            if exchange.sums is not None:
                exchange.noted(session, outcome)
                continue
            if submodel is None:  # the same part of the model as it was sent, with its present values
                submodel, _ = exchange.send(outcome.client, session.tier, session.step + 1)
            samples = exchange.samples_of(session)
            if server.buffer is None:
                update = exchange.receive(outcome, samples, submodel, server.store)
                if not update.folded:
                    yield update
                continue
            with span("decode"):
                start = decode(payload, exchange.shapes(session.tier), f"what client {outcome.client} was sent")
            weight = server.buffer.weight(exchange.state.round - session.step)
            # The change that is clipped is the client's own, from what it was sent; its age scales it afterwards.
            admitted = exchange.receive(outcome, samples, submodel, server.store, start)
            moved = rebased(server.method, admitted, start, submodel.tensors, weight)
            names = measured(state.architecture, server.method, session.tier)
            yield mixed(moved, admitted.tensors, submodel.tensors, names, weight)


def _jobs(server: Server, exchange: Exchange, arrived: Iterable[OpenSession], sent: dict[int, _Sent]) -> Iterator[Job]:
    """Yield the jobs of sessions, and record in ``sent`` what each client was sent."""
    for session in arrived:
        submodel, payload = _sent_to(server, exchange, session)
        expected = sized(session.expected, download_bytes=len(payload))
        session = session if expected is session.expected else replace(session, expected=expected)
        sent[session.client] = _Sent(session, submodel, payload)
        kept = None
        if exchange.sums is None:  # where updates are summed, clients store nothing
            with span("keep"):
                kept = server.store.get(session.client)
        yield exchange.job(session, payload, kept, server.eval_after_training)


def _sent_to(server: Server, exchange: Exchange, session: OpenSession) -> tuple[Submodel | None, bytes]:
    """Return what a client received: encoded now, or read from the store if the session began in an earlier round."""
    if session.step == exchange.state.round:
        return exchange.send(session.client, session.tier)
    return None, server.store.blob(blob_of(session, server.method.per_client))


def _awaited(outcomes: Iterator[Outcome]) -> Outcome | None:
    """Return the next outcome, and record the waiting time. Without workers, clients train in this time."""
    with span("wait"):
        return next(outcomes, None)


def ended(session: OpenSession, outcome: Outcome, forecast: Forecast) -> ClientRecord:
    """Return the record of a client whose job ended; the session of a failed job ends where the job failed."""
    expected, bare = session.expected, replace(outcome, payload=b"", kept=b"", labels=None, summed_bytes=0)
    if outcome.status == "trained":
        sent = sized(expected, upload_bytes=len(outcome.payload) or outcome.summed_bytes)
        return ClientRecord(sent if outcome.steps else idle(forecast.class_plan_of(expected.client, session.turn), sent), bare)
    steps = forecast.plan.workload.training.steps(expected.samples)
    # The first step is the largest, so it is the one that exceeds the memory. A process may die at any moment: all of its work is lost.
    # NaN is detected after the last step, and nothing is sent.
    survived = 1 if outcome.status == "out_of_memory" else steps
    return ClientRecord(failed_after(forecast.class_plan_of(expected.client, session.turn), expected, survived, steps), bare)


def sized(expected: Expected, **sizes: int) -> Expected:
    """Return a session with other bytes of its model or of its update; messages of its group are added to them."""
    if expected.grouped is not None:
        sizes = {name: size + int(getattr(expected.grouped, name)) for name, size in sizes.items()}
    if all(getattr(expected, name) == size for name, size in sizes.items()):
        return expected
    return replace(expected, **sizes)  # type: ignore[arg-type]


def _store_payloads(server: Server, exchange: Exchange, sessions: Iterable[OpenSession]) -> None:
    """Store the payloads of sessions that are still open, for later steps and resumed runs; drop all other payloads."""
    open_sessions = {blob_of(session, server.method.per_client): session for session in sessions}
    stored = set(server.store.blobs())
    server.store.drop_blobs(open_sessions)
    for name, session in open_sessions.items():
        if name not in stored:
            server.store.keep_blob(name, _sent_to(server, exchange, session)[1])
