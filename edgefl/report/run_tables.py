"""The tables of a run: its tiers, device classes, their assignment, refusals, memory, and this computer's time."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from edgefl.records import ACCURACY, Metric, Shortfall
from edgefl.report.metric import metric_of, metric_text
from edgefl.report.tables import Column, PlainTable, Record, Row, cell, shaded, text, under, value_of
from edgefl.report.tier_notes import tier_notes
from edgefl.report.words import budget_name, names, need_have, taken_as, tier_label, uncounted
from edgefl.timing.spans import STAGES
from edgefl.util.units import MISSING, human_budget, human_bytes, human_count, human_difference, human_percent, human_seconds

TIER = Column("tier", "", cell("tier", tier_label))
_AS_TAKEN = Column("tier", "", taken_as)
DEVICE = text("device", "", "device_title", "device")


def _by_onnx(row: Record) -> str:
    """Return the second count of a forward pass's MACs: whether it equals the first one, or else the count."""
    first, second = value_of(row, "macs_forward"), value_of(row, "macs_forward_onnx")
    return MISSING if second is None else "equal" if first == second else human_count(second)


BY_ONNX = Column("MACs per sample", "by ONNX", _by_onnx)


def _budget_used(row: Row) -> str:
    return f"{human_percent(row['budget_share'])} {budget_name(row['limiting_budget'])}".rstrip()


def _metric_columns(metric: Metric, **heads: str) -> tuple[Column, ...]:
    return under(metric.name, partial(metric_text, metric), **heads)


TIER_COLUMNS = (
    _AS_TAKEN,
    DEVICE,
    *under("clients", clients=""),
    *under("updates used", updates=""),
    *under("accuracy", accuracy="exported file", torch_accuracy="in torch"),
    *under("parameters", params=""),
    *under("MACs per sample", macs_forward="forward", macs_backward="backward"),
    BY_ONNX,
    *under("MACs per step", macs_compose="composition", macs_train_step="whole step"),
    *under("peak activations", peak_activation_bytes_inference="inference", peak_activation_bytes_training="training, predicted"),
    *under("peak activations", measured_peak_activation_bytes_training="training, measured"),
    *under("memory", parameter_bytes="parameters", gradient_bytes="gradients", optimizer_bytes="optimizer"),
    *under("memory", training_memory_bytes="all, training", inference_memory_bytes="all, inference"),
    *under("bytes per round", download_bytes="down", upload_bytes="up"),
    *under("round on its device", round_seconds="time", round_joules="energy"),
    Column("round on its device", "budget used", _budget_used),
    Column("not counted", "ops", lambda row: names(row["uncounted_ops"]), numeric=False),
)
_COMPACT = (
    *under("params", params=""),
    *under("MACs", macs_forward="forward", macs_train_step="step"),
    *under("peak act.", peak_activation_bytes_training="predicted", measured_peak_activation_bytes_training="measured"),
    *under("bytes", download_bytes="down", upload_bytes="up"),
    *under("a round", round_seconds="time", round_joules="energy"),
    *under("budget", budget_share="used"),
    *under("budget", budget_name, limiting_budget=""),
)


def tier_table(summary: Row) -> PlainTable:
    """Return every cost of every tier in a run's ``summary.json``, largest tier first."""
    metric = metric_of(summary)
    own = iter(_metric_columns(metric, accuracy="exported file", torch_accuracy="in torch"))
    columns = (next(own) if c.group == ACCURACY.name else c for c in TIER_COLUMNS)
    absent = "exported file" if summary.get("no_bundle") else None
    return PlainTable.of((c for c in columns if c.head != absent), largest_first(summary))


def key_figures(summary: Row, trained: bool = True) -> PlainTable:
    """Return what a reader of a page looks for first in the tiers, largest tier first; without ``trained`` they have no accuracy."""
    columns = (
        _AS_TAKEN,
        DEVICE,
        *under("clients", clients=""),
        *under("updates used", updates=""),
        *(_metric_columns(metric_of(summary), accuracy="") if trained else ()),
        *under("parameters", params=""),
        *under("MACs of a step", macs_train_step=""),
        *under("memory in training", training_memory_bytes=""),
        *under("bytes down", download_bytes=""),
        *under("bytes up", upload_bytes=""),
        *under("time of a round", round_seconds=""),
        *under("energy of a round", round_joules=""),
        Column("budget used most", "", _budget_used),
    )
    return PlainTable.of(columns, largest_first(summary))


