"""When the server selects clients, when they answer, and when a round closes. :mod:`edgefl.server.fedbuff` has the asynchronous schedule.

In a synchronous round, the server selects all clients at one moment and waits until enough of them have answered.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from edgefl.fleet.conditions import WAIT_STEP_S
from edgefl.records import ClientRecord, Expected, Observed
from edgefl.server.assignment import ClassPlan
from edgefl.server.forecast import Asked, Forecast
from edgefl.server.state import FleetMemory, OpenSession, ServerState

T = TypeVar("T")


@dataclass(frozen=True)
class Closed:
    """The end of a round.

    Attributes:
        clients: the record of every selected client.
        round_s: length of the round in simulated seconds, without ``waited_s``; 0 if nothing was sent to any client.
        waited_s: how long the server waited in simulated seconds: for eligible clients, and after a round in which it refused all clients.
        clock_s: the simulated clock at the end.
        fleet: what the server remembers of its clients at that time.
        observed: figures of the round, by name, for its record.
    """

    clients: tuple[ClientRecord, ...]
    round_s: float
    waited_s: float
    clock_s: float
    fleet: FleetMemory
    observed: Observed = field(default_factory=dict)


class Schedule(Protocol):
    """The sessions of one round, in the order in which clients answer.

    Attributes:
        wanted: how many updates the round aggregates.
    """

    wanted: int

    @property
    def asked(self) -> Sequence[Expected]:
        """The sessions of a round whose clients are all selected at one moment; empty in mode async."""

    def arrive(self, most: int) -> list[OpenSession]:
        """Return the next sessions that answer in time, at most ``most``; an empty list if no more clients answer."""

    def end(self, session: OpenSession, record: ClientRecord) -> None:
        """Record how a session that :meth:`arrive` returned ended."""

    def close(self) -> Closed:
        """Return how the round ended, after the last session that the server waits for."""


def fleet_at(forecast: Forecast, fleet: FleetMemory, clock_s: float) -> FleetMemory:
    """Return what the server remembers of its clients at a later time."""
    return fleet.at(clock_s, forecast.conditions.day(clock_s))


def next_s(forecast: Forecast, fleet: FleetMemory, clock_s: float) -> float:
    """Return the first moment from ``clock_s`` on at which a round may begin."""
    calendar = forecast.conditions.calendar
    return clock_s if calendar is None else calendar.next_s(clock_s, fleet.today)


def all_refused(clients: Sequence[ClientRecord]) -> bool:
    """Whether a round selected clients and sent nothing to any of them. The server then waits before it selects again."""
    return bool(clients) and all(record.expected.timing is None for record in clients)


def low_battery(expected: Expected) -> bool:
    """Whether a client was refused because of its battery."""
    return any(short.budget == "battery_j" for short in expected.refusal)


@dataclass(frozen=True)
class Round:
    """The clients of one round.

    Attributes:
        number: the round's number, from 1.
        start_s: the simulated clock when the server selects them.
        expected: what is expected of each, sorted by client.
        deadline_s: longest round in seconds; None: no limit.
    """

    number: int
    start_s: float
    expected: tuple[Expected, ...]
    deadline_s: float | None

    @property
    def arrivals(self) -> list[Expected]:
        """The clients that answer in time, in the order in which their answers arrive."""
        limit_s = float("inf") if self.deadline_s is None else self.deadline_s
        in_time = (e for e in self.expected if e.status == "expected" and e.total_s <= limit_s)
        return sorted(in_time, key=lambda e: (e.total_s, e.client))

    def closed(self, done: Sequence[ClientRecord], wanted: int) -> tuple[tuple[ClientRecord, ...], float]:
        """Return how every session ended, and how long the round lasted, after the sessions ``done``.

        The round closes when answer number ``wanted`` arrives. With fewer answers, it lasts until all sessions have ended, or until the
        deadline. A client that answers after the end is late, and its work is wasted.
        """
        ended = {record.client: record for record in done}
        final = tuple(ended.get(e.client) or ClientRecord(e) for e in self.expected)
        answered = [record.expected.total_s for record in done if record.status == "trained"]
        if len(answered) >= wanted:
            return final, max(answered, default=0.0)
        longest_s = max((record.expected.total_s for record in final), default=0.0)
        return final, longest_s if self.deadline_s is None else min(longest_s, self.deadline_s)


def ask(forecast: Forecast, state: ServerState, wanted: int) -> Round:
    """Return the clients of the round after ``state``, drawn at the first moment at which enough clients are eligible."""

    def empty(expected: Sequence[Expected]) -> bool:
        return all(map(low_battery, expected))

    start_s, expected = first_asked(forecast, state, wanted, forecast.expected, empty)
    return Round(state.round + 1, start_s, tuple(expected), forecast.plan.deadline_s)


def first_asked(
    forecast: Forecast,
    state: ServerState,
    wanted: int,
    foresee: Callable[[Asked, Mapping[int, float]], T],
    empty: Callable[[T], bool],
) -> tuple[float, T]:
    """Return when the clients of the round after ``state`` are asked, and what is foreseen of them.

    ``empty`` says whether batteries refuse all of them: then others are asked at midnight.
    """
    population, clock_s, number = forecast.plan.population.clients, next_s(forecast, state.fleet, state.clock_s), state.round + 1
    choose, waited = forecast.choose(state.memory, number, number), False
    while True:
        busy = _away(forecast, fleet_at(forecast, state.fleet, clock_s))
        clients, start_s = forecast.conditions.select(forecast.seed, population, wanted, number, clock_s, busy, choose)
        foreseen = foresee(Asked(clients, number, start_s), fleet_at(forecast, state.fleet, start_s).drained_j)
        if not len(clients) or not empty(foreseen) or waited:
            return start_s, foreseen
        waited, clock_s = True, forecast.conditions.night_s(start_s)  # nothing changes before batteries are charged


def _away(forecast: Forecast, fleet: FleetMemory) -> dict[int, float]:
    """Return client → the clock from which it may be asked, of those that are busy or had all sessions of the day."""
    calendar = forecast.conditions.calendar
    resting = {} if calendar is None else calendar.resting(fleet.today)
    return {**fleet.busy, **{client: max(until_s, fleet.busy.get(client, 0.0)) for client, until_s in resting.items()}}


class Synchronous:
    """The schedule of a synchronous round that waits for ``wanted`` answers."""

    def __init__(self, forecast: Forecast, state: ServerState, wanted: int) -> None:
        self._forecast, self._state = forecast, state
        self._round = ask(forecast, state, wanted)
        self._queue = self._round.arrivals
        self._done: list[ClientRecord] = []
        self._quota = forecast.meeting.quota(self._round.expected, forecast.conditions.over_selection, wanted)
        self.wanted = self._quota.wanted

    @property
    def asked(self) -> Sequence[Expected]:
        """The sessions of all selected clients."""
        return self._round.expected

    def arrive(self, most: int) -> list[OpenSession]:
        """Return the next sessions that answer in time and that the round waits for."""
        number, left, taken = self._round.number, list[Expected](), list[Expected]()
        for place, session in enumerate(self._queue):
            if len(taken) == most:
                left += self._queue[place:]
                break
            (taken if self._quota.takes(session) else left).append(session)
        self._queue = left
        return [OpenSession(number, number - 1, session) for session in taken]

    def end(self, session: OpenSession, record: ClientRecord) -> None:
        """Record how a session ended."""
        self._done.append(record)
        if record.status != "trained":
            self._quota.missed(record.expected)

    def close(self) -> Closed:
        """Return how the round ended."""
        start_s = self._round.start_s
        clients, round_s = self._round.closed(self._done, self.wanted)
        clients, round_s, observed = self._forecast.meeting.closed(self._round.number, self._plan_of, clients, round_s)
        idle_s = WAIT_STEP_S if all_refused(clients) else 0.0
        clock_s, waited_s = start_s + round_s + idle_s, start_s - self._state.clock_s + idle_s
        sessions, battery = (record.expected for record in clients), self._forecast.conditions.battery
        fleet = fleet_at(self._forecast, self._state.fleet, start_s).after(sessions, clock_s, battery)
        if (calendar := self._forecast.conditions.calendar) is not None:
            asked = (record.client for record in clients if record.expected.timing is not None)
            fleet = replace(fleet, today=calendar.begun(fleet.today, start_s, asked))
        return Closed(clients, round_s, waited_s, clock_s, fleet, observed)

    def _plan_of(self, client: int) -> ClassPlan:
        return self._forecast.class_plan_of(client, self._round.number)
