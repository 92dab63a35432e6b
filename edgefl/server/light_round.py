"""Rounds without training, with columns instead of a record per client: the same figures as :func:`edgefl.server.rounds.run_round`."""

import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from edgefl.fleet.conditions import WAIT_STEP_S
from edgefl.records import Group, RoundRecord, Tier, Totals
from edgefl.records.round import Counts, Spent
from edgefl.server.foreseen import EXPECTED, REFUSED, STATUSES, Foreseen, SessionCosts
from edgefl.server.meeting import APART
from edgefl.server.rounds import Server, dated, run_round
from edgefl.server.schedule import first_asked, fleet_at
from edgefl.server.state import FleetMemory, ServerState


@dataclass(frozen=True, kw_only=True, eq=False)
class LightRecord(RoundRecord):
    """The record of a round with columns in place of ``clients``, which is empty.

    Attributes:
        foreseen: what was expected of the clients.
        ended: what their sessions took.
        statuses: how these ended, text.
    """

    foreseen: Foreseen
    ended: SessionCosts
    statuses: np.ndarray

    @property
    def begun(self) -> np.ndarray:
        """Whether something was sent to each client."""
        return self.foreseen.status != REFUSED

    @property
    def devices(self) -> list[str]:
        """The device of each client."""
        return [load.of_class.device.name for load in self.foreseen.loads]

    @cached_property
    def _sessions(self) -> list[tuple[Counts, Spent | None]]:
        timings, ended = self.ended.timings, self.ended
        counts = zip(*(c.tolist() for c in (ended.macs, ended.download_bytes, ended.upload_bytes)), strict=True)
        joules = (_known(timings.total_j), _known(timings.end_to_end_j))
        spent = zip(*joules, timings.total_s.tolist(), strict=True)
        return [(count, took if sent else None) for count, took, sent in zip(counts, spent, self.begun.tolist(), strict=True)]

    @property
    def useful(self) -> Totals:
        """Totals of the clients whose updates the server used."""
        return Totals.summed([self._sessions[place] for place in np.flatnonzero(self.statuses == "trained").tolist()])

    @property
    def wasted(self) -> Totals:
        """Totals of the sessions that began and whose updates the server did not use."""
        wasted = self.begun & (self.statuses != "trained")
        return Totals.summed([self._sessions[place] for place in np.flatnonzero(wasted).tolist()])

    def groups(self) -> list[Group]:
        """Return the totals of each combination of device, tier and status, in that order."""
        grouped: dict[tuple[str, float, str], list[tuple[Counts, Spent | None]]] = {}
        tiers = [0.0 if load.assignment is None else load.assignment.tier.ratio for load in self.foreseen.loads]
        for *key, session in zip(self.devices, tiers, self.statuses.tolist(), self._sessions, strict=True):
            grouped.setdefault(tuple(key), []).append(session)
        return [
            Group(**vars(Totals.summed(sessions)), device=device, tier=Tier(tier).number if tier else None, status=status)
            for (device, tier, status), sessions in sorted(grouped.items())
        ]


def _known(values: np.ndarray) -> list[float | None]:
    """Return values with None in place of NaN."""
    numbers = values.tolist()
    return [None if value != value else value for value in numbers] if np.isnan(values).any() else numbers


def light_round(server: Server, state: ServerState) -> tuple[ServerState, RoundRecord]:
    """Run the round after ``state`` without training; return the next state and the record.

    The record has its clients if the server needs every session: in mode async, where clients wait for one another, and with a sampler that
    learns from sessions.
    """
    forecast, started = server.forecast, time.perf_counter()
    learns = forecast.sampler.remembers and not forecast.sampler.blind
    if server.buffer is not None or forecast.meeting is not APART or learns:
        return run_round(server, state)
    start_s, foreseen = first_asked(forecast, state, server.per_round, forecast.foreseen, lambda some: bool(some.empty.all()))
    ended, begun = foreseen.ended(), foreseen.status != REFUSED
    total_s, deadline_s = np.where(begun, ended.timings.total_s, 0.0), forecast.plan.deadline_s
    trained = _answering(foreseen, total_s, deadline_s)[: server.per_round]
    statuses = np.array([status if status != "expected" else "late" for status in STATUSES], "U13")[foreseen.status]
    statuses[trained] = "trained"
    round_s = _round_s(total_s, trained, server.per_round, deadline_s)
    idle_s = 0.0 if begun.any() or not len(begun) else WAIT_STEP_S
    clock_s, waited_s = start_s + round_s + idle_s, start_s - state.clock_s + idle_s
    fleet = _after(server, state, foreseen, ended, clock_s)
    host_s = time.perf_counter() - started
    figures: tuple[Any, ...] = (), round_s, clock_s, {}, host_s, {}, waited_s, deadline_s
    record = LightRecord(state.round + 1, *figures, foreseen=foreseen, ended=ended, statuses=statuses)
    record = dated(record, forecast, fleet)
    return replace(state, round=record.round, clock_s=clock_s, fleet=fleet), record


def _answering(foreseen: Foreseen, total_s: np.ndarray, deadline_s: float | None) -> np.ndarray:
    """Return the places of clients that answer in time, in the order in which their answers arrive."""
    limit_s = np.inf if deadline_s is None else deadline_s
    in_time = np.flatnonzero((foreseen.status == EXPECTED) & (total_s <= limit_s))
    return in_time[np.lexsort((foreseen.clients[in_time], total_s[in_time]))]


def _round_s(total_s: np.ndarray, trained: np.ndarray, wanted: int, deadline_s: float | None) -> float:
    """Return how long a round lasts, see :meth:`edgefl.server.schedule.Round.closed`."""
    if len(trained) >= wanted:
        return float(total_s[trained].max(initial=0.0))
    longest_s = float(total_s.max(initial=0.0))
    return longest_s if deadline_s is None else min(longest_s, deadline_s)


def _after(server: Server, state: ServerState, foreseen: Foreseen, ended: SessionCosts, clock_s: float) -> FleetMemory:
    """Return what the server remembers of its clients after a round that closes at ``clock_s``."""
    forecast, begun = server.forecast, foreseen.status != REFUSED
    battery, calendar = forecast.conditions.battery, forecast.conditions.calendar
    ends_s = foreseen.start_s + ended.timings.total_s
    noted = begun & ((ends_s > clock_s) | battery)  # others change nothing
    sessions = zip(foreseen.clients[noted].tolist(), ends_s[noted].tolist(), _known(ended.timings.total_j[noted]), strict=True)
    fleet = fleet_at(forecast, state.fleet, foreseen.start_s).having(sessions, clock_s, battery)
    if calendar is None:
        return fleet
    return replace(fleet, today=calendar.begun(fleet.today, foreseen.start_s, foreseen.clients[begun].tolist()))
