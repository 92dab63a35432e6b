"""Device, link and fleet profiles: TOML files in which every figure carries its unit, a mark and a source."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Mark = Literal["measured", "vendor", "derived", "assumed"]


class Record(BaseModel):
    """A frozen table of a profile; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Figure(Record):
    """One number: in the unit of its key, with how it is known and where it comes from."""

    value: float = Field(ge=0, strict=True)
    mark: Mark
    source: str = Field(min_length=10)
    note: str = ""


def _positive(figure: Figure) -> Figure:
    if figure.value <= 0:
        raise ValueError(f"expected a value above 0, got {figure.value:g}")
    return figure


def _share(figure: Figure) -> Figure:
    if not 0 < figure.value <= 1:
        raise ValueError(f"expected a share in (0, 1], got {figure.value:g}")
    return figure


Positive = Annotated[Figure, AfterValidator(_positive)]
Share = Annotated[Figure, AfterValidator(_share)]


class Link(Record):
    """A class of network connection, as a typical client of it sees it."""

    name: str
    title: str
    download_mbps: Positive
    upload_mbps: Positive
    rtt_ms: Figure
    download_nj_per_byte: Figure
    upload_nj_per_byte: Figure
    spread_sigma: Figure

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


class Memory(Record):
    """Random-access memory: all of it, and what an application that trains may hold."""

    total_bytes: Positive
    training_bytes: Positive


class Compute(Record):
    """Rates of dense float32 multiply-accumulates, in 10⁹ per second."""

    inference_gmacs_per_s: Positive
    inference_single_thread_gmacs_per_s: Positive
    training_gmacs_per_s: Positive
    memory_bandwidth_gb_per_s: Positive | None = None


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
        return _figures(self, "")

    @property
    def assumed(self) -> tuple[str, ...]:
        """Dotted keys of figures that nobody publishes: to be calibrated on the user's own device."""
        return tuple(key for key, figure in self.figures().items() if figure.mark == "assumed")


def _figures(record: Record, prefix: str) -> dict[str, Figure]:
    found = {}
    for key in type(record).model_fields:
        value = getattr(record, key)
        if isinstance(value, Figure):
            found[prefix + key] = value
        elif isinstance(value, Record):
            found |= _figures(value, f"{prefix}{key}.")
    return found


class FleetBudget(Record):
    """Limits of a round; none is set by default.

    ``round_deadline_ratio`` is a multiple of what the fastest class needs for a round with the full model.
    """

    round_deadline_s: float | None = Field(None, gt=0)
    round_deadline_ratio: float | None = Field(None, gt=0)
    download_bytes: float | None = Field(None, gt=0)
    upload_bytes: float | None = Field(None, gt=0)
    energy_j: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _one_deadline(self) -> FleetBudget:
        if self.round_deadline_s is not None and self.round_deadline_ratio is not None:
            raise ValueError("expected round_deadline_s or round_deadline_ratio, got both")
        return self


class FleetClass(Record):
    """One class of a fleet: its device, its share of the clients, and limits of its own."""

    device: DeviceProfile
    share: float = Field(gt=0, le=1)
    budget: FleetBudget = FleetBudget()


class Mix(Record):
    """How the shares of a fleet are known."""

    mark: Mark
    source: str = Field(min_length=10)
    note: str = ""


class Fleet(Record):
    """A mix of device classes and the limits of a round."""

    name: str
    title: str
    mix: Mix
    budget: FleetBudget = FleetBudget()
    classes: tuple[FleetClass, ...] = Field(alias="class", min_length=1)

    @model_validator(mode="after")
    def _whole(self) -> Fleet:
        total = sum(c.share for c in self.classes)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"class: shares must sum to 1, got {total:g}")
        return self
