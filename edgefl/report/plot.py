"""What every chart of a page is made of: plain Plotly JSON in one look, and sentences that compare tiers.

Colours are the names of CSS variables, ``var(--tier-0)``: the page puts in the values of the reader's colour scheme.
Every text of a figure is escaped, because Plotly reads a subset of HTML in them.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgefl.report.words import tier_label
from edgefl.util.units import human_percent

Json = Mapping[str, Any]
Figure = dict[str, Any]

HEAD: Figure = {"x": 0, "xref": "paper", "xanchor": "left", "yref": "y", "showarrow": False, "font": {"color": "var(--soft)"}}
"""An annotation above a class's bars: its name stands there, where a phone has room for it."""


@dataclass(frozen=True)
class Chart:
    """One chart: ``key`` names its element, ``takeaway`` is its caption; no ``figure`` if there is nothing to draw."""

    key: str
    title: str
    takeaway: str
    figure: Figure | None


def layout_of(height: int, xaxis: Json, yaxis: Json) -> Figure:
    """Return the layout that charts share, ``height`` pixels high; an axis takes Plotly's keys and a plain ``title``."""
    return {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "var(--ink)"},
        "hoverlabel": {"bgcolor": "var(--card)", "bordercolor": "var(--grid)", "font": {"color": "var(--ink)"}},
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        "barmode": "stack",
        "bargap": 0.35,
        "xaxis": _axis(xaxis),
        "yaxis": _axis(yaxis),
    }


def _axis(settings: Json) -> Figure:
    title = {"title": {"text": settings["title"], "standoff": 10}} if "title" in settings else {}
    return {"gridcolor": "var(--grid)", "zeroline": False, "automargin": True, **settings, **title}


def figure_of(data: Sequence[Figure], layout: Figure) -> Figure:
    """Return a figure with every text escaped."""
    escaped: Figure = _escaped({"data": list(data), "layout": layout})
    return escaped


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return html.escape(value, quote=False)
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list | tuple) else value


def short(text: str, most: int = 28) -> str:
    """Return ``text`` cut to ``most`` characters.

    >>> short("micro-controller", 6)
    'micro…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def compared(tiers: Sequence[Json], values: Sequence[int], verb: str, what: str, human: Callable[[int], str]) -> str:
    """Return a sentence on the smallest tier beside the largest; ``tiers`` are sorted upwards.

    >>> compared([{"tier": 0.5}, {"tier": 1}], [20, 80], "moves", "per round", str)
    'Tier 0.5 moves 20 per round: 25.0 % of the 80 of tier 1.'
    """
    smallest, largest = (tier_label(tiers[i]["tier"]) for i in (0, -1))
    sentence = f"Tier {smallest} {verb} {human(values[0])} {what}"
    if len(tiers) == 1 or not values[-1]:
        return f"{sentence}."
    return f"{sentence}: {human_percent(values[0] / values[-1])} of the {human(values[-1])} of tier {largest}."


def clock_unit(longest_s: float) -> tuple[str, float]:
    """Return the unit for an axis that goes to ``longest_s``, and its seconds.

    >>> clock_unit(0.004), clock_unit(100), clock_unit(7200), clock_unit(900_000)
    (('ms', 0.001), ('s', 1.0), ('min', 60.0), ('d', 86400.0))
    """
    if longest_s < 180:
        return ("s", 1.0) if longest_s >= 1 or not longest_s else ("ms", 1e-3)
    return ("min", 60.0) if longest_s < 3 * 3600 else ("h", 3600.0) if longest_s < 5 * 86400 else ("d", 86400.0)
