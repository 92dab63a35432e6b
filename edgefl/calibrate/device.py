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
    """What repeats of a measurement gave: the figure taken, their median, the least and the most.

    Taken is what a quarter of them reached: other programs only ever make a measurement worse, but a single best one may be a fluke.
    """

    value: float
    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of_seconds(cls, seconds: Sequence[float]) -> Spread:
        """Return the spread of at least one time: a quarter were as short.

        >>> Spread.of_seconds([5.0, 3.0, 1.0, 2.0, 4.0])
        Spread(value=2.0, median=3.0, low=1.0, high=5.0, repeats=5)
        """
        ordered = sorted(seconds)
        return cls(ordered[len(ordered) // 4], median(ordered), ordered[0], ordered[-1], len(ordered))

    def rate(self, amount: float) -> Spread:
        """Return the rate in ``amount`` per second, of a spread of seconds."""
        return Spread(amount / self.value, amount / self.median, amount / self.high, amount / self.low, self.repeats)

    def __str__(self) -> str:
        return f"{self.value:.3g} (median {self.median:.3g}, {self.low:.3g} to {self.high:.3g}, {self.repeats} repeats)"


@dataclass(frozen=True)
class Measured:
    """What was measured of a machine; rates are in MACs and bytes per second.

    Attributes:
        threads: of what ran on all threads.
        source: what was run where, for figures of kernels and steps.
        kernels: kernel → rate on one thread and on all; of ``values`` it is values per second.
        copied: bytes that one core copies in a second.
        steps: network and batch → its training step, once per round of repeats; in a round every step ran once.
        inference: network → rate of an inference of one sample, on one thread and on all.
        busy: share of all cores that other programs took while this one measured, in [0, 1].
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
        """Return every step with the seconds that are taken of its repeats."""
        return [
            Step(
                repeats[0].work,
                Spread.of_seconds([step.pass_s for step in repeats]).value,
                Spread.of_seconds([step.update_s for step in repeats]).value,
            )
            for repeats in self.steps.values()
        ]

    def step_rates(self) -> dict[str, Spread]:
        """Return the MACs per second of every step."""
        return {
            name: Spread.of_seconds([step.seconds for step in repeats]).rate(repeats[0].work.macs)
            for name, repeats in self.steps.items()
        }


def compute_of(measured: Measured) -> dict[str, Any]:
    """Return the table ``compute`` of the profile: rates, and the costs of a step's parts.

    ``training_gmacs_per_s`` is the median over networks, each at its largest batch, the last of its steps.
    """
    steps = {name: _giga(spread) for name, spread in measured.step_rates().items()}
    largest = {name.partition(" at ")[0]: spread for name, spread in steps.items()}
    kernels, inference = measured.kernels, measured.inference
    return {
        "inference_gmacs_per_s": _figure(
            median(every.value for _, every in inference.values()) / 1e9,
            measured.source,
            f"onnxruntime, batch of 1, median of networks: {_each(inference, 1)}. Kernels in torch: {_each(kernels, 1)}",
        ),
        "inference_single_thread_gmacs_per_s": _figure(
            median(one.value for one, _ in inference.values()) / 1e9,
            measured.source,
            f"onnxruntime, one thread, batch of 1, median of networks: {_each(inference, 0)}. Kernels in torch: {_each(kernels, 0)}",
        ),
        "training_gmacs_per_s": _figure(
            median(spread.value for spread in largest.values()),
            measured.source,
            "torch, forward, backward and update, median of networks at the larger batch: "
            + ", ".join(f"{name} {spread}" for name, spread in steps.items()),
        ),
        "memory_bandwidth_gb_per_s": _figure(
            measured.copied.value / 1e9, measured.source, f"one core copies, bytes counted once: {_giga(measured.copied)}"
        ),
        "training_step": _step_costs(measured),
    }


def _step_costs(measured: Measured) -> dict[str, Any]:
    """Return the table ``compute.training_step``: fitted to what is taken of each step, with the range of fits to single rounds."""
    # More threads than free cores are slower than one: no device would use them.
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
    """Return the profile as its TOML file has it; power and throttling are those of ``like``, marked as assumed.

    Args:
        measured: what was measured.
        name: the profile's name.
        link: its link, by name or as a table.
        like: whose figures stand in for what cannot be measured.
    """
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
    """Return a number of threads in words.

    >>> counted(1), counted(4)
    ('1 thread', '4 threads')
    """
    return f"{threads} thread{'s' * (threads != 1)}"


def to_toml(values: Mapping[str, Any]) -> str:
    """Return a profile's text: names first, then a table per group, a figure a line.

    >>> print(to_toml({"name": "x", "power": {"idle_w": {"value": 1.5, "mark": "assumed"}}}), end="")
    name = "x"
    <BLANKLINE>
    [power]
    idle_w = {value = 1.5, mark = "assumed"}
    """
    document = tomlkit.document()
    # Names stand before tables: what follows a table's heading would belong to it.
    for key, value in sorted(values.items(), key=lambda item: isinstance(item[1], Mapping)):
        document.add(key, _table(value) if isinstance(value, Mapping) else tomlkit.item(value))
    return tomlkit.dumps(document)


def _table(values: Mapping[str, Any]) -> Any:
    table = tomlkit.table()
    for key, value in values.items():
        if not isinstance(value, Mapping):
            table.add(key, value)
            continue
        if "value" not in value:
            table.add(key, _table(value))
            continue
        figure = tomlkit.inline_table()
        figure.update(value)
        table.add(key, figure)
    return table


def _figure(value: float, source: str, note: str) -> dict[str, Any]:
    rounded = value if isinstance(value, int) else float(f"{value:.4g}")
    return {"value": rounded, "mark": "measured", "source": source, "note": note}


def _assumed(record: Record, like: DeviceProfile) -> dict[str, Any]:
    """Return a record's figures, each marked as assumed, whatever it was in the profile that it comes from."""
    source = NOT_MEASURED.format(title=like.name)
    figures = {key: getattr(record, key) for key in type(record).model_fields}
    return {
        key: {"value": figure.value, "mark": "assumed", "source": source, "note": f"there {figure.mark}: {figure.source}"}
        for key, figure in figures.items()
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
