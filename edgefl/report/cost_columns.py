"""The columns of every table of a network's costs: their names for programs, and how people read them."""

from __future__ import annotations

from typing import Any

from edgefl.report.tables import TIER, Column, Row, budget_name, under
from edgefl.util.units import MISSING, human_bytes, human_count, human_joules, human_percent, human_seconds


def weights_bytes(row: Row) -> int | None:
    """Return the bytes of parameters and buffers, which a network holds throughout; None where they are not known."""
    known: int | None = row.get("parameter_bytes")
    return None if known is None else known + int(row.get("buffer_bytes", 0))


def draws(row: Row) -> bool:
    """Whether every step trains one of several networks: the MACs of a step are then the mean over them."""
    return row.get("macs_drawn") is not None


def _device(row: Row) -> str:
    return str(row.get("device_title") or row.get("device") or MISSING)


def _fits(row: Row) -> str:
    """Return whether a tier fits its device; the tier that the device takes is the largest that does."""
    fits = row.get("fits")
    return MISSING if fits is None else "no" if not fits else "takes it" if row.get("takes") else "yes"


def _text(group: str, head: str, key: str) -> Column:
    def cell(row: Row) -> str:
        value: Any = row.get(key)
        return str(value or MISSING)

    return Column(group, head, cell, numeric=False)


SUMMARY = (
    TIER,
    *under("params", human_count, params=""),
    *under("MACs/step", human_count, macs_train_step="all"),
    *under("memory", human_bytes, training_memory_bytes="training", inference_memory_bytes="inference"),
    *under("bytes", human_bytes, download_bytes="down", upload_bytes="up", header_bytes="header"),
    *under("bytes", human_bytes, formula_bytes="4 × params"),
)
COMPUTE = (
    *under("MACs/sample", human_count, macs_forward="forward"),
    *under("MACs/sample", human_count, macs_backward_input="to inputs", macs_backward_weight="to weights"),
    *under("MACs/pass", human_count, macs_compose="composing"),
    *under("element-wise", human_count, elementwise_ops="forward", elementwise_ops_backward="backward"),
    *under("element-wise", human_count, elementwise_ops_step="per step"),
    *under("inference", human_count, macs_inference="MACs"),
)
MEMORY = (
    Column("training", "weights", lambda row: human_bytes(weights_bytes(row))),
    *under("training", human_bytes, peak_gradient_bytes="gradients", optimizer_bytes="optimizer", peak_saved_bytes="saved"),
    *under("training", human_bytes, peak_temporary_bytes="temp."),
    _text("training", "peak in", "peak_layer_training"),
    *under("inference", human_bytes, weights_bytes_inference="weights", peak_activation_bytes_inference="activations"),
    _text("inference", "peak in", "peak_layer_inference"),
)
ON_DEVICE = (
    Column("device", "", _device, numeric=False),
    TIER,
    *under("inference", human_seconds, inference_seconds="time"),
    *under("inference", human_joules, inference_joules="energy"),
    *under("step", human_seconds, train_step_seconds="time"),
    *under("step", human_joules, train_step_joules="energy"),
    *under("epoch", human_seconds, epoch_seconds="time"),
    *under("epoch", human_joules, epoch_joules="energy"),
    *under("round", human_seconds, round_seconds="time"),
    *under("round", human_joules, round_joules="energy"),
    Column("fits", "", _fits, numeric=False),
    Column("budget", "used", lambda row: human_percent(row.get("budget_share")), numeric=False),
    Column("budget", "", lambda row: budget_name(row.get("limiting_budget")), numeric=False),
)
LAYERS = (
    _text("layer", "", "layer"),
    _text("kind", "", "kind"),
    *under("params", human_count, params=""),
    *under("MACs", human_count, macs_forward="forward", macs_backward_input="inputs", macs_backward_weight="weights"),
    *under("MACs", human_count, macs_compose="compose"),
    *under("MACs", human_percent, macs_share="share"),
    *under("at the peak", human_bytes, saved_bytes_at_peak="saved", temporary_bytes_at_peak="temp."),
    *under("bytes", human_bytes, parameter_bytes="weights"),
)
SENT = under("bytes", human_bytes, download_bytes="down", upload_bytes="up")
