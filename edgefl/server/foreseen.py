"""The expected sessions of many clients at once: columns with a value for each, from which sessions are made where they are needed.

Every column is computed by the operations of :mod:`edgefl.fleet.clock`, in their order, so that it has the bits of a single session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from edgefl.fleet.clock import throttled_s, trips_s
from edgefl.records import Cost, Expected, Shortfall, Timing
from edgefl.records.session import Foreseen as Status
from edgefl.server.assignment import Assignment, ClassPlan
from edgefl.server.sessions import Session

EXPECTED, REFUSED, INTERRUPTED, DROPPED = range(4)
STATUSES: tuple[Status, ...] = ("expected", "refused", "interrupted", "dropped")


class LoadFigures(NamedTuple):
    """The figures of loads, each an array of float64 with a value per client; NaN: unknown."""

    rtt_s: np.ndarray
    model_down_bytes: np.ndarray
    model_up_bytes: np.ndarray
    down_bytes_per_s: np.ndarray
    up_bytes_per_s: np.ndarray
    train_s: np.ndarray
    fixed_j: np.ndarray
    watts: np.ndarray
    download_bytes: np.ndarray
    upload_bytes: np.ndarray
    macs: np.ndarray
    download_byte_j: np.ndarray
    upload_byte_j: np.ndarray
    idle_w: np.ndarray
    network_byte_j: np.ndarray
    tail_s: np.ndarray
    tail_w: np.ndarray
    battery_j: np.ndarray
    spread_sigma: np.ndarray
    session_sigma: np.ndarray


@dataclass(frozen=True, eq=False)
class Load:
    """The load of one session of a class of devices with a tier and a number of samples; zeros if ``assignment`` is None.

    Attributes:
        model_bytes: bytes down and up of the model and of its update, without other messages.
        macs: of the session.
        figures: what its seconds and joules follow from, in the order of :class:`LoadFigures`.
        trips: whether messages are exchanged before the model or after its update.
    """

    of_class: ClassPlan
    assignment: Assignment | None
    samples: int
    cost: Cost | None = None
    model_bytes: tuple[int, int] = (0, 0)
    macs: int = 0
    figures: tuple[float, ...] = (0.0,) * len(LoadFigures._fields)
    trips: bool = False

    @classmethod
    def of(
        cls,
        of_class: ClassPlan,
        assignment: Assignment,
        samples: int,
        cost: Cost,
        macs: int,
        work_s: float,
        spends: tuple[float, float],
    ) -> Self:
        """Return the load of a session that trains ``work_s`` at the full rate and ``spends`` joules, and watts during training."""
        device, (down_bytes, up_bytes) = of_class.device, cost.model_bytes
        link, rates, (tail_s, tail_w) = device.link, device.energy, device.link.tail
        nan = float("nan")
        radio = (nan, nan, nan) if rates is None else (rates.download_byte_j, rates.upload_byte_j, rates.idle_w)
        battery_j = nan if device.battery_j is None else device.battery_j
        figures = (
            *(link.rtt_s, down_bytes, up_bytes, link.download_bytes_per_s, link.upload_bytes_per_s, throttled_s(device, work_s)),
            *(*spends, cost.download_bytes, cost.upload_bytes, macs, *radio, link.network_j_per_byte, tail_s, tail_w, battery_j),
            *(link.spread_sigma.value, link.session_spread),
        )
        trips = bool(cost.added.before or cost.added.after)
        return cls(of_class, assignment, samples, cost, (down_bytes, up_bytes), macs, tuple(map(float, figures)), trips)


class Timings(NamedTuple):
    """The seconds and joules of sessions, arrays of float64 with a value per client; NaN: unknown. See :class:`Timing`."""

    download_s: np.ndarray
    train_s: np.ndarray
    upload_s: np.ndarray
    compute_j: np.ndarray
    radio_j: np.ndarray
    network_j: np.ndarray
    agree_s: np.ndarray
    unmask_s: np.ndarray
    train_j: np.ndarray

    @property
    def total_s(self) -> np.ndarray:
        """How long each session lasts."""
        return self.agree_s + self.download_s + self.train_s + self.upload_s + self.unmask_s

    @property
    def total_j(self) -> np.ndarray:
        """The joules of each device."""
        return self.compute_j + self.radio_j

    @property
    def end_to_end_j(self) -> np.ndarray:
        """The joules of each device and of the path to the server."""
        return self.total_j + self.network_j

    def rows(self) -> Iterator[Timing]:
        """Yield the timing of each session."""
        for down, train, up, compute_j, radio_j, network_j, agree, unmask, train_j in zip(
            *(c.tolist() for c in self), strict=True
        ):
            if compute_j != compute_j:  # NaN: the device's energy is unknown
                yield Timing(down, train, up, None, None, network_j, agree, unmask, 0.0)
            else:
                yield Timing(down, train, up, compute_j, radio_j, network_j, agree, unmask, train_j)


class SessionCosts(NamedTuple):
    """The costs of sessions until their ends: their timings, and whole numbers of MACs and bytes, int64."""

    timings: Timings
    macs: np.ndarray
    download_bytes: np.ndarray
    upload_bytes: np.ndarray


@dataclass(frozen=True, eq=False)
class Foreseen:
    """The expected sessions of clients that are selected at one moment.

    Attributes:
        clients: their numbers, int64.
        start_s: that moment.
        loads: of each client; it is given nothing if it fits no tier.
        rates: the figures of the loads.
        whole: sessions without losses.
        status: numbers in :data:`STATUSES`.
        end_s: when each session ends, in seconds after its start.
        until_s: when each device stops being eligible, in seconds after the start.
        link: each link's share of its typical rate.
        left_j: joules that each battery has left, infinite without one.
        empty: whether a session was refused because of its battery.
    """

    clients: np.ndarray
    start_s: float
    loads: Sequence[Load]
    rates: LoadFigures
    whole: Timings
    status: np.ndarray
    end_s: np.ndarray
    until_s: np.ndarray
    link: np.ndarray
    left_j: np.ndarray
    empty: np.ndarray

    def ended(self) -> SessionCosts:
        """Return what the sessions took until they ended; nothing where one was refused."""
        whole, rates, lost = self.whole, self.rates, self.status >= INTERRUPTED
        begun, end_s = self.status != REFUSED, np.where(lost, self.end_s, np.inf)
        agree_s = np.minimum(whole.agree_s, end_s)
        left_s = np.maximum(end_s - whole.agree_s, 0.0)
        down_s = np.minimum(whole.download_s, left_s)
        train_s = np.minimum(np.maximum(left_s - whole.download_s, 0.0), whole.train_s)
        up_s = np.minimum(np.maximum(left_s - whole.download_s - whole.train_s, 0.0), whole.upload_s)
        parts = zip((down_s, train_s, up_s), (whole.download_s, whole.train_s, whole.upload_s), strict=True)
        down, train, up = (np.where(lost, _share(took_s, of_s), 1.0) for took_s, of_s in parts)
        counts = (np.trunc(total * share * begun) for total, share in zip(rates[8:11], (down, up, train), strict=True))
        download_bytes, upload_bytes, macs = counts
        unmask_s = np.where(lost, 0.0, whole.unmask_s)
        took = whole._replace(download_s=down_s, train_s=train_s, upload_s=up_s, agree_s=agree_s, unmask_s=unmask_s)
        timings = with_joules(rates, took._replace(train_j=whole.train_j * train), download_bytes, upload_bytes)
        return SessionCosts(timings, *(count.astype(np.int64) for count in (macs, download_bytes, upload_bytes)))

    def sessions(self) -> Iterator[Session]:
        """Yield the sessions, each with its time until it is lost."""
        columns = (self.clients, self.status, self.end_s, self.until_s, self.link, self.left_j, self.empty)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for load, timing, row in zip(self.loads, self.whole.rows(), rows, strict=True):
            client, status, end_s, until_s, link, left_j, empty = row
            whole = self._whole(load, client, timing)
            if load.assignment is None:
                yield Session(load.of_class, whole)
            elif empty:
                yield Session(load.of_class, _refused(load, whole, left_j))
            else:
                yield Session(load.of_class, whole, end_s, STATUSES[status], until_s, link, load.model_bytes)

    def _whole(self, load: Load, client: int, timing: Timing) -> Expected:
        of_class, assignment, cost = load.of_class, load.assignment, load.cost
        device, memory_bytes, state = of_class.device.name, of_class.budget.memory_bytes, of_class.state.name
        if assignment is None or cost is None:
            return Expected(
                client, device, "refused", None, load.samples, memory_bytes=memory_bytes, start_s=self.start_s, state=state,
                refusal=of_class.refusals,
            )  # fmt: skip
        return Expected(
            client, device, "expected", assignment.tier, load.samples, timing, load.macs, cost.download_bytes, cost.upload_bytes,
            cost.training_memory_bytes, memory_bytes, assignment.micro_batch, assignment.recompute, self.start_s, state,
        )  # fmt: skip


def rates_of(loads: Sequence[Load]) -> LoadFigures:
    """Return the figures of loads as columns."""
    places = {load: place for place, load in enumerate(dict.fromkeys(loads))}  # few of them differ
    figures = np.array([load.figures for load in places], np.float64).reshape(len(places), len(LoadFigures._fields))
    return LoadFigures(*figures[[places[load] for load in loads]].T)


def whole_timings(loads: Sequence[Load], rates: LoadFigures, link: np.ndarray, response: np.ndarray) -> Timings:
    """Return sessions without losses, where each link gives a share of its typical rate; ``response`` is a factor on computing time."""
    pairs = zip(loads, link.tolist(), strict=True)
    trips = [trips_s(load.of_class.device, load.cost, share) if load.trips and load.cost else (0.0, 0.0) for load, share in pairs]
    agree_s, unmask_s = np.array(trips, np.float64).reshape(-1, 2).T
    trains = np.array([load.assignment is not None for load in loads], bool)
    down_s, up_s = (
        rates.rtt_s + np.divide(sent, rate * link, out=np.zeros(len(loads)), where=trains)
        for sent, rate in ((rates.model_down_bytes, rates.down_bytes_per_s), (rates.model_up_bytes, rates.up_bytes_per_s))
    )
    train_s = rates.train_s * response
    parts = Timings(down_s, train_s, up_s, agree_s, agree_s, agree_s, agree_s, unmask_s, rates.fixed_j + rates.watts * train_s)
    return with_joules(rates, parts, rates.download_bytes, rates.upload_bytes)


def with_joules(rates: LoadFigures, timings: Timings, download_bytes: np.ndarray, upload_bytes: np.ndarray) -> Timings:
    """Return timings with their joules, as :func:`edgefl.fleet.clock.with_joules` does."""
    on_s = np.where(download_bytes > 0, np.minimum(rates.tail_s, timings.train_s), 0.0)
    on_s = on_s + np.where(upload_bytes > 0, rates.tail_s, 0.0)
    radio_j = download_bytes * rates.download_byte_j + upload_bytes * rates.upload_byte_j + rates.tail_w * on_s
    compute_j = timings.train_j + rates.idle_w * (timings.total_s - timings.train_s)
    network_j = (download_bytes + upload_bytes) * rates.network_byte_j
    return timings._replace(compute_j=compute_j, radio_j=radio_j, network_j=network_j)


def _share(took_s: np.ndarray, of_s: np.ndarray) -> np.ndarray:
    """Return the share of each part that took place, 0 of none."""
    return np.divide(took_s, of_s, out=np.zeros_like(took_s), where=of_s != 0)


def _refused(load: Load, whole: Expected, left_j: float) -> Expected:
    """Return a session that its battery cannot pay for."""
    assert load.assignment is not None
    assert whole.timing is not None
    assert whole.timing.total_j is not None
    short = Shortfall("battery_j", whole.timing.total_j, max(left_j, 0.0), whole.device, load.assignment.tier.ratio)
    return replace(whole, status="refused", timing=None, macs=0, download_bytes=0, upload_bytes=0, refusal=(short,))
