"""How charts are written down: Vega-Lite specifications over rows, in the colours and patterns of the page.

A chart is layers; a layer is rows, a mark, and which field of a row each channel shows. The page draws SVG. A colour is therefore a CSS
variable, ``var(--tier-0)``, which follows the reader's colour scheme. A pattern is the address of one that ``patterns.svg.j2`` defines,
``url(#waiting)``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Json = Mapping[str, Any]
Spec = dict[str, Any]

COLOURS = 6
MARKED_POINTS = 60
"""A line of at most so many points has a marker at each."""
_SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down")
_DASHES = ([1, 0], [6, 4], [2, 3], [8, 3, 2, 3])
_AFTER_BAR = "slice(datum.label, 1 + indexof(datum.label, '|'))"


@dataclass(frozen=True)
class Chart:
    """One chart of a page.

    Attributes:
        key: id of its element.
        title: its heading.
        takeaway: a sentence on what it shows.
        spec: its Vega-Lite specification; None: there is nothing to draw.
    """

    key: str
    title: str
    takeaway: str
    spec: Spec | None


WHOLE: Spec = {"format": "d", "labelExpr": "datum.value % 1 ? '' : datum.label"}
"""An axis of whole numbers: Vega also puts ticks between a few of them, which get no label."""


def layered(height: int | Spec, *layers: Spec) -> Spec:
    """Return a chart as wide as its box and ``height`` pixels high, or ``{"step": pixels}`` per slot."""
    return {"width": "container", "height": height, "layer": list(layers)}


def layer(mark: str | Spec, rows: Sequence[Json], **encoding: Any) -> Spec:
    """Return a layer; a channel is encoded by a specification or by the name of a field."""
    channels = {name: {"field": how} if isinstance(how, str) else how for name, how in encoding.items()}
    return {"data": {"values": list(rows)}, "mark": mark, "encoding": channels}


def number(field: str, title: str | None, form: str = "", unit: str = "", scale: Spec | None = None, **axis: Any) -> Spec:
    """Return the encoding of a number along an axis, which begins at 0 unless ``scale`` has a domain or says otherwise.

    Figures at the axis are written in ``form``, d3's notation, and followed by ``unit``.
    """
    written = ({"format": form} if form else {}) | ({"labelExpr": f"datum.label + '{unit}'"} if unit else {})
    scale = {"zero": True} | (scale or {})
    if "domain" in scale:
        del scale["zero"]
    return {"field": field, "type": "quantitative", "title": title, "axis": {"tickCount": 8} | written | axis, "scale": scale}


def share(field: str, title: str, **scale: Any) -> Spec:
    """Return the encoding of a share along an axis, in percent."""
    return number(field, title, "~%", scale=scale, tickCount=6)


def category(field: str, title: str | None, values: Sequence[Any]) -> Spec:
    """Return the encoding of one of ``values`` along an axis, in their order."""
    axis = {"grid": False, "labelAngle": 0, "labelOverlap": "greedy"}
    return {"field": field, "type": "ordinal", "title": title, "axis": axis, "scale": {"domain": list(values)}}


def legend(looks: Mapping[str, Any], shown: bool | None = None, beside: int = 0) -> Spec:
    """Return the encoding of a row's ``series`` by ``looks``; the legend is shown if there are several, or if ``shown`` says so.

    The legend begins where the plot does: ``beside`` are the most characters of the labels to its left.
    """
    scale = {"domain": list(looks), "range": list(looks.values())}
    width = 40 + 7 * max(map(len, looks), default=0)
    # The box's own width: that of the plot depends on the height of the legend.
    entries = {"columns": {"expr": f"max(1, floor(((containerSize()[0] || width) - {7 * beside}) / {width}))"}}
    visible = len(looks) > 1 if shown is None else shown
    return {"field": "series", "type": "nominal", "title": None, "scale": scale, "legend": entries if visible else None}


def stacked(rows: Sequence[Json], looks: Mapping[str, str], shown: bool | None = None, beside: int = 0, **place: Spec) -> Spec:
    """Return stacked bars of rows with ``series`` and ``told`` (the tooltip), in the order of ``looks``; ``place`` encodes x and y.

    ``shown`` and ``beside`` are those of :func:`legend`.
    """
    ranks = {series: rank for rank, series in enumerate(looks)}
    ranked = [{**row, "rank": ranks[row["series"]]} for row in rows]
    order = {"field": "rank", "type": "quantitative"}
    return layer("bar", ranked, **place, fill=legend(looks, shown, beside), order=order, tooltip="told")


def lines(rows: Sequence[Json], colours: Mapping[str, str], x: Spec, y: Spec, dotted: str | None = None) -> list[Spec]:
    """Return one line per series, told apart by colour, by marker and, beyond six, by dashes; ``dotted`` has no markers."""
    dashes = {name: _DASHES[number // COLOURS % len(_DASHES)] for number, name in enumerate(colours)}
    shapes = {name: _SHAPES[number % len(_SHAPES)] for number, name in enumerate(colours)}
    if dotted is not None:
        dashes[dotted], shapes[dotted] = _DASHES[2], "stroke"
    marked = len(rows) <= MARKED_POINTS * len(colours)
    points = {"type": "point", "filled": True, "size": 45, "opacity": 1 if marked else 0}
    colour = legend(colours)
    return [
        layer("line", rows, x=x, y=y, color=colour, strokeDash=legend(dashes)),
        layer(points, rows, x=x, y=y, color=colour, shape=legend(shapes), tooltip="told"),
    ]


class Slots(NamedTuple):
    """Places for bars: the encoding of a row's ``slot``, per group the slot of each label, and the layer that writes the headings."""

    y: Spec
    of: list[list[str]]
    heads: Spec


