"""From measurements of a machine to the TOML file of its device profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import tomlkit

from edgefl.fleet.figures import Figure, Record
from edgefl.fleet.profile import DeviceProfile
from edgefl.fleet.rates import Step, StepCosts, fit

NOT_MEASURED = "not measured by calibration: the figure of the {title} profile, a placeholder"


@dataclass(frozen=True)
class Spread:
    """The repeats of a measurement: the figure to use, their median, the least and the most.

    The figure is the best quartile: other programs can only slow a measurement down, but the single best repeat may be an outlier.
    """

    value: float
    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of_seconds(cls, seconds: Sequence[float]) -> Spread:
        """Return the spread of at least one time."""
        ordered = sorted(seconds)
        return cls(ordered[len(ordered) // 4], median(ordered), ordered[0], ordered[-1], len(ordered))

    def rate(self, amount: float) -> Spread:
        """Return the rates in ``amount`` per second of a spread of seconds."""
        return Spread(amount / self.value, amount / self.median, amount / self.high, amount / self.low, self.repeats)

    def __str__(self) -> str:
        return f"{self.value:.3g} (median {self.median:.3g}, {self.low:.3g} to {self.high:.3g}, {self.repeats} repeats)"


@dataclass(frozen=True)
class Measured:
    """The measurements of a machine; rates are in MACs and bytes per second.

    Attributes:
        source: hardware and software, for the notes of the figures.
        kernels: kernel → rate on one thread and on all threads; ``values`` is in values per second.
        steps: network and batch → its training step, one per round of repeats.
        inference: network → rate of an inference of one sample, on one thread and on all threads.
        busy: share of all cores that other programs used meanwhile, in [0, 1].
    """

    processor: str
    system: str
    threads: int
    total_bytes: int
    free_bytes: int
    battery: bool
    source: str
    kernels: Mapping[str, tuple[Spread, Spread]]
    copied: Spread
    steps: Mapping[str, Sequence[Step]]
    inference: Mapping[str, tuple[Spread, Spread]]
    busy: float

    def typical(self) -> list[Step]:
        """Return every step with the best quartile of its seconds."""
        parts = [(steps[0].work, [s.pass_s for s in steps], [s.update_s for s in steps]) for steps in self.steps.values()]
        return [Step(work, Spread.of_seconds(passes).value, Spread.of_seconds(updates).value) for work, passes, updates in parts]

    def step_rates(self) -> dict[str, Spread]:
        """Return the MACs per second of every step."""
        return {
            name: Spread.of_seconds([step.seconds for step in repeats]).rate(repeats[0].work.macs)
            for name, repeats in self.steps.items()
        }


def compute_of(measured: Measured) -> dict[str, Any]:
    """Return the table ``compute`` of the profile; its training rate is the median over networks, each at its largest (last) batch."""
    steps = {name: _giga(spread) for name, spread in measured.step_rates().items()}
    largest = {name.partition(" at ")[0]: spread for name, spread in steps.items()}

    def inference(which: int, threads: str) -> dict[str, Any]:
        rate = median(pair[which].value for pair in measured.inference.values()) / 1e9
        of_networks = f"onnxruntime, {threads}batch of 1, median of networks: {_each(measured.inference, which)}"
        return _figure(rate, measured.source, f"{of_networks}. Kernels in torch: {_each(measured.kernels, which)}")

    step = "torch, forward, backward and update, median of networks at the larger batch: "
    step += ", ".join(f"{name} {spread}" for name, spread in steps.items())
    copied = f"one core copies, bytes counted once: {_giga(measured.copied)}"
    return {
        "inference_gmacs_per_s": inference(1, ""),
        "inference_single_thread_gmacs_per_s": inference(0, "one thread, "),
        "training_gmacs_per_s": _figure(median(spread.value for spread in largest.values()), measured.source, step),
        "memory_bandwidth_gb_per_s": _figure(measured.copied.value / 1e9, measured.source, copied),
        "training_step": _step_costs(measured),
    }


def _step_costs(measured: Measured) -> dict[str, Any]:
    """Return the table ``compute.training_step``, fitted to the best quartile of each step, with the range of fits to single rounds."""
    # If other programs use the cores, several threads are slower than one.
    gemm, values = (max(measured.kernels[name], key=lambda spread: spread.value) for name in ("gemm", "values"))
    costs = fit(measured.typical(), gemm.value, values.value)
    rounds = [fit(steps, gemm.value, values.value) for steps in zip(*measured.steps.values(), strict=True)]
    figures = {}
    for at, key in enumerate(StepCosts.model_fields):
        unit = 1e6 if key.endswith("_us_per_pass") else 1e12
        found = Spread.of_seconds([one[at] * unit for one in rounds])
        note = f"fitted to the steps of training_gmacs_per_s; to single rounds of them: median {found.median:.3g}"
        note += f", {found.low:.3g} to {found.high:.3g}, {found.repeats} rounds"
        if key == "dense_ps_per_mac":
            note = f"a matrix product, in GMAC/s: {_giga(gemm)}"
        elif key == "elementwise_ps_per_value":
            note = f"normalisation, ReLU and pooling, forward and backward, in 10^9 values/s: {_giga(values)}"
        elif key == "update_ps_per_value":
            note = note.replace("fitted to the steps", "SGD with momentum, the update of the largest of the steps")
        figures[key] = _figure(costs[at] * unit, measured.source, note)
    return figures


def device_values(measured: Measured, name: str, link: str | Mapping[str, Any], like: DeviceProfile) -> dict[str, Any]:
    """Return the content of a profile's TOML file; power and throttling are those of ``like``, marked as assumed."""
    system = f"{measured.source.partition(';')[0]}; psutil"
    power = {key: value for key, value in _assumed(like.power, like).items() if key != "battery_wh" or measured.battery}
    values = {
        "name": name,
        "title": f"{measured.processor}, calibrated on {counted(measured.threads)}",
        "reference_hardware": f"{measured.processor}, {measured.system}",
        "link": link,
        "memory": {
            "total_bytes": _figure(measured.total_bytes, system, "what the system, or its container, has"),
            "training_bytes": _figure(measured.free_bytes, system, "free when it was measured: what other programs left"),
        },
        "compute": compute_of(measured),
        "power": power,
    }
    return values | ({"thermal": _assumed(like.thermal, like)} if like.thermal else {})


