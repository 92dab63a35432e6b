"""Device, link and fleet profiles: TOML files in which every figure carries its unit, a mark and a source."""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field, model_validator

from edgefl.fleet.calendar import Calendar
from edgefl.fleet.figures import (
    LEAST,
    Figure,
    Hour,
    LostShare,
    Name,
    Positive,
    Ratio,
    Record,
    Share,
    Sigma,
    Sourced,
    at_most,
    figures_of,
)
from edgefl.fleet.power import Power, both
from edgefl.fleet.prices import Prices
from edgefl.fleet.time_model import ONE_RATE_ERROR, ForwardCosts, StepCosts


class Link(Record):
    """A class of network connection, as a typical client of it sees it.

    Rates differ from user to user by a log-normal law of ``spread_sigma``, and from one session of a user to the next by one of
    ``session_sigma``. ``download_nj_per_byte`` and ``upload_nj_per_byte`` are the device's own radio; ``network_nj_per_byte`` is the path
    beyond it to the data centre, either way: a device's energy is without it, an end-to-end energy with it. A link without figures of the
    radio has no known energy. After a transfer the radio stays on for ``tail_s`` seconds with ``tail_w`` watts. ``metered`` says that
    its bytes are paid for.
    """

    name: Name
    title: Name
    download_mbps: Positive
    upload_mbps: Positive
    rtt_ms: Figure
    spread_sigma: Sigma
    download_nj_per_byte: Figure | None = None
    upload_nj_per_byte: Figure | None = None
    session_sigma: Sigma | None = None
    network_nj_per_byte: Figure | None = None
    tail_s: Figure | None = None
    tail_w: Figure | None = None
    metered: bool = False

    @model_validator(mode="after")
    def _whole_tail(self) -> Link:
        if (self.tail_s is None) != (self.tail_w is None):
            present, lacks = ("tail_w", "tail_s") if self.tail_s is None else ("tail_s", "tail_w")
            raise ValueError(f"{present}: expected {lacks} too, got none; give both, or leave {present} out")
        return self

    download_bytes_per_s: ClassVar = property(
        lambda self: self.download_mbps.value * 1e6 / 8, doc="Bytes per second towards the client."
    )
    upload_bytes_per_s: ClassVar = property(
        lambda self: self.upload_mbps.value * 1e6 / 8, doc="Bytes per second from the client."
    )
    rtt_s: ClassVar = property(lambda self: self.rtt_ms.value / 1e3, doc="Round-trip time in seconds.")
    network_j_per_byte: ClassVar = property(
        lambda self: self.network_nj_per_byte.value * 1e-9 if self.network_nj_per_byte else 0.0,
        doc="Joules per byte, either way, of the network beyond the device; 0 if the link does not say.",
    )
    tail: ClassVar = property(
        lambda self: (self.tail_s.value, self.tail_w.value) if self.tail_s and self.tail_w else (0.0, 0.0),
        doc="Seconds and watts of the radio after a transfer; 0 if the link does not say.",
    )
    session_spread: ClassVar = property(
        lambda self: self.session_sigma.value if self.session_sigma else 0.0,
        doc="Log-normal sigma of one user's rate from session to session; 0 if the link does not say.",
    )


class Memory(Record):
    """Random-access memory: all of it, and what an application that trains may hold."""

    total_bytes: Positive
    training_bytes: Positive

    @model_validator(mode="after")
    def _possible(self) -> Memory:
        at_most(training_bytes=self.training_bytes, total_bytes=self.total_bytes)
        return self


class Compute(Record):
    """Rates of dense float32 multiply-accumulates, in 10⁹ per second, and costs of work by kind.

    Attributes:
        training_step: seconds of training; without it, ``training_gmacs_per_s`` holds for every MAC.
        inference_step: seconds of an inference; without it, ``inference_gmacs_per_s`` holds for every MAC.
    """

    inference_gmacs_per_s: Positive
    inference_single_thread_gmacs_per_s: Positive
    training_gmacs_per_s: Positive
    memory_bandwidth_gb_per_s: Positive | None = None
    training_step: StepCosts | None = None
    inference_step: ForwardCosts | None = None


class Thermal(Record):
    """How long the full rate lasts, and the share of it that remains."""

    burst_s: Figure
    sustained_share: Share


class EnergyRates(NamedTuple):
    """The rates at which a device spends energy: its power, and joules of a byte that its radio receives or sends."""

    power: Power
    download_byte_j: float
    upload_byte_j: float

    @property
    def idle_w(self) -> float:
        """Watts without work."""
        return self.power.idle_w.value


