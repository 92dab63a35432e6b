"""Asynchronous training with a buffer, FedBuff (Nguyen et al., AISTATS 2022): the server makes a step after every K updates.

A fixed number of clients trains at any time. When a session ends, the server selects another client at once. An update that arrives τ
steps after its model was sent has the weight s(τ) = 1/(1 + τ)^p (section 5, p = 0.5). The change of the client, Δ = received − sent, is
applied to the present model::

    x ← aggregate of (x + s(τ_i) · Δ_i) over the K updates in the buffer

Statistics such as BatchNorm's are (1 − s(τ_i)) · x + s(τ_i) · received instead (:mod:`edgefl.server.statistics`).

Differs from the paper: the method weighs the updates (most methods by samples); the paper gives them equal weights. The learning rate of
the server is that of the server optimizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgefl.fleet.conditions import WAIT_STEP_S
from edgefl.records import ClientRecord, Expected
from edgefl.server.forecast import Asked, Forecast
from edgefl.server.schedule import Closed, all_refused, fleet_at, low_battery
from edgefl.server.state import OpenSession, ServerState
from edgefl.timing.spans import span

_MOST_FAILURES = 10


@dataclass(frozen=True)
class Buffer:
    """When an asynchronous server makes a step.

    Attributes:
        size: K, the number of updates per step.
        at_work: number of clients that train at any time.
        power: p, the exponent of the staleness weight.
    """

    size: int
    at_work: int
    power: float = 0.5

    def weight(self, staleness: int) -> float:
        """Return s(τ) for an update that is τ = ``staleness`` steps old, rounded to six decimals.

        >>> Buffer(10, 20).weight(0), Buffer(10, 20).weight(3)
        (1.0, 0.5)
        """
        return round((1 + staleness) ** -self.power, 6)


class Buffered:
    """The schedule of one step with a buffer: the clients at work, and the clock as their sessions end one after the other."""

    def __init__(self, forecast: Forecast, state: ServerState, buffer: Buffer) -> None:
        self._forecast, self._buffer, self._state, self.wanted = forecast, buffer, state, buffer.size
        self._step, self._clock_s, self._fleet = state.round, state.clock_s, state.fleet
        self._ended: list[ClientRecord] = []
        self._asked: set[int] = set()
        """Clients that answered or were refused since the last step."""
        self._low_battery: set[int] = set()
        self._slept = False
        """Whether the server has waited for the night in this step."""
        self._failures = 0
        """Sessions in a row without an answer."""
        self._waited_s = 0.0

    @property
    def asked(self) -> Sequence[Expected]:
        """Empty: clients are selected one by one."""
        return ()

    def arrive(self, most: int) -> list[OpenSession]:
        """Return the next sessions that answer in time: ``most``, or fewer if no more clients can answer in this step.

        A client answers at most once per step. After too many sessions in a row without an answer, the server ends the step.
        """
        arrived: list[OpenSession] = []
        with span("select", round=self._step + 1):
            while len(arrived) < most and self._failures < _MOST_FAILURES * max(self._buffer.at_work, _MOST_FAILURES):
                self._fill()
                if not self._fleet.sessions:
                    break
                first = min(self._fleet.sessions, key=lambda session: (session.end_s, session.client))
                others = tuple(session for session in self._fleet.sessions if session is not first)
                self._clock_s = max(self._clock_s, first.end_s)
                self._fleet = replace(fleet_at(self._forecast, self._fleet, self._clock_s), sessions=others)
                if first.expected.status == "expected" and self._in_time(first):
                    arrived.append(first)
                    self._asked.add(first.client)
                else:
                    self.end(first, ClientRecord(first.expected))
        return arrived

    def end(self, session: OpenSession, record: ClientRecord) -> None:
        """Record how a session ended."""
        self._ended.append(replace(record, staleness=self._step - session.step))
        self._failures = 0 if record.status == "trained" else self._failures + 1
        self._fleet = self._fleet.after([record.expected], self._clock_s, self._forecast.conditions.battery)

    def close(self) -> Closed:
        """Return how the step ended. If every client was refused, the server asks again after a while."""
        clients = tuple(self._ended)
        idle = not self._fleet.sessions and all_refused(clients)
        if idle:
            self._wait(self._clock_s + WAIT_STEP_S)
        round_s = 0.0 if idle else self._clock_s - self._state.clock_s - self._waited_s
        return Closed(clients, round_s, self._waited_s, self._clock_s, self._fleet)

    def _wait(self, until_s: float) -> None:
        """Advance the clock to ``until_s`` while no client trains."""
        self._waited_s += max(0.0, until_s - self._clock_s)
        self._clock_s = max(self._clock_s, until_s)

    def _in_time(self, session: OpenSession) -> bool:
        deadline_s = self._forecast.plan.deadline_s
        return deadline_s is None or session.end_s - session.expected.start_s <= deadline_s

    def _fill(self) -> None:
        """Select clients until enough of them train; skip clients that answered or were refused since the last step."""
        population, seed = self._forecast.plan.population.clients, self._forecast.seed
        conditions = replace(self._forecast.conditions, over_selection=1.0)
        while len(self._fleet.sessions) < min(self._buffer.at_work, population):
            excluded = {*self._asked, *(session.client for session in self._fleet.sessions)}
            if len(excluded) >= population:
                if self._fleet.sessions or not self._low_battery:
                    return
                # Nothing changes before batteries are charged.
                self._wait(conditions.night_s(self._clock_s))
                self._asked, self._low_battery, self._slept = self._asked - self._low_battery, set(), True
                continue
            busy, turn = dict.fromkeys(excluded, float("inf")), self._fleet.turns + 1
            choose = self._forecast.choose(self._state.memory, turn, self._step + 1)
            if self._fleet.sessions:  # a client that is not eligible now may be when the next session ends
                clients, start_s = conditions.eligible(seed, population, 1, turn, self._clock_s, busy, choose), self._clock_s
            else:
                clients, start_s = conditions.select(seed, population, 1, turn, self._clock_s, busy, choose)
            self._wait(start_s)
            if not len(clients):
                return
            self._fleet = replace(fleet_at(self._forecast, self._fleet, self._clock_s), turns=turn)
            (expected,) = self._forecast.expected(Asked(clients, turn, start_s), self._fleet.drained_j)
            if expected.status == "refused":
                self._asked.add(expected.client)
                self._ended.append(ClientRecord(expected))
                if low_battery(expected) and not self._slept:
                    self._low_battery.add(expected.client)
                continue
            session = OpenSession(turn, self._step, expected)
            self._fleet = replace(self._fleet, sessions=(*self._fleet.sessions, session))


def blob_of(session: OpenSession, per_client: bool) -> str:
    """Return the name of the blob with a session's payload: one for all clients that were sent the same."""
    whose = f"/{session.client}" if per_client else ""
    return f"sent/{session.step}/{session.tier.label}{whose}"
