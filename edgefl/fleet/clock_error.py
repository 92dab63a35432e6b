"""What the stated error of a device's clock means: draws of it, and the chance that seconds stay within a limit.

A profile states the factor f that holds nine in ten predictions: measured / f ≤ predicted ≤ measured · f. Here the true seconds of training
are the predicted ones times a log-normal factor with these limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from edgefl.rng import generator

DRAWS = 200
_NINE_IN_TEN = 1.6448536269514722
"""Standard deviations of a normal variable that hold nine draws in ten."""

Draws = Mapping[str, np.ndarray]
"""Device → a factor on its seconds of training per draw, float64 of shape (draws,)."""


def drawn_factors(errors: Mapping[str, float], draws: int = DRAWS) -> dict[str, np.ndarray]:
    """Return the factors on the seconds of training of each device; ``errors`` is device → stated error.

    A device has the same factors wherever it occurs, so whatever is compared is compared under the same draws.

    >>> drawn = drawn_factors({"a": 2.0, "b": 1.0}, 1000)
    >>> float(np.mean((drawn["a"] > 0.5) & (drawn["a"] < 2))).__round__(1), drawn["b"].max()
    (0.9, np.float64(1.0))
    """
    normal = {device: generator(0, "clock error", device).standard_normal(draws) for device in errors}
    return {device: error ** (normal[device] / _NINE_IN_TEN) for device, error in errors.items()}


def chance_within(slack: float, error: float) -> float:
    """Return the chance that training takes at most ``slack`` times the predicted seconds, with the stated ``error``.

    >>> round(chance_within(1.18, 1.18), 3), chance_within(1.0, 1.18), chance_within(-1.0, 2.0), chance_within(1.0, 1.0)
    (0.95, 0.5, 0.0, 1.0)
    """
    if slack <= 0:
        return 0.0
    if error == 1:
        return float(slack >= 1)
    return 0.5 * (1 + math.erf(math.log(slack) / math.log(error) * _NINE_IN_TEN / math.sqrt(2)))
