"""Predicted over measured seconds: figures of the error, and the table of a page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from counters.markdown import percent, table
from scipy.stats import kendalltau, spearmanr

from clock.rows import Row


@dataclass(frozen=True)
class Prediction:
    """Seconds of one row, measured and predicted.

    Attributes:
        row: the network and the device.
        forward: whether only the classifier was trained.
        one_rate_s: predicted from the MACs at one rate.
    """

    row: Row
    forward: bool
    measured_s: float
    predicted_s: float
    one_rate_s: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_s / self.measured_s


@dataclass(frozen=True)
class Spread:
    """The median, 90th percentile and worst of the errors of some rows."""

    rows: int
    median: float
    nine_in_ten: float
    worst: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Spread:
        """Return the spread of the absolute value of predicted ÷ measured − 1.

        >>> Spread.of([1.1, 0.9, 1.1])
        Spread(rows=3, median=0.1, nine_in_ten=0.1, worst=0.1)
        """
        off = np.abs(np.array(ratios) - 1)
        return cls(len(off), *(round(float(figure), 4) for figure in (np.median(off), np.percentile(off, 90), off.max())))

    def __str__(self) -> str:
        return f"{100 * self.median:.1f} % | {100 * self.nine_in_ten:.1f} % | {100 * self.worst:.1f} %"


def factor_of(ratios: Sequence[float]) -> float:
    """Return the factor f so that at least nine in ten predictions lie within measured / f and measured · f.

    >>> factor_of([0.5, *[1.25] * 9])
    1.25
    """
    factors = [max(ratio, 1 / ratio) for ratio in ratios]
    return float(np.percentile(factors, 90, method="inverted_cdf"))


def order_of(measured: Sequence[float], predicted: Sequence[float]) -> tuple[float, float]:
    """Return Kendall's τ and Spearman's ρ of measured and predicted seconds: 1 if all are predicted in their order, NaN of a single row.

    >>> order_of([1.0, 2.0, 3.0], [1.1, 2.5, 2.4])
    (0.333, 0.5)
    """
    if len(measured) < 2:
        return math.nan, math.nan
    found = (statistic(measured, predicted).statistic for statistic in (kendalltau, spearmanr))
    tau, rho = (round(float(value), 3) for value in found)
    return tau, rho


APART = 1.5
"""Networks whose steps differ by this factor must be predicted in their order."""


def inversions(predictions: Sequence[Prediction]) -> tuple[list[tuple[str, str]], int]:
    """Return the pairs of networks on one device that are predicted in the wrong order, and how many pairs are apart by ``APART``."""
    wrong, pairs = [], 0
    for one, other in itertools.combinations(predictions, 2):
        if one.row.device == other.row.device and abs(math.log(one.measured_s / other.measured_s)) > math.log(APART):
            pairs += 1
            if (one.measured_s < other.measured_s) != (one.predicted_s < other.predicted_s):
                wrong.append((one.row.network, other.row.network))
    return wrong, pairs


def between(predictions: Sequence[Prediction], slow: str, fast: str) -> dict[str, tuple[float, float]]:
    """Return network → seconds on ``slow`` over those on ``fast``, measured and predicted."""
    found: dict[str, dict[str, Prediction]] = {}
    for prediction in predictions:
        found.setdefault(prediction.row.network, {})[prediction.row.device] = prediction
    both = {network: (on[slow], on[fast]) for network, on in found.items() if slow in on and fast in on}
    return {network: (a.measured_s / b.measured_s, a.predicted_s / b.predicted_s) for network, (a, b) in both.items()}


def page_table(predictions: Sequence[Prediction], devices: Sequence[str]) -> str:
    """Return a line for each network: measured and predicted seconds, and how far off, on each device."""
    networks = dict.fromkeys(p.row.network for p in predictions)
    at = {(p.row.network, p.row.device): p for p in predictions}
    rows = []
    for network in networks:
        cells = [network]
        for device in devices:
            found = at.get((network, device))
            if found is None:
                cells += [""] * 3
            else:
                cells += [f"{found.measured_s:.2f} s", f"{found.predicted_s:.2f} s", percent(found.ratio - 1)]
        rows.append(cells)
    titles = [title for device in devices for title in (f"{device}, measured", "predicted", "off by")]
    return table(["held-out network", *titles], rows)
