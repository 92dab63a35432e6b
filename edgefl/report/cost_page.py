"""One self-contained HTML page on what a network's tiers and their layers cost, with a sentence per chart on where the cost sits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from edgefl.errors import InputError
from edgefl.report import cost_tables
from edgefl.report.answer import Answer
from edgefl.report.chart import Chart, Spec, ending, layer, layered, number, slots, stacked
from edgefl.report.cost_rows import OTHER, LayerRow, ProfileRow, costliest, layer_rows
from edgefl.report.page import render_page
from edgefl.report.run_tables import TIER
from edgefl.report.tables import PlainTable, Record, value_of
from edgefl.report.words import tier_label
from edgefl.util.units import human_bytes, human_count, human_percent
from edgefl.version import __version__

MOST_LAYERS = 40
_LEAST_LAYERS, _LEAST_SHARE = 10, 0.001
_LONGEST_NAME = 24


Parts = Mapping[str, tuple[str, str]]
"""Part of a bar → its colour, and the field of a row that fills it."""


@dataclass(frozen=True)
class Measure:
    """One sort of cost: what its bars are made of, and the words around them.

    ``unit`` is ``B``, or empty for counts; in a sentence, a tier ``verb`` so much ``noun``: "computes", "MACs of a step". ``parts`` name
    fields of a row, or of its record ``outer``.
    """

    key: str
    title: str
    axis: str
    unit: str
    verb: str
    noun: str
    parts: Parts
    outer: str = ""

    def human(self, value: float) -> str:
        """Return a figure as people read it."""
        return human_bytes(value) if self.unit else human_count(value)

    def lengths(self, row: Record) -> dict[str, int]:
        """Return part → its length in a row's bar."""
        of = value_of(row, self.outer) if self.outer else row
        return {part: value_of(of, field) or 0 for part, (_, field) in self.parts.items()}

    def total(self, row: Record) -> int:
        """Return the length of a row's bar."""
        return sum(self.lengths(row).values())


_COMPUTE = {
    "forward": ("var(--part-0)", "forward"),
    "gradients of inputs": ("var(--part-1)", "backward_input"),
    "gradients of weights": ("var(--part-2)", "backward_weight"),
    "forward and gradients, mean of the networks drawn": ("var(--part-3)", "drawn"),
    "activations again": ("var(--tier-3)", "recompute"),
    "composition": ("var(--tier-1)", "compose"),
}
_HELD = {
    "weights": ("var(--part-0)", "weights_bytes"),
    "gradients": ("var(--part-1)", "peak_gradient_bytes"),
    "optimizer": ("var(--part-2)", "optimizer_bytes"),
    "saved activations": ("var(--part-3)", "peak_saved_bytes"),
    "temporaries": ("var(--tier-1)", "peak_temporary_bytes"),
}
_IN_LAYER = {
    "saved activations": ("var(--part-3)", "saved_bytes_at_peak"),
    "temporaries": ("var(--tier-1)", "temporary_bytes_at_peak"),
    "weights": ("var(--part-0)", "parameter_bytes"),
}
TRAFFIC = {"down": ("var(--part-1)", "download_bytes"), "up": ("var(--part-3)", "upload_bytes")}
_OF_TIERS = (
    Measure("compute", "Compute of a training step", "MACs in a step", "", "computes", "MACs of a step", _COMPUTE, "step"),
    Measure("memory", "Memory at the peak of a training step", "bytes at the peak", "B", "holds", "at the peak", _HELD),
    Measure("traffic", "Bytes of a round", "bytes per client", "B", "moves", "per client and round", TRAFFIC),
)
_OF_LAYERS = (
    Measure("compute", "Compute by layer", "MACs in a step", "", "computes", "MACs of a step", _COMPUTE, "step"),
    Measure("memory", "Memory by layer", "bytes at the peak", "B", "holds", "of activations and weights at the peak", _IN_LAYER),
    Measure("traffic", "Bytes by layer", "bytes per client", "B", "holds", "of tensors per client and round", TRAFFIC),
)