class DeviceProfile(Record):
    """One class of device; quantities without their marks are properties in SI units.

    Attributes:
        power: None if nobody measured it: the energy of the device is then unknown.
        thermal: None if it does not throttle.
    """

    name: Name
    title: Name
    reference_hardware: str
    link: Link
    memory: Memory
    compute: Compute
    power: Power | None = None
    thermal: Thermal | None = None

    training_bytes: ClassVar = property(
        lambda self: self.memory.training_bytes.value, doc="Bytes that an application that trains may hold."
    )
    clock_error: ClassVar = property(
        lambda self: self.compute.training_step.error.value if self.compute.training_step else ONE_RATE_ERROR,
        doc="The factor by which seconds of training may be wrong, in nine cases of ten.",
    )
    training_macs_per_s: ClassVar = property(
        lambda self: self.compute.training_gmacs_per_s.value * 1e9, doc="MACs per second of a training step, before throttling."
    )
    inference_macs_per_s: ClassVar = property(
        lambda self: self.compute.inference_gmacs_per_s.value * 1e9, doc="MACs per second of an inference on all threads."
    )
    burst_s: ClassVar = property(
        lambda self: self.thermal.burst_s.value if self.thermal else float("inf"),
        doc="Seconds at the full rate; infinite if the device does not throttle.",
    )
    sustained_share: ClassVar = property(
        lambda self: self.thermal.sustained_share.value if self.thermal else 1.0, doc="Share of the full rate after the burst."
    )
    battery_j: ClassVar = property(
        lambda self: self.power.battery_wh.value * 3600 if self.power and self.power.battery_wh else None,
        doc="Joules of its full battery; None without a battery.",
    )

    @model_validator(mode="after")
    def _battery_drains(self) -> DeviceProfile:
        if self.battery_j is not None and self.without_energy:
            raise ValueError(
                f"power.battery_wh: what drains the battery is unknown; give {' and '.join(self.without_energy)} too"
            )
        return self

    @property
    def without_energy(self) -> tuple[str, ...]:
        """Dotted keys whose absence makes the device's energy unknown; empty if it is known."""
        radio = (f"link.{key}" for key in ("download_nj_per_byte", "upload_nj_per_byte") if getattr(self.link, key) is None)
        return (*(() if self.power else ("power",)), *radio)

    @property
    def energy(self) -> EnergyRates | None:
        """The rates at which the device spends energy; None if it is unknown."""
        power, down, up = self.power, self.link.download_nj_per_byte, self.link.upload_nj_per_byte
        if power is None or down is None or up is None:
            return None
        return EnergyRates(power, down.value * 1e-9, up.value * 1e-9)

    @property
    def power_error(self) -> float | None:
        """The factor by which watts while it trains may be wrong, in nine cases of ten; None if its energy is unknown."""
        return None if self.energy is None else self.energy.power.factor

    @property
    def energy_error(self) -> float | None:
        """The factor by which joules of training may be wrong, with the error of its clock; None if its energy is unknown."""
        rates = self.energy
        if rates is None:
            return None
        return rates.power.factor if rates.power.load_w is None else both(rates.power.factor, self.clock_error)

    def figures(self) -> dict[str, Figure]:
        """Return every figure by its dotted key, the link's included."""
        return figures_of(self, "")

    @property
    def assumed(self) -> tuple[str, ...]:
        """Dotted keys of figures that nobody publishes: to be calibrated on the user's own device."""
        return tuple(key for key, figure in self.figures().items() if figure.mark == "assumed")


class Behaviour(Record):
    """The effects of owners of devices, and of servers, on rounds.

    ``eligible_share``: mean share of the devices that are idle, charging and on an unmetered network. It swings over the day like a
    cosine, its highest to its lowest being ``day_night_ratio``, its highest at ``peak_hour`` (local). Of the sessions begun, the share
    ``drop_out`` is lost to errors or the network, ``interrupted`` to the owner in mid-training. ``response_sigma`` is the log-normal
    sigma of a session's computing time; servers ask ``over_selection`` times as many clients as they need.
    """

    eligible_share: Share
    day_night_ratio: Ratio
    peak_hour: Hour
    drop_out: LostShare
    interrupted: LostShare
    response_sigma: Sigma
    over_selection: Ratio

    @model_validator(mode="after")
    def _possible(self) -> Behaviour:
        lost = self.drop_out.value + self.interrupted.value
        if lost >= 1:
            raise ValueError(f"drop_out and interrupted: expected shares that sum to less than 1, got {lost:g}")
        if self.eligible_peak > 1 + 1e-9:
            raise ValueError(
                "eligible_share and day_night_ratio: expected at most all devices at the peak, eligible_share x 2 ratio / (ratio + 1) "
                f"<= 1, got {self.eligible_peak:g}"
            )
        return self

    eligible_peak: ClassVar = property(
        lambda self: self.eligible_share.value * 2 * self.day_night_ratio.value / (self.day_night_ratio.value + 1),
        doc="The share of eligible devices at the peak hour: the mean times 2 ratio / (ratio + 1).",
    )


