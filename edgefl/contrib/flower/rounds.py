"""A round with real devices: what :mod:`edgefl.server.rounds` does with simulated clients, by the real clock.

The same parts decide who is asked and what is sent: the run's draws, plan, exchange, method and server optimizer. Updates are aggregated in
the order in which the forecast expects them, so that the same answers give the same bits, however long each took.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from edgefl.client.job import Job
from edgefl.contrib.flower.devices import Device
from edgefl.errors import WireError
from edgefl.fleet.clock import with_joules
from edgefl.fleet.conditions import Conditions
from edgefl.records import ClientRecord, Expected, Outcome, RoundRecord, Shortfall, Submodel, Timing, Update
from edgefl.server.exchange import Exchange
from edgefl.server.forecast import Asked
from edgefl.server.rounds import Server, observed_by
from edgefl.server.sampler import heard
from edgefl.server.state import OpenSession, ServerState
from edgefl.timing.spans import span
from edgefl.wire.update_content import check_values


@dataclass(frozen=True)
class Sending:
    """The content of a message to one device: its session, its sub-model and its job."""

    session: OpenSession
    submodel: Submodel
    job: Job


@dataclass(frozen=True)
class DeviceAnswer:
    """The answer of a device.

    Attributes:
        round: the round that it answers.
        outcome: what became of its job.
        total_s: from sending to receiving, on the server's clock.
        ready_s, train_s: what the device measured: the start of its process until training, and training.
        problem: what went wrong, if anything did.
        gone: it did not come back: its node sent no more signs of life.
    """

    round: int
    outcome: Outcome
    total_s: float
    ready_s: float = 0.0
    train_s: float = 0.0
    problem: str = ""
    gone: bool = False


class DeviceFleet(Protocol):
    """Real devices, numbered as clients of the run."""

    def clock_s(self) -> float:
        """Return seconds of a clock that never goes back."""

    def free(self) -> Mapping[int, Device]:
        """Return the connected devices that do not train, by client; wait until there is one."""

    def equip(self, server: Server, sendings: Sequence[Sending], exchange: Exchange) -> Mapping[int, Shortfall | None]:
        """Send what a tier needs once to devices that lack it. Return who is ready (None) or refuses, and why; others have not answered."""

    def send(self, server: Server, sending: Sending) -> None:
        """Send a device its job."""

    def answers(self) -> Sequence[DeviceAnswer]:
        """Return the answers that have arrived since the last call, of any round; wait a little if there is none."""

    def connected(self, clients: Sequence[int]) -> set[int]:
        """Return which of ``clients`` are connected."""

    def say(self, message: str) -> None:
        """Tell the user."""

    @property
    def setup_bytes(self) -> int:
        """Bytes of all setups that were sent so far."""


def fleet_round(fleet: DeviceFleet, server: Server, state: ServerState) -> tuple[ServerState, RoundRecord]:
    """Run the round after ``state`` with the devices of ``fleet``; return the next state, and the round's record without accuracies.

    A record has the same fields as a simulated one. Seconds are measured; joules are those that the profile gives for these seconds.
    """
    began_s, setup_bytes = fleet.clock_s(), fleet.setup_bytes
    number, exchange = state.round + 1, Exchange(server.method, state, server.rules, server.forecast.plan.population.clients)
    expected = _expected(server, state, fleet.free())
    ended = {e.client: ClientRecord(e) for e in expected if e.status == "refused"}
    sendings = _equipped(fleet, server, exchange, expected, ended)
    start_s = fleet.clock_s()
    for sending in sendings:
        fleet.send(server, sending)
    answers, late, stale = _collected(fleet, server, number, [sending.session.client for sending in sendings], start_s)
    round_s = fleet.clock_s() - start_s
    with span("observe"):
        observed = observed_by(server.method, state, exchange.sent)
    for sending in sendings:
        session = replace(sending.session, expected=replace(sending.session.expected, start_s=state.clock_s + start_s - began_s))
        ended[session.client] = _ended(server, session, answers.get(session.client), round_s, session.client in late)
    after = exchange.aggregated(_updates(fleet, server, exchange, sendings, answers, ended))
    observed = {**observed, "setup_bytes": fleet.setup_bytes - setup_bytes, "late_answers": stale}
    clock_s, waited_s = state.clock_s + fleet.clock_s() - began_s, start_s - began_s
    screened = exchange.turn.found
    observed |= exchange.observed
    records = tuple(replace(ended[e.client], screened=screened.get(e.client)) for e in expected)
    record = RoundRecord(
        number, records, round_s, clock_s, {}, fleet.clock_s() - began_s, observed, waited_s, server.forecast.plan.deadline_s
    )
    memory = {**after.memory, **heard(server.forecast.sampler, state.memory, records, number, exchange.clients)}
    return replace(after, round=number, clock_s=clock_s, memory=memory), record


def _expected(server: Server, state: ServerState, devices: Mapping[int, Device]) -> list[Expected]:
    """Return what is expected of the clients that the run's draws select among ``devices``; nothing is simulated about their fate."""
    number, forecast = state.round + 1, server.forecast
    population = forecast.plan.population.clients
    ideal = Conditions(over_selection=forecast.conditions.over_selection, left_out=forecast.conditions.left_out)
    away = {client: float("inf") for client in range(population) if client not in devices}
    clients, _ = ideal.select(
        forecast.seed, population, server.per_round, number, 0.0, away, forecast.choose(state.memory, number, number)
    )
    forecast = replace(forecast, conditions=ideal, size_of=lambda client: devices[client].samples)
    return [_as_trained(server, e, devices[e.client]) for e in forecast.expected(Asked(clients, number, state.clock_s), {})]


