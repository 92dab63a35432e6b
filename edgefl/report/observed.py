"""Charts of what a method says of its own rounds: effective ranks, draws per kernel, clusters, whatever there is.

A number is a line over the rounds, a table of numbers (by layer) one line each, or with many layers a map; a table of lists (by layer,
then by kernel) is summed over the rounds and drawn as a map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from numbers import Real
from typing import Any

from edgefl.report.chart import Chart, Json, Spec, category, colour, layer, layered, lines, number, slots

MOST_LINES = 8
_TITLES = {"effective_rank": "Effective rank per layer", "draws": "Draws per kernel"}

Series = dict[str, dict[int, float]]
"""Line → round → value."""


def observed_charts(rounds: Sequence[Json]) -> tuple[Chart, ...]:
    """Return a chart for everything that the rounds' records hold under ``observed``; of an unknown form there is none."""
    observed = {record["round"]: _by_figure(record.get("observed", {})) for record in rounds}
    charts: list[Chart] = []
    for name in dict.fromkeys(name for found in observed.values() for name in found):
        values = {round_: found[name] for round_, found in observed.items() if name in found}
        plain = name.replace("_", " ")
        key, title = f"observed-{len(charts)}", _TITLES.get(name, plain.capitalize())
        if (totals := _totals(values)) is not None:
            charts.append(Chart(key, title, *_total_map(totals, "kernel" if name == "draws" else "number")))
        elif series := _series(plain, values):
            charts.append(
                Chart(key, title, _latest(series), _lines(series, plain) if len(series) <= MOST_LINES else _map(series))
            )
    return tuple(charts)


def _by_figure(observed: Json) -> dict[str, Any]:
    """Return figure → values: of layers that have several figures each, figure → layer → value.

    >>> _by_figure({"kernels": {"conv1": {"rank": 3.5}, "conv2": {"rank": 4.5}}, "clusters": [2, 1]})
    {'rank': {'conv1': 3.5, 'conv2': 4.5}, 'clusters': [2, 1]}
    """
    figures: dict[str, Any] = {}
    for name, value in observed.items():
        if isinstance(value, Mapping) and value and all(isinstance(inner, Mapping) for inner in value.values()):
            for layer, inner in value.items():
                for figure, of_layer in inner.items():
                    figures.setdefault(figure, {})[layer] = of_layer
        else:
            figures[name] = value
    return figures


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _totals(values: Mapping[int, Any]) -> dict[str, list[float]] | None:
    """Return name → sums over the rounds, position by position, if the values are tables of lists of numbers."""
    totals: dict[str, list[float]] = {}
    for value in values.values():
        if not isinstance(value, Mapping) or not value:
            return None
        for name, row in value.items():
            if not isinstance(row, Sequence) or isinstance(row, str) or not all(map(_is_number, row)):
                return None
            totals[name] = [a + b for a, b in zip_longest(totals.get(name, []), row, fillvalue=0.0)]
    return totals


def _series(name: str, values: Mapping[int, Any]) -> Series:
    """Return the lines of numbers, of lists of numbers by position, or of tables of numbers by name."""
    series: Series = {}
    for round_, value in values.items():
        if _is_number(value):
            parts = {name: value}
        elif isinstance(value, Mapping):
            parts = dict(value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            parts = {str(position): part for position, part in enumerate(value)}
        else:
            parts = {}
        for label, part in parts.items():
            if _is_number(part):
                series.setdefault(label, {})[round_] = float(part)
    return series


def _latest(series: Series) -> str:
    last = max(max(line) for line in series.values())
    found = [f"{label} {line[last]:,.3g}" for label, line in series.items() if last in line]
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    return f"In round {last}: {', '.join(found[:4])}{more}."


def _lines(series: Series, title: str) -> Spec:
    rows = [
        {"series": label, "round": round_, "value": value, "told": f"{label}: {value:,.4g} in round {round_}"}
        for label, line in series.items()
        for round_, value in line.items()
    ]
    x, y = number("round", "round", scale={"zero": False}, tickMinStep=1), number("value", title, tickCount=5)
    return layered(230, *lines(rows, {name: colour(place) for place, name in enumerate(series)}, x, y))


def _map(series: Series) -> Spec:
    rounds = sorted({round_ for line in series.values() for round_ in line})
    return _heat_map(
        {label: [(round_, line[round_]) for round_ in rounds if round_ in line] for label, line in series.items()}, "round"
    )


def _total_map(totals: Mapping[str, Sequence[float]], label: str) -> tuple[str, Spec | None]:
    name, row = max(totals.items(), key=lambda pair: max(pair[1], default=0.0))
    if not row:
        return "Nothing was counted.", None
    most = max(range(len(row)), key=row.__getitem__)
    sentence = (
        f"Summed over all rounds; the largest is {label} {most} of {name}, {row[most]:,.4g}; its smallest is {min(row):,.4g}."
    )
    return sentence, _heat_map({name: list(enumerate(row)) for name, row in totals.items()}, label)


def _heat_map(cells: Mapping[str, Sequence[tuple[int, float]]], label: str) -> Spec:
    """Return a map of cells, each a column and its value, by row; the larger, the stronger the shade."""
    (of,) = (places := slots([(None, list(cells))])).of
    rows: list[Json] = [
        {"slot": slot, "at": at, "value": value, "told": f"{name}, {label} {at}: {value:,.4g}"}
        for slot, (name, found) in zip(of, cells.items(), strict=True)
        for at, value in found
    ]
    x = category("at", label, sorted({row["at"] for row in rows}))
    scale = {"range": [0.05, 1], "domainMin": min(0.0, *(row["value"] for row in rows))}
    shade = {"field": "value", "type": "quantitative", "title": None, "scale": scale}
    return layered(
        {"step": 22}, layer({"type": "rect", "color": colour(0)}, rows, x=x, y=places.y, opacity=shade, tooltip="told")
    )
