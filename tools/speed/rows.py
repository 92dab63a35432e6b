"""Rows of figures and their bars, as tools write them: ``{"case": …, "figure": …, "bar": …, "at_least": …}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counters.markdown import table

Row = Mapping[str, Any]


def bold(text: str, missed: bool) -> str:
    """Return ``text``, marked where a bar is missed."""
    return f"**{text}**" if missed else text


SECONDS_BARS = {"first round": 2.0, "later rounds": 0.5}
FASTER_BAR = {"later rounds": 100.0}
"""What a decomposition of all layers may take, and how many times as fast it is at least: by the ends of the names of cases."""


def with_bars(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each figure; one with seconds and how many times as fast they are becomes two.

    >>> [(row["case"], row["figure"], row["bar"]) for row in with_bars([{"case": "1, 0.5: later rounds", "seconds": 0.4, "ratio": 140}])]
    [('1, 0.5: later rounds, s', 0.4, 0.5), ('1, 0.5: later rounds, times as fast', 140, 100.0)]
    """
    found: list[Row] = []
    for row in rows:
        if "figure" in row:
            found.append(row)
            continue
        end = str(row["case"]).rpartition(": ")[2]
        found.append({"case": f"{row['case']}, s", "figure": row["seconds"], "bar": SECONDS_BARS.get(end)})
        faster = {"figure": row["ratio"], "bar": FASTER_BAR.get(end), "at_least": True}
        found.append({"case": f"{row['case']}, times as fast", **faster})
    return found


def bars_table(rows: Sequence[Row]) -> str:
    """Return a row for each figure: what it is held to, bold where it is missed.

    >>> print(bars_table([{"case": "a ÷ b", "figure": 1.2, "bar": 1}, {"case": "GB/s", "figure": 2, "bar": 1, "at_least": True}]))
    | figure |  | bar |
    | --- | ---: | ---: |
    | a ÷ b | **1.20** | ≤ 1 |
    | GB/s | 2.00 | ≥ 1 |
    """
    lines = []
    for row in with_bars(rows):
        figure, bar = float(row["figure"]), row.get("bar")
        said = "–" if bar is None else f"{'≥' if row.get('at_least') else '≤'} {bar:g}"
        shown = f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.2g}" if 0 < abs(figure) < 0.1 else f"{figure:.2f}"
        lines.append([str(row["case"]), bold(shown, share_of_bar(row) > 1), said])
    return table(["figure", "", "bar"], lines)


def share_of_bar(row: Row) -> float:
    """Return how much of its bar a figure takes, 0 without one; where the bar is the least that is wanted, bar over figure.

    >>> share_of_bar({"figure": 1.2, "bar": 1}), share_of_bar({"figure": 2, "bar": 1, "at_least": True})
    (1.2, 0.5)
    """
    figure, bar = float(row["figure"]), row.get("bar")
    if bar is None:
        return 0.0
    if not row.get("at_least"):
        return figure / bar
    return bar / figure if figure > 0 else float("inf")
