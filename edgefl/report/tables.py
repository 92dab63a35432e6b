"""Tables of tiers and their costs, as data, for the terminal, and as text that other programs read."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

from rich import box
from rich.table import Table
from rich.text import Text

from edgefl.errors import UnknownNameError
from edgefl.units import (
    MISSING,
    human_budget,
    human_bytes,
    human_count,
    human_joules,
    human_percent,
    human_seconds,
)

Row = Mapping[str, Any]
TextFormat = Literal["json", "csv", "markdown"]
Format = Literal["table", "json", "csv", "markdown"]

BUDGETS = {
    "memory_bytes": "memory",
    "deadline_s": "deadline",
    "download_bytes": "download",
    "upload_bytes": "upload",
    "energy_j": "energy",
    "uncounted_ops": "uncounted operations",
}
COST_COLUMNS = (
    *(
        "tier",
        "method",
        "model",
        "batch_size",
        "params",
        "macs_forward",
        "macs_backward",
        "macs_compose",
        "macs_train_step",
    ),
    *("peak_activation_bytes_inference", "peak_activation_bytes_training", "parameter_bytes", "gradient_bytes"),
    *("optimizer_bytes", "training_memory_bytes", "download_bytes", "upload_bytes", "uncounted_ops"),
)
DEVICE_COLUMNS = ("device", "train_step_seconds", "train_step_joules", "fits")
_ROOMY = 100


@dataclass(frozen=True)
class Column:
    """One column of the tier table: the group it stands under, its heading, and how a tier fills it."""

    group: str
    head: str
    cell: Callable[[Row], str]
    numeric: bool = True


@dataclass(frozen=True)
class TierTable:
    """The tier table as plain data: columns and, per tier, one text per column."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


def tier_label(tier: float) -> str:
    """Return a tier's name as everywhere else: ``0.5``, ``1``.

    >>> tier_label(1.0)
    '1'
    """
    return f"{tier:g}"


def budget_used(row: Row) -> str:
    """Return how much of its tightest budget a tier uses on its device, and which budget that is.

    >>> budget_used({"budget_share": 0.624, "limiting_budget": "deadline_s"})
    '62.4 % deadline'
    """
    return f"{human_percent(row['budget_share'])} {_budget_name(row['limiting_budget'])}".rstrip()


def need_have(entry: Row) -> str:
    """Return what was needed and what there was of one budget.

    >>> need_have({"budget": "memory_bytes", "need": 2e6, "have": 64e3})
    'needs 2.00 MB, has 64.0 kB'
    """
    budget = entry["budget"]
    return f"needs {human_budget(budget, entry['need'])}, has {human_budget(budget, entry['have'])}"


def _budget_name(budget: str | None) -> str:
    return "" if budget is None else BUDGETS.get(budget, budget)


def _device(row: Row) -> str:
    return str(row["device_title"] or row["device"] or MISSING)


def _yes_no(value: Any) -> str:
    return {True: "yes", False: "no", None: MISSING}.get(value, str(value))


def _names(values: Sequence[str]) -> str:
    return ", ".join(values) or "none"


def _under(group: str, human: Callable[[Any], str], **heads: str) -> tuple[Column, ...]:
    """Return columns of one group that share a unit, from ``key=heading``."""

    def cell(key: str) -> Callable[[Row], str]:
        return lambda row: human(row.get(key))

    return tuple(Column(group, head, cell(key)) for key, head in heads.items())


_TIER = Column("tier", "", lambda row: tier_label(row["tier"]))
_UNCOUNTED = Column("not counted", "ops", lambda row: _names(row["uncounted_ops"]), numeric=False)

