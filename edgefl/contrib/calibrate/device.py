"""From measurements of a machine to the TOML file of its device profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median, quantiles

from edgefl.contrib.calibrate.meters import MeterFigures
from edgefl.contrib.calibrate.profile_file import assumed, figure, power_of
from edgefl.fleet.figures import Figure
from edgefl.fleet.profile import DeviceProfile
from edgefl.fleet.time_model import ForwardCosts, Limits, Measurement, StepCosts, fit, key_of, unit_of
from edgefl.records.work import KINDS, StepWork, Work
from edgefl.util.files import TomlTable
from edgefl.util.machine import Machine


@dataclass(frozen=True)
class MachineSpread:
    """The repeats of a measurement: the figure to use, their median, the least and the most.

    The figure is the best quartile: other programs can only slow a measurement down, but the single best repeat may be an outlier.
    """

    value: float
    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of_seconds(cls, seconds: Sequence[float]) -> MachineSpread:
        """Return the spread of at least one time."""
        ordered = sorted(seconds)
        return cls(ordered[len(ordered) // 4], median(ordered), ordered[0], ordered[-1], len(ordered))

    def rate(self, amount: float) -> MachineSpread:
        """Return the rates in ``amount`` per second of a spread of seconds."""
        return MachineSpread(amount / self.value, amount / self.median, amount / self.high, amount / self.low, self.repeats)

    def scaled(self, factor: float) -> MachineSpread:
        """Return the spread in another unit."""
        return MachineSpread(self.value * factor, self.median * factor, self.low * factor, self.high * factor, self.repeats)

    def __str__(self) -> str:
        return f"{self.value:.3g} (median {self.median:.3g}, {self.low:.3g} to {self.high:.3g}, {self.repeats} repeats)"


@dataclass(frozen=True)
class MachineStep:
    """A measured training step.

    Attributes:
        work: of the network's steps.
        samples: of the step.
        pass_s: seconds of the forward and backward pass; update_s, forward_s: of the update, and of a forward pass alone.
    """

    work: StepWork
    samples: int
    pass_s: float
    update_s: float
    forward_s: float

    @property
    def whole(self) -> Measurement:
        """The pass and the update."""
        return Measurement(self.work.of(self.samples, 1, 1), self.pass_s + self.update_s)

    @property
    def parts(self) -> tuple[Measurement, Measurement, Measurement]:
        """The pass, the update, and the forward pass."""
        works = self.work.of(self.samples, 1, 0), self.work.update, self.work.of(0, 0, 0, self.samples, 1)
        first, second, third = map(Measurement, works, (self.pass_s, self.update_s, self.forward_s))
        return first, second, third

    @property
    def fitted(self) -> list[Measurement]:
        """The parts that costs are fitted to; that of a small update is mostly the call of the optimizer, which is no operation."""
        return [part for at, part in enumerate(self.parts) if at != 1 or self.update_s > self.pass_s / 2]


@dataclass(frozen=True)
class Inference:
    """The work of an inference of one sample, and its seconds on one thread and on all threads."""

    work: Work
    one: MachineSpread
    every: MachineSpread


@dataclass(frozen=True)
class MachineFigures(Machine):
    """A machine with its measurements; rates are in MACs and bytes per second.

    Attributes:
        source: hardware and software, for the notes of the figures.
        product: rate of a matrix product on one thread and on all threads.
        steps: network, and batch of a reference network → its training step, one per round of repeats.
        inference: network → its inference.
        references: the steps of reference networks; the other networks do mostly one kind of work each.
        busy: share of all cores that other programs used meanwhile, in [0, 1].
        watts: None: they were not measured.
    """

    source: str
    product: tuple[MachineSpread, MachineSpread]
    copied: MachineSpread
    steps: Mapping[str, Sequence[MachineStep]]
    inference: Mapping[str, Inference]
    references: tuple[str, ...]
    busy: float
    watts: MeterFigures | None = None

    @property
    def limits(self) -> Limits:
        """The limits of the hardware, as far as they were measured: Winograd's convolutions do fewer products than they have MACs."""
        # If other programs use the cores, several threads are slower than one.
        product = max(spread.value for spread in self.product)
        return Limits(_FASTEST * product, _CACHED * self.copied.value)

    def typical(self) -> dict[str, MachineStep]:
        """Return every step with the best quartile of its seconds."""
        typical = {}
        for name, steps in self.steps.items():
            columns = zip(*((s.pass_s, s.update_s, s.forward_s) for s in steps), strict=True)
            typical[name] = MachineStep(
                steps[0].work, steps[0].samples, *(MachineSpread.of_seconds(column).value for column in columns)
            )
        return typical

    def step_rates(self) -> dict[str, MachineSpread]:
        """Return the MACs per second of every step of a reference network."""
        wholes = {name: [step.whole for step in self.steps[name]] for name in self.references}
        return {
            name: MachineSpread.of_seconds([m.seconds for m in all_]).rate(all_[0].work.macs) for name, all_ in wholes.items()
        }


_FASTEST = 4
_CACHED = 20  # bytes that an operation finds in a cache arrive so many times as fast as copied ones, at most


