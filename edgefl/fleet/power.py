"""How much energy training takes on a device: watts while it trains, times seconds, and how far off they may be.

    joules = watts while it trains · seconds of training
    watts  = idle_w + (load_w − idle_w) · Σ over kinds (share of the seconds · share of the load)

The shares of the load are 1 unless the profile states them: ``load_w`` then holds for every network. ``docs/energy.md`` compares watts
under several kinds of load on measured boards.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from edgefl.fleet.figures import Figure, Positive, Ratio, Record, Share, at_most
from edgefl.fleet.time_model import ForwardCosts
from edgefl.records.work import KINDS, Work

MEASURED_ERROR, STATED_ERROR, PER_MAC_ERROR = 1.5, 3.0, 10.0
"""Joules of one second may be wrong by these factors if ``load_w`` was measured, if it is known in another way, and without ``load_w``."""

Bound = Literal["compute", "memory", "waiting"]


def bound_of(kind: str) -> Bound:
    """Return what limits a kind of work: arithmetic on all cores, memory, or one core that prepares work for the others.

    >>> [bound_of(kind) for kind in ("pointwise_macs", "grouped_macs", "update_bytes", "operations")]
    ['compute', 'memory', 'memory', 'waiting']
    """
    if kind in ("operations", "convolutions", "input_bytes"):
        return "waiting"
    return "compute" if kind.endswith("_macs") and not kind.startswith(("grouped", "recurrent")) else "memory"


_BOUNDS = tuple(map(bound_of, KINDS))


class Power(Record):
    """Power of the whole device.

    Attributes:
        load_w: watts while it trains.
        energy_pj_per_mac: added to idle power, only without ``load_w``: an order of magnitude.
        memory_bound_share, waiting_share: of ``load_w − idle_w``, during work that memory or a single core limits; None: all of it.
        error: watts while it trains may be wrong by this factor; None: by :data:`MEASURED_ERROR` or :data:`STATED_ERROR`.
    """

    idle_w: Figure
    energy_pj_per_mac: Positive | None = None
    load_w: Annotated[Positive | None, Field(validate_default=True)] = None
    memory_bound_share: Share | None = None
    waiting_share: Share | None = None
    error: Ratio | None = None
    battery_wh: Positive | None = None

    @field_validator("load_w", mode="before")
    @classmethod
    def _known(cls, value: object, info: ValidationInfo) -> object:
        if value is None and info.data.get("energy_pj_per_mac") is None:
            raise PydanticCustomError("missing", "Field required")
        return value

    @model_validator(mode="after")
    def _possible(self) -> Power:
        if self.load_w is not None:
            at_most(idle_w=self.idle_w, load_w=self.load_w)
        elif useless := [key for key in ("memory_bound_share", "waiting_share") if getattr(self, key) is not None]:
            raise ValueError(f"{useless[0]}: expected load_w too, got none; give load_w, or leave {' and '.join(useless)} out")
        return self

    @property
    def factor(self) -> float:
        """The factor by which the joules of a second of training may be wrong, in nine cases of ten."""
        if self.error is not None:
            return self.error.value
        if self.load_w is None:
            return PER_MAC_ERROR
        return MEASURED_ERROR if self.load_w.mark == "measured" else STATED_ERROR

    def busy_w(self, load_w: float, costs: ForwardCosts | None, work: Work) -> float:
        """Return the watts during ``work`` that takes ``costs``; without costs by kind, all of it counts as bound by arithmetic."""
        limited = {"memory": self.memory_bound_share, "waiting": self.waiting_share}
        lacks = {bound: 1 - share.value for bound, share in limited.items() if share is not None}
        if costs is None or not lacks:
            return load_w
        idle_s = whole_s = 0.0
        for bound, count, cost in zip(_BOUNDS, work.counts, costs.seconds, strict=True):
            whole_s += count * cost
            idle_s += count * cost * lacks.get(bound, 0.0)
        return load_w - (load_w - self.idle_w.value) * (idle_s / whole_s if whole_s else 0.0)

    def spends(self, costs: ForwardCosts | None, work: Work) -> tuple[float, float]:
        """Return the joules of ``work`` apart from its seconds, and the watts during them, radio apart."""
        if self.load_w is not None:
            return 0.0, self.busy_w(self.load_w.value, costs, work)
        picojoules = 0.0 if self.energy_pj_per_mac is None else work.macs * self.energy_pj_per_mac.value
        return picojoules * 1e-12, self.idle_w.value


def both(*factors: float) -> float:
    """Return the factor of a product whose parts may be wrong by ``factors``, independently of one another.

    >>> round(both(1.0, 1.5), 3), round(both(2.0, 2.0), 3)
    (1.5, 2.665)
    """
    return math.exp(math.hypot(*map(math.log, factors)))
