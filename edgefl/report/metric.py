"""How reports name and write the metric of a run: shares in percent, and other metrics as they are."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from edgefl.records import Metric
from edgefl.report.chart import Spec, number, share
from edgefl.util.units import MISSING, human_percent


def metric_text(metric: Metric, value: float | None) -> str:
    """Return a value of a metric for people: four digits, or percent.

    >>> metric_text(Metric(), 0.912), metric_text(Metric("mean error", "lower", share=False), 0.91234567)
    ('91.2 %', '0.9123')
    """
    return human_percent(value) if metric.share else MISSING if value is None else f"{value:.4g}"


class Averaged(Protocol):
    """A mean over seeds, with its standard deviation or its standard error as ``spread``; None for a single seed."""

    @property
    def mean(self) -> float: ...  # noqa: D102

    @property
    def spread(self) -> float | None: ...  # noqa: D102


def spread_text(metric: Metric, found: Averaged | None) -> str:
    """Return a mean over seeds with its spread: ``91.2 ± 0.4 %``."""
    if found is None:
        return MISSING
    if found.spread is None:
        return metric_text(metric, found.mean)
    if metric.share:
        return f"{100 * found.mean:.1f} ± {100 * found.spread:.1f} %"
    return f"{metric_text(metric, found.mean)} ± {found.spread:.2g}"


def metric_axis(metric: Metric, **scale: Any) -> Spec:
    """Return the encoding of a metric along an axis."""
    return share("accuracy", metric.name, **scale) if metric.share else number("accuracy", metric.name, scale=scale)


def best_of(metric: Metric) -> Callable[[Iterable[float]], float]:
    """Return the function that finds the best of some values.

    >>> best_of(Metric("error", "lower"))([3.0, 2.0])
    2.0
    """
    return max if metric.better == "higher" else min


def worst_of(metric: Metric) -> Callable[[Iterable[float]], float]:
    """Return the function that finds the worst of some values."""
    return min if metric.better == "higher" else max


def reaches(metric: Metric, value: float, target: float) -> bool:
    """Return whether a value is as good as ``target``; a mean that is the target itself may differ from it in its last bit."""
    return value >= target - 1e-12 if metric.better == "higher" else value <= target + 1e-12
