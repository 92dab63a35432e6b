"""A network's costs before anything is trained: tables for the terminal, and text that other programs read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from edgefl.errors import UnknownNameError
from edgefl.report.cost_columns import LAYERS, MEMORY, ON_DEVICE, SUMMARY, compute_columns, draws
from edgefl.report.cost_layers import costliest, layer_rows
from edgefl.report.cost_rows import COST_COLUMNS, DEVICE_COLUMNS, LAYER_COLUMNS, NESTED
from edgefl.report.tables import PlainTable, Row, raw_table
from edgefl.report.tier_table import TIER
from edgefl.report.words import tier_label, uncounted

FORMATS = ("table", "json", "csv", "markdown")


def cost_table(rows: Sequence[Row], format: str) -> Any:
    """Return the costs of every tier of a model: for people (``table``), or raw numbers under the names of the API.

    Args:
        rows: the JSON form of :class:`edgefl.report.cost_rows.ProfileRow`, per tier or per tier and device.
        format: ``table`` (for a rich console), ``json`` (``{"rows": […]}``, layers and tensors included), ``csv`` or ``markdown``.

    Raises:
        UnknownNameError: ``format`` is none of these.

    >>> print(cost_table([{"tier": 0.5, "params": 1200, "uncounted_ops": ["Erf"]}], "csv"))
    tier,params,uncounted_ops
    0.5,1200,Erf
    """
    if format == "table":
        return _for_people(rows)
    scalars = [{key: value for key, value in row.items() if key not in NESTED} for row in rows]
    return _for_programs(scalars, (*COST_COLUMNS, *DEVICE_COLUMNS), format, {"rows": list(rows)})


def layer_table(row: Row, format: str, top: int | None = None) -> Any:
    """Return the costs of every layer of one tier, in the network's order.

    Args:
        row: one row of :func:`cost_table`, with its layers and tensors.
        format: as in :func:`cost_table`; as JSON ``{"tier": …, "layers": […], "uncounted_ops": […]}``.
        top: list only so many layers, those with most MACs in a step; a row ``(other)`` sums the rest.

    Raises:
        UnknownNameError: ``format`` is none of these.
    """
    layers: list[Row] = list(layer_rows(row))
    if top is not None:
        layers = costliest(layers, top, lambda layer: layer["macs_train_step"])
    if format == "table":
        title = (
            f"Layers of tier {tier_label(row['tier'])}: MACs per sample, those of composition per pass, and their share of a step"
        )
        title += " of the tier's own network" if draws(row) else ""
        return Group(PlainTable.of(LAYERS, layers, title=title), *_warning([row]))
    ordered = [{key: layer[key] for key in LAYER_COLUMNS} for layer in layers]
    document = {"tier": row["tier"], "layers": ordered, "uncounted_ops": list(row["uncounted_ops"])}
    if format != "json" and row["uncounted_ops"]:
        ordered = [{**layer, "uncounted_ops": row["uncounted_ops"]} for layer in ordered]
    return _for_programs(ordered, (*LAYER_COLUMNS, "uncounted_ops"), format, document)


def per_tier(rows: Sequence[Row]) -> list[Row]:
    """Return the first row of each tier, largest tier first: the costs of a tier do not depend on the device."""
    first = {row["tier"]: row for row in reversed(rows)}
    return sorted(first.values(), key=lambda row: -float(row["tier"]))


def per_device(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that have a device, all tiers of one device together; devices in the order asked for."""
    order = {device: i for i, device in enumerate(dict.fromkeys(row["device"] for row in rows if "device" in row))}
    return sorted((row for row in rows if "device" in row), key=lambda row: order[row["device"]])


def about(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return what the costs are of, as pairs of a name and its value; a key that no row has is left out.

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


def _for_people(rows: Sequence[Row]) -> Group:
    tiers, on_device = per_tier(rows), per_device(rows)
    compute = "Compute: multiply-accumulates (MACs) and element-wise operations"
    memory = "Memory: what is alive at the peak of a training step, and of inference"
    tables = [
        PlainTable.of(SUMMARY, tiers, title="What a tier costs"),
        PlainTable.of((TIER, *compute_columns(tiers)), tiers, title=compute),
        PlainTable.of((TIER, *MEMORY), tiers, title=memory),
    ]
    if on_device:
        takes = [bool(row.get("takes")) for row in on_device]
        tables.append(PlainTable.of(ON_DEVICE, on_device, takes, "On devices, in simulated time and energy", stacked=True))
    return Group(Text(" · ".join(f"{name} {value}" for name, value in about(rows))), *tables, *_warning(tiers))


def _warning(rows: Sequence[Row]) -> list[Text]:
    warning = uncounted(rows)
    return [Text(warning, style="bold red")] if warning else []


def _for_programs(rows: Sequence[Row], declared: Sequence[str], format: str, document: Mapping[str, Any]) -> str:
    match format:
        case "json":
            return json.dumps(document, indent=2, allow_nan=False)
        case "csv":
            return raw_table(rows, declared).to_csv()
        case "markdown":
            return raw_table(rows, declared).to_markdown()
    raise UnknownNameError("format", format, FORMATS)
