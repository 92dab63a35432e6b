"""The names and values of what is logged: figures of a round, and of a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgefl.records import RoundRecord
from edgefl.util.unknown import known_sum

_OF_ROUND = ("round_s", "waited_s", "clock_s", "trained", "macs", "download_bytes", "upload_bytes", "energy_j")
_OF_CLASS = ("macs", "download_bytes", "upload_bytes", "energy_j", "device_s")


def round_metrics(record: RoundRecord) -> dict[str, float]:
    """Return the figures of a round: totals, ``accuracy/…`` of the global model and of each tier, ``class/DEVICE/…`` of each device class.

    ``class/DEVICE/trained`` counts clients, as does every other status; bytes, joules and seconds include updates that were not used.
    An energy that is unknown is left out.
    """
    line = record.to_json(clients=False)
    metrics = {key: float(line[key]) for key in _OF_ROUND if line[key] is not None}
    metrics |= {f"accuracy/{label}": float(share) for label, share in line["accuracy"].items()}
    if (after := record.accuracy_after_training) is not None:
        metrics["accuracy_after_training"] = after
    of_classes: dict[str, list[float | None]] = {}
    for group in line["groups"]:
        counts = {group["status"]: group["clients"], **{key: group[key] for key in _OF_CLASS}}
        for key, value in counts.items():
            of_classes.setdefault(f"class/{group['device']}/{key}", []).append(value)
    return metrics | {name: float(total) for name, values in of_classes.items() if (total := known_sum(values)) is not None}


def final_metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a finished run from its ``summary.json``: totals, and ``tier/RATIO/…`` with costs and accuracy of each tier."""
    metrics = {f"total/{key}": value for key, value in summary.items() if key != "format" and _is_number(value)}
    for row in summary["tiers"]:
        metrics |= {f"tier/{row['tier']:g}/{key}": value for key, value in row.items() if key != "tier" and _is_number(value)}
    return {key: float(value) for key, value in metrics.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
