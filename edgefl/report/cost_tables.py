"""A network's costs and plans before anything is trained: tables for the terminal, and text that other programs read."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Group
from rich.text import Text

from edgefl.errors import UnknownNameError
from edgefl.report.cost_rows import COST_COLUMNS, DEVICE_COLUMNS, LAYER_COLUMNS, NESTED, costliest, layer_rows
from edgefl.report.run_tables import BY_ONNX, DEVICE, TIER
from edgefl.report.tables import ALWAYS, Column, PlainTable, Row, raw_table, text, under
from edgefl.report.terminal import shown
from edgefl.report.words import budget_name, energy_trust, tier_label, uncounted
from edgefl.util.units import MISSING, human_bytes, human_joules, human_percent, human_range, human_seconds


def weights_bytes(row: Row) -> int | None:
    """Return the bytes of parameters and buffers; None if they are not known."""
    known: int | None = row.get("parameter_bytes")
    return None if known is None else known + int(row.get("buffer_bytes", 0))


def draws(row: Row) -> bool:
    """Whether every step trains one of several networks: the MACs of a step are then the mean over them."""
    return row.get("macs_drawn") is not None


def _fits(row: Row) -> str:
    fits = row.get("fits")
    return MISSING if fits is None else "no" if not fits else "takes it" if row.get("takes") else "yes"


def _range(row: Row, key: str) -> str:
    seconds, error = row.get(key), row.get("clock_error")
    return "" if seconds is None or error is None else human_range(seconds / error, seconds * error)


SUMMARY = (
    TIER,
    *under("params", params=""),
    *under("MACs/step", macs_train_step="all"),
    *under("memory", training_memory_bytes="training", inference_memory_bytes="inference"),
    *under("bytes", download_bytes="down", upload_bytes="up", header_bytes="header", formula_bytes="4 × params"),
)
COMPUTE = (
    *under("MACs/sample", macs_forward="forward", macs_backward_input="to inputs", macs_backward_weight="to weights"),
    *under("MACs/pass", macs_compose="composing"),
    *under("element-wise", elementwise_ops="forward", elementwise_ops_backward="backward", elementwise_ops_step="per step"),
    *under("inference", macs_inference="MACs"),
)


def compute_columns(rows: Iterable[Row]) -> tuple[Column, ...]:
    """Return the columns of compute, with the second count of MACs and those of recomputation where a row has them."""
    rows = list(rows)
    checked = any(row.get("macs_forward_onnx") is not None for row in rows)
    by_onnx = (replace(BY_ONNX, group="MACs/sample"),) if checked else ()
    again = under("MACs/sample", macs_recompute="again") if any(row.get("macs_recompute") for row in rows) else ()
    return (*COMPUTE[:1], *by_onnx, *COMPUTE[1:3], *again, *COMPUTE[3:])


MEMORY = (
    Column("training", "weights", lambda row: human_bytes(weights_bytes(row))),
    *under("training", peak_gradient_bytes="gradients", optimizer_bytes="optimizer", peak_saved_bytes="saved"),
    *under("training", peak_temporary_bytes="temp."),
    text("training", "peak in", "peak_layer_training"),
    *under("inference", weights_bytes_inference="weights", peak_activation_bytes_inference="activations"),
    text("inference", "peak in", "peak_layer_inference"),
)
ON_DEVICE = (
    DEVICE,
    TIER,
    *under("inference", inference_seconds="time", inference_joules="energy"),
    *under("step", train_step_seconds="time"),
    Column("step", "within", lambda row: _range(row, "train_step_seconds")),
    *under("step", train_step_joules="energy"),
    *under("epoch", epoch_seconds="time"),
    Column("epoch", "within", lambda row: _range(row, "epoch_seconds")),
    *under("epoch", epoch_joules="energy"),
    *under("round", round_seconds="time"),
    Column("round", "within", lambda row: human_range(row.get("round_seconds_low"), row.get("round_seconds_high"))),
    *under("round", round_joules="energy"),
    Column("fits", "", _fits, numeric=False, keep=ALWAYS),
    Column("budget", "used", lambda row: human_percent(row.get("budget_share")), numeric=False),
    Column("budget", "", lambda row: budget_name(row.get("limiting_budget")), numeric=False),
)


def _cell(prefix: str, spread: Callable[[Row], str]) -> Callable[[Row], str]:
    """Return the function that writes the time, its range and the energy of one thing, a line each; an unknown energy is left out."""

    def lines(row: Row) -> str:
        energy = row.get(f"{prefix}_joules")
        return "\n".join(
            filter(None, (human_seconds(row.get(f"{prefix}_seconds")), spread(row), energy and human_joules(energy)))
        )

    return lines


ON_PAGE = (
    DEVICE,
    TIER,
    Column("inference", "", _cell("inference", lambda _: "")),
    Column("training step", "", _cell("train_step", lambda row: _range(row, "train_step_seconds"))),
    Column("epoch", "", _cell("epoch", lambda row: _range(row, "epoch_seconds"))),
    Column("round", "", _cell("round", lambda row: human_range(row.get("round_seconds_low"), row.get("round_seconds_high")))),
    Column("fits", "", _fits, numeric=False),
    Column(
        "budget used",
        "",
        lambda row: f"{human_percent(row.get('budget_share'))}\n{budget_name(row.get('limiting_budget'))}".rstrip(),
    ),
)
"""The columns of :data:`ON_DEVICE` as a page has them: no wider than a page."""
LAYERS = (
    text("layer", "", "layer"),
    text("kind", "", "kind", widest=11),
    *under("params", params=""),
    *under("MACs", macs_forward="forward", macs_backward_input="inputs", macs_backward_weight="weights", macs_compose="compose"),
    *under("MACs", macs_share="share"),
    *under("at the peak", saved_bytes_at_peak="saved", temporary_bytes_at_peak="temp."),
    *under("bytes", parameter_bytes="weights"),
)
TIME_SHARE = under("time", time_share="share")
SENT = under("bytes", download_bytes="down", upload_bytes="up")
FORMATS = ("table", "json", "csv", "markdown")


def cost_table(rows: Sequence[Row], format: str) -> Any:
    """Return the costs of every tier of a model, from the JSON form of :class:`edgefl.report.cost_rows.ProfileRow`.

    ``format`` is ``table`` (for a rich console), or raw numbers under the names of the API: ``json`` (``{"rows": […]}``, layers and tensors
    included), ``csv`` or ``markdown``.

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
    """Return the costs of every layer of one tier, in the network's order, from a row of :func:`cost_table` and in its formats.

    As JSON: ``{"tier": …, "layers": […], "uncounted_ops": […]}``. With ``top``, a row ``(other)`` sums all layers but those with most MACs.
    """
    layers: list[Row] = list(layer_rows(row))
    if top is not None:
        layers = costliest(layers, top, lambda layer: layer["macs_train_step"])
    if format == "table":
        own = " of the tier's own network" if draws(row) else ""
        per = f"MACs per sample, those of composition per pass, and their share of a step{own}"
        again = under("MACs", macs_recompute="again") if row.get("macs_recompute") else ()
        timed = TIME_SHARE if row.get("layer_seconds") else ()
        title = f"Layers of tier {tier_label(row['tier'])}: {per}"
        table = PlainTable.of((*LAYERS[:7], *again, *LAYERS[7:], *timed), layers, title=title)
        return Group(shown(table), *_warning([row]))
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

    >>> about([{"method": None, "batch_size": 32, "samples": 500, "local_epochs": 1}])[2:]
    [('samples per client', '500'), ('local epochs per round', '1')]
    >>> about([{"method": None, "batch_size": 32}])
    [('method', 'none, the network as it is'), ('batch size', '32')]
    """
    names = {"method": "method", "model": "model", "batch_size": "batch size", "micro_batch": "micro-batch"}
    names |= {
        "optimizer": "optimizer",
        "codec": "codec",
        "samples": "samples per client",
        "local_epochs": "local epochs per round",
    }
    found = {name: list(dict.fromkeys(row[key] for row in rows if key in row)) for key, name in names.items()}
    if again := [f"tier {tier_label(row['tier'])} in {len(row['recompute'])} segments" for row in rows if row.get("recompute")]:
        found["computed again in the backward pass"] = list(dict.fromkeys(again))
    found["method"] = ["none, the network as it is" if value is None else value for value in found["method"]]
    if any(map(draws, rows)):
        found["a step trains"] = ["one of several networks, drawn: its MACs are their mean, all else is the tier's own network's"]
    return [(name, ", ".join(map(str, values))) for name, values in found.items() if values]


def _for_people(rows: Sequence[Row]) -> Group:
    tiers, on_device = per_tier(rows), per_device(rows)
    compute = "Compute: multiply-accumulates (MACs) and element-wise operations"
    memory = "Memory: what is alive at the peak of a training step, and of inference"
    tables: list[PlainTable | Text] = [
        PlainTable.of(SUMMARY, tiers, title="What a tier costs"),
        PlainTable.of((TIER, *compute_columns(tiers)), tiers, title=compute),
        PlainTable.of((TIER, *MEMORY), tiers, title=memory),
    ]
    if on_device:
        takes = [bool(row.get("takes")) for row in on_device]
        title = f"On devices, in simulated time and energy (energy: {energy_of(on_device)})"
        tables.append(PlainTable.of(ON_DEVICE, on_device, takes, title, stacked=True))
        if note := inference_note(on_device):
            tables.append(Text(note))
    return Group(Text(" · ".join(f"{name} {value}" for name, value in about(rows))), *map(shown, tables), *_warning(tiers))


def inference_note(on_device: Sequence[Row]) -> str:
    """Return what the seconds of an inference leave out; empty if each device's were measured by kind of work."""
    if not any(row.get("inference_by_macs") for row in on_device):
        return ""
    least = "Inference time is the least: MACs at one rate, no time per operation."
    return f"{least} A small network takes longer; 'edgefl calibrate' measures it."


def energy_of(on_device: Sequence[Row]) -> str:
    """Return how far joules on devices can be trusted, or that they are unknown on every device."""
    return energy_trust(next((row["round_joules"] for row in on_device if row.get("round_joules") is not None), None))


def _warning(rows: Sequence[Row]) -> list[Text]:
    warning = uncounted(rows)
    return [Text(warning, style="bold red")] if warning else []


def _for_programs(rows: Sequence[Row], declared: Sequence[str], format: str, document: Mapping[str, Any]) -> str:
    if format == "json":
        return json.dumps(document, indent=2, allow_nan=False)
    if format not in FORMATS:
        raise UnknownNameError("format", format, FORMATS)
    table = raw_table(rows, declared)
    return table.to_csv() if format == "csv" else table.to_markdown()