def compact_tiers(summary: Row) -> PlainTable:
    """Return the table that ends a run in a terminal: a row per tier, pairs such as down and up one above the other."""
    rows = largest_first(summary)
    notes = [*tier_notes(rows), *filter(None, [uncounted(rows)])]
    columns = (_AS_TAKEN, DEVICE, *_metric_columns(metric_of(summary), accuracy=""), *_COMPACT)
    return PlainTable.of(columns, rows, note="\n".join(notes), stacked=True)


def largest_first(summary: Row) -> list[Row]:
    """Return the tiers of a summary, largest first."""
    return sorted(summary["tiers"], key=lambda row: -float(row["tier"]))


REPORT = "report"
"""The stage that is not over when the page is made: a page that is made again would differ from the first by it."""
_CLASS = text("device class", "", "title")
MEASURED = {
    "activations of a training step": ("peak_activation_bytes_training", "measured_peak_activation_bytes_training"),
    "activations of a training step, in onnxruntime": ("peak_activation_bytes_training", "measured_peak_activation_bytes_onnx"),
    "a training step in all": ("training_memory_bytes", "measured_training_memory_bytes"),
    "activations of an inference": ("peak_activation_bytes_inference", "measured_peak_activation_bytes_inference"),
}


def class_table(summary: Row) -> PlainTable:
    """Return each class with what it needs of its budgets, and why it takes no larger tier in whole batches."""
    columns = (
        _CLASS,
        *under("clients", str, clients=""),
        *under("share of fleet", share=""),
        Column("tier", "", lambda row: "none" if row["tier"] is None else taken_as(row)),
        Column("needed of the budget", "", lambda row: "\n".join(map(_budget_line, budget_entries(row))) or "no budget", False),
        Column("no larger tier, because", "", _no_larger, numeric=False, wraps=True),
    )
    return PlainTable.of(columns, summary["classes"])


def budget_entries(item: Row) -> list[Row]:
    """Return the budgets of a device class; of a class without a tier, those that refused its smallest tier."""
    if item["budgets"]:
        return [entry for entry in item["budgets"] if entry["share"] is not None]
    smallest = min((refusal["tier"] for refusal in item["refusals"]), default=None)
    refusals = {refusal["budget"]: refusal for refusal in item["refusals"] if refusal["tier"] == smallest}
    return [{**entry, "share": entry["need"] / entry["have"]} for entry in refusals.values() if entry["have"] > 0]


def assignment_steps(summary: Row) -> PlainTable:
    """Return the steps of every class's assignment, in order, and their results; the chosen one is marked."""
    columns = (
        _CLASS,
        TIER,
        Column("samples at once", "", lambda row: str(row["micro_batch"] or "the whole batch")),
        Column("activations", "", lambda row: "recomputed" if row.get("recompute") else "saved", numeric=False),
        Column("outcome", "", _step_outcome, numeric=False, wraps=True),
    )
    rows = [
        {
            **step,
            "title": item["title"],
            "given": all(item.get(key) == step.get(key) for key in ("tier", "micro_batch", "recompute")),
        }
        for item in summary["classes"]
        for step in item["considered"]
    ]
    return PlainTable.of(columns, rows, marked=(row["given"] for row in rows))


def refusals_of(summary: Row, rounds: Sequence[Row]) -> PlainTable:
    """Return every distinct reason for a refusal, and how many sessions it cost; 0 if no such client was selected."""
    turns: Counter[Shortfall] = Counter()
    for item in summary["classes"]:
        if item["tier"] is None:
            turns.update({Shortfall(**refusal): 0 for refusal in item["refusals"]})
    clients = (client for record in rounds for client in record.get("clients", ()))
    turns.update(Shortfall(**refusal) for client in clients for refusal in client["refusal"])
    titles = {item["device"]: item["title"] for item in summary["classes"]}
    columns = (
        Column("device class", "", lambda row: str(titles.get(row["device"], row["device"])), numeric=False),
        Column("tier", "", taken_as),
        Column("budget", "", lambda row: budget_name(row["budget"]), numeric=False),
        Column("reason", "", need_have, numeric=False),
        *under("sessions", str, turns=""),
    )
    return PlainTable.of(columns, ({**vars(refusal), "turns": count} for refusal, count in turns.items()))


