"""Device, link and fleet profiles: TOML files in which every figure carries its unit, a mark and a source."""

from __future__ import annotations

from pydantic import Field, model_validator

from edgefl.fleet.behaviour import Behaviour as Behaviour
from edgefl.fleet.behaviour import State as State
from edgefl.fleet.figures import Figure, Mark, Positive, Record, Share, figures_of
from edgefl.fleet.rates import StepCosts


class Link(Record):
    """A class of network connection, as a typical client of it sees it.

    Rates differ from user to user by a log-normal law of ``spread_sigma``, and from one session of a user to the next by one of
    ``session_sigma``. ``download_nj_per_byte`` and ``upload_nj_per_byte`` are the device's own radio; ``network_nj_per_byte`` is the path
    beyond it to the data centre, either way: a device's energy is without it, an end-to-end energy with it.
    """

    name: str
    title: str
    download_mbps: Positive
    upload_mbps: Positive
    rtt_ms: Figure
    download_nj_per_byte: Figure
    upload_nj_per_byte: Figure
    spread_sigma: Figure
    session_sigma: Figure | None = None
    network_nj_per_byte: Figure | None = None

    @property
    def download_bytes_per_s(self) -> float:
        """Bytes per second towards the client."""
        return self.download_mbps.value * 1e6 / 8

    @property
    def upload_bytes_per_s(self) -> float:
        """Bytes per second from the client."""
        return self.upload_mbps.value * 1e6 / 8

    @property
    def rtt_s(self) -> float:
        """Round-trip time in seconds."""
        return self.rtt_ms.value / 1e3

    @property
    def download_j_per_byte(self) -> float:
        """Joules that the device spends on a byte received."""
        return self.download_nj_per_byte.value * 1e-9

    @property
    def upload_j_per_byte(self) -> float:
        """Joules that the device spends on a byte sent."""
        return self.upload_nj_per_byte.value * 1e-9

    @property
    def network_j_per_byte(self) -> float:
        """Joules that the network beyond the device spends on a byte, either way; 0 where the link does not say."""
        return self.network_nj_per_byte.value * 1e-9 if self.network_nj_per_byte else 0.0

    @property
    def session_spread(self) -> float:
        """Log-normal sigma of one user's rate from session to session; 0 where the link does not say."""
        return self.session_sigma.value if self.session_sigma else 0.0


class Memory(Record):
    """Random-access memory: all of it, and what an application that trains may hold."""

    total_bytes: Positive
    training_bytes: Positive


class Compute(Record):
    """Rates of dense float32 multiply-accumulates, in 10⁹ per second.

    ``training_step``, which ``edgefl calibrate`` measures, tells kinds of work apart; where it is there, training takes what it says.
    """

    inference_gmacs_per_s: Positive
    inference_single_thread_gmacs_per_s: Positive
    training_gmacs_per_s: Positive
    memory_bandwidth_gb_per_s: Positive | None = None
    training_step: StepCosts | None = None


class Thermal(Record):
    """How long the full rate lasts, and the share of it that remains."""

    burst_s: Figure
    sustained_share: Share


class Power(Record):
    """Power and energy of the whole device."""

    idle_w: Figure
    load_w: Positive
    energy_pj_per_mac: Positive
    battery_wh: Positive | None = None


class DeviceProfile(Record):
    """One class of device; quantities without their marks are properties in SI units."""

    name: str
    title: str
    reference_hardware: str
    link: Link
    memory: Memory
    compute: Compute
    power: Power
    thermal: Thermal | None = None

    @property
    def training_bytes(self) -> float:
        """Bytes that an application that trains may hold."""
        return self.memory.training_bytes.value

    @property
    def training_macs_per_s(self) -> float:
        """MACs per second of a training step, before throttling."""
        return self.compute.training_gmacs_per_s.value * 1e9

    @property
    def inference_macs_per_s(self) -> float:
        """MACs per second of an inference on all threads."""
        return self.compute.inference_gmacs_per_s.value * 1e9

    @property
    def burst_s(self) -> float:
        """Seconds at the full rate; infinite where the device does not throttle."""
        return self.thermal.burst_s.value if self.thermal else float("inf")

    @property
    def sustained_share(self) -> float:
        """Share of the full rate that remains after the burst."""
        return self.thermal.sustained_share.value if self.thermal else 1.0

    @property
    def idle_w(self) -> float:
        """Watts without work."""
        return self.power.idle_w.value

    @property
    def joules_per_mac(self) -> float:
        """Joules of one multiply-accumulate, the whole device counted."""
        return self.power.energy_pj_per_mac.value * 1e-12

    def figures(self) -> dict[str, Figure]:
        """Return every figure by its dotted key, the link's included."""
        return figures_of(self, "")

    @property
    def assumed(self) -> tuple[str, ...]:
        """Dotted keys of figures that nobody publishes: to be calibrated on the user's own device."""
        return tuple(key for key, figure in self.figures().items() if figure.mark == "assumed")


class FleetBudget(Record):
    """Limits of a round; none is set by default.

    ``round_deadline_ratio`` is a multiple of what the fastest class needs for a round with the full model.
    """

    round_deadline_s: float | None = Field(None, gt=0, strict=True)
    round_deadline_ratio: float | None = Field(None, gt=0, strict=True)
    download_bytes: float | None = Field(None, gt=0, strict=True)
    upload_bytes: float | None = Field(None, gt=0, strict=True)
    energy_j: float | None = Field(None, gt=0, strict=True)

    @model_validator(mode="after")
    def _one_deadline(self) -> FleetBudget:
        if self.round_deadline_s is not None and self.round_deadline_ratio is not None:
            raise ValueError("expected round_deadline_s or round_deadline_ratio, got both")
        return self


class FleetClass(Record):
    """One class of a fleet: its device, its share of the clients, and limits of its own."""

    device: DeviceProfile
    share: float = Field(gt=0, le=1, strict=True)
    budget: FleetBudget = FleetBudget()


class Mix(Record):
    """How the shares of a fleet are known."""

    mark: Mark
    source: str = Field(min_length=10)
    note: str = ""


class Fleet(Record):
    """A mix of device classes, the limits of a round, and how the devices behave: always there and undisturbed where it does not say."""

    name: str
    title: str
    mix: Mix
    budget: FleetBudget = FleetBudget()
    classes: tuple[FleetClass, ...] = Field(alias="class", min_length=1)
    behaviour: Behaviour | None = None
    states: tuple[State, ...] = Field((), alias="state")

    @model_validator(mode="after")
    def _whole(self) -> Fleet:
        _sum_to_1("class: shares", [c.share for c in self.classes])
        devices = {c.device.name: c.device for c in self.classes}
        for number, c in enumerate(self.classes):
            if c.device != devices[c.device.name]:
                raise ValueError(
                    f"class.{number}.device: another device is named {c.device.name!r} as well; give each a name of its own"
                )
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


def _sum_to_1(what: str, shares: list[float]) -> None:
    if abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"{what} must sum to 1, got {sum(shares):g}")
