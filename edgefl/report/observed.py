"""Charts of the figures that a method records about its own rounds, such as effective ranks, draws per kernel or clusters.

A number is a line over the rounds. A table of numbers, such as one per layer, is a line each, or a map if there are many. A table of
lists, such as one per layer and kernel, is summed over the rounds and drawn as a map.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

from edgefl.registry import features
from edgefl.report.chart import WHOLE, Chart, Json, Spec, category, cells, colour, layered, lines, number, slots
from edgefl.report.round_lines import RoundLine

MOST_LINES = 8
_TITLES = {
    "effective_rank": "Effective rank per layer",
    "draws": "Draws per kernel",
    "energy": "Share of the factorized layers' energy per band of ranks",
}

_Path = tuple[str | int, ...]
"""Where a number is in an observation: none, a line, or a row and its position."""


def observed_charts(rounds: Sequence[RoundLine]) -> tuple[Chart, ...]:
    """Return a chart for every figure that the rounds' records hold under ``observed``; of an unknown form there is none."""
    figures: dict[str, dict[int, dict[_Path, float]]] = {}
    for line in rounds:
        for name, value in _by_figure(line.observed).items():
            figures.setdefault(name, {})[line.round] = _numbers(value)
    charts: list[Chart] = []
    titles = _TITLES | {key: title for own in features.each("figures") for key, title in own.items()}
    for name, found in figures.items():
        plain = name.replace("_", " ")
        head = f"observed-{len(charts)}", titles.get(name, plain.capitalize())
        paths = {path for numbers in found.values() for path in numbers}
        if paths and all(len(path) == 2 and isinstance(path[0], str) and isinstance(path[1], int) for path in paths):
            charts.append(Chart(*head, *_totals(found.values(), "kernel" if name == "draws" else "number")))
        elif any(len(path) < 2 for path in paths):
            charts.append(Chart(*head, *_series(found, plain)))
    return tuple(charts)


def _by_figure(observed: Json) -> dict[str, Any]:
    """Return figure → values: of layers that have several figures each, figure → layer → value."""
    figures: dict[str, Any] = {}
    for name, value in observed.items():
        if isinstance(value, Mapping) and value and all(isinstance(inner, Mapping) for inner in value.values()):
            for layer_name, inner in value.items():
                for figure, of_layer in inner.items():
                    figures.setdefault(figure, {})[layer_name] = of_layer
        else:
            figures[name] = value
    return figures


def _numbers(value: Any, path: _Path = ()) -> dict[_Path, float]:
    """Return the numbers in nested tables and lists by their paths: ``{("conv1", 0): 3.0, ("conv1", 1): 1.0}``."""
    if isinstance(value, Real) and not isinstance(value, bool):
        return {path: float(value)}
    listed = enumerate(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    inner = value.items() if isinstance(value, Mapping) else listed
    return {found: number for name, part in inner for found, number in _numbers(part, (*path, name)).items()}


def _series(found: Mapping[int, Mapping[_Path, float]], title: str) -> tuple[str, Spec]:
    """Return the figures of the last round in words, and all of them as lines, or as a map if there are many."""
    rows: list[Json] = [
        {"series": label, "round": round_, "value": value, "told": f"{label}: {value:,.4g} in round {round_}"}
        for round_, numbers in found.items()
        for label, value in ((str(path[0]) if path else title, value) for path, value in numbers.items() if len(path) < 2)
    ]
    last = max(row["round"] for row in rows)
    told = [f"{row['series']} {row['value']:,.3g}" for row in rows if row["round"] == last]
    more = f" and {len(told) - 4} more" if len(told) > 4 else ""
    sentence = f"In round {last}: {', '.join(told[:4])}{more}."
    names = list(dict.fromkeys(row["series"] for row in rows))
    if len(names) > MOST_LINES:
        return sentence, _heat_map(names, [{**row, "row": row["series"], "at": row["round"]} for row in rows], "round")
    x, y = number("round", "round", scale={"zero": False}, **WHOLE), number("value", title, tickCount=5)
    return sentence, layered(230, *lines(rows, {name: colour(place) for place, name in enumerate(names)}, x, y))


def _totals(found: Iterable[Mapping[_Path, float]], label: str) -> tuple[str, Spec]:
    """Return sums over the rounds as a map, position by position, and in words the largest."""
    totals: Counter[_Path] = Counter()
    for numbers in found:
        totals.update(numbers)
    rows: list[Json] = [
        {"row": name, "at": at, "value": value, "told": f"{name}, {label} {at}: {value:,.4g}"}
        for (name, at), value in totals.items()
    ]
    most = max(rows, key=lambda row: row["value"])
    least = min(row["value"] for row in rows if row["row"] == most["row"])
    sentence = f"Summed over all rounds; the largest is {label} {most['at']} of {most['row']}, {most['value']:,.4g}"
    sentence += f"; its smallest is {least:,.4g}."
    return sentence, _heat_map(list(dict.fromkeys(row["row"] for row in rows)), rows, label)


def _heat_map(names: Sequence[str], rows: Sequence[Json], label: str) -> Spec:
    """Return a map of cells, by ``row`` and column ``at``; the larger the value, the stronger the shade."""
    (places,) = (rungs := slots([(None, names)])).of
    at = dict(zip(names, places, strict=True))
    found = [{**row, "slot": at[row["row"]]} for row in rows]
    x = category("at", label, sorted({row["at"] for row in rows}))
    least = min(0.0, *(row["value"] for row in rows))
    return layered({"step": 22}, cells(found, x, rungs.y, "value", range=[0.05, 1], domainMin=least, legend=True))
