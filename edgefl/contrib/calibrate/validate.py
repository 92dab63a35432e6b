"""Compares a profile's predicted training times with measured steps on this machine."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import median, quantiles
from typing import Any

from edgefl.contrib.calibrate import bench as timing
from edgefl.contrib.calibrate.calibrate import NETWORKS
from edgefl.contrib.calibrate.device import MachineSpread
from edgefl.fleet.time_model import train_s
from edgefl.methods.create import create
from edgefl.models.base import small_models
from edgefl.planning.network import architecture_of
from edgefl.records import Tier
from edgefl.registry import methods
from edgefl.rng import generator, torch_seeded
from edgefl.util.machine import Others, this_machine

BAR = 0.12
"""The largest acceptable median error of a calibrated profile."""
APART = 1.25
"""A tier whose steps are predicted to be this many times as fast as another tier's must be faster."""

_TIERED = ("cnn-digits",)
_RATIOS = (1.0, 0.5, 0.25)
_BATCHES = (16, 4, 1)
_STEP_LIMIT_S = 1.0
_LEAST = 3

Notify = Callable[[str], None]


@dataclass(frozen=True)
class StepComparison:
    """A training step: predicted and measured seconds, and the prediction of a single rate of MACs.

    Attributes:
        model: a reference network.
        tier: method and ratio of the network that is trained; empty for the whole network.
        calibrated_on: whether calibration uses this network.
    """

    model: str
    tier: str
    batch_size: int
    macs: int
    predicted_s: float
    predicted_by_rate_s: float
    measured_s: float
    low_s: float
    high_s: float
    repeats: int
    calibrated_on: bool

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1

    def to_json(self) -> dict[str, Any]:
        """Return the comparison with its error."""
        return asdict(self) | {"error": self.error}


@dataclass(frozen=True)
class Validation:
    """The errors of a profile's predictions; ``busy`` is the share of all cores that other programs used meanwhile."""

    rows: tuple[StepComparison, ...]
    busy: float

    @property
    def median_error(self) -> float:
        """The median of the absolute errors."""
        return median(abs(row.error) for row in self.rows)

    @property
    def largest_errors(self) -> float:
        """The 90th percentile of the absolute errors."""
        errors = [abs(row.error) for row in self.rows]
        return quantiles(errors, n=10, method="inclusive")[-1] if len(errors) > 1 else errors[0]

    @property
    def median_error_elsewhere(self) -> float:
        """The median error without the models that calibration uses."""
        return Validation(tuple(row for row in self.rows if not row.calibrated_on), self.busy).median_error

    @property
    def median_error_by_rate(self) -> float:
        """The median error of predictions from ``training_gmacs_per_s`` alone."""
        return median(abs(row.predicted_by_rate_s / row.measured_s - 1) for row in self.rows)

    @property
    def pairs(self) -> list[tuple[StepComparison, StepComparison]]:
        """Tiers of one network and method of which the first is predicted to be at least :data:`APART` times as fast as the second."""
        ordered = sorted((row for row in self.rows if row.tier), key=lambda row: row.predicted_s)
        both = ((a, b) for a, b in combinations(ordered, 2) if (a.model, a.tier.split()[0]) == (b.model, b.tier.split()[0]))
        return [(fast, slow) for fast, slow in both if slow.predicted_s >= APART * fast.predicted_s]

    @property
    def inversions(self) -> list[str]:
        """The pairs of tiers that are measured in the other order, as text."""
        wrong = ((fast, slow) for fast, slow in self.pairs if fast.measured_s >= slow.measured_s)
        return [f"{fast.model}: {fast.tier} is not faster than {slow.tier}" for fast, slow in wrong]

    def to_json(self) -> dict[str, Any]:
        """Return the medians, their limit, the order of tiers, and every step."""
        return {
            "median_error": self.median_error,
            "bar": BAR,
            "met": self.median_error <= BAR and not self.inversions,
            "percentile_90_error": self.largest_errors,
            "median_error_elsewhere": self.median_error_elsewhere,
            "median_error_by_rate": self.median_error_by_rate,
            "pairs_of_tiers": len(self.pairs),
            "inversions": self.inversions,
            "busy": self.busy,
            "models": [row.to_json() for row in self.rows],
        }


def validate(compute: Any, threads: int | None = None, seconds: float = 0.5, notify: Notify = lambda message: None) -> Validation:
    """Compare predicted and measured training steps of reference networks, and of every method's tiers of a small network.

    ``compute`` has a profile's rates, as :func:`edgefl.fleet.time_model.train_s` takes them. Batches differ from those of calibration.
    Each network is measured for about ``seconds``, with at least three steps; their best quartile counts. ``notify`` is called with a
    line of text per network.
    """
    others, rows = Others(), []
    with torch_seeded(generator(0, "validate")), timing.torch_threads(threads or this_machine().threads):
        for name, method, tier in _validated():
            notify(f"timing {name} {tier}".rstrip())
            rows.append(_comparison(compute, name, method, tier, seconds))
    return Validation(tuple(rows), others.share())


def _validated() -> Iterator[tuple[str, str, str]]:
    """Yield networks, methods and tiers."""
    yield from ((name, "fedavg", "") for name in small_models())
    yield from ((name, method, f"{method} {ratio:g}") for method in methods.names() for name in _TIERED for ratio in _RATIOS)


def _comparison(compute: Any, name: str, method: str, tier: str, seconds: float) -> StepComparison:
    network, chosen = architecture_of(name), Tier(float(tier.split()[1]) if tier else 1.0)
    for batch in _BATCHES:
        step = timing.TrainedBench(network, batch, create(method), chosen)
        cost = step.cost
        predicted_s = train_s(compute, cost, batch, 1, 1)
        if predicted_s <= _STEP_LIMIT_S:
            break
    readings = timing.interleaved({name: step.task()}, seconds, _LEAST)[name]
    measured = MachineSpread.of_seconds([sum(parts) for parts in readings])
    macs = cost.macs_of(batch, 1)
    by_rate_s = macs / (compute.training_gmacs_per_s.value * 1e9)
    spread = measured.value, measured.low, measured.high, measured.repeats
    return StepComparison(name, tier, batch, macs, predicted_s, by_rate_s, *spread, not tier and name in NETWORKS)
