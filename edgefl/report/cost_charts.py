"""Charts of what a network's tiers and their layers cost, each with a sentence that says where the cost sits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from edgefl.report.cost_columns import draws, weights_bytes
from edgefl.report.cost_layers import OTHER, costliest, layer_rows, macs_of_step
from edgefl.report.plot import Chart, Figure, compared, figure_of, layout_of
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


def _key(name: str, colour: str, key: str) -> Part:
    return Part(name, f"var(--{colour})", lambda row: int(row[key]))


@dataclass(frozen=True)
class Measure:
    """One sort of cost: what its bars are made of, and the words around them."""

    key: str
    title: str
    axis: str
    unit: str
    human: Callable[[float | None], str]
    noun: str
    parts: tuple[Part, ...]

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
_TRAFFIC = (_key("down", "part-1", "download_bytes"), _key("up", "part-3", "upload_bytes"))
_OF_TIERS = (
    Measure("compute", "Compute of a training step", "MACs in a step", "", human_count, "MACs of a step", _COMPUTE),
    Measure("memory", "Memory at the peak of a training step", "bytes at the peak", "B", human_bytes, "at the peak", (
        Part("weights", "var(--part-0)", lambda row: weights_bytes(row) or 0),
        _key("gradients", "part-1", "peak_gradient_bytes"),
        _key("optimizer", "part-2", "optimizer_bytes"),
        _key("saved activations", "part-3", "peak_saved_bytes"),
        _key("temporaries", "tier-1", "peak_temporary_bytes"),
    )),
    Measure("traffic", "Bytes of a round", "bytes per client", "B", human_bytes, "per client and round", _TRAFFIC),
)  # fmt: skip
_OF_LAYERS = (
    Measure("compute", "Compute by layer", "MACs in a step", "", human_count, "MACs of a step", _COMPUTE),
    Measure("memory", "Memory by layer", "bytes at the peak", "B", human_bytes, "of activations and weights at the peak", (
        _key("saved activations", "part-3", "saved_bytes_at_peak"),
        _key("temporaries", "tier-1", "temporary_bytes_at_peak"),
        _key("weights", "part-0", "parameter_bytes"),
    )),
    Measure("traffic", "Bytes by layer", "bytes per client", "B", human_bytes, "of tensors per client and round", _TRAFFIC),
)  # fmt: skip


def tier_charts(tiers: Sequence[Row]) -> tuple[Chart, ...]:
    """Return what each tier computes in a step, holds at its peak and sends in a round; ``tiers`` come largest first."""
    upwards = list(reversed(tiers))
    verbs = {"compute": "computes", "memory": "holds", "traffic": "moves"}
    charts = []
    for measure in _OF_TIERS:
        totals = [measure.total(row) for row in upwards]
        sentence = compared(upwards, totals, verbs[measure.key], measure.noun, measure.human)
        names = [f"tier {tier_label(row['tier'])}" for row in tiers]
        charts.append(Chart(f"tiers-{measure.key}", measure.title, sentence, _bars(measure, names, tiers)))
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


def _bars(measure: Measure, names: Sequence[str], rows: Sequence[Row]) -> Figure:
    """Return horizontal stacked bars, the first row on top, each with its total at its end."""
    at = list(range(len(rows)))
    totals = [measure.total(row) for row in rows]
    traces: list[Figure] = []
    for part in measure.parts:
        values = [part.value(row) for row in rows]
        if any(values):
            told = [f"{name}, {part.name}: {measure.human(value)}" for name, value in zip(names, values, strict=True)]
            marker = {"color": part.colour}
            trace = {"type": "bar", "orientation": "h", "name": part.name, "y": at, "x": values, "marker": marker}
            traces.append({**trace, "customdata": told, "hovertemplate": "%{customdata}<extra></extra>"})
    ends = {"type": "scatter", "y": at, "x": totals, "text": [f" {measure.human(total)}" for total in totals], "mode": "text"}
    traces.append({**ends, "textposition": "middle right", "showlegend": False, "hoverinfo": "skip", "cliponaxis": False})
    widest = 1.5 * max(*totals, 1)
    xaxis = {
        "title": measure.axis,
        "tickformat": "~s",
        "ticksuffix": measure.unit,
        "range": [0, widest],
        "nticks": 4,
        "tickangle": 0,
    }
    yaxis = {"tickvals": at, "ticktext": names, "range": [len(rows) - 0.4, -0.6], "showgrid": False, "ticklabelstandoff": 6}
    layout = layout_of(75 + 20 * len(traces) + (34 if len(rows) < 8 else 22) * len(rows), xaxis, yaxis)
    # The legend's distance from the bars is a share of the height, which differs from chart to chart.
    layout["legend"]["y"] = 1 + 4 / layout["height"]
    return figure_of(traces, {**layout, "showlegend": True, "bargap": 0.3})
