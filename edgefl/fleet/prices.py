"""The cost of rounds in money: prices of metered bytes, of devices' energy and of the server's hours, each with its unit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, model_validator

from edgefl.fleet.figures import MOST, Record

UNITS = {
    "data": {"kB": 1e3, "MB": 1e6, "GB": 1e9},
    "energy": {"kWh": 3.6e6, "Wh": 3600.0},
    "server": {"hour": 3600.0, "h": 3600.0, "day": 86_400.0},
}
"""Key → unit → how many bytes, joules or seconds it has."""
_FORM = re.compile(r"(?P<amount>\d+(\.\d+)?)\s*(?P<currency>[^\W\d_]{1,8}|[$€£¥])\s*/\s*(?P<unit>[A-Za-z]+)")


@dataclass(frozen=True)
class Money:
    """An amount in its parts.

    Attributes:
        energy, total: None if the joules are unknown and have a price.
    """

    currency: str
    data: float
    energy: float | None
    server: float
    total: float | None


class Price(Record):
    """Money per byte, joule or second, ``per_unit``, in a ``currency``."""

    per_unit: float
    currency: str


def _read(key: str) -> Any:
    """Return the check of the price under a key, text such as "0.30 EUR/kWh"."""
    units = UNITS[key]
    example = {"data": "0.02 EUR/MB", "energy": "0.30 EUR/kWh", "server": "1.20 EUR/hour"}[key]

    def read(text: object) -> Price:
        match = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None or match["unit"] not in units or float(match["amount"]) > MOST:
            raise ValueError(
                f'expected an amount, a currency and one of the units {", ".join(units)}, such as "{example}", got {text!r}'
            )
        return Price(per_unit=float(match["amount"]) / units[match["unit"]], currency=match["currency"])

    return BeforeValidator(read)


class Prices(Record):
    """The prices of a fleet; what has none costs nothing.

    Attributes:
        data: of a byte, both ways, on links that say that they are metered.
        energy: of a joule that devices spend.
        server: of a second in which a round lasts.

    Raises:
        ValidationError: a price lacks its unit or its currency, two currencies differ, or there is no price.

    >>> Prices(data="0.02 EUR/MB", energy="0.36 EUR/kWh").money(metered_bytes=5e8, energy_j=3.6e7, server_s=60).total
    13.6
    """

    data: Annotated[Price | None, _read("data")] = None
    energy: Annotated[Price | None, _read("energy")] = None
    server: Annotated[Price | None, _read("server")] = None

    @model_validator(mode="after")
    def _one_currency(self) -> Prices:
        currencies = {key: price.currency for key in UNITS if (price := getattr(self, key)) is not None}
        if not currencies:
            raise ValueError('expected at least one of data, energy and server, such as data = "0.02 EUR/MB", got none')
        if len(set(currencies.values())) > 1:
            listed = ", ".join(f"{key} in {currency}" for key, currency in currencies.items())
            raise ValueError(f"expected prices in one currency, got {listed}; convert them")
        return self

    @property
    def currency(self) -> str:
        """The currency of all prices."""
        return next(price.currency for price in (self.data, self.energy, self.server) if price is not None)

    def __str__(self) -> str:
        """Return the prices in words.

        >>> str(Prices(data="0.02 EUR/MB", server="1.2 EUR/hour"))
        '0.02 EUR/MB of metered data, 1.2 EUR/hour of the server'
        """
        words = {"data": ("MB", "metered data"), "energy": ("kWh", "energy"), "server": ("hour", "the server")}
        prices = [(key, price) for key in UNITS if (price := getattr(self, key)) is not None]
        parts = [(price.per_unit * UNITS[key][words[key][0]], words[key]) for key, price in prices]
        return ", ".join(f"{amount:.6g} {self.currency}/{unit} of {what}" for amount, (unit, what) in parts)

    def money(self, metered_bytes: float, energy_j: float | None, server_s: float) -> Money:
        """Return what bytes, joules and seconds of the server cost; joules that are unknown have no price."""
        amounts = (self.data, metered_bytes), (self.energy, energy_j), (self.server, server_s)
        data, energy, server = (0.0 if p is None else None if amount is None else p.per_unit * amount for p, amount in amounts)
        assert data is not None
        assert server is not None
        return Money(self.currency, data, energy, server, None if energy is None else data + energy + server)
