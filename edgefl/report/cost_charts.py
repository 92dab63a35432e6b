"""Charts of what a network's tiers and their layers cost, each with a sentence that says where the cost sits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from edgefl.report.chart import Chart, Spec, layer, layered, number, slots, stacked
from edgefl.report.cost_columns import draws, weights_bytes
from edgefl.report.cost_layers import OTHER, costliest, layer_rows, macs_of_step
from edgefl.report.tables import Row
from edgefl.report.words import tier_label
from edgefl.util.units import human_bytes, human_count, human_percent

MOST_LAYERS = 40
_LEAST_LAYERS, _LEAST_SHARE = 10, 0.001
_LONGEST_NAME = 24


@dataclass(frozen=True)
class Part:
    """One colour of a stacked bar: its name in the legend and how a row fills it."""

    name: str
    colour: str
    value: Callable[[Row], int]


def part_of(name: str, colour: str, key: str) -> Part:
    """Return the part that one field of a row fills; ``colour`` is a CSS variable without its dashes."""
    return Part(name, f"var(--{colour})", lambda row: int(row[key]))


@dataclass(frozen=True)
class Measure:
    """One sort of cost: what its bars are made of, and the words around them.

    Attributes:
        key: the word in the ids of its charts.
        title: the heading.
        axis: the title of the axis.
        unit: ``B``, or empty for counts.
        verb: what a tier does: "computes".
        noun: what follows the figure in a sentence.
        parts: the colours of a bar.
    """

    key: str
    title: str
    axis: str
    unit: str
    verb: str
    noun: str
    parts: tuple[Part, ...]

    def human(self, value: float) -> str:
        """Return a figure as people read it."""
        return human_bytes(value) if self.unit else human_count(value)

    def total(self, row: Row) -> int:
        """Return the length of a row's bar."""
        return sum(part.value(row) for part in self.parts)


def _macs(key: str) -> Callable[[Row], int]:
    """Return the MACs of a step, of a layer or of a whole tier: the row brings the counts and the batch."""
    return lambda row: 0 if draws(row) and key != "macs_compose" else macs_of_step(row, row)[key]


def _macs_drawn(row: Row) -> int:
    return int(row["batch_size"] * row["macs_drawn"]) if draws(row) else 0


_COMPUTE = (
    Part("forward", "var(--part-0)", _macs("macs_forward")),
    Part("gradients of inputs", "var(--part-1)", _macs("macs_backward_input")),
    Part("gradients of weights", "var(--part-2)", _macs("macs_backward_weight")),
    Part("forward and gradients, mean of the networks drawn", "var(--part-3)", _macs_drawn),
    Part("composition", "var(--tier-1)", _macs("macs_compose")),
)
TRAFFIC = (part_of("down", "part-1", "download_bytes"), part_of("up", "part-3", "upload_bytes"))
_OF_TIERS = (
    Measure("compute", "Compute of a training step", "MACs in a step", "", "computes", "MACs of a step", _COMPUTE),
    Measure("memory", "Memory at the peak of a training step", "bytes at the peak", "B", "holds", "at the peak", (
        Part("weights", "var(--part-0)", lambda row: weights_bytes(row) or 0),
        part_of("gradients", "part-1", "peak_gradient_bytes"),
        part_of("optimizer", "part-2", "optimizer_bytes"),
        part_of("saved activations", "part-3", "peak_saved_bytes"),
        part_of("temporaries", "tier-1", "peak_temporary_bytes"),
    )),
    Measure("traffic", "Bytes of a round", "bytes per client", "B", "moves", "per client and round", TRAFFIC),
)  # fmt: skip
_OF_LAYERS = (
    Measure("compute", "Compute by layer", "MACs in a step", "", "computes", "MACs of a step", _COMPUTE),
    Measure("memory", "Memory by layer", "bytes at the peak", "B", "holds", "of activations and weights at the peak", (
        part_of("saved activations", "part-3", "saved_bytes_at_peak"),
        part_of("temporaries", "tier-1", "temporary_bytes_at_peak"),
        part_of("weights", "part-0", "parameter_bytes"),
    )),
    Measure("traffic", "Bytes by layer", "bytes per client", "B", "holds", "of tensors per client and round", TRAFFIC),
)  # fmt: skip


