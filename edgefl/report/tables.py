"""The table of a run's tiers, as data and for the terminal, and what every table of costs is made of."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from edgefl.util.units import (
    MISSING,
    human_budget,
    human_bytes,
    human_count,
    human_joules,
    human_percent,
    human_seconds,
)

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
_ROOMY = 100


@dataclass(frozen=True)
class Column:
    """One column of a table: the group it stands under, its heading, and how a row fills it."""

    group: str
    head: str
    cell: Callable[[Row], str]
    numeric: bool = True


@dataclass(frozen=True)
class PlainTable:
    """A table as plain data: columns and, per row, one text per column."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, columns: Sequence[Column], rows: Iterable[Row]) -> PlainTable:
        """Return the table of ``rows`` that ``columns`` describe."""
        return cls(tuple(columns), tuple(tuple(column.cell(row) for column in columns) for row in rows))

    @property
    def groups(self) -> list[tuple[str, list[Column]]]:
        """Neighbouring columns that stand under one heading."""
        return grouped(self.columns)


def tier_label(tier: float) -> str:
    """Return a tier's name as everywhere else: ``0.5``, ``1``.

    >>> tier_label(1.0)
    '1'
    """
    return f"{tier:g}"


def taken_as(item: Row) -> str:
    """Return a tier's name, with how many samples go through at once where that is not the run's own number.

    >>> taken_as({"tier": 0.5, "micro_batch": 8}), taken_as({"tier": 1})
    ('0.5, 8 at once', '1')
    """
    at_once = item.get("micro_batch")
    return tier_label(item["tier"]) + ("" if at_once is None else f", {at_once} at once")


def budget_used(row: Row) -> str:
    """Return how much of its tightest budget a tier uses on its device, and which budget that is.

    >>> budget_used({"budget_share": 0.624, "limiting_budget": "deadline_s"})
    '62.4 % deadline'
    """
    return f"{human_percent(row['budget_share'])} {budget_name(row['limiting_budget'])}".rstrip()


def need_have(entry: Row) -> str:
    """Return what was needed and what there was of one budget.

    >>> need_have({"budget": "memory_bytes", "need": 2e6, "have": 64e3})
    'needs 2.00 MB, has 64.0 kB'
    """
    budget = entry["budget"]
    return f"needs {human_budget(budget, entry['need'])}, has {human_budget(budget, entry['have'])}"


def budget_name(budget: str | None) -> str:
    """Return a budget's name for people; no budget is an empty string.

    >>> budget_name("deadline_s")
    'deadline'
    """
    return "" if budget is None else BUDGETS.get(budget, budget)


def _device(row: Row) -> str:
    return str(row["device_title"] or row["device"] or MISSING)


def names(values: Sequence[str]) -> str:
    """Return names as a list for people.

    >>> names(["Erf", "Einsum"]), names([])
    ('Erf, Einsum', 'none')
    """
    return ", ".join(values) or "none"


def under(group: str, human: Callable[[Any], str], **heads: str) -> tuple[Column, ...]:
    """Return columns of one group that share a unit, from ``key=heading``."""

    def cell(key: str) -> Callable[[Row], str]:
        return lambda row: human(row.get(key))

    return tuple(Column(group, head, cell(key)) for key, head in heads.items())


TIER = Column("tier", "", lambda row: tier_label(row["tier"]))
_AS_TAKEN = Column("tier", "", taken_as)
UNCOUNTED = Column("not counted", "ops", lambda row: names(row["uncounted_ops"]), numeric=False)