_Limit = Annotated[float | None, Field(gt=0, strict=True)]
_Part = Annotated[float, Field(gt=0, le=1, strict=True)]
_Left = Annotated[float, Field(ge=LEAST, le=1, strict=True)]


class State(Sourced):
    """A state that a device is in with ``chance`` when it is asked, and the shares of its memory and speed that are left then."""

    name: Name
    chance: _Part
    memory_share: _Left
    speed_share: _Left


class FleetBudget(Record):
    """Limits of a round; none is set by default.

    ``round_deadline_ratio`` is a multiple of what the fastest class needs for a round with the full model.
    """

    round_deadline_s: _Limit = None
    round_deadline_ratio: _Limit = None
    download_bytes: _Limit = None
    upload_bytes: _Limit = None
    energy_j: _Limit = None

    @model_validator(mode="after")
    def _one_deadline(self) -> FleetBudget:
        if self.round_deadline_s is not None and self.round_deadline_ratio is not None:
            raise ValueError("expected round_deadline_s or round_deadline_ratio, got both")
        return self


class FleetClass(Record):
    """One class of a fleet.

    Attributes:
        share: its share of the clients.
        budget: limits of its own.
        trace: the path of a trace of its own.
        largest_tier: the ratio of the largest tier that the server gives its clients; 0: the server asks none of them. None: no limit.
    """

    device: DeviceProfile
    share: _Part
    budget: FleetBudget = FleetBudget()
    trace: str | None = None
    largest_tier: Annotated[float | None, Field(ge=0, le=1, strict=True)] = None

    left_out: ClassVar = property(lambda self: self.largest_tier == 0, doc="Whether the server asks none of its clients.")


class Fleet(Record):
    """A mix of device classes, limits, calendar and prices of rounds, and how the devices behave: always there where it does not say."""

    name: Name
    title: Name
    mix: Sourced
    budget: FleetBudget = FleetBudget()
    classes: tuple[FleetClass, ...] = Field(alias="class", min_length=1)
    behaviour: Behaviour | None = None
    calendar: Calendar | None = None
    prices: Prices | None = None
    states: tuple[State, ...] = Field((), alias="state")

    @model_validator(mode="after")
    def _whole(self) -> Fleet:
        _sum_to_1("class: shares", [c.share for c in self.classes])
        named = {c.device.name: c for c in self.classes}
        if all(c.left_out for c in self.classes):
            raise ValueError("class: largest_tier is 0 in all of them, so no client would be asked; leave it out of one")
        for number, c in enumerate(self.classes):
            if c.device != named[c.device.name].device:
                raise ValueError(
                    f"class.{number}.device: another device is named {c.device.name!r} as well; give each a name of its own, "
                    "by the key name of its class or of its file"
                )
            for key in ("budget", "trace", "largest_tier"):  # results are by device
                if getattr(c, key) != getattr(named[c.device.name], key):
                    raise ValueError(
                        f"class.{number}.{key}: another class of {c.device.name!r} has another {key.replace('_', ' ')}; give one of "
                        "them a name of its own, by its key name"
                    )
            for key, budget in ((f"class.{number}.budget", c.budget), ("budget", self.budget)):
                if budget.energy_j is not None and c.device.without_energy:
                    raise ValueError(f"{key}.energy_j: {unknown_energy(c.device)}")
        if self.prices is not None and self.prices.data is not None and not any(c.device.link.metered for c in self.classes):
            raise ValueError("prices.data: bytes are paid for on metered links, and no class has one; give a class such a link")
        if self.states:
            _sum_to_1("state: chances", [s.chance for s in self.states])
            names = [s.name for s in self.states]
            if repeated := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"state: expected names that differ, got {', '.join(map(repr, repeated))} more than once")
        return self

    @property
    def assumed(self) -> tuple[str, ...]:
        """Dotted keys of what is assumed of the fleet itself, its devices apart."""
        marks = {"mix": self.mix.mark} | {f"state.{s.name}": s.mark for s in self.states}
        if self.behaviour:
            marks |= {key: figure.mark for key, figure in figures_of(self.behaviour, "behaviour.").items()}
        return tuple(key for key, mark in marks.items() if mark == "assumed")


def unknown_energy(device: DeviceProfile) -> str:
    """Return why an energy limit cannot be applied to a device without figures of energy."""
    missing = " and ".join(device.without_energy)
    return f"the energy of device {device.name} is unknown; add {missing} to its file, or leave the energy limit out"


def _sum_to_1(what: str, shares: list[float]) -> None:
    if abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"{what} must sum to 1, got {sum(shares):g}")
