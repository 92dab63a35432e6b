"""The words of tables and charts for tiers and budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.util.units import human_budget, human_percent

Row = Mapping[str, Any]

BUDGETS = {
    "memory_bytes": "memory",
    "macs_forward": "forward MACs",
    "macs_train_step": "step MACs",
    "deadline_s": "deadline",
    "download_bytes": "download",
    "upload_bytes": "upload",
    "energy_j": "energy",
    "battery_j": "battery",
    "uncounted_ops": "uncounted operations",
}


def tier_label(tier: float) -> str:
    """Return a tier's name: ``0.5``, ``1``.

    >>> tier_label(1.0)
    '1'
    """
    return f"{tier:g}"


def taken_as(item: Row) -> str:
    """Return a tier's name, with the micro-batch if it is not the run's own.

    >>> taken_as({"tier": 0.5, "micro_batch": 8}), taken_as({"tier": 1})
    ('0.5, 8 at once', '1')
    """
    at_once = item.get("micro_batch")
    return tier_label(item["tier"]) + ("" if at_once is None else f", {at_once} at once")


def budget_used(row: Row) -> str:
    """Return the share that a tier uses of its tightest budget, and that budget's name.

    >>> budget_used({"budget_share": 0.624, "limiting_budget": "deadline_s"})
    '62.4 % deadline'
    """
    return f"{human_percent(row['budget_share'])} {budget_name(row['limiting_budget'])}".rstrip()


def need_have(entry: Row) -> str:
    """Return what is needed and what there is of one budget.

    >>> need_have({"budget": "memory_bytes", "need": 2e6, "have": 64e3})
    'needs 2.00 MB, has 64.0 kB'
    """
    budget = entry["budget"]
    return f"needs {human_budget(budget, entry['need'])}, has {human_budget(budget, entry['have'])}"


def budget_name(budget: str | None) -> str:
    """Return a budget's name for people; None gives an empty string.

    >>> budget_name("deadline_s")
    'deadline'
    """
    return "" if budget is None else BUDGETS.get(budget, budget)


def names(values: Sequence[str]) -> str:
    """Return names as a list for people.

    >>> names(["Erf", "Einsum"]), names([])
    ('Erf, Einsum', 'none')
    """
    return ", ".join(values) or "none"


def uncounted(rows: Sequence[Row]) -> str:
    """Return the warning that some operations were not counted, or an empty string."""
    found = [f"tier {tier_label(row['tier'])}: {names(row['uncounted_ops'])}" for row in rows if row["uncounted_ops"]]
    return f"Not counted, so no budget can be claimed met: {'; '.join(found)}" if found else ""
