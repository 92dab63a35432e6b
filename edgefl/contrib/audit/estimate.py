"""ε as canaries show it: the distance of two normal distributions that are fitted to their scores.

A canary is a random direction c of length 1 that somebody adds to a sum with the sign s, +1 or −1: s·c for the one data set, −s·c for its
neighbour, in which this contribution is replaced. Its score s·⟨c, release⟩ is N(µ, σ²) or N(−µ, σ²), because random directions of many
dimensions hardly meet one another or what others send. ε(δ) of the two is that of a Gaussian mechanism with the ratio 2µ/σ of sensitivity
to noise. One release with many canaries gives many scores: one run is enough.

Andrew et al. 2024, One-shot Empirical Privacy Estimation for Federated Learning (arXiv 2302.03098), Algorithm 1.

Differs from the paper: it takes part with or without a canary as neighbours, and knows the scores of absent canaries, N(0, 1/d). Here a
record is replaced, as in :mod:`edgefl.contrib.privacy.accountant`, which is twice as far. It divides by the length of the release, a factor
that all scores share, so that they are cosines.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.99
"""The share of intervals that contain the true value."""


@dataclass(frozen=True)
class Interval:
    """A value as it was measured, with the limits of its interval."""

    value: float
    low: float
    high: float

    def through(self, rising: Callable[[float], float]) -> "Interval":
        """Return the estimate of a function that rises with the value."""
        return Interval(rising(self.value), rising(self.low), rising(self.high))


def distance(scores: np.ndarray) -> Interval:
    """Return 2µ/σ of normal ``scores``, at least 0.

    The interval is the normal approximation in √2·asinh(µ/(σ√2)), whose deviation is 1/√k for k scores, whatever µ and σ are.

    >>> ratio = distance(np.array([1.0, 2.0, 3.0, 2.0]))
    >>> round(ratio.value, 3), round(ratio.low, 3), round(ratio.high, 3)
    (4.899, 1.181, 12.969)
    """
    deviation = float(np.std(scores, ddof=1))
    ratio = float(np.mean(scores)) / max(deviation, np.finfo(float).tiny)
    half = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) / math.sqrt(len(scores))
    steady = math.sqrt(2) * math.asinh(ratio / math.sqrt(2))
    return Interval(*(max(0.0, 2 * math.sqrt(2) * math.sinh((steady + by) / math.sqrt(2))) for by in (0.0, -half, half)))


def epsilon(ratio: float, delta: float) -> float:
    """Return ε(``delta``) of N(µ, σ²) and N(−µ, σ²), whose ``ratio`` is 2µ/σ.

    >>> round(epsilon(1.0, 1e-5), 4), epsilon(0.0, 1e-5)
    (4.3772, 0.0)
    """
    if ratio <= 0:
        return 0.0
    import dp_accounting  # a second to import

    with np.errstate(divide="ignore"):  # its logarithm of a difference that is 0
        return float(dp_accounting.get_epsilon_gaussian(1 / ratio, delta))