def measured(tiers: Sequence[Record], measures: Sequence[Measure], key: str) -> tuple[Chart, ...]:
    """Return what tiers cost, a chart per measure; ``tiers`` come largest first."""
    names = [f"tier {tier_label(value_of(row, 'tier'))}" for row in tiers]
    charts = []
    for measure in measures:
        (largest, most), (smallest, least) = ((names[at], measure.total(tiers[at])) for at in (0, -1))
        sentence = f"{smallest.capitalize()} {measure.verb} {measure.human(least)} {measure.noun}"
        if len(tiers) > 1 and most:
            sentence += f": {human_percent(least / most)} of the {measure.human(most)} of {largest}"
        charts.append(Chart(f"{key}-{measure.key}", measure.title, f"{sentence}.", _bars(measure, names, tiers)))
    return tuple(charts)


def _layer_chart(measure: Measure, layers: Sequence[LayerRow], key: str) -> Chart:
    present = [layer for layer in layers if measure.total(layer)]
    if not present:
        return Chart(key, measure.title, "No layer has any, so there is nothing to draw.", None)
    least = _LEAST_SHARE * sum(map(measure.total, present))
    worth = sum(measure.total(layer) >= least for layer in present)
    most = min(MOST_LAYERS, max(_LEAST_LAYERS, worth))
    shown = costliest(present, most, measure.total)
    return Chart(key, measure.title, _concentrated(measure, present), _bars(measure, [_name(layer) for layer in shown], shown))


def _concentrated(measure: Measure, layers: Sequence[LayerRow]) -> str:
    """Return a sentence on how few layers hold half of a cost, and which has most of it."""
    totals = sorted(map(measure.total, layers), reverse=True)
    whole = f"{measure.human(sum(totals))} {measure.noun}"
    most = max(layers, key=measure.total).layer
    if len(layers) == 1:
        return f"All of the {whole} sits in {most}."
    half = next(i for i, reached in enumerate(accumulate(totals), 1) if 2 * reached >= sum(totals))
    hold = "holds" if half == 1 else "hold"
    share = human_percent(totals[0] / sum(totals))
    return f"{half} of {len(layers)} layers {hold} half of the {whole}; the costliest is {most} with {share}."


def _name(of: LayerRow) -> str:
    return ending(f"other: {of.kind}" if of.layer == OTHER else of.layer, _LONGEST_NAME)


def _bars(measure: Measure, names: Sequence[str], rows: Sequence[Record]) -> Spec:
    """Return horizontal stacked bars, the first row on top, each with its total at its end."""
    places = slots([(None, names)])
    parts, ends = [], []
    for slot, name, row in zip(*places.of, names, rows, strict=True):
        for series, value in measure.lengths(row).items():
            if value:
                told = f"{name}, {series}: {measure.human(value)}"
                parts.append({"slot": slot, "series": series, "value": value, "told": told})
        ends.append({"slot": slot, "value": measure.total(row), "text": measure.human(measure.total(row))})
    used = {part["series"] for part in parts}
    looks = {series: fill for series, (fill, _) in measure.parts.items() if series in used}
    # Totals are written to the right of the bars, so they need room there.
    widest = 1.5 * max(*(end["value"] for end in ends), 1)
    x = number("value", measure.axis, "~s", measure.unit, scale={"domain": [0, widest], "nice": False}, tickCount=4)
    text = {"type": "text", "align": "left", "baseline": "middle", "dx": 5}
    bars = stacked(parts, looks, not looks.keys() <= set(names), max(map(len, names)), x=x, y=places.y)
    return layered({"step": 34 if len(rows) < 8 else 22}, bars, layer(text, ends, x=x, y=places.y, text="text"))