def _as_trained(server: Server, expected: Expected, device: Device) -> Expected:
    """Return ``expected``, refused if its tier fits only in micro-batches or with recomputation and the device has no torch for them."""
    if device.trainer == "torch" or expected.tier is None or not (expected.micro_batch or expected.recompute):
        return expected
    need, have = server.forecast.plan.costs[expected.tier].training_memory_bytes, float(expected.memory_bytes or 0)
    short = Shortfall("memory_bytes", need, have, device.device, expected.tier.ratio)
    return replace(_nothing(expected), status="refused", refusal=(short,))


def _equipped(
    fleet: DeviceFleet, server: Server, exchange: Exchange, expected: Sequence[Expected], ended: dict[int, ClientRecord]
) -> list[Sending]:
    """Return what devices are to be sent that have all they need for it, in the order of the forecast; the others have ``ended``."""
    order = sorted(expected, key=lambda e: (e.total_s, e.client))
    sendings = [_sending(exchange, e) for e in order if e.status == "expected"]
    ready = fleet.equip(server, sendings, exchange)
    for session in (sending.session for sending in sendings):
        if session.client not in ready or ready[session.client] is not None:
            ended[session.client] = _not_sent(session, ready.get(session.client))
    return [sending for sending in sendings if sending.session.client not in ended]


def _sending(exchange: Exchange, expected: Expected) -> Sending:
    step = exchange.state.round
    session = OpenSession(step + 1, step, expected)
    submodel, payload = exchange.send(session.client, session.tier)
    session = replace(session, expected=replace(expected, download_bytes=len(payload)))
    return Sending(session, submodel, exchange.job(session, payload, None))


def _collected(
    fleet: DeviceFleet, server: Server, number: int, clients: Sequence[int], start_s: float
) -> tuple[dict[int, DeviceAnswer], set[int], int]:
    """Wait for the answers of ``clients`` until enough of them have trained, none is left, or the deadline has passed.

    Returns:
        The answers by client, the clients that the server did not wait for because enough others had trained, and the number of answers
        to earlier rounds.
    """
    answers, stale, deadline_s = dict[int, DeviceAnswer](), 0, server.forecast.plan.deadline_s
    waiting = set(clients)
    while waiting:
        for answer in fleet.answers():
            if answer.round == number and answer.outcome.client in waiting:
                if not answer.gone:
                    answers[answer.outcome.client] = answer
                waiting.discard(answer.outcome.client)
            elif not answer.gone:
                stale += 1
        if sum(answer.outcome.status == "trained" for answer in answers.values()) >= server.per_round:
            return answers, waiting, stale
        if deadline_s is not None and fleet.clock_s() - start_s >= deadline_s:
            break
        waiting &= fleet.connected(sorted(waiting))
    return answers, set(), stale