def counted(threads: int) -> str:
    """Return a number of threads in words, such as ``4 threads``."""
    return f"{threads} thread{'s' * (threads != 1)}"


def to_toml(values: Mapping[str, Any]) -> str:
    """Return a profile's text: names first, then a table per group with one figure per line."""
    # Names stand before tables: TOML reads whatever follows a table's heading as part of it.
    ordered = sorted(values.items(), key=lambda item: isinstance(item[1], Mapping))
    return tomlkit.dumps({key: _item(value) for key, value in ordered})


def _item(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    table = tomlkit.inline_table() if "value" in value else tomlkit.table()
    for key, inner in value.items():
        table.add(key, _item(inner))
    return table


def _figure(value: float, source: str, note: str) -> dict[str, Any]:
    rounded = value if isinstance(value, int) else float(f"{value:.4g}")
    return {"value": rounded, "mark": "measured", "source": source, "note": note}


def _assumed(record: Record, like: DeviceProfile) -> dict[str, Any]:
    """Return the figures of a part of the profile ``like``, each marked as assumed."""
    source = NOT_MEASURED.format(title=like.name)
    return {
        key: {"value": figure.value, "mark": "assumed", "source": source, "note": f"there {figure.mark}: {figure.source}"}
        for key, figure in record
        if isinstance(figure, Figure)
    }


def _giga(spread: Spread) -> Spread:
    return Spread(spread.value / 1e9, spread.median / 1e9, spread.low / 1e9, spread.high / 1e9, spread.repeats)


def _each(rates: Mapping[str, tuple[Spread, Spread]], which: int) -> str:
    return ", ".join(f"{name} {_giga(pair[which])}" for name, pair in rates.items() if name != "values")


@dataclass(frozen=True)
class Rates:
    """A calibrated profile's training rates, as :func:`edgefl.fleet.rates.train_s` takes them."""

    training_gmacs_per_s: Figure
    training_step: StepCosts

    @classmethod
    def of(cls, measured: Measured) -> Rates:
        """Return the rates of what was measured."""
        compute = compute_of(measured)
        return cls(Figure(**compute["training_gmacs_per_s"]), StepCosts.model_validate(compute["training_step"]))
