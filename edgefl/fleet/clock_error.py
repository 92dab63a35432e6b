"""The stated error of a device's clock: draws of it, and the chance that seconds stay within a limit.

A profile states the factor f that holds nine in ten predictions: measured / f ≤ predicted ≤ measured · f. Here the true seconds of training
are the predicted ones times a log-normal factor with these limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from edgefl.fleet.budget import Budget
from edgefl.fleet.profile import DeviceProfile
from edgefl.records import Timing
from edgefl.rng import generator

DRAWS = 200
_NINE_IN_TEN = 1.6448536269514722
"""Standard deviations of a normal variable that hold nine draws in ten."""

Confidence = Literal["safe", "likely", "open"]
"""How sure it is that limits of time hold: in 95 % of cases or more, in 75 % or more, or less."""
_SAFE, _LIKELY = 0.95, 0.75

Draws = Mapping[str, np.ndarray]
"""Device → a factor on its seconds of training per draw, and :func:`power_of` the device → one on its watts; float64, (draws,)."""


def power_of(device: str) -> str:
    """Return the name that the watts of a device have among :data:`Draws`."""
    return f"{device}, power"


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
    if error == 1 or slack == math.inf:
        return float(slack >= 1)
    return 0.5 * (1 + math.erf(math.log(slack) / math.log(error) * _NINE_IN_TEN / math.sqrt(2)))


def chance_of(device: DeviceProfile, timing: Timing, budget: Budget) -> float | None:
    """Return the chance that a round with the predicted ``timing`` meets the limits of seconds and joules; None without such a limit."""
    chances = []
    if budget.deadline_s is not None:
        slack = (budget.deadline_s - timing.total_s + timing.train_s) / timing.train_s
        chances.append(chance_within(slack, device.clock_error))
    if budget.energy_j is not None and device.energy_error is not None and timing.total_j is not None:
        spare_j = budget.energy_j - timing.total_j
        slack = 1 + spare_j / timing.train_j if timing.train_j else math.inf if spare_j >= 0 else 0.0
        chances.append(chance_within(slack, device.energy_error))
    return min(chances, default=None)


def confidence_of(chance: float | None) -> Confidence | None:
    """Return how sure a limit is.

    >>> confidence_of(0.95), confidence_of(0.75), confidence_of(0.5), confidence_of(None)
    ('safe', 'likely', 'open', None)
    """
    if chance is None:
        return None
    return "safe" if chance >= _SAFE else "likely" if chance >= _LIKELY else "open"
