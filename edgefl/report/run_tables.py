"""The tables of a run: its tiers, device classes, their assignment, refusals, memory, and this computer's time."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from edgefl.records import ACCURACY, Metric, Shortfall
from edgefl.report.metric import metric_text
from edgefl.report.round_lines import HostStages, RoundLine
from edgefl.report.run_files import AnySummary, RunSummary
from edgefl.report.run_rows import AssignmentStep, BudgetUse, ClassRow, TierRow
from edgefl.report.tables import Column, PlainTable, Record, cell, shaded, text, under, value_of
from edgefl.report.tier_notes import tier_notes
from edgefl.report.words import budget_name, clients_of, names, need_have, taken_as, tier_label, uncounted
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


def _budget_used(row: TierRow) -> str:
    return f"{human_percent(row.budget_share)} {budget_name(row.limiting_budget)}".rstrip()


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
    Column("not counted", "ops", lambda row: names(row.uncounted_ops), numeric=False),
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


def tier_table(summary: RunSummary) -> PlainTable:
    """Return every cost of every tier in a run's ``summary.json``, largest tier first."""
    own = iter(_metric_columns(summary.metric, accuracy="exported file", torch_accuracy="in torch"))
    columns = (next(own) if c.group == ACCURACY.name else c for c in TIER_COLUMNS)
    absent = "exported file" if summary.no_bundle else None
    return PlainTable.of((c for c in columns if c.head != absent), summary.largest_first)


def key_figures(summary: AnySummary, trained: bool = True) -> PlainTable:
    """Return what a reader of a page looks for first in the tiers, largest tier first; without ``trained`` they have no accuracy."""
    columns = (
        _AS_TAKEN,
        DEVICE,
        *under("clients", clients=""),
        *under("updates used", updates=""),
        *(_metric_columns(summary.metric, accuracy="") if trained else ()),
        *under("parameters", params=""),
        *under("MACs of a step", macs_train_step=""),
        *under("memory in training", training_memory_bytes=""),
        *under("bytes down", download_bytes=""),
        *under("bytes up", upload_bytes=""),
        *under("time of a round", round_seconds=""),
        *under("energy of a round", round_joules=""),
        Column("budget used most", "", _budget_used),
    )
    return PlainTable.of(columns, summary.largest_first)


def compact_tiers(summary: AnySummary) -> PlainTable:
    """Return the table that ends a run in a terminal: a row per tier, pairs such as down and up one above the other."""
    rows = summary.largest_first
    notes = [*tier_notes(rows), *filter(None, [uncounted(rows)])]
    columns = (_AS_TAKEN, DEVICE, *_metric_columns(summary.metric, accuracy=""), *_COMPACT)
    return PlainTable.of(columns, rows, note="\n".join(notes), stacked=True)


REPORT = "report"
"""The stage that is not over when the page is made: a page that is made again would differ from the first by it."""
_CLASS = text("device class", "", "title")
_HERE = "this process"
MEASURED = {
    "activations of a training step": ("peak_activation_bytes_training", "measured_peak_activation_bytes_training"),
    "activations of a training step, in onnxruntime": ("peak_activation_bytes_training", "measured_peak_activation_bytes_onnx"),
    "a training step in all": ("training_memory_bytes", "measured_training_memory_bytes"),
    "activations of an inference": ("peak_activation_bytes_inference", "measured_peak_activation_bytes_inference"),
}


def class_table(summary: AnySummary) -> PlainTable:
    """Return each class with what it needs of its budgets, and why it takes no larger tier in whole batches."""
    columns = (
        _CLASS,
        *under("clients", str, clients=""),
        *under("share of fleet", share=""),
        Column("tier", "", lambda row: taken_as(row) or "none"),
        Column("needed of the budget", "", lambda row: "\n".join(map(_budget_line, budget_entries(row))) or "no budget", False),
        Column("no larger tier, because", "", _no_larger, numeric=False, wraps=True),
    )
    return PlainTable.of(columns, summary.classes)


def budget_entries(item: ClassRow) -> list[BudgetUse]:
    """Return the budgets of a device class; of a class without a tier, those that refused its smallest tier."""
    if item.budgets:
        return list(item.budgets)
    smallest = min((refusal.tier for refusal in item.refusals), default=None)
    refusals = {refusal.budget: refusal for refusal in item.refusals if refusal.tier == smallest}
    return [
        BudgetUse(short.budget, short.need, short.have, short.need / short.have, clock_margin=short.clock_margin)
        for short in refusals.values()
        if short.have > 0
    ]


class _Step(NamedTuple):
    title: str
    step: AssignmentStep
    given: bool


def assignment_steps(summary: AnySummary) -> PlainTable:
    """Return the steps of every class's assignment, in order, and their results; the chosen one is marked."""
    columns = (
        _CLASS,
        Column("tier", "", cell("tier", tier_label, "step")),
        Column("samples at once", "", lambda row: str(row.step.micro_batch or "the whole batch")),
        Column("activations", "", lambda row: "recomputed" if row.step.recompute else "saved", numeric=False),
        Column("outcome", "", _step_outcome, numeric=False, wraps=True),
    )
    rows = [_Step(item.title, step, _as_given(step) == _as_given(item)) for item in summary.classes for step in item.considered]
    return PlainTable.of(columns, rows, marked=(row.given for row in rows))


def _as_given(row: AssignmentStep | ClassRow) -> tuple[float | None, int | None, tuple[str, ...]]:
    return row.tier, row.micro_batch, row.recompute