def compute_of(measured: MachineFigures, like: DeviceProfile | None = None) -> TomlTable:
    """Return the table ``compute`` of the profile; its training rate is the median over networks, each at its largest (last) batch.

    Costs of kinds take the shape of those of ``like``, if it has them.
    """
    steps = {name: _giga(spread) for name, spread in measured.step_rates().items()}
    largest = {name.partition(" at ")[0]: spread for name, spread in steps.items()}

    def inference(which: int, threads: str) -> TomlTable:
        known = [(name, measured.inference[name]) for name in largest if name in measured.inference]
        rates = {name: _giga((rate.one, rate.every)[which].rate(rate.work.macs)) for name, rate in known}
        each = ", ".join(f"{name} {spread}" for name, spread in rates.items())
        note = f"onnxruntime, {threads}batch of 1, median of networks: {each}. A matrix product in torch: "
        return figure(median(s.value for s in rates.values()), measured.source, f"{note}{_giga(measured.product[which])}")

    step = "torch, forward, backward and update, median of networks at the larger batch: "
    step += ", ".join(f"{name} {spread}" for name, spread in steps.items())
    copied = f"one core copies, bytes counted once: {_giga(measured.copied)}"
    trained, inferred = _costs(measured, None if like is None else like.compute.training_step)
    return {
        "inference_gmacs_per_s": inference(1, ""),
        "inference_single_thread_gmacs_per_s": inference(0, "one thread, "),
        "training_gmacs_per_s": figure(median(spread.value for spread in largest.values()), measured.source, step),
        "memory_bandwidth_gb_per_s": figure(measured.copied.value / 1e9, measured.source, copied),
        "training_step": trained,
        "inference_step": inferred,
    }


def _costs(measured: MachineFigures, shape: StepCosts | None) -> tuple[TomlTable, TomlTable]:
    """Return the tables ``compute.training_step`` and ``compute.inference_step``, fitted to the best quartile of every time."""
    limits, family = measured.limits, None if shape is None else shape.seconds
    known = {"input_bytes": 1 / measured.copied.value}  # samples lie in memory here, and are copied into a batch

    def fitted(steps: Iterable[MachineStep]) -> tuple[float, ...]:
        return fit(list(chain.from_iterable(step.fitted for step in steps)), limits, family, known)

    typical = measured.typical()
    costs = fitted(typical.values())
    rounds = [fitted(steps) for steps in zip(*measured.steps.values(), strict=True)]
    ranges = [MachineSpread.of_seconds([fit_costs[at] for fit_costs in rounds]) for at in range(len(KINDS))]
    networks = {name: name.partition(" at ")[0] for name in typical}
    elsewhere = [
        (typical[name], fitted(step for other, step in typical.items() if networks[other] != networks[name]))
        for name in measured.references
    ]
    note = f"fitted to {len(typical)} networks"
    trained = table_of(
        StepCosts, costs, factor_of((step.whole, fit_costs) for step, fit_costs in elsewhere), measured.source, note, ranges
    )
    forward = [cost if key_of(kind) in ForwardCosts.model_fields else 0.0 for kind, cost in zip(KINDS, costs, strict=True)]
    inferences = [Measurement(inference.work, inference.every.value) for inference in measured.inference.values()]
    own = fit(inferences, limits, forward)
    note = f"onnxruntime, batch of 1: fitted to {len(inferences)} networks, with the shape of training_step"
    return trained, table_of(ForwardCosts, own, factor_of((inference, own) for inference in inferences), measured.source, note)


def factor_of(predictions: Iterable[tuple[Measurement, Sequence[float]]]) -> float:
    """Return the factor within which nine predictions in ten are."""
    ratios = [step.work.seconds(costs) / step.seconds for step, costs in predictions]
    factors = [max(ratio, 1 / ratio) for ratio in ratios]
    return quantiles(factors, n=10, method="inclusive")[-1] if len(factors) > 1 else factors[0]


def table_of(
    table: type[ForwardCosts], costs: Sequence[float], error: float, source: str, note: str, ranges: Sequence[MachineSpread] = ()
) -> TomlTable:
    """Return a table of costs; ``ranges`` are those of the fits to single rounds."""
    figures = {}
    for at, kind in enumerate(KINDS):
        if (key := key_of(kind)) in table.model_fields:
            spread = f"; to single rounds: {ranges[at].scaled(1 / unit_of(key))}" if ranges else ""
            figures[key] = figure(costs[at] / unit_of(key), source, note + spread)
    left_out = "each predicted without its own steps" if ranges else "those that were fitted"
    return figures | {"error": figure(error, source, f"nine in ten steps of networks are within this factor, {left_out}")}


def device_values(measured: MachineFigures, name: str, link: str | TomlTable, like: DeviceProfile) -> TomlTable:
    """Return the content of a profile's TOML file; throttling and watts that were not measured are those of ``like``, assumed."""
    system = f"{measured.source.partition(';')[0]}; psutil"
    values = {
        "name": name,
        "title": f"{measured.processor}, calibrated on {counted(measured.threads)}",
        "reference_hardware": f"{measured.processor}, {measured.system}",
        "link": link,
        "memory": {
            "total_bytes": figure(measured.total_bytes, system, "what the system, or its container, has"),
            "training_bytes": figure(measured.free_bytes, system, "free when it was measured: what other programs left"),
        },
        "compute": compute_of(measured, like),
        **power_of(measured.watts, like, measured.battery, measured.source),
    }
    return values | ({"thermal": assumed(like.thermal, like)} if like.thermal else {})


def counted(threads: int) -> str:
    """Return a number of threads in words, such as ``4 threads``."""
    return f"{threads} thread{'s' * (threads != 1)}"


def _giga(spread: MachineSpread) -> MachineSpread:
    return spread.scaled(1e-9)


@dataclass(frozen=True)
class MachineRates:
    """A calibrated profile's training rates, as :func:`edgefl.fleet.time_model.train_s` takes them."""

    training_gmacs_per_s: Figure
    training_step: StepCosts

    @classmethod
    def of(cls, measured: MachineFigures) -> MachineRates:
        """Return the rates of what was measured."""
        compute = compute_of(measured)
        return cls(Figure(**compute["training_gmacs_per_s"]), StepCosts.model_validate(compute["training_step"]))
