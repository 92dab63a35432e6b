"""When clients are eligible: always, by the hour of the day, or as in a recorded trace (:mod:`edgefl.fleet.trace`)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgefl.errors import ConfigError
from edgefl.rng import uniforms

DAY_S = 86_400


class Availability(Protocol):
    """Which clients are eligible, and until when."""

    def until(self, clients: np.ndarray, clock_s: float) -> np.ndarray:
        """Return the clock time in seconds, float64, at which each client stops being eligible.

        Args:
            clients: client numbers, int64, from 0.
            clock_s: the run's clock in seconds, from 0. A time that is not after it means that the client is not eligible now.
        """


@dataclass(frozen=True)
class ByClass:
    """Each class of a fleet has an availability of its own.

    Attributes:
        classes: numbers of clients → the numbers of their classes.
        of: the availability of each class.
    """

    classes: Callable[[np.ndarray], np.ndarray]
    of: tuple[Availability, ...]

    def until(self, clients: np.ndarray, clock_s: float) -> np.ndarray:
        """Return when each client stops being eligible, by the availability of its class."""
        number, until_s = self.classes(clients), np.full(len(clients), float(clock_s))
        for place in np.unique(number):
            mask = number == place
            until_s[mask] = self.of[place].until(clients[mask], clock_s)
        return until_s


@dataclass(frozen=True)
class Always:
    """Every client is always eligible."""

    def until(self, clients: np.ndarray, clock_s: float) -> np.ndarray:
        """Return infinity for every client."""
        return np.full(len(clients), np.inf)


@dataclass(frozen=True)
class Daily:
    """Eligibility that comes and goes with the hour of the day.

    At hour h the share of eligible clients is::

        p(h) = mean_share · (1 + a · cos(2π · (h − peak_hour) / 24)),    a = (ratio − 1) / (ratio + 1)

    so that the highest share is ``day_night_ratio`` times the lowest. A day lasts from trough to trough. On each day, a client draws one
    uniform number u and is eligible while p(h) > u. That is one stretch around the peak. Its ends are closed forms, rounded to whole
    seconds. A client whose u lies below the trough's share is eligible all day; its stretch ends with the day, when it draws again.

    Args:
        seed: decides who is eligible on which day.
        mean_share: over the day.
        day_night_ratio: highest over lowest share, at least 1.
        peak_hour: hour of the highest share, in [0, 24).
        start_hour: hour at which the run's clock starts, in [0, 24).

    Raises:
        ConfigError: an argument lies outside of its range, or the highest share would exceed 1.

    >>> night = Daily(seed=0, mean_share=0.2, day_night_ratio=4, peak_hour=3, start_hour=12)
    >>> night.share(15 * 3600), night.share(3 * 3600)  # at 3 and at 15 o'clock
    (0.32, 0.08)
    """

    seed: int
    mean_share: float
    day_night_ratio: float
    peak_hour: float
    start_hour: float = 0.0

    def __post_init__(self) -> None:
        for key in ("peak_hour", "start_hour"):
            if not 0 <= (hour := getattr(self, key)) < 24:
                raise ConfigError(f"{key}: expected an hour in [0, 24), got {hour:g}")
        if not 0 < self.mean_share <= 1:
            raise ConfigError(f"eligible_share: expected a share in (0, 1], got {self.mean_share:g}")
        if not 1 <= self.day_night_ratio < math.inf:
            raise ConfigError(f"day_night_ratio: expected a finite ratio of at least 1, got {self.day_night_ratio:g}")
        if (peak := self.mean_share * (1 + self._swing)) > 1 + 1e-9:
            raise ConfigError(
                f"eligible_share: expected at most {1 / (1 + self._swing):.3g} with a day_night_ratio of {self.day_night_ratio:g}, or the "
                f"share at the peak exceeds 1; got {self.mean_share:g}, at the peak {peak:.3g}"
            )

    @property
    def _swing(self) -> float:
        return (self.day_night_ratio - 1) / (self.day_night_ratio + 1)

    def share(self, clock_s: float) -> float:
        """Return the expected share of eligible clients at a time of the run's clock, rounded to six decimals."""
        _, peak_s = self._day(clock_s)
        return round(self.mean_share * (1 + self._swing * math.cos(2 * math.pi * (clock_s - peak_s) / DAY_S)), 6)

    def until(self, clients: np.ndarray, clock_s: float) -> np.ndarray:
        """Return when each client's stretch ends, a whole second; ``clock_s`` for those that are not in theirs."""
        day, peak_s = self._day(clock_s)
        half_s = self._half_stretch_s(uniforms(self.seed, clients, "eligible", day))
        return np.where((peak_s - half_s <= clock_s) & (clock_s < peak_s + half_s), peak_s + half_s, clock_s)

    def _half_stretch_s(self, u: np.ndarray) -> np.ndarray:
        """Return how long before and after the peak p exceeds ``u``: whole seconds, float64."""
        if self._swing == 0:
            return np.where(u < self.mean_share, DAY_S / 2, 0.0)
        angle = np.arccos(np.clip((u / self.mean_share - 1) / self._swing, -1, 1))
        return np.round(angle * (DAY_S / (2 * math.pi)))

    def _day(self, clock_s: float) -> tuple[int, int]:
        """Return the number of the day, the one at clock 0 being 0, and the clock time of its peak, whole seconds."""
        # Whole seconds throughout: sums of them are exact.
        since_trough_s = (round(self.start_hour * 3600) - round(self.peak_hour * 3600) - DAY_S // 2) % DAY_S
        day = math.floor((clock_s + since_trough_s) / DAY_S)
        return day, day * DAY_S + DAY_S // 2 - since_trough_s
