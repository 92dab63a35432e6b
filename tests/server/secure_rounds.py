"""What a round with secure aggregation says of its groups, and fleets whose sessions are lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from small_fleet import write_device, write_fleet

from edgefl.records import RoundRecord


def observed(record: RoundRecord) -> Any:
    """Return what a round says of its groups."""
    return record.observed["secure_aggregation"]


def lossy(folder: Path, **behaviour: float) -> str:
    """Write a fleet whose sessions are lost as often as ``behaviour`` says."""
    write_device(folder, "board", spread_sigma=0.3)
    return write_fleet(folder, {"board": 1.0}, behaviour=behaviour)
