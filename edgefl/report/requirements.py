"""Requirements on the policies of a what-if, such as ``gateway >= 20 %`` and ``bytes <= 50MB/month``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgefl.errors import InputError, nearest
from edgefl.report.device_month import device_months
from edgefl.report.policies import PolicyOutcome, WhatIf
from edgefl.report.policy_advice import updates_per_hour
from edgefl.report.words import joined
from edgefl.util.units import (
    human_bytes,
    human_count,
    human_joules,
    human_money,
    human_percent,
    human_seconds,
    parse_amount,
    parse_share,
)


@dataclass(frozen=True)
class Quantity:
    """A figure of a policy.

    Attributes:
        title: words for it.
        read: reads a bound; ``human`` writes a value.
        of: result, row → the figure, None if it is unknown.
        monthly: the attribute of :class:`DeviceMonth` that a bound per month is about; "" if there is none.
    """

    title: str
    read: Callable[[str], float]
    human: Callable[[float | None], str]
    of: Callable[[WhatIf, PolicyOutcome], float | None]
    monthly: str = ""


def _key(key: str) -> Callable[[WhatIf, PolicyOutcome], float | None]:
    return lambda result, row: getattr(row, key)


def _share(text: str) -> float:
    return 0.0 if re.fullmatch(r"0+(\.0*)?\s*%?", text.strip()) else parse_share(text)


def _number(text: str) -> float:
    value = float(text) if re.fullmatch(r"\d+(\.\d+)?", text.strip()) else math.nan
    if not math.isfinite(value):
        raise InputError(f"{text!r} is not a number such as 20 or 0.5")
    return value


def _in(unit: Any) -> Callable[[str], float]:
    return lambda text: parse_amount(text, unit)


QUANTITIES = {
    "inclusion": Quantity("trained sessions", _share, human_percent, _key("inclusion")),
    "weakest": Quantity("trained sessions of the weakest class", _share, human_percent, _key("weakest_inclusion")),
    "waste": Quantity("share of wasted time", _share, human_percent, _key("wasted_share")),
    "round": Quantity("median round", _in("s"), human_seconds, _key("round_s")),
    "updates": Quantity("useful updates an hour", _number, human_count, updates_per_hour, "updates"),
    "sessions": Quantity("sessions", _number, human_count, lambda result, row: None, "sessions"),
    "joules": Quantity("joules per useful update", _in("J"), human_joules, _key("energy_j"), "energy_j"),
    "bytes": Quantity("bytes per useful update", _in("B"), human_bytes, _key("update_bytes"), "bytes"),
    "money": Quantity(
        "money in a month", _number, human_money, lambda result, row: None if row.money is None else row.money.total, "money"
    ),
    "epsilon": Quantity("ε", _number, "{:.4g}".format, _key("epsilon")),
}
"""Name → figure. Joules and bytes are per useful update, or per device and month; money is that of the whole fleet in a month."""

_FORM = re.compile(r"\s*(?P<name>[^<>=]+?)\s*(?P<way><=|>=)\s*(?P<bound>.+?)\s*(?P<month>/\s*month)?\s*")
_WAYS = {"<=": operator.le, ">=": operator.ge}
_EXAMPLES = "“gateway >= 20 %” or “bytes <= 50MB/month”"


@dataclass(frozen=True)
class Requirement:
    """A bound on a figure of a policy.

    Attributes:
        quantity: its name in :data:`QUANTITIES`.
        device: the class that it is about; "" for the fleet, or in a month for the class for which it is hardest.
        way: "<=" or ">=".
        month: whether it is about the month of a device.
    """

    text: str
    quantity: str
    device: str
    way: str
    bound: float
    month: bool

    def value(self, result: WhatIf, row: PolicyOutcome) -> float | None:
        """Return the figure that is bounded; None if it is unknown."""
        quantity = QUANTITIES[self.quantity]
        if self.month and self.quantity != "money":
            months = device_months(row)
            of = [getattr(month, quantity.monthly) for device, month in months.items() if self.device in ("", device)]
            hardest = max if self.way == "<=" else min
            return None if not of or None in of else float(hardest(of))
        if self.device:
            return row.inclusion_by_class.get(self.device)
        return quantity.of(result, row)

    def missed(self, result: WhatIf, row: PolicyOutcome) -> str:
        """Return what a policy has instead of what is required; "" if it meets the requirement."""
        value, quantity = self.value(result, row), QUANTITIES[self.quantity]
        if value is not None and _WAYS[self.way](value, self.bound):
            return ""
        return "unknown" if value is None else f"{quantity.human(value)}{'/month' * self.month}"

    def distance(self, result: WhatIf, row: PolicyOutcome) -> float:
        """Return by which factor, as a logarithm, a policy misses the bound; 0 if it meets it."""
        if not self.missed(result, row):
            return 0.0
        value = self.value(result, row)
        return abs(math.log(value / self.bound)) if value and self.bound else math.inf


def parse_requirement(text: str, titles: Mapping[str, str] | None = None) -> Requirement:
    """Return a requirement; its class is known if ``titles``, device → name for people, are given.

    >>> parse_requirement("bytes <= 50MB/month").bound
    50000000.0
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise InputError(f"requirement {text!r}: expected a quantity, <= or >=, and a value, such as {_EXAMPLES}")
    name, _, of = (part.strip() for part in match["name"].partition(" of "))
    if name.lower() not in QUANTITIES and not of:
        name, of = "inclusion", name
    name, month = name.lower(), match["month"] is not None
    device = of if titles is None else _device(text, of, titles)
    if name not in QUANTITIES:
        raise InputError(
            f"requirement {text!r}: there is no quantity {name!r};{nearest(name, QUANTITIES)} known are {joined(QUANTITIES)}"
        )
    quantity = QUANTITIES[name]
    if month and not quantity.monthly:
        raise InputError(f"requirement {text!r}: {name} has no value per month; without /month it is that of a round or of all")
    if name == "money" and (device or not month):
        raise InputError(f"requirement {text!r}: money is that of the whole fleet in a month: give “money <= 500/month”")
    if not month and (name == "sessions" or (device and name != "inclusion")):
        raise InputError(f"requirement {text!r}: {name} of a class are per device and month: give a value such as 20/month")
    try:
        bound = quantity.read(match["bound"])
    except InputError as error:
        raise InputError(f"requirement {text!r}: {error}") from None
    return Requirement(text.strip(), name, device, match["way"], bound, month)


def _device(text: str, name: str, titles: Mapping[str, str]) -> str:
    """Return the device that a requirement names, by its own name or its title."""
    known = {spoken.lower(): device for device, title in titles.items() for spoken in (device, title)}
    if name and name.lower() not in known:
        expected = f"a quantity ({', '.join(QUANTITIES)}) nor a class of the fleet ({joined(titles)})"
        raise InputError(f"requirement {text!r}: {name!r} is neither {expected}")
    return known[name.lower()] if name else ""
