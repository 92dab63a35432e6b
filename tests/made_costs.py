"""Costs made by hand: every count as a test says."""

from typing import Any

from edgefl.records import Cost

_COUNTS = [name for name, kind in Cost.__annotations__.items() if kind in ("int", int)]


def made_cost(every: int = 0, **counts: Any) -> Cost:
    """Return a cost whose counts are all ``every``, except those that are given."""
    return Cost(**(dict.fromkeys(_COUNTS, every) | counts))