TIER_COLUMNS = (
    _TIER,
    Column("device", "", _device, numeric=False),
    *_under("clients", str, clients=""),
    *_under("accuracy", human_percent, accuracy="exported file", torch_accuracy="in torch"),
    *_under("parameters", human_count, params=""),
    *_under("MACs per sample", human_count, macs_forward="forward", macs_backward="backward"),
    *_under("MACs per step", human_count, macs_compose="composition", macs_train_step="whole step"),
    *_under("peak activations", human_bytes, peak_activation_bytes_inference="inference"),
    *_under("peak activations", human_bytes, peak_activation_bytes_training="training, predicted"),
    *_under("peak activations", human_bytes, measured_peak_activation_bytes_training="training, measured"),
    *_under("memory", human_bytes, parameter_bytes="parameters", gradient_bytes="gradients", optimizer_bytes="optimizer"),
    *_under("memory", human_bytes, training_memory_bytes="all, training", inference_memory_bytes="all, inference"),
    *_under("bytes per round", human_bytes, download_bytes="down", upload_bytes="up"),
    *_under("round on its device", human_seconds, round_seconds="time"),
    *_under("round on its device", human_joules, round_joules="energy"),
    Column("round on its device", "budget used", budget_used),
    _UNCOUNTED,
)
_COMPACT = (
    _TIER,
    Column("device", "", _device, numeric=False),
    *_under("accuracy", human_percent, accuracy=""),
    *_under("params", human_count, params=""),
    *_under("MACs", human_count, macs_forward="forward", macs_train_step="step"),
    *_under("peak act.", human_bytes, peak_activation_bytes_training="predicted"),
    *_under("peak act.", human_bytes, measured_peak_activation_bytes_training="measured"),
    *_under("bytes", human_bytes, download_bytes="down", upload_bytes="up"),
    *_under("a round", human_seconds, round_seconds="time"),
    *_under("a round", human_joules, round_joules="energy"),
    Column("budget", "used", lambda row: human_percent(row["budget_share"])),
    Column("budget", "", lambda row: _budget_name(row["limiting_budget"])),
)
_COSTS = (
    _TIER,
    *_under("params", human_count, params=""),
    *_under("MACs/sample", human_count, macs_forward="forward", macs_backward="backward"),
    *_under("MACs/step", human_count, macs_compose="composing", macs_train_step="all"),
    *_under("peak act.", human_bytes, peak_activation_bytes_inference="inference"),
    *_under("peak act.", human_bytes, peak_activation_bytes_training="training"),
    *_under("memory", human_bytes, parameter_bytes="weights", gradient_bytes="gradients", optimizer_bytes="optimizer"),
    *_under("training", human_bytes, training_memory_bytes="memory"),
    *_under("bytes", human_bytes, download_bytes="down", upload_bytes="up"),
    _UNCOUNTED,
)
_ON_DEVICE = (
    *_under("a step", human_seconds, train_step_seconds="time"),
    *_under("a step", human_joules, train_step_joules="energy"),
    Column("device", "", lambda row: str(row.get("device", MISSING)), numeric=False),
    Column("device", "fits?", lambda row: _yes_no(row.get("fits")), numeric=False),
)


def tier_table(summary: Row) -> TierTable:
    """Return every cost of every tier of a run, written for people, largest tier first.

    Args:
        summary: the content of a run's ``summary.json``.
    """
    rows = (tuple(column.cell(row) for column in TIER_COLUMNS) for row in _largest_first(summary))
    return TierTable(TIER_COLUMNS, tuple(rows))


def to_rich(summary: Row, width: int = 80) -> Table:
    """Return the table that ends a run in a terminal: one row per tier, pairs such as down / up one above the other.

    Args:
        summary: the content of a run's ``summary.json``.
        width: columns of the terminal; from 100 on, the columns stand further apart.
    """
    return _stacked(_COMPACT, _largest_first(summary), gap=2 if width >= _ROOMY else 0)


def to_plain(summary: Row) -> str:
    """Return the same figures as plain lines, one per tier, for output that is no terminal.

    Args:
        summary: the content of a run's ``summary.json``.
    """
    rows = _largest_first(summary)
    lines = ["; ".join(_plain_group(group, columns, row) for group, columns in _groups(_COMPACT)) for row in rows]
    warning = _uncounted(rows)
    return "\n".join([*lines, warning] if warning else lines)


