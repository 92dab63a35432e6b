"""The table of a run's tiers: every figure for a page, and the most important ones for a terminal."""

from __future__ import annotations

from edgefl.report.tables import Column, PlainTable, Row, text, under
from edgefl.report.words import budget_name, budget_used, names, taken_as, tier_label, uncounted
from edgefl.util.units import MISSING, human_bytes, human_count, human_joules, human_percent, human_seconds

TIER = Column("tier", "", lambda row: tier_label(row["tier"]))
_AS_TAKEN = Column("tier", "", taken_as)
DEVICE = text("device", "", "device_title", "device")


def _by_onnx(row: Row) -> str:
    """Return the second count of a forward pass's MACs: whether it equals the first one, or else the count."""
    first, second = row.get("macs_forward"), row.get("macs_forward_onnx")
    return MISSING if second is None else "equal" if first == second else human_count(second)


BY_ONNX = Column("MACs per sample", "by ONNX", _by_onnx)

TIER_COLUMNS = (
    _AS_TAKEN,
    DEVICE,
    *under("clients", str, clients=""),
    *under("accuracy", human_percent, accuracy="exported file", torch_accuracy="in torch"),
    *under("parameters", human_count, params=""),
    *under("MACs per sample", human_count, macs_forward="forward", macs_backward="backward"),
    BY_ONNX,
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
    Column("not counted", "ops", lambda row: names(row["uncounted_ops"]), numeric=False),
)
_COMPACT = (
    _AS_TAKEN,
    DEVICE,
    *under("accuracy", human_percent, accuracy=""),
    *under("params", human_count, params=""),
    *under("MACs", human_count, macs_forward="forward", macs_train_step="step"),
    *under("peak act.", human_bytes, peak_activation_bytes_training="predicted"),
    *under("peak act.", human_bytes, measured_peak_activation_bytes_training="measured"),
    *under("bytes", human_bytes, download_bytes="down", upload_bytes="up"),
    *under("a round", human_seconds, round_seconds="time"),
    *under("a round", human_joules, round_joules="energy"),
    *under("budget", human_percent, budget_share="used"),
    *under("budget", budget_name, limiting_budget=""),
)


def tier_table(summary: Row) -> PlainTable:
    """Return every cost of every tier of a run, largest tier first.

    Args:
        summary: the content of a run's ``summary.json``.
    """
    return PlainTable.of(TIER_COLUMNS, largest_first(summary))


def compact_tiers(summary: Row) -> PlainTable:
    """Return the table that ends a run in a terminal: a row per tier, pairs such as down and up one above the other."""
    rows = largest_first(summary)
    return PlainTable.of(_COMPACT, rows, note=uncounted(rows), stacked=True)


def largest_first(summary: Row) -> list[Row]:
    """Return the tiers of a summary, largest first."""
    return sorted(summary["tiers"], key=lambda row: -float(row["tier"]))
