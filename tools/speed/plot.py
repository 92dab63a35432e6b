"""The plot of growth: a panel for each axis, drawn as SVG by hand, in colours that suit light pages and dark ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT = 400, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 34, 42
SERIES = {"seconds": "a round", "server_s": "of it the server's"}
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.title{font-weight:600}.grid{stroke:#ddd}.axis{stroke:#888}"
    ".seconds{stroke:#2563eb;fill:#2563eb}.server_s{stroke:#d97706;fill:#d97706}polyline{fill:none!important;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#444}.axis{stroke:#888}"
    ".seconds{stroke:#60a5fa;fill:#60a5fa}.server_s{stroke:#fbbf24;fill:#fbbf24}}"
)


def growth_svg(points: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    """Return the plot of ``points``; ``titles`` are those of the axes. Both scales of every panel are logarithmic."""
    axes = [axis for axis in titles if any(point["axis"] == axis for point in points)]
    panels = []
    for number, axis in enumerate(axes):
        own = sorted((point for point in points if point["axis"] == axis), key=lambda point: point["value"])
        place = f"translate({WIDTH * (number % 2)},{HEIGHT * (number // 2)})"
        panels.append(f'<g transform="{place}">{_panel(own, titles[axis])}</g>')
    width, height = WIDTH * min(2, len(axes)), HEIGHT * -(-len(axes) // 2)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><style>{_STYLE}</style>{"".join(panels)}</svg>\n'


def _panel(points: Sequence[Mapping[str, Any]], title: str) -> str:
    series = {key: [(p["value"], p[key]) for p in points if p[key]] for key in SERIES}
    x_low, x_high = _decades([x for of in series.values() for x, _ in of])
    y_low, y_high = _decades([y for of in series.values() for _, y in of])

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x_low) / (x_high - x_low)
        up = (math.log10(y) - y_low) / (y_high - y_low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [_text(LEFT, 18, f"Seconds, by {title}", "title")]
    for power in range(y_low, y_high + 1):
        (left, y), (right, _) = at(10**x_low, 10**power), at(10**x_high, 10**power)
        parts.append(f'<line class="grid" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{10.0**power:g}", anchor="end"))
    for value in [point["value"] for point in points]:
        x, y = at(value, 10**y_low)
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{y + 5:.1f}"/>')
        parts.append(_text(x, y + 19, _short(value), anchor="middle"))
    for number, (key, line) in enumerate((key, line) for key, line in series.items() if line):
        places = [at(x, y) for x, y in line]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline class="{key}" points="{joined}"/>')
        parts += [f'<circle class="{key}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places]
        parts.append(f'<circle class="{key}" cx="{LEFT + 110 * number + 4}" cy="{HEIGHT - 10}" r="4"/>')
        parts.append(_text(LEFT + 110 * number + 12, HEIGHT - 6, SERIES[key]))
    return "".join(parts)


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Return the powers of ten that hold ``values``, at least one apart.

    >>> _decades([0.02, 3.0]), _decades([10])
    ((-2, 1), (1, 2))
    """
    low, high = math.floor(math.log10(min(values)) + 1e-9), math.ceil(math.log10(max(values)) - 1e-9)
    return low, max(high, low + 1)


def _short(value: int) -> str:
    """Return a number as it fits under an axis.

    >>> _short(1000), _short(203_530), _short(11_172_810), _short(8)
    ('1 k', '204 k', '11 M', '8')
    """
    return f"{value / 1e6:.0f} M" if value >= 10**6 else f"{value / 1e3:.0f} k" if value >= 1000 else str(value)


def _text(x: float, y: float, said: str, style: str = "", anchor: str = "start") -> str:
    own = f' class="{style}"' if style else ""
    return f'<text{own} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'
