"""Compares a profile's predicted training times with measured steps on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from edgefl.calibrate import bench as timing
from edgefl.calibrate.calibrate import NETWORKS
from edgefl.calibrate.device import Spread
from edgefl.fleet.rates import train_s
from edgefl.planning.network import architecture_of
from edgefl.registry import models
from edgefl.rng import generator, torch_seeded
from edgefl.util.machine import Others, this_machine

BAR = 0.25
"""The largest acceptable median error of a calibrated profile."""

_BATCHES = (16, 4, 1)
_STEP_LIMIT_S = 1.0
_LEAST = 3

Notify = Callable[[str], None]


@dataclass(frozen=True)
class StepComparison:
    """A reference model's training step: predicted and measured seconds, and the prediction of a single rate of MACs."""

    model: str
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
    def median_error_elsewhere(self) -> float:
        """The same without the models that calibration uses."""
        return Validation(tuple(row for row in self.rows if not row.calibrated_on), self.busy).median_error

    @property
    def median_error_by_rate(self) -> float:
        """The same for predictions from ``training_gmacs_per_s`` alone."""
        return median(abs(row.predicted_by_rate_s / row.measured_s - 1) for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the medians, their limit, and every model."""
        return {
            "median_error": self.median_error,
            "bar": BAR,
            "met": self.median_error <= BAR,
            "median_error_elsewhere": self.median_error_elsewhere,
            "median_error_by_rate": self.median_error_by_rate,
            "busy": self.busy,
            "models": [row.to_json() for row in self.rows],
        }


def validate(compute: Any, threads: int | None = None, seconds: float = 1.0, notify: Notify = lambda message: None) -> Validation:
    """Compare predicted and measured training steps of every reference model, at a batch at which no profile is calibrated.

    ``compute`` has a profile's rates, as :func:`edgefl.fleet.rates.train_s` takes them. Each model is measured for about ``seconds``, with
    at least three steps; their best quartile counts. ``notify`` is called with a line of text per model.
    """
    others, rows = Others(), []
    with torch_seeded(generator(0, "validate")), timing.torch_threads(threads or this_machine().threads):
        for name in models.names():
            notify(f"timing {name}")
            rows.append(_comparison(compute, name, seconds))
    return Validation(tuple(rows), others.share())


def _comparison(compute: Any, name: str, seconds: float) -> StepComparison:
    network = architecture_of(name)
    for batch in _BATCHES:
        cost = timing.step_cost(network, batch)
        predicted_s = train_s(compute, cost, batch, 1)
        if predicted_s <= _STEP_LIMIT_S:
            break
    readings = timing.interleaved({name: timing.step_task(network, batch)}, seconds, _LEAST)[name]
    measured = Spread.of_seconds([sum(parts) for parts in readings])
    macs = cost.macs_of(batch, 1)
    by_rate_s = macs / (compute.training_gmacs_per_s.value * 1e9)
    spread = measured.value, measured.low, measured.high, measured.repeats
    return StepComparison(name, batch, macs, predicted_s, by_rate_s, *spread, name in NETWORKS)
