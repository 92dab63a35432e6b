"""Charts as files for a paper: the same specifications as on the page, in the colours of its light scheme."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Literal

from edgefl.report.chart import Chart, Json
from edgefl.report.comparison import ComparisonSummary
from edgefl.report.page import CONFIG
from edgefl.util.extras import check_extra

Kind = Literal["svg", "pdf"]
_WIDTH_PX = 480
_COLOUR = re.compile(r"--([\w-]+): (#\w+);")


def comparison_charts(summary: ComparisonSummary) -> list[Chart]:
    """Return the charts of a comparison."""
    from edgefl.report.compare_charts import accuracy_charts, colours_of, tier_chart
    from edgefl.report.compare_page_budget import front_charts

    return [*front_charts(summary, colours_of(summary)), *accuracy_charts(summary), tier_chart(summary)]


def write_charts(charts: Iterable[Chart], out: Path, kind: Kind) -> None:
    """Write every chart that has something to draw to ``out``, a file each."""
    for chart in charts:
        if chart.spec is not None:
            (out / f"{chart.key}.{kind}").write_bytes(drawn(chart, kind))


def drawn(chart: Chart, kind: Kind) -> bytes:
    """Return a chart as SVG or PDF."""
    check_extra("a chart as a file", "vl_convert", "edgefl-sim[figures]")
    import vl_convert

    spec = light({**(chart.spec or {}), "width": _WIDTH_PX, "config": {**CONFIG, "background": "white"}})
    return vl_convert.vegalite_to_svg(spec).encode() if kind == "svg" else bytes(vl_convert.vegalite_to_pdf(spec))


def light(spec: Json) -> str:
    """Return a specification with the page's light colours in the place of its CSS variables."""
    return re.sub(r"var\(--([\w-]+)\)", lambda found: _light().get(found[1], "#1d2329"), json.dumps(spec))


@cache
def _light() -> dict[str, str]:
    """Return the colours of the light scheme, which comes first."""
    found = _COLOUR.findall(Path(__file__).with_name("page.css.j2").read_text(encoding="utf-8"))
    return dict(reversed(found))