def _updates(
    fleet: DeviceFleet,
    server: Server,
    exchange: Exchange,
    sendings: Sequence[Sending],
    answers: Mapping[int, DeviceAnswer],
    ended: dict[int, ClientRecord],
) -> Iterator[Update]:
    """Yield the updates in the order of the forecast. An update that cannot be used ends its session as ``crashed``; the round goes on."""
    samples = {sending.session.client: sending.session.expected.samples for sending in sendings}
    claims = [samples[client] for client, answer in answers.items() if answer.outcome.status == "trained"]
    exchange.turn.claims, exchange.turn.check = claims, check_values
    for sending in sendings:
        client, expected = sending.session.client, sending.session.expected
        answer = answers.get(client)
        if answer is not None and answer.outcome.status == "trained":
            try:
                update = exchange.receive(answer.outcome, expected.samples, sending.submodel, server.store)
            except WireError as error:
                answer = replace(answer, outcome=Outcome(client, "crashed"), problem=str(error))
                ended[client] = _ended(
                    server, replace(sending.session, expected=ended[client].expected), answer, answer.total_s, False
                )
            else:
                yield update
        if answer is not None and answer.problem:
            fleet.say(f"round {exchange.state.round + 1}, client {client}: {answer.outcome.status}: {answer.problem}")


def _not_sent(session: OpenSession, refusal: Shortfall | None) -> ClientRecord:
    """Return the record of a device that was sent no job: it refuses it, or did not answer."""
    nothing = _nothing(session.expected)
    if refusal is None:
        return ClientRecord(replace(nothing, status="dropped"))
    return ClientRecord(replace(nothing, status="refused", refusal=(refusal,)))


def _nothing(expected: Expected) -> Expected:
    return replace(expected, timing=None, macs=0, download_bytes=0, upload_bytes=0)


def _ended(server: Server, session: OpenSession, answer: DeviceAnswer | None, round_s: float, late: bool) -> ClientRecord:
    """Return the record of a session with its measured seconds; without an answer, it is late or dropped.

    Seconds that the device does not account for are its messages' way. They are divided between download and upload by their bytes,
    because the clocks of two computers differ.
    """
    expected, steps = session.expected, server.forecast.plan.workload.training.steps(session.expected.samples)
    device = server.forecast.class_plan_of(session.client, session.turn).device
    if answer is None:
        parts, up_bytes, share = (round_s, 0.0, 0.0), 0, 0.0
        expected = expected if late else replace(expected, status="dropped")
    else:
        outcome = answer.outcome
        up_bytes = len(outcome.payload) if outcome.status == "trained" else 0
        share = 1.0 if outcome.status == "trained" else min(1.0, outcome.steps / steps)
        way_s = max(0.0, answer.total_s - answer.ready_s - answer.train_s)
        up_s = way_s * up_bytes / max(1, up_bytes + expected.download_bytes)
        parts = answer.total_s - answer.train_s - up_s, answer.train_s, up_s
    macs = int(expected.macs * share)
    plan = expected.timing
    watts = plan.train_j / plan.train_s if plan is not None and plan.train_s else 0.0
    timing = with_joules(device, Timing(*parts, 0.0, 0.0, train_j=watts * parts[1]), expected.download_bytes, up_bytes)
    bare = None if answer is None else replace(answer.outcome, payload=b"", kept=b"", labels=None)
    return ClientRecord(replace(expected, timing=timing, macs=macs, upload_bytes=up_bytes), bare)
