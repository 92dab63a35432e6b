"""The budget of a whole run, and what checks it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgefl.errors import ConfigError
from edgefl.records import ACCURACY, Metric

AXES = ("simulated_s", "client_bytes", "client_j")
"""What a budget limits, in the order of the fields of :class:`RunBudget`."""


@dataclass(frozen=True)
class RunBudget:
    """What a whole run may take; None is no limit.

    Attributes:
        s: simulated seconds until the end of a round.
        bytes: bytes that each client may receive and send in all of its sessions.
        j: joules that each client may use in all of its sessions.

    Raises:
        ConfigError: a limit is not a finite number above 0.

    >>> RunBudget(s=600, bytes=100e6).limits
    {'simulated_s': 600, 'client_bytes': 100000000.0}
    """

    s: float | None = None
    bytes: float | None = None
    j: float | None = None

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            if value is not None and not _number(value):
                raise ConfigError(f"budget: {key} must be a finite number above 0, got {value!r}")

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by what they limit."""
        return {axis: limit for axis, limit in zip(AXES, vars(self).values(), strict=True) if limit is not None}

    def exceeded_by(self, cost: Mapping[str, float | None]) -> tuple[str, ...]:
        """Return which limits a cost (simulated_s, client_bytes, client_j) is above; one that is unknown (None) is within no limit."""
        return tuple(axis for axis, limit in self.limits.items() if (used := cost[axis]) is None or used > limit)


def check_target(target: float | None, metric: Metric = ACCURACY) -> None:
    """Raise :class:`ConfigError` if a target accuracy is not a share in (0, 1], or the metric is no share; None is no target."""
    if target is not None and not (_number(target) and target <= 1):
        raise ConfigError(f"target_accuracy must be a share in (0, 1], such as 0.85, got {target!r}")
    if target is not None and not metric.share:
        raise ConfigError(f"target_accuracy: is a share, and values of {metric.name} may be others; leave it out")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
