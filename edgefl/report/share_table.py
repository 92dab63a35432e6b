"""Tables whose cells are shares, shaded: which policy lets whom take part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgefl.util.units import human_percent

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """A cell: its text, and the share in [0, 1] that shades it, None where it is no share."""

    text: str
    share: float | None = None

    @classmethod
    def of(cls, share: float | None) -> Cell:
        """Return the cell of a share; of one that is not known, a dash."""
        return cls(human_percent(share), None if share is None else round(min(share, 1.0), 3))


@dataclass(frozen=True)
class ShareRow:
    """A row; ``marked`` makes it stand out."""

    cells: tuple[Cell, ...]
    marked: bool = False


@dataclass(frozen=True)
class ShareTable:
    """A table, as its headings and rows."""

    heads: tuple[str, ...]
    rows: tuple[ShareRow, ...]


def devices_of(inclusions: Sequence[Json], titles: Mapping[str, str]) -> list[str]:
    """Return the device classes that occur, in the order of ``titles``, unknown ones last."""
    seen = {device: None for inclusion in inclusions for device in inclusion}
    return [*(device for device in titles if device in seen), *(device for device in seen if device not in titles)]


def least_included(inclusion: Mapping[str, float | None]) -> tuple[str, float] | None:
    """Return the device class of which the smallest share trained, and that share; None where none is known.

    >>> least_included({"fast": 0.9, "slow": 0.2, "never asked": None})
    ('slow', 0.2)
    """
    known = {device: share for device, share in inclusion.items() if share is not None}
    return min(known.items(), key=lambda pair: pair[1]) if known else None