def cost_page(rows: Sequence[ProfileRow]) -> str:
    """Return the page of a network's costs, from the rows of one model and one method.

    Raises:
        InputError: there is no row.
    """
    if not rows:
        raise InputError("a page of costs needs at least one tier, got none")
    tiers = cost_tables.per_tier(rows)
    on_device = cost_tables.per_device(rows)
    takes = [row.takes is True for row in on_device]
    return render_page(
        "cost_page.html.j2",
        model=rows[0].model,
        method=rows[0].method,
        about=cost_tables.about(rows),
        answer=answer_of_costs(tiers, on_device),
        batch_size=rows[0].batch_size,
        key_figures=PlainTable.of(cost_tables.SUMMARY, tiers),
        tiers=PlainTable.of((TIER, *cost_tables.compute_columns(tiers), *cost_tables.MEMORY), tiers),
        charts=measured(tiers, _OF_TIERS, "tiers"),
        layers=[_layers(row, f"layers-{number}") for number, row in enumerate(tiers)],
        most_layers=MOST_LAYERS,
        taken=PlainTable.of(cost_tables.ON_PAGE, [row for row in on_device if row.takes]),
        devices=PlainTable.of(cost_tables.ON_PAGE, on_device, takes) if on_device else None,
        energy=cost_tables.energy_of(on_device),
        inference_note=cost_tables.inference_note(on_device),
        verdict=_verdict(on_device),
        uncounted=[(tier_label(row.tier), row.uncounted_ops) for row in tiers if row.uncounted_ops],
        edgefl_version=__version__,
    )


def answer_of_costs(tiers: Sequence[ProfileRow], on_device: Sequence[ProfileRow]) -> Answer:
    """Return the answer of a page of costs; ``tiers`` come largest first."""
    method, largest, smallest = tiers[0].method, tiers[0], tiers[-1]
    fits = ", and which tier fits which device" if on_device else ""
    asked = f"What does {tiers[0].model} cost{f' under {method}' if method else ' as it is'}{fits}?"
    name = f"tier {tier_label(smallest.tier)}" if len(tiers) > 1 else "a training step"
    memory = human_bytes(smallest.training_memory_bytes)
    found = f"{name.capitalize()} takes {human_count(smallest.macs_train_step)} MACs a step and {memory} of memory"
    if len(tiers) > 1:
        share = human_percent(smallest.macs_train_step / max(1, largest.macs_train_step))
        found += f", {share} of the MACs of tier {tier_label(largest.tier)}"
    return Answer(asked, f"{found}.", _to_do(tiers, on_device))


def _to_do(tiers: Sequence[ProfileRow], on_device: Sequence[ProfileRow]) -> str:
    if any(row.uncounted_ops for row in tiers):
        return "Claim no budget before the uncounted operations below have a cost."
    layers = [layer for layer in layer_rows(tiers[0]) if layer.macs_train_step]
    fits = " ".join(_verdict(on_device)[:1])
    if not layers:
        return fits or "Nothing multiplies in this network, so look at its memory and its bytes."
    most = max(layers, key=lambda layer: layer.macs_share)
    save = f"save in {most.layer} first: it has {human_percent(most.macs_share)} of the MACs of tier {tier_label(tiers[0].tier)}."
    return f"{fits[:-1]}; to fit more, {save}" if fits else f"{save[0].upper()}{save[1:]}"


class _Layers(NamedTuple):
    """What the page shows of one tier's layers: where compute, memory and bytes sit; ``draws`` is the tier's."""

    label: str
    charts: list[Chart]
    table: PlainTable
    draws: bool


def _layers(row: ProfileRow, key: str) -> _Layers:
    layers, (compute, *others) = layer_rows(row), _OF_LAYERS
    own = replace(compute, noun=compute.noun + " of the tier's own network" * row.draws)
    charts = [_layer_chart(measure, layers, f"{key}-{measure.key}") for measure in (own, *others)]
    return _Layers(tier_label(row.tier), charts, PlainTable.of((*cost_tables.LAYERS, *cost_tables.SENT), layers), row.draws)


def _verdict(rows: Sequence[ProfileRow]) -> list[str]:
    """Return one sentence per device: the tier that it takes, or why it cannot take the smallest."""
    sentences = []
    for device in dict.fromkeys(row.device for row in rows):
        own = [row for row in rows if row.device == device]
        taken = [f"tier {tier_label(row.tier)}" for row in own if row.takes]
        smallest = min(own, key=lambda row: row.tier)
        tier, share = f"tier {tier_label(smallest.tier)}", smallest.budget_share
        reason = "" if share is None else f": {tier} needs {human_percent(share)} of its tightest budget"
        none = "no tier" + (f": not every operation of {tier} is counted" if smallest.uncounted_ops else reason)
        sentences.append(f"{own[0].device_title or device} takes {[*taken, none][0]}.")
    return sentences
