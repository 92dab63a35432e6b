"""Availability as it was recorded: intervals of clients' states from a CSV or Parquet file."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgefl.errors import ConfigError, DataError
from edgefl.fleet.trace_file import CONDITIONS, Intervals, read_intervals


@dataclass(frozen=True, eq=False)
class Trace:
    """Stretches of eligibility, repeated for ever; memory is proportional to them, a look-up to the logarithm of their number.

    The run's client i is the recorded client number i mod ``clients``, in the order of the recorded numbers.

    Attributes:
        clients: how many the trace recorded.
        period_s: after which it repeats, in seconds.
        begins_s: the different times at which stretches begin, ascending.
        keys: of each stretch, client · (len(begins_s) + 1) + the place of its beginning in ``begins_s``; ascending.
        ends_s: of each stretch, its end; past ``period_s`` where the next repetition goes on with it, infinite where it never ends.
    """

    clients: int
    period_s: float
    begins_s: np.ndarray = field(repr=False)
    keys: np.ndarray = field(repr=False)
    ends_s: np.ndarray = field(repr=False)

    def until(self, clients: np.ndarray, clock_s: float) -> np.ndarray:
        """Return when each client's stretch ends, in seconds of the run's clock; ``clock_s`` for those that are in none."""
        if not len(self.keys):
            return np.full(len(clients), float(clock_s))
        now_s = math.fmod(clock_s, self.period_s)
        repeated_s = round((clock_s - now_s) / self.period_s) * self.period_s
        lowest = np.asarray(clients, np.int64) % self.clients * (len(self.begins_s) + 1)
        begun = np.searchsorted(self.begins_s, now_s, side="right")
        last = np.searchsorted(self.keys, lowest + begun) - 1  # −1 stands for none, as does a stretch of a client before
        ends_s = np.where((last >= 0) & (self.keys[last] >= lowest), self.ends_s[last], -math.inf)
        return np.where(ends_s > now_s, repeated_s + ends_s, clock_s)


def load_trace(path: Path | str, requires: Sequence[str] = CONDITIONS) -> Trace:
    """Return the trace of a CSV or Parquet file with the columns ``client``, ``from``, ``to``, ``state``, in any order.

    Each row is a state of a client from a time to another (seconds on the run's clock, whole client numbers): conditions joined by "+",
    such as ``idle+charging``; ``eligible`` stands for all three, ``none`` for none. In times that no row covers, none holds. Stretches
    that touch join, also where the trace begins anew: after its last ``to``.

    Args:
        path: of the file; Parquet is told by its first bytes or its ending.
        requires: the conditions that an eligible client must meet, of ``idle``, ``charging`` and ``unmetered``.

    Raises:
        ConfigError: ``requires`` is empty or names something else.
        DataError: the file is missing or damaged, or a row is wrong or overlaps another; names file, line, column, value, expectation.
    """
    path = Path(path)
    if not requires or (unknown := [name for name in requires if name not in CONDITIONS]):
        listed = repr(unknown[0]) if requires else "none"
        raise ConfigError(f"requires: expected conditions out of {', '.join(CONDITIONS)}, got {listed}")
    rows = read_intervals(path)
    rows = rows.at(np.lexsort((rows.from_s, rows.client)))
    _check_overlaps(path, rows)
    needed = sum(1 << CONDITIONS.index(name) for name in set(requires))
    return _trace(rows, (rows.state & needed) == needed)


def _check_overlaps(path: Path, rows: Intervals) -> None:
    overlaps = np.flatnonzero((rows.client[1:] == rows.client[:-1]) & (rows.from_s[1:] < rows.to_s[:-1]))
    if len(overlaps):
        earlier, later = overlaps[0], overlaps[0] + 1
        raise DataError(
            f"{path}, {rows.unit} {rows.line[later]}: from: expected at least {rows.to_s[earlier]:.15g}, the end of client "
            f"{rows.client[earlier]}'s interval of {rows.unit} {rows.line[earlier]}, got {rows.from_s[later]:.15g}"
        )


def _trace(rows: Intervals, eligible: np.ndarray) -> Trace:
    """Return the trace of rows sorted by client and time, where ``eligible`` tells in which rows the client is."""
    clients, number = np.unique(rows.client, return_inverse=True)
    number, from_s, to_s = number[eligible], rows.from_s[eligible], rows.to_s[eligible]
    period_s = float(rows.to_s.max())
    joined = (number[1:] == number[:-1]) & (from_s[1:] == to_s[:-1])
    first = np.flatnonzero(np.concatenate([[True], ~joined])) if len(number) else np.zeros(0, np.int64)
    last = np.append(first[1:], len(number)) - 1 if len(number) else first
    owner, begin_s, end_s = number[first], from_s[first], to_s[last]
    begins_s, place = np.unique(begin_s, return_inverse=True)
    keys = owner * np.int64(len(begins_s) + 1) + place
    return Trace(len(clients), period_s, begins_s, keys, _around(owner, begin_s, end_s, period_s))


def _around(owner: np.ndarray, begin_s: np.ndarray, end_s: np.ndarray, period_s: float) -> np.ndarray:
    """Return ``end_s``, but with stretches that last until the trace's end prolonged by the one with which its repetition begins."""
    opening = np.flatnonzero(begin_s == 0)
    closing = np.flatnonzero(end_s == period_s)
    _, at_opening, at_closing = np.intersect1d(owner[opening], owner[closing], assume_unique=True, return_indices=True)
    opening, closing = opening[at_opening], closing[at_closing]
    ends_s = end_s.copy()
    ends_s[closing] = np.where(opening == closing, math.inf, period_s + end_s[opening])
    return ends_s
