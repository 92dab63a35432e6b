"""The records of a what-if: what policies make of a fleet, what requirements leave of them, and what they would learn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgefl.fleet.prices import Money
from edgefl.report.clock_draws import ClockDraws
from edgefl.report.results import Result, Results

EXPONENT = 0.5
"""γ: a round with u useful updates counts as u^γ of progress."""
FACTOR = 2.0
"""Nine in ten evaluations of held-out runs were within the range that this factor gives; ``tools/surrogate.py`` checks them."""
TARGET_UPDATES = 1000


@dataclass(frozen=True)
class ClassUse(Result):
    """What the rounds of a policy took of all devices of a class together.

    Attributes:
        clients: devices of the class in the fleet.
        sessions: how many began; refused ones did not.
        updates: how many updates of the class the server used.
        energy_j: None if it is unknown.
        device_s: seconds of the devices.
        battery_j: the whole battery of one device; None: it has none.
        metered: whether the link of the class says that its bytes are paid for.
    """

    clients: int
    sessions: int
    updates: int
    download_bytes: int
    upload_bytes: int
    energy_j: float | None
    device_s: float
    battery_j: float | None = None
    metered: bool = False


@dataclass(frozen=True)
class ClassReach(Result):
    """How the single devices of a class took part in the first simulated days, at most a month.

    Attributes:
        days: how many days.
        trained: devices of which the server used an update.
        asked: devices that the server selected.
        lost: status → sessions of the class that ended with it, except trained ones.
        bytes_median, bytes_p90: of one device, devices without a session included.
        energy_j_median, energy_j_p90: the same; None if unknown.
        updates_days: days until the class has given as many useful updates as were asked for; None: it gives none.
    """

    days: float
    trained: int
    asked: int
    lost: Mapping[str, int]
    bytes_median: float | None
    bytes_p90: float | None
    energy_j_median: float | None
    energy_j_p90: float | None
    updates_days: float | None


@dataclass(frozen=True)
class PolicyOutcome(Result):
    """What a policy makes of a fleet over some rounds.

    Attributes:
        tiers: ratios, largest first.
        deadline_s: longest round in seconds; None: no limit.
        over_selection: clients selected per update wanted.
        round_s: seconds of the median round, of those in which something was sent to a client; None if there was none.
        inclusion: share of the sessions that trained, in [0, 1]; those that a class that is left out would have had did not.
        inclusion_by_class: device → the same share, None for a device without a session.
        useful_share: share of the devices' time whose updates the server used; ``wasted_share`` is the rest.
        weakest: the device with the smallest share of sessions that trained, None without a session; ``weakest_inclusion`` is the share.
        energy_j: joules on devices per useful update, None if there was none or its energy is unknown.
        rounds_per_hour: in simulated time, None if no time passed.
        updates: how many updates the server used in all rounds; ``updates_per_hour_low`` to ``updates_per_hour_high`` hold their hourly
            rate in 95 of 100 cases, as far as it differs between rounds.
        update_bytes: bytes both ways per useful update, None if there was none.
        ended_by_deadline: how many rounds the deadline ended, or in which it refused a class; None without a deadline.
        epsilon: ε of all rounds, None without noise; ``noise_multiplier`` is z.
        uses: device → what all rounds took of its class.
        rounds: how many were simulated; under a calendar, those of whole days.
        days: under a calendar, the days of these rounds, from ``began`` to ``ended`` at the latest; None without one.
        reach: device → how its single devices took part, under a calendar.
        money: what a month of the whole fleet costs, under a calendar; None without prices.
        largest_trained: the largest tier of which the server used an update; None if it used none.
    """

    label: str
    tiers: tuple[float, ...]
    deadline_s: float | None
    over_selection: float
    round_s: float | None
    inclusion: float
    inclusion_by_class: Mapping[str, float | None]
    useful_share: float
    wasted_share: float
    weakest: str | None
    weakest_inclusion: float | None
    energy_j: float | None
    rounds_per_hour: float | None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    updates: int = 0
    updates_per_hour_low: float | None = None
    updates_per_hour_high: float | None = None
    update_bytes: float | None = None
    ended_by_deadline: int | None = None
    uses: Mapping[str, ClassUse] = field(default_factory=dict)
    rounds: int = 0
    days: float | None = None
    began: str = ""
    ended: str = ""
    reach: Mapping[str, ClassReach] = field(default_factory=dict)
    money: Money | None = None
    largest_trained: float | None = None


@dataclass(frozen=True)
class ClassNeed(Result):
    """What a session of a class needs that trains under no policy.

    Attributes:
        tier: the smallest of all policies.
        session_s: how long a typical session with it lasts, of which the ``link`` takes ``link_s``.
        short: by how much the tier exceeds a budget other than the deadline; "" if it fits.
    """

    tier: float
    session_s: float
    link_s: float
    link: str
    short: str = ""


@dataclass(frozen=True)
class Required(Result):
    """What requirements leave of the policies.

    Attributes:
        texts: the requirements as they were given.
        minimize: the quantity of which the taken policy has the least; "" if none was named.
        missed: label of a policy → requirement → what the policy has instead, of those that miss one.
        taken: label of the policy with the least of ``minimize`` of those that meet all requirements; "" if none meets them, or without
            ``minimize``.
        nearest: label of the policy that comes nearest to requirements that no policy meets; "" if one meets them.
    """

    texts: Sequence[str]
    minimize: str
    missed: Mapping[str, Mapping[str, str]]
    taken: str
    nearest: str


@dataclass(frozen=True)
class Learned(Result):
    """What one policy would learn.

    Attributes:
        accuracy: after the policy's rounds, with its range ``low`` to ``high``; None if the policy cannot be judged.
        beyond: whether the rounds lead beyond the end of the run, so that the accuracy is at least this.
        open: whether ``high`` is beyond it, so that the accuracy may be higher.
        rounds: until the target, with ``target_s`` seconds and ``target_j`` joules of all devices; None if the run never reached it.
        why: why the policy cannot be judged, else "".
    """

    accuracy: float | None = None
    low: float | None = None
    high: float | None = None
    beyond: bool = False
    rounds: float | None = None
    target_s: float | None = None
    target_j: float | None = None
    why: str = ""
    open: bool = False


@dataclass(frozen=True)
class Surrogate(Result):
    """The judgement of every policy by one run.

    Attributes:
        run: the folder of the run.
        start, target: the run's first accuracy, and the one whose cost is shown.
        rows: one per policy, in their order.
    """

    run: str
    start: float
    target: float
    rows: tuple[Learned, ...]
    exponent: float = EXPONENT
    factor: float = FACTOR


@dataclass(frozen=True)
class WhatIf(Result):
    """The outcomes of all policies for the fleet ``profile``.

    Attributes:
        rounds: rounds per policy.
        clock_error: seconds of training may be wrong by this factor, the largest of the fleet's devices.
        titles: device → its name for people; ``fleet_title`` is that of the fleet.
        needs: device that trains under no policy → what a session of it needs.
        rows: one outcome per policy, in the order asked for.
        surrogate: what each policy would learn, by a run that was given; None without one.
        clock_margin: tiers are assigned as if training took this many times the predicted seconds.
        calendar: when rounds begin, in words; "" without a calendar. ``rounds_per_day`` is what it asks for.
        target_updates: how many useful updates of a class days are shown for.
        required: what the requirements leave of the policies; None without any.
        clock: how often each policy is the fastest under the error of the devices' clocks: in useful updates an hour or, with a run, until
            the target. None for a single policy, and in mode async.
    """

    profile: str
    method: str
    rounds: int
    clients: int
    per_round: int | None
    seed: int
    clock_error: float
    titles: Mapping[str, str]
    rows: Results[PolicyOutcome]
    surrogate: Surrogate | None = None
    clock_margin: float = 1.0
    clock: ClockDraws | None = None
    fleet_title: str = ""
    needs: Mapping[str, ClassNeed] = field(default_factory=dict)
    calendar: str = ""
    rounds_per_day: float | None = None
    target_updates: int = TARGET_UPDATES
    required: Required | None = None

    def to_pandas(self) -> Any:
        """Return the rows as a ``pandas.DataFrame``."""
        return self.rows.to_pandas()
