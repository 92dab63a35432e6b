"""The columns of every table of a network's costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from edgefl.report.tables import Column, Row, text, under
from edgefl.report.tier_table import BY_ONNX, DEVICE, TIER
from edgefl.report.words import budget_name
from edgefl.util.units import MISSING, human_bytes, human_count, human_joules, human_percent, human_seconds


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


def compute_columns(rows: Iterable[Row]) -> tuple[Column, ...]:
    """Return the columns of compute, with the second count of MACs where a row has one."""
    checked = any(row.get("macs_forward_onnx") is not None for row in rows)
    return (*COMPUTE[:1], replace(BY_ONNX, group="MACs/sample"), *COMPUTE[1:]) if checked else COMPUTE


MEMORY = (
    Column("training", "weights", lambda row: human_bytes(weights_bytes(row))),
    *under("training", human_bytes, peak_gradient_bytes="gradients", optimizer_bytes="optimizer", peak_saved_bytes="saved"),
    *under("training", human_bytes, peak_temporary_bytes="temp."),
    text("training", "peak in", "peak_layer_training"),
    *under("inference", human_bytes, weights_bytes_inference="weights", peak_activation_bytes_inference="activations"),
    text("inference", "peak in", "peak_layer_inference"),
)
ON_DEVICE = (
    DEVICE,
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
    text("layer", "", "layer"),
    text("kind", "", "kind", widest=11),
    *under("params", human_count, params=""),
    *under("MACs", human_count, macs_forward="forward", macs_backward_input="inputs", macs_backward_weight="weights"),
    *under("MACs", human_count, macs_compose="compose"),
    *under("MACs", human_percent, macs_share="share"),
    *under("at the peak", human_bytes, saved_bytes_at_peak="saved", temporary_bytes_at_peak="temp."),
    *under("bytes", human_bytes, parameter_bytes="weights"),
)
SENT = under("bytes", human_bytes, download_bytes="down", upload_bytes="up")