def slots(groups: Sequence[tuple[str | None, Sequence[str]]]) -> Slots:
    """Return slots for groups of bars, each a heading (or None) above the bars and the labels beside them."""
    domain: list[str] = []
    heads, found = [], []
    for title, labels in groups:
        if title is not None:
            heads.append({"slot": f"{len(domain)}|", "head": title})
            domain.append(f"{len(domain)}|")
        found.append([f"{len(domain) + place}|{label}" for place, label in enumerate(labels)])
        domain += found[-1]
    axis = {"labelExpr": _AFTER_BAR, "grid": False, "labelPadding": 6, "labelLimit": 200}
    scale = {"domain": domain, "paddingInner": 0.25, "paddingOuter": 0.1}
    y = {"field": "slot", "type": "ordinal", "title": None, "axis": axis, "scale": scale}
    mark = {"type": "text", "align": "left", "baseline": "middle", "dy": 3, "color": "var(--soft)", "limit": {"expr": "width"}}
    return Slots(y, found, layer(mark, heads, x={"value": 0}, y=y, text="head"))


def ending(name: str, longest: int) -> str:
    """Return the name of a layer, its beginning cut if it is too long: the end tells it from its neighbours.

    >>> ending("layer2.0.conv1", 9)
    '….0.conv1'
    """
    return name if len(name) <= longest else f"…{name[1 - longest :]}"


def cells(rows: Sequence[Json], x: Spec, y: Spec, shade: str, **scale: Any) -> Spec:
    """Return a map of cells: the larger the value under ``shade``, the stronger its shade; without a legend unless ``scale`` has one."""
    legend = {} if scale.pop("legend", False) else {"legend": None}
    opacity = {"field": shade, "type": "quantitative", "title": None, "scale": scale, **legend}
    return layer({"type": "rect", "color": colour(0)}, rows, x=x, y=y, opacity=opacity, tooltip="told")


def colour(number: int) -> str:
    """Return the CSS variable of colour ``number``; colours repeat after six."""
    return f"var(--tier-{number % COLOURS})"


def clock_unit(longest_s: float) -> tuple[str, float]:
    """Return the unit for an axis that ends at ``longest_s`` seconds, and the seconds of one unit.

    >>> clock_unit(0.5), clock_unit(400)
    (('ms', 0.001), ('min', 60.0))
    """
    if longest_s < 180:
        return ("s", 1.0) if longest_s >= 1 or not longest_s else ("ms", 1e-3)
    return ("min", 60.0) if longest_s < 3 * 3600 else ("h", 3600.0) if longest_s < 5 * 86400 else ("d", 86400.0)