class _Refused(NamedTuple):
    refusal: Shortfall
    turns: int


def refusals_of(summary: RunSummary, rounds: Sequence[RoundLine]) -> PlainTable:
    """Return every distinct reason for a refusal, and how many sessions it cost; 0 if no such client was selected."""
    turns: Counter[Shortfall] = Counter()
    for item in summary.classes:
        if item.tier is None:
            turns.update(dict.fromkeys(item.refusals, 0))
    turns.update(refusal for client in clients_of(rounds) for refusal in client.refusal)
    titles = summary.titles
    columns = (
        Column("device class", "", lambda row: titles.get(row.refusal.device, row.refusal.device), numeric=False),
        Column("tier", "", lambda row: taken_as(row.refusal)),
        Column("budget", "", lambda row: budget_name(row.refusal.budget), numeric=False),
        Column("reason", "", lambda row: need_have(row.refusal), numeric=False),
        *under("sessions", str, turns=""),
    )
    return PlainTable.of(columns, map(_Refused._make, turns.items()))


class _Memory(NamedTuple):
    taken: str
    what: str
    predicted: int
    measured: int | None


def memory_table(summary: RunSummary) -> PlainTable:
    """Return, per tier and kind of memory, the predicted and the measured peak and the difference."""
    columns = (
        *under("tier", str, taken=""),
        Column("memory of", "", lambda row: row.what, numeric=False, wraps=True),
        *under("predicted", human_bytes, predicted=""),
        *under("measured", human_bytes, measured=""),
        Column("predicted − measured", "", lambda row: human_difference(row.predicted, row.measured)),
    )
    rows = (
        _Memory(taken_as(row), what, getattr(row, predicted), getattr(row, measured))
        for row in summary.largest_first
        for what, (predicted, measured) in MEASURED.items()
    )
    return PlainTable.of(columns, rows)


def host_seconds(summary: RunSummary) -> float:
    """Return the seconds of this computer until the page was made: those of all stages, or of the rounds if no stages were measured."""
    stages = summary.host_stages.get("server", {})
    return sum(taken_s for name, taken_s in stages.items() if name != REPORT) or summary.host_s


class _Stage(NamedTuple):
    title: str
    seconds: Mapping[str, float | None]
    """Heading of a column → seconds."""


def stage_table(stages: HostStages) -> PlainTable:
    """Return the seconds of every stage: in the main thread with their shares, in the background, and in all worker processes."""
    server = {name: taken_s for name, taken_s in stages.get("server", {}).items() if name != REPORT}
    workers: Counter[str] = Counter()
    for worker in stages.get("workers", {}).values():
        workers.update(worker)
    others = {"in the background": stages.get("background", {}), f"in {len(stages.get('workers', {}))} worker processes": workers}
    in_head = {_HERE: server, **{head: seconds for head, seconds in others.items() if seconds}}
    all_s = sum(server.values())
    known = {name for seconds in in_head.values() for name in seconds}

    def seconds_in(head: str) -> Column:
        return Column(head, "", lambda row: human_seconds(row.seconds[head]))

    def share(row: _Stage) -> float | None:
        here_s = row.seconds[_HERE]
        return here_s / all_s if here_s is not None and all_s else None

    here, *elsewhere = map(seconds_in, in_head)
    titles = {name: f"{name}: {about}" for name, about in STAGES.items() if name in known}
    titles |= {name: name for name in sorted(known - STAGES.keys())}
    rows = [_Stage(title, {head: of.get(name) for head, of in in_head.items()}) for name, title in titles.items()]
    whole = _Stage("all", {head: sum(of.values()) for head, of in in_head.items()})
    return PlainTable.of((text("stage", "", "title"), here, shaded("share", share), *elsewhere), [*rows, whole] if known else [])


def inclusion_columns(
    shares: Callable[[Any], Mapping[str, float | None]], rows: Iterable[Any], titles: Mapping[str, str]
) -> list[Column]:
    """Return a shaded column per device of the ``shares`` of rows, in the order of ``titles``."""
    seen = dict.fromkeys(device for row in rows for device in shares(row))
    devices = [*(device for device in titles if device in seen), *(device for device in seen if device not in titles)]

    def column(device: str) -> Column:
        return shaded(titles.get(device, device), lambda row: shares(row).get(device))

    return [column(device) for device in devices]


def _no_larger(item: ClassRow) -> str:
    larger = (
        f"tier {tier_label(refusal.tier)}: {_reason(refusal)}"
        for refusal in item.refusals
        if item.tier is not None and refusal.tier > item.tier
        if refusal.micro_batch is None and not refusal.recompute
    )
    return "\n".join(larger) or MISSING


def _step_outcome(row: _Step) -> str:
    short = "; ".join(map(_reason, row.step.refusals))
    fits = "given, though it does not fit: " if row.given and short else "given" if row.given else "" if short else "fits"
    return fits + short


def _reason(refusal: Shortfall) -> str:
    return f"{budget_name(refusal.budget)} {need_have(refusal)}"


def _budget_line(entry: BudgetUse) -> str:
    need, have = (human_budget(entry.budget, value) for value in (entry.need, entry.have))
    margin, error = entry.clock_margin, entry.clock_error
    needed = need if margin == 1 else f"{need} with a clock margin of {margin:g},"
    line = f"{budget_name(entry.budget)}: {needed} of {have} ({human_percent(entry.share)})"
    amount = "as much or as little energy" if entry.budget == "energy_j" else "as long or as short"
    return f"{line}; uncertain: training may take up to {error:.3g} times {amount}" if error else line
