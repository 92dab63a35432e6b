"""Option types that several commands share."""

from __future__ import annotations

from typing import Any

import click


class Tiers(click.ParamType[tuple[float, ...] | str]):
    """Comma-separated ratios, ``1,0.5,0.25``; where ``auto`` is meant, also that word."""

    def __init__(self, auto: bool = False) -> None:
        self.auto = auto
        self.name = "R,R,…|auto" if auto else "R,R,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...] | str:
        """Return the ratios; their range and order are checked with the rest of the configuration."""
        if isinstance(value, tuple):
            return value
        if str(value) == "auto" and self.auto:
            return "auto"
        try:
            return tuple(float(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 1,0.5,0.25", param, ctx)


class Amount(click.ParamType[float]):
    """A positive number with an optional decimal prefix and unit: ``64MB``, ``100M``, ``30``."""

    name = "X"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number in whole units."""
        if isinstance(value, (int, float)):
            return float(value)
        from edgefl.errors import InputError
        from edgefl.units import parse_amount

        try:
            return parse_amount(str(value))
        except InputError as error:
            self.fail(str(error), param, ctx)
