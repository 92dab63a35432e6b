"""Option types that several commands share."""

from __future__ import annotations

from typing import Any

import click


class Tiers(click.ParamType[tuple[float, ...]]):
    """Comma-separated ratios, ``1,0.5,0.25``."""

    name = "R,R,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """Return the ratios; their range and order are checked with the rest of the configuration."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 1,0.5,0.25", param, ctx)


class Shape(click.ParamType[tuple[int, ...]]):
    """One sample's shape, ``3x32x32``."""

    name = "CxHxW"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the sizes, all positive."""
        if isinstance(value, tuple):
            return value
        try:
            sizes = tuple(int(part) for part in str(value).lower().split("x"))
        except ValueError:
            self.fail(f"{value!r} is not a shape such as 3x32x32", param, ctx)
        if min(sizes) < 1:
            self.fail(f"{value!r} has a size below 1", param, ctx)
        return sizes
