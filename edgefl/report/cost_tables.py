"""What a network's tiers cost before anything is trained: tables for the terminal, and text that other programs read."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgefl.errors import UnknownNameError
from edgefl.report.cost_columns import COMPUTE, LAYERS, MEMORY, ON_DEVICE, SUMMARY, draws
from edgefl.report.cost_layers import costliest, layer_rows
from edgefl.report.cost_rows import COST_COLUMNS, DEVICE_COLUMNS, LAYER_COLUMNS
from edgefl.report.tables import TIER, Column, Row, bare_table, stacked, tier_label, uncounted

TextFormat = Literal["json", "csv", "markdown"]
FORMATS = ("table", "json", "csv", "markdown")
_MARKUP = re.compile(r"([\\|<])")


@overload
def cost_table(rows: Sequence[Row], format: Literal["table"]) -> Group: ...
@overload
def cost_table(rows: Sequence[Row], format: TextFormat) -> str: ...
@overload
def cost_table(rows: Sequence[Row], format: str) -> Group | str: ...
def cost_table(rows: Sequence[Row], format: str) -> Group | str:
    """Return what every tier of a model costs: for people (``table``), or raw numbers under the names of the API.

    Args:
        rows: per tier, or per tier and device, the keys of ``COST_COLUMNS`` and perhaps those of ``DEVICE_COLUMNS``.
        format: ``table`` (for a rich console), ``json`` (``{"rows": […]}``, layers and tensors included), ``csv`` or ``markdown``.

    Raises:
        UnknownNameError: ``format`` is none of these.

    >>> print(cost_table([{"tier": 0.5, "params": 1200, "uncounted_ops": ["Erf"]}], "csv"))
    tier,params,uncounted_ops
    0.5,1200,Erf
    """
    if format == "table":
        return _cost_rich(rows)
    scalars = [{key: value for key, value in row.items() if key not in ("layers", "tensors")} for row in rows]
    return _text(scalars, (*COST_COLUMNS, *DEVICE_COLUMNS), format, {"rows": [dict(row) for row in rows]})


@overload
def layer_table(row: Row, format: Literal["table"], top: int | None = None) -> Group: ...
@overload
def layer_table(row: Row, format: TextFormat, top: int | None = None) -> str: ...
@overload
def layer_table(row: Row, format: str, top: int | None = None) -> Group | str: ...
def layer_table(row: Row, format: str, top: int | None = None) -> Group | str:
    """Return what every layer of one tier costs, in the network's order.

    Args:
        row: one row of :func:`cost_table`, with its layers and tensors.
        format: as in :func:`cost_table`; as JSON ``{"tier": …, "layers": […], "uncounted_ops": […]}``.
        top: keep only so many layers, those with most MACs in a step; the rest is summed in a row ``(other)``.

    Raises:
        UnknownNameError: ``format`` is none of these.
    """
    layers: list[Row] = list(layer_rows(row))
    if top is not None:
        layers = costliest(layers, top, lambda layer: layer["macs_train_step"])
    if format == "table":
        return _layer_rich(row, layers)
    ordered = [{key: layer[key] for key in LAYER_COLUMNS} for layer in layers]
    document = {"tier": row["tier"], "layers": ordered, "uncounted_ops": list(row["uncounted_ops"])}
    if format != "json" and row["uncounted_ops"]:
        ordered = [{**layer, "uncounted_ops": row["uncounted_ops"]} for layer in ordered]
    return _text(ordered, (*LAYER_COLUMNS, "uncounted_ops"), format, document)


def per_tier(rows: Sequence[Row]) -> list[Row]:
    """Return the first row of each tier, largest tier first: what a tier costs does not depend on the device."""
    first = {row["tier"]: row for row in reversed(rows)}
    return sorted(first.values(), key=lambda row: -float(row["tier"]))


def per_device(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are on a device, all tiers of one device together; devices in the order in which they were asked for."""
    order = {device: i for i, device in enumerate(dict.fromkeys(row["device"] for row in rows if "device" in row))}
    return sorted((row for row in rows if "device" in row), key=lambda row: order[row["device"]])