def memory_table(summary: Row) -> PlainTable:
    """Return, per tier and kind of memory, the predicted and the measured peak and the difference."""
    columns = (
        Column("tier", "", taken_as),
        Column("memory of", "", lambda row: str(row["what"]), numeric=False, wraps=True),
        *under("predicted", human_bytes, predicted=""),
        *under("measured", human_bytes, measured=""),
        Column("predicted − measured", "", lambda row: human_difference(row["predicted"], row["measured"])),
    )
    rows = (
        {**row, "what": what, "predicted": row[predicted], "measured": row[measured]}
        for row in largest_first(summary)
        for what, (predicted, measured) in MEASURED.items()
    )
    return PlainTable.of(columns, rows)


def host_seconds(summary: Row) -> float:
    """Return the seconds of this computer until the page was made: those of all stages, or of the rounds if no stages were measured."""
    stages = (summary.get("host_stages") or {}).get("server", {})
    return sum(taken_s for name, taken_s in stages.items() if name != REPORT) or float(summary["host_s"])


def stage_table(summary: Row) -> PlainTable:
    """Return the seconds of every stage: in the main thread with their shares, in the background, and in all worker processes."""
    stages = summary["host_stages"]
    server = {name: taken_s for name, taken_s in stages["server"].items() if name != REPORT}
    workers: Counter[str] = Counter()
    for worker in stages.get("workers", {}).values():
        workers.update(worker)
    others = {"in the background": stages.get("background", {}), f"in {len(stages.get('workers', {}))} worker processes": workers}
    others = {head: seconds for head, seconds in others.items() if seconds}
    all_s = sum(server.values())
    known = {name for seconds in (server, *others.values()) for name in seconds}
    columns = (
        text("stage", "", "stage"),
        *under("this process", human_seconds, server=""),
        shaded("share", lambda row: row["server"] / all_s if row["server"] is not None and all_s else None),
        *(column for head in others for column in under(head, human_seconds, **{head: ""})),
    )
    titles = {name: f"{name}: {about}" for name, about in STAGES.items() if name in known}
    titles |= {name: name for name in sorted(known - STAGES.keys())}
    rows = (
        {"stage": title, "server": server.get(name), **{head: seconds.get(name) for head, seconds in others.items()}}
        for name, title in titles.items()
    )
    sums = {head: sum(seconds.values()) for head, seconds in others.items()}
    return PlainTable.of(columns, [*rows, {"stage": "all", "server": all_s, **sums}] if known else [])


def inclusion_columns(
    shares: Callable[[Any], Mapping[str, float | None]], rows: Iterable[Any], titles: Mapping[str, str]
) -> list[Column]:
    """Return a shaded column per device of the ``shares`` of rows, in the order of ``titles``."""
    seen = dict.fromkeys(device for row in rows for device in shares(row))
    devices = [*(device for device in titles if device in seen), *(device for device in seen if device not in titles)]

    def column(device: str) -> Column:
        return shaded(titles.get(device, device), lambda row: shares(row).get(device))

    return [column(device) for device in devices]


def _no_larger(item: Row) -> str:
    larger = (
        f"tier {tier_label(refusal['tier'])}: {_reason(refusal)}"
        for refusal in item["refusals"]
        if item["tier"] is not None and refusal["tier"] > item["tier"]
        if refusal["micro_batch"] is None and not refusal.get("recompute")
    )
    return "\n".join(larger) or MISSING


def _step_outcome(step: Row) -> str:
    short = "; ".join(map(_reason, step["refusals"]))
    fits = "given, though it does not fit: " if step["given"] and short else "given" if step["given"] else "" if short else "fits"
    return fits + short


def _reason(refusal: Row) -> str:
    return f"{budget_name(refusal['budget'])} {need_have(refusal)}"


def _budget_line(entry: Row) -> str:
    need, have = (human_budget(entry["budget"], entry[key]) for key in ("need", "have"))
    margin = entry.get("clock_margin", 1.0)
    needed = need if margin == 1 else f"{need} with a clock margin of {margin:g},"
    line = f"{budget_name(entry['budget'])}: {needed} of {have} ({human_percent(entry['share'])})"
    error = entry.get("clock_error")
    amount = "as much or as little energy" if entry["budget"] == "energy_j" else "as long or as short"
    return f"{line}; uncertain: training may take up to {error:.3g} times {amount}" if error else line