def tier_charts(tiers: Sequence[Row], measures: Sequence[Measure] = _OF_TIERS, key: str = "tiers") -> tuple[Chart, ...]:
    """Return what tiers cost, a chart per measure; ``tiers`` come largest first."""
    names = [f"tier {tier_label(row['tier'])}" for row in tiers]
    charts = []
    for measure in measures:
        (largest, most), (smallest, least) = ((names[at], measure.total(tiers[at])) for at in (0, -1))
        sentence = f"{smallest.capitalize()} {measure.verb} {measure.human(least)} {measure.noun}"
        if len(tiers) > 1 and most:
            sentence += f": {human_percent(least / most)} of the {measure.human(most)} of {largest}"
        charts.append(Chart(f"{key}-{measure.key}", measure.title, f"{sentence}.", _bars(measure, names, tiers)))
    return tuple(charts)


def layer_charts(row: Row, key: str) -> tuple[Chart, ...]:
    """Return where one tier's compute, memory and bytes sit among its layers.

    Args:
        row: the tier's costs, with layers and tensors.
        key: a word for the elements of the page, of this tier alone.
    """
    sizes = {name: row[name] for name in ("batch_size", "micro_batch")}
    layers = [{**layer, **sizes} for layer in layer_rows(row)]
    measures = [replace(m, noun=f"{m.noun} of the tier's own network") if draws(row) else m for m in _OF_LAYERS[:1]]
    return tuple(_layer_chart(measure, layers, f"{key}-{measure.key}", sizes) for measure in (*measures, *_OF_LAYERS[1:]))


def _layer_chart(measure: Measure, layers: Sequence[Row], key: str, sizes: Mapping[str, int]) -> Chart:
    present = [layer for layer in layers if measure.total(layer)]
    if not present:
        return Chart(key, measure.title, "No layer has any, so there is nothing to draw.", None)
    least = _LEAST_SHARE * sum(map(measure.total, present))
    worth = sum(measure.total(layer) >= least for layer in present)
    shown = costliest(present, min(MOST_LAYERS, max(_LEAST_LAYERS, worth)), measure.total)
    bars = _bars(measure, [_name(layer) for layer in shown], [{**layer, **sizes} for layer in shown])
    return Chart(key, measure.title, _concentrated(measure, present), bars)


def _concentrated(measure: Measure, layers: Sequence[Row]) -> str:
    """Return a sentence on how few layers hold half of a cost, and which has most of it."""
    totals = sorted(map(measure.total, layers), reverse=True)
    whole = f"{measure.human(sum(totals))} {measure.noun}"
    most = max(layers, key=measure.total)["layer"]
    if len(layers) == 1:
        return f"All of the {whole} sits in {most}."
    half = next(i for i, reached in enumerate(accumulate(totals), 1) if 2 * reached >= sum(totals))
    hold = "holds" if half == 1 else "hold"
    share = human_percent(totals[0] / sum(totals))
    return f"{half} of {len(layers)} layers {hold} half of the {whole}; the costliest is {most} with {share}."


def _name(layer: Row) -> str:
    """Return a layer's name, its beginning cut: the end tells it from its neighbours."""
    name = f"other: {layer['kind']}" if layer["layer"] == OTHER else str(layer["layer"])
    return name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"


def _bars(measure: Measure, names: Sequence[str], rows: Sequence[Row]) -> Spec:
    """Return horizontal stacked bars, the first row on top, each with its total at its end."""
    places = slots([(None, names)])
    parts, ends = [], []
    for slot, name, row in zip(*places.of, names, rows, strict=True):
        split = {part.name: value for part in measure.parts if (value := part.value(row))}
        told = {series: f"{name}, {series}: {measure.human(value)}" for series, value in split.items()}
        parts += [{"slot": slot, "series": series, "value": value, "told": told[series]} for series, value in split.items()]
        ends.append({"slot": slot, "value": sum(split.values()), "text": measure.human(sum(split.values()))})
    used = {row["series"] for row in parts}
    looks = {part.name: part.colour for part in measure.parts if part.name in used}
    # Totals are written to the right of the bars, so they need room there.
    widest = 1.5 * max(*(end["value"] for end in ends), 1)
    x = number("value", measure.axis, "~s", measure.unit, scale={"domain": [0, widest], "nice": False}, tickCount=4)
    text = {"type": "text", "align": "left", "baseline": "middle", "dx": 5}
    step = {"step": 34 if len(rows) < 8 else 22}
    return layered(
        step,
        stacked(parts, looks, not looks.keys() <= set(names), x=x, y=places.y),
        layer(text, ends, x=x, y=places.y, text="text"),
    )