def about(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return what the costs are for, as pairs of a name and its value; a key that no row has is left out.

    >>> about([{"method": None, "batch_size": 32}])
    [('method', 'none, the network as it is'), ('batch size', '32')]
    """
    names = {"method": "method", "model": "model", "batch_size": "batch size", "micro_batch": "micro-batch"}
    names |= {"optimizer": "optimizer", "codec": "codec", "samples": "samples per client"}
    pairs = []
    for key, name in names.items():
        values = dict.fromkeys(row[key] for row in rows if key in row)
        if values:
            shown = ("none, the network as it is" if key == "method" and value is None else str(value) for value in values)
            pairs.append((name, ", ".join(shown)))
    if any(map(draws, rows)):
        pairs.append(
            ("a step trains", "one of several networks, drawn: its MACs are their mean, all else is the tier's own network's")
        )
    return pairs


def _cost_rich(rows: Sequence[Row]) -> Group:
    tiers = per_tier(rows)
    parts: list[RenderableType] = [Text(" · ".join(f"{name} {value}" for name, value in about(rows)))]
    parts += [_titled("What a tier costs", SUMMARY, tiers)]
    parts += [_titled("Compute: multiply-accumulates (MACs) and element-wise operations", (TIER, *COMPUTE), tiers)]
    parts += [_titled("Memory: what is alive at the peak of a training step, and of inference", (TIER, *MEMORY), tiers)]
    on_device = per_device(rows)
    if on_device:
        table = stacked(ON_DEVICE, on_device, gap=1)
        table.title, table.caption = Text("On devices, in simulated time and energy", style="bold"), None
        for table_row, row in zip(table.rows, on_device, strict=True):
            table_row.style = "bold" if row.get("takes") else None
        parts.append(table)
    return Group(*parts, *_warning(tiers))


def _layer_rich(row: Row, layers: Sequence[Row]) -> Group:
    title = f"Layers of tier {tier_label(row['tier'])}: MACs per sample, those of composition per pass, and their share of a step"
    title += " of the tier's own network" if draws(row) else ""
    return Group(_titled(title, LAYERS, layers), *_warning([row]))


def _titled(title: str, columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """Return a table with one line per row, a group's name above the first of its columns; where it is narrow, numbers wrap."""
    table = bare_table(gap=0)
    table.title = Text(title, style="bold")
    before = None
    for column in columns:
        head = Text(f"{column.group if column.group != before else ''}\n{column.head}")
        before = column.group
        table.add_column(
            head,
            justify="right" if column.numeric else "left",
            no_wrap=column.group == "kind",
            overflow="ellipsis" if column.group == "kind" else "fold",
            min_width=None if column.numeric else 8,
            max_width=11 if column.group == "kind" else None,
        )
    for row in rows:
        table.add_row(*(Text(column.cell(row)) for column in columns))
    return table


def _warning(rows: Sequence[Row]) -> list[Text]:
    warning = uncounted(rows)
    return [Text(warning, style="bold red")] if warning else []


def _text(rows: Sequence[Row], declared: Sequence[str], format: str, document: Mapping[str, Any]) -> str:
    """Return rows of plain values as text; the declared names come first and in their order, those that no row has are absent."""
    used = dict.fromkeys(key for row in rows for key in row)
    keys = [key for key in declared if key in used] + [key for key in used if key not in declared]
    match format:
        case "json":
            return json.dumps(document, indent=2, allow_nan=False)
        case "csv":
            return _csv(rows, keys)
        case "markdown":
            return _markdown(rows, keys)
    raise UnknownNameError("format", format, FORMATS)


def _csv(rows: Sequence[Row], keys: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(keys)
    writer.writerows([_raw(row.get(key)) for key in keys] for row in rows)
    return text.getvalue().rstrip("\n")


def _markdown(rows: Sequence[Row], keys: Sequence[str]) -> str:
    numeric = [all(isinstance(row.get(key), int | float) for row in rows) for key in keys]
    lines = [list(keys), ["---:" if right else "---" for right in numeric]]
    lines += [[" ".join(_MARKUP.sub(r"\\\1", _raw(row.get(key))).split()) for key in keys] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _raw(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(value) if isinstance(value, list | tuple) else str(value)