@overload
def cost_table(rows: Sequence[Row], format: Literal["table"]) -> Table: ...
@overload
def cost_table(rows: Sequence[Row], format: TextFormat) -> str: ...
@overload
def cost_table(rows: Sequence[Row], format: str) -> Table | str: ...
def cost_table(rows: Sequence[Row], format: str) -> Table | str:
    """Return what every tier of a model costs: for people (``table``), or raw integers under the names of the API.

    Args:
        rows: per tier, the keys of ``COST_COLUMNS``, perhaps those of ``DEVICE_COLUMNS``.
        format: ``table`` (for a rich console), ``json`` (``{"rows": […]}``), ``csv`` or ``markdown``.

    Raises:
        UnknownNameError: ``format`` is none of these.

    >>> print(cost_table([{"tier": 0.5, "params": 1200, "uncounted_ops": ["Erf"]}], "csv"))
    tier,params,uncounted_ops
    0.5,1200,Erf
    """
    match format:
        case "table":
            return _cost_rich(rows)
        case "json":
            return json.dumps({"rows": [dict(row) for row in rows]}, indent=2, allow_nan=False)
        case "csv":
            return _cost_csv(rows)
        case "markdown":
            return _cost_markdown(rows)
    raise UnknownNameError("format", format, ["table", "json", "csv", "markdown"])


def _cost_rich(rows: Sequence[Row]) -> Table:
    on_device = any("device" in row for row in rows)
    table = _stacked((*_COSTS, *_ON_DEVICE) if on_device else _COSTS, rows, gap=0)
    common = [{str(row[key]) for row in rows if key in row} for key in ("method", "model", "batch_size")]
    if all(len(values) == 1 for values in common):
        method, model, batch = (values.pop() for values in common)
        table.title = Text(f"{method} · {model} · batch of {batch}")
    return table


def _cost_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = _keys(rows)
    writer.writerow(keys)
    writer.writerows([_raw(row.get(key)) for key in keys] for row in rows)
    return text.getvalue().rstrip("\n")


def _cost_markdown(rows: Sequence[Row]) -> str:
    keys = _keys(rows)
    numeric = [all(isinstance(row.get(key), int | float) for row in rows) for key in keys]
    lines = [keys, ["---:" if right else "---" for right in numeric]]
    lines += [[_raw(row.get(key)).replace("|", "\\|") for key in keys] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _keys(rows: Sequence[Row]) -> list[str]:
    """Return the names that rows use, the declared ones first and in their order."""
    used = dict.fromkeys(key for row in rows for key in row)
    declared = [key for key in (*COST_COLUMNS, *DEVICE_COLUMNS) if key in used or not rows]
    return [*declared, *(key for key in used if key not in declared)]


def _raw(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ";".join(value) if isinstance(value, list | tuple) else str(value)


def _largest_first(summary: Row) -> list[Row]:
    return sorted(summary["tiers"], key=lambda row: -float(row["tier"]))


def _groups(columns: Sequence[Column]) -> list[tuple[str, list[Column]]]:
    return [(group, list(members)) for group, members in itertools.groupby(columns, key=lambda column: column.group)]


def _stacked(columns: Sequence[Column], rows: Sequence[Row], gap: int) -> Table:
    """Return a table with one column per group, whose members stand one above the other; every cell is literal text."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, leading=1)
    table.title_justify = table.caption_justify = "left"
    table.caption = Text(_uncounted(rows)) if _uncounted(rows) else None
    groups = _groups(columns)
    for group, members in groups:
        head = Text("\n".join([group, *(column.head for column in members if column.head)]))
        right = members[0].numeric
        table.add_column(head, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in rows:
        table.add_row(*(Text("\n".join(column.cell(row) for column in members)) for _, members in groups))
    return table


def _plain_group(group: str, columns: Sequence[Column], row: Row) -> str:
    return f"{group} " + ", ".join(f"{column.head} {column.cell(row)}".strip() for column in columns)


def _uncounted(rows: Sequence[Row]) -> str:
    """Return the warning that some operations were not counted, or an empty string."""
    found = [f"tier {tier_label(row['tier'])}: {_names(row['uncounted_ops'])}" for row in rows if row["uncounted_ops"]]
    return f"Not counted, so no budget can be claimed met: {'; '.join(found)}" if found else ""