TIER_COLUMNS = (
    _AS_TAKEN,
    Column("device", "", _device, numeric=False),
    *under("clients", str, clients=""),
    *under("accuracy", human_percent, accuracy="exported file", torch_accuracy="in torch"),
    *under("parameters", human_count, params=""),
    *under("MACs per sample", human_count, macs_forward="forward", macs_backward="backward"),
    *under("MACs per step", human_count, macs_compose="composition", macs_train_step="whole step"),
    *under("peak activations", human_bytes, peak_activation_bytes_inference="inference"),
    *under("peak activations", human_bytes, peak_activation_bytes_training="training, predicted"),
    *under("peak activations", human_bytes, measured_peak_activation_bytes_training="training, measured"),
    *under("memory", human_bytes, parameter_bytes="parameters", gradient_bytes="gradients", optimizer_bytes="optimizer"),
    *under("memory", human_bytes, training_memory_bytes="all, training", inference_memory_bytes="all, inference"),
    *under("bytes per round", human_bytes, download_bytes="down", upload_bytes="up"),
    *under("round on its device", human_seconds, round_seconds="time"),
    *under("round on its device", human_joules, round_joules="energy"),
    Column("round on its device", "budget used", budget_used),
    UNCOUNTED,
)
_COMPACT = (
    _AS_TAKEN,
    Column("device", "", _device, numeric=False),
    *under("accuracy", human_percent, accuracy=""),
    *under("params", human_count, params=""),
    *under("MACs", human_count, macs_forward="forward", macs_train_step="step"),
    *under("peak act.", human_bytes, peak_activation_bytes_training="predicted"),
    *under("peak act.", human_bytes, measured_peak_activation_bytes_training="measured"),
    *under("bytes", human_bytes, download_bytes="down", upload_bytes="up"),
    *under("a round", human_seconds, round_seconds="time"),
    *under("a round", human_joules, round_joules="energy"),
    Column("budget", "used", lambda row: human_percent(row["budget_share"])),
    Column("budget", "", lambda row: budget_name(row["limiting_budget"])),
)


def tier_table(summary: Row) -> PlainTable:
    """Return every cost of every tier of a run, written for people, largest tier first.

    Args:
        summary: the content of a run's ``summary.json``.
    """
    return PlainTable.of(TIER_COLUMNS, largest_first(summary))


def to_rich(summary: Row, width: int = 80) -> Table:
    """Return the table that ends a run in a terminal: one row per tier, pairs such as down / up one above the other.

    Args:
        summary: the content of a run's ``summary.json``.
        width: columns of the terminal; from 100 on, the columns stand further apart.
    """
    return stacked(_COMPACT, largest_first(summary), gap=2 if width >= _ROOMY else 0)


def to_plain(summary: Row) -> str:
    """Return the same figures as plain lines, one per tier, for output that is no terminal.

    Args:
        summary: the content of a run's ``summary.json``.
    """
    rows = largest_first(summary)
    lines = plain_lines(_COMPACT, rows)
    warning = uncounted(rows)
    return "\n".join([*lines, warning] if warning else lines)


def plain_lines(columns: Sequence[Column], rows: Iterable[Row]) -> list[str]:
    """Return a line per row, the columns' groups one after the other."""
    return ["; ".join(_plain_group(group, members, row) for group, members in grouped(columns)) for row in rows]


def largest_first(summary: Row) -> list[Row]:
    """Return the tiers of a summary, largest first."""
    return sorted(summary["tiers"], key=lambda row: -float(row["tier"]))


def grouped(columns: Sequence[Column]) -> list[tuple[str, list[Column]]]:
    """Return neighbouring columns of one group together, under the group's name."""
    return [(group, list(members)) for group, members in itertools.groupby(columns, key=lambda column: column.group)]


def bare_table(gap: int, leading: int = 0) -> Table:
    """Return an empty table in the one look that all of them have in a terminal."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, leading=leading)
    table.title_justify = table.caption_justify = "left"
    return table


def stacked(columns: Sequence[Column], rows: Sequence[Row], gap: int, caption: str | None = None) -> Table:
    """Return a table with one column per group, whose members stand one above the other; every cell is literal text.

    Below it stands ``caption``; None warns of operations that were not counted.
    """
    table = bare_table(gap, leading=1)
    below = uncounted(rows) if caption is None else caption
    table.caption = Text(below) if below else None
    groups = grouped(columns)
    for group, members in groups:
        head = Text("\n".join([group, *(column.head for column in members if column.head)]))
        right = members[0].numeric
        table.add_column(head, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in rows:
        table.add_row(*(Text("\n".join(column.cell(row) for column in members)) for _, members in groups))
    return table


def _plain_group(group: str, columns: Sequence[Column], row: Row) -> str:
    return f"{group} " + ", ".join(f"{column.head} {column.cell(row)}".strip() for column in columns)


def uncounted(rows: Sequence[Row]) -> str:
    """Return the warning that some operations were not counted, or an empty string."""
    found = [f"tier {tier_label(row['tier'])}: {names(row['uncounted_ops'])}" for row in rows if row["uncounted_ops"]]
    return f"Not counted, so no budget can be claimed met: {'; '.join(found)}" if found else ""
