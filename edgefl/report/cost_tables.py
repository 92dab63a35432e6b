"""A network's costs and plans before anything is trained: tables for the terminal, and text that other programs read."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Group
from rich.text import Text

from edgefl.errors import UnknownNameError
from edgefl.report.cost_rows import COST_COLUMNS, DEVICE_COLUMNS, LAYER_COLUMNS, ProfileRow, layer_rows
from edgefl.report.run_tables import BY_ONNX, DEVICE, TIER
from edgefl.report.tables import ALWAYS, Column, PlainTable, raw_columns, text, under
from edgefl.report.terminal import shown
from edgefl.report.words import budget_name, energy_trust, tier_label, uncounted
from edgefl.util.units import MISSING, human_joules, human_percent, human_range, human_seconds


def _fits(row: ProfileRow) -> str:
    return MISSING if row.fits is None else "no" if not row.fits else "takes it" if row.takes else "yes"


def _range(seconds: float | None, error: float | None) -> str:
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


def compute_columns(rows: Sequence[ProfileRow]) -> tuple[Column, ...]:
    """Return the columns of compute, with the second count of MACs and those of recomputation where a row has them."""
    checked = any(row.macs_forward_onnx is not None for row in rows)
    by_onnx = (replace(BY_ONNX, group="MACs/sample"),) if checked else ()
    again = under("MACs/sample", macs_recompute="again") if any(row.macs_recompute for row in rows) else ()
    return (*COMPUTE[:1], *by_onnx, *COMPUTE[1:3], *again, *COMPUTE[3:])


MEMORY = (
    *under("training", weights_bytes="weights", peak_gradient_bytes="gradients", optimizer_bytes="optimizer"),
    *under("training", peak_saved_bytes="saved", peak_temporary_bytes="temp."),
    text("training", "peak in", "peak_layer_training"),
    *under("inference", weights_bytes_inference="weights", peak_activation_bytes_inference="activations"),
    text("inference", "peak in", "peak_layer_inference"),
)
ON_DEVICE = (
    DEVICE,
    TIER,
    *under("inference", inference_seconds="time", inference_joules="energy"),
    *under("step", train_step_seconds="time"),
    Column("step", "within", lambda row: _range(row.train_step_seconds, row.clock_error)),
    *under("step", train_step_joules="energy"),
    *under("epoch", epoch_seconds="time"),
    Column("epoch", "within", lambda row: _range(row.epoch_seconds, row.clock_error)),
    *under("epoch", epoch_joules="energy"),
    *under("round", round_seconds="time"),
    Column("round", "within", lambda row: human_range(row.round_seconds_low, row.round_seconds_high)),
    *under("round", round_joules="energy"),
    Column("fits", "", _fits, numeric=False, keep=ALWAYS),
    Column("budget", "used", lambda row: human_percent(row.budget_share), numeric=False),
    Column("budget", "", lambda row: budget_name(row.limiting_budget), numeric=False),
)


def _lines(seconds: float | None, spread: str, joules: float | None) -> str:
    """Return the time, its range and the energy of one thing, a line each; an unknown energy is left out."""
    return "\n".join(filter(None, (human_seconds(seconds), spread, human_joules(joules) if joules else "")))


def _trained(row: ProfileRow, seconds: float | None, joules: float | None) -> str:
    return _lines(seconds, _range(seconds, row.clock_error), joules)


ON_PAGE = (
    DEVICE,
    TIER,
    Column("inference", "", lambda row: _lines(row.inference_seconds, "", row.inference_joules)),
    Column("training step", "", lambda row: _trained(row, row.train_step_seconds, row.train_step_joules)),
    Column("epoch", "", lambda row: _trained(row, row.epoch_seconds, row.epoch_joules)),
    Column(
        "round",
        "",
        lambda row: _lines(row.round_seconds, human_range(row.round_seconds_low, row.round_seconds_high), row.round_joules),
    ),
    Column("fits", "", _fits, numeric=False),
    Column("budget used", "", lambda row: f"{human_percent(row.budget_share)}\n{budget_name(row.limiting_budget)}".rstrip()),
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


def cost_table(rows: Sequence[ProfileRow], format: str) -> Any:
    """Return the costs of every tier of a model.

    ``format`` is ``table`` (for a rich console), or raw numbers under the names of the API: ``json`` (``{"rows": […]}``, layers and tensors
    included), ``csv`` or ``markdown``.

    Raises:
        UnknownNameError: ``format`` is none of these.
    """
    if format == "table":
        return _for_people(rows)
    if format == "json":
        return json.dumps({"rows": [row.to_dict() for row in rows]}, indent=2, allow_nan=False)
    keys = (key for key in (*COST_COLUMNS, *DEVICE_COLUMNS) if any(key not in row.absent for row in rows))
    return _text(PlainTable.of(raw_columns(rows, keys), rows), format)


def layer_table(row: ProfileRow, format: str) -> Any:
    """Return the costs of every layer of one tier, in the network's order, in the formats of :func:`cost_table`.

    As JSON: ``{"tier": …, "layers": […], "uncounted_ops": […]}``.
    """
    layers, ops = layer_rows(row), row.uncounted_ops
    if format == "table":
        own = " of the tier's own network" if row.draws else ""
        per = f"MACs per sample, those of composition per pass, and their share of a step{own}"
        again = under("MACs", macs_recompute="again") if row.macs_recompute else ()
        timed = TIME_SHARE if row.layer_seconds else ()
        title = f"Layers of tier {tier_label(row.tier)}: {per}"
        table = PlainTable.of((*LAYERS[:7], *again, *LAYERS[7:], *timed), layers, title=title)
        return Group(shown(table), *_warning([row]))
    if format == "json":
        plain = [{key: getattr(layer, key) for key in LAYER_COLUMNS} for layer in layers]
        return json.dumps({"tier": row.tier, "layers": plain, "uncounted_ops": ops}, indent=2, allow_nan=False)
    more = [Column("uncounted_ops", "", lambda _: " ".join(ops), numeric=False)] if ops else []
    return _text(PlainTable.of([*raw_columns(layers, LAYER_COLUMNS), *more], layers), format)


def per_tier(rows: Sequence[ProfileRow]) -> list[ProfileRow]:
    """Return the first row of each tier, largest tier first: the costs of a tier do not depend on the device."""
    first = {row.tier: row for row in reversed(rows)}
    return sorted(first.values(), key=lambda row: -row.tier)


def per_device(rows: Sequence[ProfileRow]) -> list[ProfileRow]:
    """Return the rows that have a device, all tiers of one device together; devices in the order asked for."""
    order = {device: i for i, device in enumerate(dict.fromkeys(row.device for row in rows))}
    return sorted((row for row in rows if row.device is not None), key=lambda row: order[row.device])


_ABOUT = {"model": "model", "batch_size": "batch size", "micro_batch": "micro-batch", "optimizer": "optimizer", "codec": "codec"}
_ABOUT |= {"samples": "samples per client", "local_epochs": "local epochs per round"}


def about(rows: Sequence[ProfileRow]) -> list[tuple[str, str]]:
    """Return what the costs are of, as pairs of a name and its value; what no row has is left out."""
    found: dict[str, list[object]] = {"method": [row.method or "none, the network as it is" for row in rows]}
    found |= {name: [value for row in rows if (value := getattr(row, key)) is not None] for key, name in _ABOUT.items()}
    again: list[object] = [f"tier {tier_label(row.tier)} in {len(row.recompute)} segments" for row in rows if row.recompute]
    found["computed again in the backward pass"] = again
    if any(row.draws for row in rows):
        found["a step trains"] = ["one of several networks, drawn: its MACs are their mean, all else is the tier's own network's"]
    return [(name, ", ".join(map(str, dict.fromkeys(values)))) for name, values in found.items() if values]


def _for_people(rows: Sequence[ProfileRow]) -> Group:
    tiers, on_device = per_tier(rows), per_device(rows)
    tables: list[PlainTable | Text] = [
        PlainTable.of(SUMMARY, tiers, title="What a tier costs"),
        PlainTable.of(
            (TIER, *compute_columns(tiers)), tiers, title="Compute: multiply-accumulates (MACs) and element-wise operations"
        ),
        PlainTable.of((TIER, *MEMORY), tiers, title="Memory: what is alive at the peak of a training step, and of inference"),
    ]
    if on_device:
        takes = [bool(row.takes) for row in on_device]
        title = f"On devices, in simulated time and energy (energy: {energy_of(on_device)})"
        tables.append(PlainTable.of(ON_DEVICE, on_device, takes, title, stacked=True))
        if note := inference_note(on_device):
            tables.append(Text(note))
    return Group(Text(" · ".join(f"{name} {value}" for name, value in about(rows))), *map(shown, tables), *_warning(tiers))


def inference_note(on_device: Sequence[ProfileRow]) -> str:
    """Return what the seconds of an inference leave out; empty if each device's were measured by kind of work."""
    if not any(row.inference_by_macs for row in on_device):
        return ""
    least = "Inference time is the least: MACs at one rate, no time per operation."
    return f"{least} A small network takes longer; 'edgefl calibrate' measures it."


def energy_of(on_device: Sequence[ProfileRow]) -> str:
    """Return how far joules on devices can be trusted, or that they are unknown on every device."""
    return energy_trust(next((row.round_joules for row in on_device if row.round_joules is not None), None))


def _warning(rows: Sequence[ProfileRow]) -> list[Text]:
    warning = uncounted(rows)
    return [Text(warning, style="bold red")] if warning else []


def _text(table: PlainTable, format: str) -> str:
    if format not in FORMATS:
        raise UnknownNameError("format", format, FORMATS)
    return table.to_csv() if format == "csv" else table.to_markdown()
