"""What pages have in common: the template engine, and Plotly's code inside the file, so that nothing is loaded from a network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from edgefl.report.plot import Chart


def render_page(template: str, drawn: Iterable[Chart], **values: Any) -> str:
    """Return a page; everything but Plotly's own code is escaped.

    Args:
        template: a file of this folder that extends ``page.html.j2``.
        drawn: charts whose figures the page draws; the template places them by their keys.
        values: what the template names.
    """
    environment = Environment(
        loader=PackageLoader("edgefl", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        figures={chart.key: chart.figure for chart in drawn if chart.figure is not None},
        plotlyjs=get_plotlyjs(),
        plotlyjs_version=get_plotlyjs_version(),
        **values,
    )
