"""The sessions of a policy as columns, and how the single devices of each class took part in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from edgefl.fleet.availability import DAY_S
from edgefl.fleet.calendar import Today
from edgefl.fleet.prices import Money
from edgefl.records import RoundRecord
from edgefl.report.device_month import DAYS
from edgefl.report.policies import ClassReach, PolicyOutcome
from edgefl.report.retimed import TimedRound
from edgefl.report.round_lines import RoundLine
from edgefl.run.calendar_rounds import require_rounds
from edgefl.run.dry_run import outcome_in
from edgefl.run.run import Run
from edgefl.run.trained import without_training
from edgefl.server.light_round import LightRecord, light_round
from edgefl.util.unknown import known_sum

_ANSWERED = {"trained", "late"}


@dataclass(frozen=True, eq=False)
class PlayedRound:
    """A round of a policy: what times it again, and columns of all clients that were selected.

    Attributes:
        start_s: the clock when the server selected them.
        clients: their numbers, int64.
        statuses: how their sessions ended.
        bytes: both ways, float64.
        joules: of the device, float64; NaN if unknown.
    """

    timed: TimedRound
    start_s: float
    clients: np.ndarray
    statuses: np.ndarray
    bytes: np.ndarray
    joules: np.ndarray


def policy_outcome(label: str, run: Run, rounds: int, updates: int) -> tuple[PolicyOutcome, list[PlayedRound]]:
    """Return what a policy makes of the fleet in ``rounds`` rounds, and these.

    Under a calendar, the rounds of a last day that is not whole are left out, unless there is no whole day.
    """
    lines, found = list[RoundLine](), list[PlayedRound]()
    for record in without_training(run, rounds, light_round):
        lines.append(RoundLine.of(record))
        found.append(played(record))
    calendar = run.conditions.calendar
    if calendar is None:
        return outcome_in(label, run, lines), found
    require_rounds(run, len(found))
    next_s = [line.next_s for line in lines if line.next_s is not None]
    whole = [n for n, of in enumerate(found, 1) if calendar.day(next_s[n - 1]) > calendar.day(of.start_s)]
    count = max(whole, default=len(found))
    lines, found = lines[:count], found[:count]
    days = (next_s[count - 1] - calendar.next_s(0.0, Today())) / DAY_S
    outcome = replace(
        outcome_in(label, run, lines), days=days, began=lines[0].began or "", ended=calendar.told(lines[-1].clock_s)
    )
    money = _money(run, outcome, sum(line.round_s for line in lines))
    return replace(outcome, reach=class_reaches(run, found, days, updates), money=money), found


def _money(run: Run, of: PolicyOutcome, rounds_s: float) -> Money | None:
    """Return what a month of a policy costs, whose rounds last ``rounds_s`` in all; None without prices."""
    if run.fleet.prices is None or not of.days:
        return None
    months, uses = DAYS / of.days, of.uses.values()
    metered_bytes = sum(use.download_bytes + use.upload_bytes for use in uses if use.metered)
    energy_j = known_sum(use.energy_j for use in uses)
    return run.fleet.prices.money(months * metered_bytes, None if energy_j is None else months * energy_j, months * rounds_s)


def played(record: RoundRecord) -> PlayedRound:
    """Return the columns of a round."""
    if isinstance(record, LightRecord):
        return _light(record)
    statuses = [client.status for client in record.clients]
    sessions = [client.expected for client in record.clients]
    joules = [np.nan if s.timing is None or s.timing.total_j is None else s.timing.total_j for s in sessions]
    return PlayedRound(
        _timed(record, statuses),
        sessions[0].start_s if sessions else record.clock_s,
        np.array([s.client for s in sessions], np.int64),
        np.array(statuses, "U13"),
        np.array([float(s.download_bytes + s.upload_bytes) for s in sessions]),
        np.array([0.0 if s.timing is None else j for s, j in zip(sessions, joules, strict=True)]),
    )


def _light(record: LightRecord) -> PlayedRound:
    """Return the columns of a round whose record has columns."""
    ended, begun, statuses = record.ended, record.begun, record.statuses
    devices = [device for device, sent in zip(record.devices, begun.tolist(), strict=True) if sent]
    late, useful, total_s = statuses == "late", statuses == "trained", ended.timings.total_s
    timed = TimedRound(
        record.clock_s,
        record.deadline_s,
        int(useful.sum()),
        devices,
        ended.timings.train_s[begun],
        total_s[begun],
        (late | useful)[begun],
        late[begun],
        0.0 if record.next_s is None else record.waited_s,
    )
    sent = (ended.download_bytes + ended.upload_bytes).astype(np.float64)
    joules = np.where(begun, ended.timings.total_j, 0.0)
    start_s = record.foreseen.start_s if len(begun) else record.clock_s
    return PlayedRound(timed, start_s, record.foreseen.clients, statuses, sent, joules)


def _timed(record: RoundRecord, statuses: Iterable[str]) -> TimedRound:
    sent = [(c.expected, c.expected.timing, status) for c, status in zip(record.clients, statuses, strict=True)]
    begun = [(session.device, timing, status) for session, timing, status in sent if timing is not None]
    return TimedRound(
        record.clock_s,
        record.deadline_s,
        sum(status == "trained" for _, _, status in sent),
        [device for device, _, _ in begun],
        np.array([timing.train_s for _, timing, _ in begun]),
        np.array([timing.total_s for _, timing, _ in begun]),
        np.array([status in _ANSWERED for _, _, status in begun], bool),
        np.array([status == "late" for _, _, status in begun], bool),
        0.0 if record.next_s is None else record.waited_s,
    )


def class_reaches(run: Run, rounds: list[PlayedRound], days: float, updates: int) -> dict[str, ClassReach]:
    """Return device → how its devices took part in the first 30 ``days`` of the ``rounds``, and when they had given ``updates``."""
    population, first_s = run.plan.population, rounds[0].start_s
    size, names = population.clients, [c.device.name for c in population.fleet.classes]
    of_client = population.classes(np.arange(size))
    month = [of for of in rounds if of.start_s < first_s + DAYS * DAY_S]
    clients, statuses, sent, joules = (np.concatenate([getattr(of, key) for of in month]) for key in _COLUMNS)
    asked, trained = np.zeros(size, bool), np.zeros(size, bool)
    asked[clients], trained[clients[statuses == "trained"]] = True, True
    bytes_of, joules_of = (np.bincount(clients, weights, size) for weights in (sent, joules))
    found = {}
    for name in dict.fromkeys(names):
        own = np.isin(of_client, [place for place, other in enumerate(names) if other == name])
        ended, counts = np.unique(statuses[own[clients]], return_counts=True)
        found[name] = ClassReach(
            min(float(DAYS), days),
            int(trained[own].sum()),
            int(asked[own].sum()),
            {str(status): int(count) for status, count in zip(ended, counts, strict=True) if status != "trained"},
            *_spread(bytes_of[own]),
            *_spread(joules_of[own]),
            updates_days=_until(rounds, own, days, updates),
        )
    return found


_COLUMNS = "clients", "statuses", "bytes", "joules"


def _spread(values: np.ndarray) -> tuple[float | None, float | None]:
    """Return the median and the 90th percentile, each the value of a device; None if one is unknown, or there is no device."""
    if not len(values) or np.isnan(values).any():
        return None, None
    median, most = np.quantile(values, (0.5, 0.9), method="inverted_cdf").tolist()
    return median, most


def _until(rounds: list[PlayedRound], own: np.ndarray, days: float, updates: int) -> float | None:
    """Return the days until clients ``own`` have given so many useful updates, beyond the simulated days at their mean rate."""
    used = np.cumsum([int(own[of.clients[of.statuses == "trained"]].sum()) for of in rounds])
    if used[-1] >= updates:
        last = rounds[int(np.searchsorted(used, updates))]
        return (last.timed.clock_s - rounds[0].start_s) / DAY_S
    return days * updates / int(used[-1]) if used[-1] else None
